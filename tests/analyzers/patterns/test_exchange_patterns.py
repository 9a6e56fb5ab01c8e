"""Patterns of exchanges and of ranks that meet: a trace that shows each, and the nearest."""

import dataclasses

import pytest
from builders.work import BACKWARD, FORWARD, RECOMPUTED, exchanged, hlo, kernel, on_cpu, traced

from moeprof.analyzers.patterns import (
    exposed_exchange,
    late_rank,
    recomputed_exchange,
    slow_ragged_exchange,
    unbalanced_experts,
    unfinished_collective,
    worst_case_buffers,
)
from moeprof.analyzers.questions.hints import hints
from moeprof.tables.routing import RECEIVED, ROUTING


def test_an_exchange_that_runs_as_recompute():
    assert recomputed_exchange.find(exchanged(RECOMPUTED)).gain_ns == 700


@pytest.mark.parametrize(
    "trace",
    [exchanged(FORWARD), exchanged(BACKWARD), exchanged(RECOMPUTED, opcode="transpose")],
)
def test_an_exchange_once_each_way_is_none(trace):
    assert recomputed_exchange.find(trace) is None


def ragged(
    updates, name="void stream_executor::gpu::RaggedAllToAllKernelImpl<long>()", ns=2_000_000
):
    """Two devices exchange rows of 1 MiB at most in `ns`."""
    offsets = f"s64[{updates}]"
    return traced(
        [kernel("ragged", 0, ns, name, device=device) for device in (0, 1)],
        [
            hlo("rows", "parameter", shape="bf16[1024,512]", size_bytes=1 << 20, parameter=0),
            hlo("room", "parameter", shape="bf16[2048,512]", size_bytes=1 << 21, parameter=1),
            hlo("at", "parameter", shape=offsets, size_bytes=8 * updates, parameter=2),
            hlo("ragged", "ragged-all-to-all", "rows room at at at at", 1 << 21,
                shape="bf16[2048,512]", replica_groups="{{0,1}}",
                op_name=FORWARD + "dispatch/ragged_all_to_all"),
        ],
    )  # fmt: skip


def test_few_updates_per_peer_starve_the_one_shot_kernel():
    hint = slow_ragged_exchange.find(ragged(updates=2))
    assert hint.gain_ns == 2_000_000
    assert "1 update(s) per peer" in hint.evidence
    assert "at most 1.000 MiB, so at most 0.5 GB/s" in hint.evidence  # 1,048,576 B in 2 ms


@pytest.mark.parametrize(
    "trace",
    [
        ragged(updates=256),
        ragged(updates=2, name="ncclDevKernel_SendRecv"),
        ragged(updates=2, ns=0),  # no time to save, and no rate
    ],
)
def test_many_updates_nccl_or_no_time_do_not(trace):
    assert slow_ragged_exchange.find(trace) is None


def late(by_ns):
    """Rank 1 enters every all-to-all `by_ns` after rank 0; both leave together; 4 steps."""
    events = []
    for step in range(4):
        start = 10_000 * step
        for device, late_ns in ((0, 0), (1, by_ns)):
            length = 1000 - late_ns
            at = start + late_ns
            events += [kernel("a2a", at, length, device=device, step=step)]
            events += [kernel("k", start + 1000, 1000, device=device, step=step)]
    ops = [
        hlo("a2a", "all-to-all", "k", 64, shape="f32[8]", replica_groups="{{0,1}}"),
        hlo("k", "add", shape="f32[8]", size_bytes=32),
    ]
    return traced(events, ops)


def test_a_rank_that_all_others_wait_for():
    hint = late_rank.find(late(400))
    assert hint.gain_ns == 400
    assert hint.evidence.startswith("others wait 400 ns a step for rank 1")
    assert "it is the most waited-for in 4 of 4 step(s)" in hint.evidence


def beside(*works):
    """Each rank works on its own ops (op: ns), then meets the others at 1000; one step, 3 ranks."""
    events = []
    for device, mine in enumerate(works):
        at = 0
        for op, length in mine.items():
            at += length if op == "gap" else 0
            if op != "gap":
                events.append(kernel(op, at, length, device=device))
                at += length
        events.append(kernel("a2a", at, 1100 - at, device=device))
    ops = [
        hlo("a2a", "all-to-all", shape="f32[8]", replica_groups="{{0,1,2}}"),
        *(
            hlo(
                op, "multiply", shape="f32[8]", op_name=FORWARD + "gate/mul", frames="/a/b/f.py:7:g"
            )
            for op in ("p", "q", "r", "s", "t", "u")
        ),
    ]
    return traced(events, ops, {0: (0, 1100)})


def test_a_late_rank_is_told_with_the_op_that_it_runs_longer():
    """Others wait 1000 − 350 and 1000 − 300, 675 on average; r takes 650 against 50 and 0."""
    hint = late_rank.find(beside({"p": 300, "r": 50}, {"p": 300}, {"p": 350, "r": 650}))
    assert hint.gain_ns == 675
    assert hint.evidence.endswith(
        "It runs r (router, f.py:7) 625 ns a step longer than the median of the other ranks, "
        "92.6 % of that waiting"
    )


def test_a_late_rank_whose_ops_all_take_a_little_longer():
    """Six ops of 100 against 50 each: others wait 300, each op is 50 of it, all are 300."""
    slow, fast = dict.fromkeys("pqrstu", 100), dict.fromkeys("pqrstu", 50)
    hint = late_rank.find(beside(fast, fast, slow))
    assert hint.evidence.endswith(
        "No single op explains it: all its ops together take 300 ns a step longer than the median "
        "of the other ranks"
    )
    assert "clock" in hint.change


