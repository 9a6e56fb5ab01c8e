"""Which memory ran out, of which device, and how its pool was: sums worked out by hand."""

from __future__ import annotations

import pytest

from moeprof.projector.oom import (
    ALREADY_FULL,
    FRAGMENTED,
    HOST_MEMORY,
    NOT_GROWN,
    NOT_LOADED,
    NOT_RESERVED,
    ON_CHIP,
    PROGRAM_TOO_LARGE,
)
from moeprof.projector.oom.changes import changes
from moeprof.projector.oom.contents import LISTED, listed_buffers
from moeprof.projector.oom.document import build_oom
from moeprof.projector.oom.explain import explain
from moeprof.projector.oom.read import messages_in
from moeprof.projector.oom.sources import Told

MIB, GIB = 1 << 20, 1 << 30
RAISED = "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: "


def out_of(pool: str, gib: float, *, end: str = "") -> str:
    size = round(gib * GIB)
    return (
        f"2026-03-04 05:06:07.000001: W external/xla/bfc_allocator.cc:501] Allocator ({pool}) ran "
        f"out of memory trying to allocate {gib:.2f}GiB (rounded to {size}){end}requested by op "
    )


def dump(pool: str, limit: float, in_use: float, *, taken: float | None = None) -> list[str]:
    taken = limit if taken is None else taken
    return [
        f"I x/bfc_allocator.cc:1040] BFCAllocator dump for {pool}",
        f"I x/bfc_allocator.cc:1059] Sum Total of in-use chunks: {in_use:.2f}GiB",
        f"I x/bfc_allocator.cc:1061] Total bytes in pool: {round(taken * GIB)} memory_limit_: "
        f"{round(limit * GIB)} available bytes: {round((limit - taken) * GIB)} "
        "curr_region_allocation_bytes_: 8589934592",
        "I x/bfc_allocator.cc:1067] Stats: ",
        f"Limit:                  {round(limit * GIB)}",
        f"InUse:                  {round(in_use * GIB)}",
        "LargestFreeBlock:                    0",
    ]


def raised(gib: float) -> str:
    return f"{RAISED}Out of memory while trying to allocate {round(gib * GIB)} bytes."


def refused(gib: float, where: str = "from device: RESOURCE_EXHAUSTED: : ") -> str:
    size = round(gib * GIB)
    return (
        f"E x/cuda_executor.cc:900] failed to allocate {gib:.2f}GiB ({size} bytes) {where}"
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory"
    )


def only(*lines: str):
    (message,) = messages_in(lines)
    return message, explain(message)


def document(*lines: str):
    told = [Told(m, listed_buffers(m.program)) for m in messages_in(lines)]
    return build_oom("train.log", told)


# -- how the pool was


def test_a_full_pool_is_full():
    """3 asked, 40 - 38 = 2 free: 1 too much, and no fraction of the request is in pieces."""
    _, found = only(out_of("GPU_0_bfc", 3), *dump("GPU_0_bfc", 40, 38), raised(3))
    assert (found.verdict, found.state) == (ALREADY_FULL, "full")
    assert found.excess_bytes == GIB


def test_a_pool_with_room_in_pieces_is_fragmented():
    """3 asked where 40 - 30 = 10 are free and the largest piece has 2."""
    chunk = f"I x/bfc_allocator.cc:1050] Free  at 7f2200000000 of size {2 * GIB} next 9"
    lines = [out_of("GPU_0_bfc", 3), chunk, *dump("GPU_0_bfc", 40, 30), raised(3)]
    _, found = only(*lines)
    assert (found.verdict, found.state) == (FRAGMENTED, "fragmented")
    assert "10.0 GiB were free, but in no piece of 3.0 GiB (the largest piece is 2.0 GiB)" in (
        found.sentence
    )


def test_a_pool_that_may_take_more_and_gets_none_could_not_grow():
    """24 of 40 taken: 16 left to take would hold the 3, if the device had them."""
    lines = [out_of("GPU_0_bfc", 3), *dump("GPU_0_bfc", 40, 23, taken=24), raised(3)]
    _, found = only(*lines)
    assert (found.verdict, found.state) == (NOT_GROWN, "could_not_grow")
    assert "it had taken 24.0 GiB of the 40.0 GiB" in found.sentence
    names = [change.name for change in changes(found, LISTED.frame())]
    assert names == ["free the device", "take the pool at the start"]


def test_a_growing_pool_that_is_at_its_limit_is_full():
    """39 of 40 taken and in use: 1 is left to take, 3 were asked."""
    lines = [out_of("GPU_0_bfc", 3), *dump("GPU_0_bfc", 40, 39, taken=39), raised(3)]
    assert only(*lines)[1].state == "full"


