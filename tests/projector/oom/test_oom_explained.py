"""Why there was no room, and what to change: verdicts by sums worked out by hand."""

from __future__ import annotations

import json

import pytest

from moeprof.projector.oom import (
    ALREADY_FULL,
    FRAGMENTED,
    NOT_TOLD,
    ON_CHIP,
    OUTSIDE_POOL,
    PROGRAM_TOO_LARGE,
    TOGETHER_TOO_LARGE,
)
from moeprof.projector.oom.capacity import Capacity, capacity_of_run
from moeprof.projector.oom.changes import changes
from moeprof.projector.oom.contents import LISTED, groups_of, listed_buffers
from moeprof.projector.oom.explain import explain
from moeprof.projector.oom.read import messages_in

GIB = 1 << 30
H100 = Capacity(80 * GIB, round(0.93 * 80 * GIB))


def failed(request: str, *more: str):
    error = f"RESOURCE_EXHAUSTED: Out of memory while trying to allocate {request}."
    (message,) = messages_in([error, *more])
    return message


def stats(argument: str, temp: str, total: str) -> tuple[str, ...]:
    return (
        "BufferAssignment stats:",
        f"             parameter allocation:    {argument}",
        f"     preallocated temp allocation:    {temp}",
        f"                 total allocation:    {total}",
    )


def state(in_use: str, limit: str) -> tuple[str, ...]:
    return (f"Limit:    {limit}", f"InUse:    {in_use}")


def peak(*buffers: tuple[str, str, str]) -> tuple[str, ...]:
    lines = ["Peak buffers:"]
    for size, op_name, shape in buffers:
        lines += ["\tBuffer 1:", f"\t\tSize: {size}", f'\t\tOperator: op_name="{op_name}"']
        lines += ["\t\tXLA Label: fusion", f"\t\tShape: {shape}", "\t\t====================="]
    return tuple(lines)


def test_a_small_request_did_not_fill_the_pool():
    """6 MiB asked, the program needs 12 MiB in all, 74.1 of 74.4 GiB were in use."""
    message = failed("6.00MiB", *stats("6.00MiB", "0B", "12.00MiB"), *state("74.1GiB", "74.4GiB"))
    found = explain(message)
    assert found.verdict == ALREADY_FULL
    assert "pool was already full (74.1 GiB held by earlier arrays/other programs" in found.sentence
    assert found.is_arena is False
    (change,) = changes(found, listed_buffers(message.program))
    assert change.name == "free what the pool holds"


def test_a_program_that_needs_more_than_the_pool_is_too_large_alone():
    """66.0 of arguments and 9.6 of arena are 75.6 GiB; the pool has 74.4: 1.2 too much."""
    told = stats("66.00GiB", "9.60GiB", "75.60GiB")
    found = explain(failed("9.60GiB", *told, *state("66.0GiB", "74.4GiB")))
    assert found.verdict == PROGRAM_TOO_LARGE
    assert found.is_arena is True
    assert found.excess_bytes == pytest.approx(1.2 * GIB, abs=2)


def test_a_program_that_fits_alone_and_not_beside_others():
    """40 needed, of which 10 are held already; others hold 45 of 74: 30 asked, 19 free."""
    told = stats("10.00GiB", "30.00GiB", "40.00GiB")
    found = explain(failed("30.00GiB", *told, *state("55.0GiB", "74.0GiB")))
    assert found.verdict == TOGETHER_TOO_LARGE
    assert found.held_bytes == 45 * GIB
    assert found.excess_bytes == 11 * GIB


def test_enough_that_is_in_pieces_is_fragmentation():
    found = explain(failed("9.60GiB", *state("60.0GiB", "74.0GiB"), "LargestFreeBlock: 5.0GiB"))
    assert found.verdict == FRAGMENTED
    assert "largest piece is 5.0 GiB" in found.sentence
    assert changes(found, LISTED.frame())[0].name == "an allocator that joins pieces"


def test_without_any_state_it_is_said_what_is_not_told():
    message = failed("212.00GiB")
    found = explain(message)
    assert found.verdict == NOT_TOLD
    assert found.is_arena is None
    assert len(found.not_told) == 3  # what the pool held, whether it is the arena, the pool's size
    assert changes(found, listed_buffers(message.program)) == ()


def test_a_stated_device_tells_what_else_there_was_room_for():
    """0.93 of 287.98 GiB are 267.8; 212 asked leaves 55.8, and 58.6 of weights were there."""
    capacity = Capacity(round(287.98 * GIB), round(0.93 * 287.98 * GIB))
    found = explain(failed("212.00GiB"), capacity)
    assert "room for 55.8 GiB" in found.sentence


def test_a_request_beyond_the_stated_pool_is_too_large_alone():
    found = explain(failed("226.26GiB"), H100)
    assert found.verdict == PROGRAM_TOO_LARGE
    assert found.excess_bytes == pytest.approx((226.26 - 74.4) * GIB, abs=2)


def test_outside_the_pool_a_larger_pool_makes_it_worse():
    """80 GiB · (1 - 0.93) = 5.6 GiB are left beside the pool; the pool's peak was 72 GiB."""
    (message,) = messages_in(
        ["NCCL WARN Cuda failure 2 'out of memory'", "MaxInUse: 72.0GiB", "Limit: 74.4GiB"]
    )
    found = explain(message, H100)
    assert (found.verdict, found.is_inside) == (OUTSIDE_POOL, False)
    assert "leaves 5.6 GiB of 80.0 GiB" in found.sentence
    (change,) = changes(found, listed_buffers(message.program), H100)
    assert "not below 0.90" in change.text  # 72 / 80