def test_a_late_rank_that_idled():
    hint = late_rank.find(beside({"p": 100}, {"p": 100}, {"gap": 400, "p": 100}))
    assert hint.evidence.endswith("It idles 400 ns a step longer than the median of the others")
    assert "host" in hint.change


def test_what_shares_of_gains_are_of_is_said():
    analysis = hints(late(400))
    gains = analysis.table.set_index("hint")["gain_share"]
    assert gains["late_rank"] == pytest.approx(400 / 10_000)
    assert gains["idle_between_steps"] == pytest.approx(8_000 / 10_000)
    assert "shares are of the mean interval from step to step, 10.00 µs" in analysis.notes


def test_ranks_that_arrive_together():
    assert late_rank.find(late(0)) is None


def test_an_exchange_that_runs_alone():
    hint = exposed_exchange.find(exchanged(FORWARD))
    assert hint.gain_ns == 700
    assert "700 ns a step (70.0 % of it)" in hint.evidence


@pytest.mark.parametrize("trace", [exchanged(FORWARD, other=(0, 1000)), on_cpu(exchanged(FORWARD))])
def test_an_exchange_that_hides_or_shares_its_cores(trace):
    assert exposed_exchange.find(trace) is None


def routed(*tokens):
    """One layer, 4 experts on 2 ranks, 100 ns of grouped products."""
    trace = traced(
        [kernel("up", 0, 100)],
        [hlo("up", "custom-call", shape="bf16[64,8]", custom_call_target="moeprof_grouped_gemm",
             op_name=FORWARD + "experts/c")],
    )  # fmt: skip
    rows = [
        {"step": 0, "layer": 5, "expert": expert, "rank": expert // 2, "tokens": count}
        for expert, count in enumerate(tokens)
    ]
    meta = dataclasses.replace(trace.meta, are_steps_numbered_by_script=True)
    recorded = {"routing": ROUTING.frame(rows), "received": RECEIVED.frame()}
    return dataclasses.replace(trace, meta=meta, **recorded)


def test_a_rank_with_most_of_the_tokens():
    hint = unbalanced_experts.find(routed(50, 10, 10, 10))
    assert "in layer 5 rank 0 gets 1.50 × the mean" in hint.evidence  # 60 of a mean of 40
    assert "expert 0 2.50 × the mean" in hint.evidence  # 50 of a mean of 20
    assert hint.gain_ns == pytest.approx(100 * (60 - 40) / 40)


def test_ranks_that_are_even():
    assert unbalanced_experts.find(routed(30, 10, 10, 30)) is None


def buffered(*rows):
    """A receive buffer of 64 rows × 8 bf16 = 1024 bytes; `rows` of it hold tokens, by rank."""
    trace = traced(
        [kernel("recv", 0, 100)],
        [
            hlo("x", "parameter", shape="bf16[16,8]", parameter=0),
            hlo("recv", "custom-call", "x", shape="bf16[64,8]", op_name=FORWARD + "dispatch/c",
                custom_call_target="moeprof_moe_dispatch_inproc"),
        ],
    )  # fmt: skip
    received = [
        {"step": 0, "layer": 0, "group": 0, "rank": r, "rows": count}
        for r, count in enumerate(rows)
    ]
    meta = dataclasses.replace(trace.meta, are_steps_numbered_by_script=True)
    return dataclasses.replace(
        trace, meta=meta, received=RECEIVED.frame(received), routing=ROUTING.frame()
    )


def test_buffers_that_are_mostly_empty():
    """The mean rank uses 16 of 64 rows, the fullest 24: a cap at those drops nothing."""
    hint = worst_case_buffers.find(buffered(8, 16, 16, 24))
    assert hint.gain_bytes == 1024 - 24 * 16
    assert "25.0 % used" in hint.evidence
    assert hint.evidence.endswith(
        "a cap at what the fullest rank used (24 rows) would have dropped nothing here, and saves "
        "640 B of the 1 buffer(s) where that is known if all of them live at once"
    )


def test_buffers_that_are_filled():
    assert worst_case_buffers.find(buffered(48, 48, 48, 48)) is None


def silent(*, opcode="ragged-all-to-all", used=False, recorded_s=60):
    """Work until 1 us after the start of a capture of a minute, in a step that was cut."""
    trace = traced(
        [kernel("add.1", 0, 1000)],
        [
            hlo("add.1", "add", shape="f32[8]"),
            hlo("x", opcode, "add.1 add.1 add.1 add.1 add.1 add.1", shape="f32[8]"),
        ],
    )
    meta = dataclasses.replace(trace.meta, recorded_ns=recorded_s * 1_000_000_000)
    return dataclasses.replace(
        trace, meta=meta, steps=trace.steps.assign(used=used, module=7, reason="cut")
    )


def test_devices_that_fall_silent_before_a_ragged_exchange():
    hint = unfinished_collective.find(silent())
    assert "do nothing for 60.00 s" in hint.evidence
    assert "last work to end is add.1" in hint.evidence
    assert "ragged_all_to_all_decomposer=true" in hint.change


@pytest.mark.parametrize(
    "trace", [silent(opcode="add"), silent(used=True), silent(recorded_s=5), silent(recorded_s=0)]
)
def test_devices_that_are_done_have_not_hung(trace):
    assert unfinished_collective.find(trace) is None


def test_a_hang_in_a_plain_exchange_names_no_flag():
    assert "decomposer" not in unfinished_collective.find(silent(opcode="all-to-all")).change