def test_what_is_left_to_take_and_free_pieces_do_not_add_up():
    """2 left to take, 2 free in the 38 taken: 4 free for 3 asked, nowhere 3 in one."""
    lines = [out_of("GPU_0_bfc", 3), *dump("GPU_0_bfc", 40, 36, taken=38), raised(3)]
    assert only(*lines)[1].verdict == FRAGMENTED


def test_what_the_driver_refused_right_before_is_why_the_pool_could_not_grow():
    """Tries of 8 and 3.1 GiB were refused; the next one, 0.9 × 3.1 = 2.79, holds no 3 GiB."""
    message, found = only(refused(8), refused(3.1), out_of("GPU_6_bfc", 3), raised(3))
    assert found.verdict == NOT_GROWN
    assert "the driver refused 3.1 GiB" in found.sentence
    assert message.devices == ("6",)


def test_a_pool_that_was_not_reserved_whole_is_another_failure():
    """64 and 57.6 GiB were refused and 51.84 given at the start; 3 GiB failed in it later."""
    messages = messages_in([refused(64), refused(57.6), out_of("GPU_0_bfc", 3), raised(3)])
    assert {explain(message).verdict for message in messages} == {NOT_RESERVED, "cannot_be_told"}


def test_the_newer_summary_of_the_allocator_tells_pool_and_pieces():
    """48 - 40 = 8 free in a pool that is taken whole, at most 1.5 in one piece, for 2 asked."""
    summary = (
        "I x/bfc_allocator.cc:1330] Allocator memory summary: rounded request 2.00GiB, total free "
        "in pool 8.00GiB, largest free chunk usable by lower end 1.50GiB, unallocated bytes 0B, "
        "pool size 48.00GiB, pool limit 48.00GiB"
    )
    in_use = f"InUse:     {40 * GIB}"
    first = out_of("GPU_1_bfc", 2, end=" from the lower end ")
    message, found = only(first, summary, in_use, raised(2))
    assert found.verdict == FRAGMENTED
    assert message.pool.largest_free_bytes == 3 * GIB // 2
    assert message.failure.request_bytes == 2 * GIB


def test_a_pool_of_the_driver_says_what_the_device_has_left():
    """5 asked of cuda_async; its limit of 60 has 60 - 20 = 40 left, the device 1."""
    lines = [
        f"E x/gpu_cudamallocasync_allocator.cc:359] gpu_async_2 cuMemAllocAsync failed to allocate "
        f"{5 * GIB} bytes: RESOURCE_EXHAUSTED: : CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        f" Reported by CUDA: Free memory/Total memory: {GIB}/{80 * GIB}",
        "E x/gpu_cudamallocasync_allocator.cc:364] Stats: ",
        f"Limit:       {60 * GIB}",
        f"InUse:       {20 * GIB}",
        raised(5),
    ]
    message, found = only(*lines)
    assert (message.devices, found.verdict) == (("2",), NOT_GROWN)
    assert "the device had 1.0 GiB left" in found.sentence


# -- which device


def test_devices_that_failed_otherwise_are_failures_of_their_own():
    """GPU 1: 63 of 64 in use. GPU 3: 44 of 64, so that 20 are free for the same 5."""
    told = document(
        out_of("GPU_1_bfc", 5), *dump("GPU_1_bfc", 64, 63),
        out_of("GPU_3_bfc", 5), *dump("GPU_3_bfc", 64, 44), raised(5),
    )["messages"]  # fmt: skip
    assert [(m["devices"], m["state"]) for m in told] == [(["1"], "full"), (["3"], "fragmented")]
    assert [m["pool"]["in_use_bytes"] for m in told] == [63 * GIB, 44 * GIB]


def test_devices_that_failed_alike_are_one_failure():
    told = document(
        out_of("GPU_0_bfc", 5), *dump("GPU_0_bfc", 64, 63),
        out_of("GPU_4_bfc", 5), *dump("GPU_4_bfc", 64, 63), raised(5),
    )["messages"]  # fmt: skip
    assert [m["devices"] for m in told] == [["0", "4"]]


def test_what_ended_the_step_comes_first():
    """The pool of GPU 2 asked for 9 GiB and went on with less; the step fell by 4 on GPU 7."""
    told = document(
        out_of("GPU_2_bfc", 9), *dump("GPU_2_bfc", 32, 30),
        out_of("GPU_7_bfc", 4), *dump("GPU_7_bfc", 32, 31), raised(4),
    )["messages"]  # fmt: skip
    assert [m["devices"] for m in told] == [["7"], ["2"]]