def test_a_larger_fraction_is_named_where_the_device_has_it():
    """1.2 GiB too much of 74.4: 75.6 / 80 = 0.945, rounded up 0.95."""
    told = stats("66.00GiB", "9.60GiB", "75.60GiB")
    message = failed("9.60GiB", *told, *state("66.0GiB", "74.4GiB"))
    (change,) = changes(explain(message, H100), listed_buffers(message.program), H100)
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.95" in change.text


def test_on_chip_memory_is_not_the_devices():
    (message,) = messages_in(
        ["RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 20.00M of 16.00M vmem."]
    )
    assert explain(message).verdict == ON_CHIP


def test_buffers_are_grouped_by_layer_and_part():
    """Three buffers of 3.2 GiB of layer 7 and one of layer 8."""
    scope = "jit(train_step)/jvp(Model)/layers_{}/moe/dispatch/ragged_all_to_all"
    rows = "bf16[239675,7168]"
    three = [("3.20GiB", scope.format(7), rows)] * 3
    message = failed("9.60GiB", *peak(*three, ("1.00GiB", scope.format(8), rows)))
    first, second = groups_of(listed_buffers(message.program))
    assert (first.layer, first.layer_kind, first.component) == (7, "moe_layer", "dispatch")
    assert first.buffers == 3
    assert first.size_bytes == 3 * round(3.2 * GIB)
    assert second.layer == 8


def test_the_dense_fallback_is_recognised_and_a_grouped_product_saves_all_but_one_share():
    """Two arrays of 64 groups of 4 GiB: a grouped product holds 1/64 of each, saves 7.875 GiB."""
    scope = "jit(step)/transpose(jvp())/layers_3/moe/ragged_dot_general"
    message = failed("9.00GiB", *peak(*[("4.00GiB", scope, "bf16[64,32768,1024]")] * 2))
    buffers = listed_buffers(message.program)
    assert set(buffers["content"]) == {"dense fallback of ragged dot"}
    (change,) = changes(explain(message), buffers)
    assert change.saves_bytes == 2 * (4 * GIB - GIB // 16)


def test_scores_logits_and_rows_of_experts_each_have_their_change():
    """Logits 8 GiB in 8 tiles save 7; scores 2 GiB go whole; received rows at most 1 GiB."""
    message = failed(
        "11.00GiB",
        *peak(
            ("8.00GiB", "jit(s)/jvp(T)/decoder/logits_dense/dot_general", "f32[8,2048,131072]"),
            ("2.00GiB", "jit(s)/jvp(T)/layers/self_attention/dot_general", "f32[8,16,2048,2048]"),
            ("1.00GiB", "jit(s)/jvp(T)/layers/moe/dispatch/ragged_all_to_all", "bf16[74898,7168]"),
        ),
    )
    found = changes(explain(message), listed_buffers(message.program))
    assert [(c.name, c.saves_bytes, c.is_upper_bound) for c in found] == [
        ("tile the vocabulary", 7 * GIB, False),
        ("flash attention", 2 * GIB, False),
        ("a limit on received rows", GIB, True),
    ]


def test_rows_of_a_capacity_einsum_are_the_capacity_factors():
    scope = "jit(s)/jvp(T)/layers/moe/dispatch/BSM,BSEC -> EBCM/dot_general"
    message = failed("2.00GiB", *peak(("1.00GiB", scope, "bf16[8,64,512,2048]")))
    (change,) = changes(explain(message), listed_buffers(message.program))
    assert change.name == "a smaller capacity factor"


def test_a_captured_run_tells_device_and_fraction(tmp_path):
    """MI355X: 287.98 GiB as its runtime reports it, 0.9 of it for the pool."""
    devices = [{"id": 0, "kind": "AMD Instinct MI355X", "platform": "gpu"}]
    meta = {"schema": "moeprof.run/1", "processes": [{"devices": devices}]}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    (tmp_path / "host").mkdir()
    environment = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"}
    (tmp_path / "host" / "p0.json").write_text(json.dumps({"environment": environment}))
    found = capacity_of_run(tmp_path, None)
    assert found is not None
    assert found.device_bytes == pytest.approx(287.98 * GIB, rel=1e-4)
    assert found.pool_bytes == pytest.approx(0.9 * found.device_bytes, abs=1)
    asked = capacity_of_run(tmp_path, 0.5)
    assert asked is not None
    assert asked.pool_bytes == pytest.approx(0.5 * found.device_bytes, abs=1)


def test_a_run_of_an_unknown_device_tells_no_capacity(tmp_path):
    devices = [{"id": 0, "kind": "cpu", "platform": "cpu"}]
    meta = {"schema": "moeprof.run/1", "processes": [{"devices": devices}]}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    assert capacity_of_run(tmp_path, None) is None
    assert capacity_of_run(tmp_path / "meta.json", None) is None


def test_pytorchs_failure_is_answered_in_pytorchs_terms():
    (message,) = messages_in(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total "
        "capacity of 79.11 GiB of which 1.25 GiB is free.".splitlines()
    )
    found = explain(message)
    text = " ".join(f"{c.name} {c.text}" for c in changes(found, listed_buffers(message.program)))
    assert "jax" not in text
    assert "donate" not in text
    assert "XLA" not in text