# -- which memory


def test_the_pool_of_pinned_memory_is_the_hosts():
    """9 asked, 64 - 60 = 4 free: 5 too much, so 69 GiB would do."""
    pool = "xla_gpu_host_bfc"
    message, found = only(out_of(pool, 9), *dump(pool, 64, 60), raised(9))
    assert (found.verdict, found.space, found.state) == (HOST_MEMORY, "pinned_host", "full")
    assert (found.excess_bytes, message.devices) == (5 * GIB, ())
    larger, less = changes(found, LISTED.frame())
    assert "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=69" in larger.text
    assert less.name == "less on the host"


def test_a_host_that_gives_no_more_pinned_memory_is_not_helped_by_a_larger_limit():
    """Tries of 4 and 2.2 GiB were refused; 0.9 × 2.2 = 1.98 would not hold the 2 asked."""
    tries = [
        f"E x/cuda_driver.cc:1500] failed to alloc {size} bytes on host: CUDA_ERROR_OUT_OF_MEMORY"
        for size in (4 * GIB, round(2.2 * GIB))
    ]
    _, found = only(*tries, out_of("xla_gpu_host_bfc", 2), raised(2))
    assert (found.verdict, found.state) == (HOST_MEMORY, "could_not_grow")
    assert [change.name for change in changes(found, LISTED.frame())] == ["less on the host"]


@pytest.mark.parametrize(
    ("line", "memory", "needed", "there"),
    [
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 90112, "
         "Hardware limit: 65536. Reducing block sizes or `num_stages` may help.",
         "shared memory (LDS on AMD)", 90_112, 65_536),
        (f"{RAISED}Shared memory size limit exceeded: requested 245760, available: 232448",
         "shared memory (LDS on AMD)", 245_760, 232_448),
        ("ValueError: Mosaic GPU kernel exceeds available shared memory smem_bytes=240000 > 232448",
         "shared memory (LDS on AMD)", 240_000, 232_448),
        ("ptxas error   : Entry function 'k' uses too much shared data (0x14000 bytes, 0xc000 max)",
         "shared memory (LDS on AMD)", 81_920, 49_152),
        ("error: local memory (81920) exceeds limit (65536) in function 'grouped'",
         "shared memory (LDS on AMD)", 81_920, 65_536),
        ("out of resource: tensor memory, Required: 768, Hardware limit: 512", "tensor memory",
         None, None),
        (f"{RAISED}E1001: CompileTimeScopedVmemOom: Ran out of memory in memory space vmem while "
         "allocating on stack for %gmm = bf16[4096,512] custom-call(). Scoped allocation with size "
         "20.00M and limit 16.00M exceeded scoped vmem limit by 4.00M.", "VMEM", 20 * MIB,
         16 * MIB),
        (f"{RAISED}XLA:TPU compile permanent error. Ran out of memory in memory space smem. Used "
         "1.50M of 1.00M smem. Exceeded smem capacity by 512.0K.", "SMEM", 3 * MIB // 2, MIB),
        (f"{RAISED}Allocation (size=83886080) would exceed memory (size=67108864) :: #allocation9 "
         "[shape = 'u8[83886080]{0}', space=vmem, size = 0x5000000]", "VMEM", 80 * MIB, 64 * MIB),
    ],
)  # fmt: skip
def test_memory_on_the_chip_is_not_the_models(line, memory, needed, there):
    (message,) = document(line)["messages"]
    assert (message["verdict"], message["memory"]) == (ON_CHIP, memory)
    assert (message["program"]["needed_bytes"], message["pool"]["limit_bytes"]) == (needed, there)
    assert [change["name"] for change in message["changes"]] == ["smaller blocks"]


def test_the_cores_of_a_tpu_share_its_memory():
    """20 + 90 = 110 of 96 GiB: 14 too much."""
    _, found = only(
        f"{RAISED}TPU TensorCore Hbm usage: 20.00G, SparseCore Hbm usage 90.00G, exceeding "
        "available bytes: 96.00G"
    )
    assert (found.verdict, found.space, found.excess_bytes) == (PROGRAM_TOO_LARGE, "hbm", 14 * GIB)


def test_a_program_that_a_tpu_cannot_load_is_told_as_that():
    """11 asked at the bottom, 9.5 free: 1.5 too much."""
    message, found = only(
        f"{RAISED}Error loading program 'jit_step': Attempting to reserve 11.00G at the bottom of "
        "memory. That was not possible. There are 9.50G free, 0B reserved, and 9.50G reservable. "
        "Scope: unknown..: while running replica 0 and partition 13 of a replicated computation"
    )
    assert (found.verdict, found.state, found.excess_bytes) == (NOT_LOADED, "full", 3 * GIB // 2)
    assert "the program 'jit_step' could not be loaded" in found.sentence
    assert message.devices == ("13",)


def test_a_program_that_finds_no_place_in_one_piece_is_told_as_that():
    """4 asked where 6 are free, 2.5 of them in one piece: 1.5 are missing there."""
    _, found = only(
        f"{RAISED}Error loading program 'jit_step': Attempting to reserve 4.00G at the bottom of "
        "memory. That was not possible. There are 6.00G free, 0B reserved, and 2.50G reservable."
    )
    assert (found.state, found.excess_bytes) == ("fragmented", 3 * GIB // 2)


def test_the_host_itself_is_its_own_memory():
    (message,) = document("MemoryError: std::bad_alloc")["messages"]
    assert (message["verdict"], message["memory"]) == (HOST_MEMORY, "host memory")


def test_the_memory_is_named_where_nothing_else_is_told():
    (message,) = document(raised(3))["messages"]
    assert (message["memory"], message["state"]) == ("device memory (HBM)", "")


# -- what fills it


def peak(*buffers: str) -> list[str]:
    return ["Peak buffers:", *(line for text in buffers for line in text.splitlines())]


def argument(size: str, shape: str) -> str:
    return f"Buffer 1:\nSize: {size}\nEntry Parameter Subshape: {shape}\n====="


def written(size: str, name: str, shape: str) -> str:
    return (
        f'Buffer 1:\nSize: {size}\nOperator: op_name="{name}"\nXLA Label: fusion\nShape: {shape}\n'
        "====="
    )


def test_arguments_of_the_program_are_kept_in_the_list():
    message, _ = only(
        raised(9),
        *peak(
            argument("3.00GiB", "f32[48,4096,4096]"),
            written("2.00GiB", "jit(step)/jvp(block)/mlp/dot", "bf16[262144,4096]"),
            argument("1.50GiB", "f32[24,4096,4096]"),
        ),
    )
    rows = listed_buffers(message.program)
    held = rows[rows["content"].eq("arguments")]
    assert held["size_bytes"].tolist() == [3 * GIB, 3 * GIB // 2]
    assert held["shape"].tolist() == ["f32[48,4096,4096]", "f32[24,4096,4096]"]


BACK = "jit(step)/transpose(jvp(block))/moe/experts/ragged_dot_general"
AHEAD = "jit(step)/jvp(block)/moe/experts/ragged_dot_general"


@pytest.mark.parametrize(
    "buffers",
    [
        [written("6.00GiB", BACK, "f32[96,4096,4096]")],
        [written("6.00GiB", BACK, "bf16[48,5120,1536]"), argument("6.00GiB", "bf16[48,5120,1536]")],
        [written("6.00GiB", BACK, "bf16[5120,1536]"), argument("6.00GiB", "bf16[48,5120,1536]")],
        [written("6.00GiB", AHEAD, "bf16[48,5120,1536]")],
        [argument("6.00GiB", "bf16[48,5120,1536]")],
    ],
)
def test_weights_and_their_gradients_are_not_helped_by_a_limit_on_rows(buffers):
    message, found = only(raised(9), *peak(*buffers))
    names = [change.name for change in changes(found, listed_buffers(message.program))]
    assert "a limit on received rows" not in names


def test_the_limit_on_rows_saves_the_rows_alone():
    """2 GiB of rows beside 6 GiB of a gradient."""
    message, found = only(
        raised(9),
        *peak(
            written("6.00GiB", BACK, "bf16[48,5120,1536]"),
            written("2.00GiB", AHEAD, "bf16[699050,1536]"),
        ),
    )
    every = {c.name: c.saves_bytes for c in changes(found, listed_buffers(message.program))}
    assert every["a limit on received rows"] == 2 * GIB


def test_two_failures_are_listed_before_they_are_told():
    from moeprof.reports.oom import oom_text

    text = oom_text(
        document(
            out_of("GPU_1_bfc", 5), *dump("GPU_1_bfc", 64, 63),
            out_of("GPU_3_bfc", 5), *dump("GPU_3_bfc", 64, 44), raised(5),
        )
    ).plain  # fmt: skip
    assert text.startswith(
        "2 failures; the first is the cause:\n1. pool already full: device memory (HBM), device 1\n"
    )
    assert "2. pool fragmented: device memory (HBM), device 3" in text
