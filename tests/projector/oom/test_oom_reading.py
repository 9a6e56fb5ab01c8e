"""Which messages a log holds: the forms of runtimes, compilers and libraries."""

from __future__ import annotations

import gzip
import os
import threading

import pytest

from moeprof.errors import TraceError
from moeprof.projector.oom import COMPILE, HOST, OUTSIDE, POOL, RESERVE
from moeprof.projector.oom.contents import listed_buffers
from moeprof.projector.oom.document import build_oom
from moeprof.projector.oom.log_lines import size_bytes
from moeprof.projector.oom.read import messages_in, read_log
from moeprof.projector.oom.sources import Told

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def read(text: str):
    return messages_in(text.splitlines())


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("226.26GiB", round(226.26 * GIB)),
        ("6291456 bytes", 6_291_456),
        ("3.39G (3640655872 bytes)", 3_640_655_872),
        ("3.39GiB (3640655872B)", 3_640_655_872),
        ("6.08G (   6,532,939,776 bytes)", 6_532_939_776),
        ("481.0K", 481 * KIB),
        ("0B", 0),
        ("-2.55G", -round(2.55 * GIB)),
        ("1.5 GB", 1_500_000_000),  # decimal, as it is written
        ("nothing", None),
        ("99999999999999999999GiB", None),  # no memory has that
    ],
)
def test_a_size_is_read_in_the_unit_that_it_is_written_in(text, size):
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    ("line", "kind", "who", "size"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 226.26GiB.", POOL,
         "XLA's pool", round(226.26 * GIB)),
        ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 92198188384 "
         "bytes.", POOL, "XLA's pool", 92_198_188_384),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 6291456 bytes.", POOL, "XLA's pool",
         6_291_456),
        ("E external/x/y.cc:55] Resource exhausted: Failed to allocate request for 3.39GiB "
         "(3640655872B) on device ordinal 0", POOL, "XLA's pool", 3_640_655_872),
        ("W external/xla/bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out of memory trying to "
         "allocate 85.87GiB (rounded to 92198188544)requested by op", POOL, "GPU_0_bfc",
         92_198_188_544),
        ("RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 4.39G. That "
         "was not possible. There are 2.30G free.; (0x0x0_HBM0)", POOL, "TPU runtime",
         round(4.39 * GIB)),
        ("2019-06-08 03:44:36.084180: E x/cuda_driver.cc:828] failed to allocate 3.39G (3640655872 "
         "bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory", RESERVE, "the driver",
         3_640_655_872),
        ("E x/rocm_driver.cc:606] failed to allocate 890.06M (933298432 bytes) from device: "
         "HIP_ERROR_OutOfMemory", RESERVE, "the driver", 933_298_432),
        ("could not allocate pinned host memory of size: 8589934592 from host: OUT_OF_MEMORY",
         HOST, "pinned host memory", 8_589_934_592),
        ("n1:12:34 [3] init.cc:12 NCCL WARN Cuda failure 2 'out of memory'", OUTSIDE, "NCCL",
         None),
        ("NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled cuda error. "
         "Last NCCL warning(error) log entry (may be unrelated) 'Cuda failure 2 'out of memory''.",
         OUTSIDE, "NCCL", None),
        ("n1:12:34 [0] NCCL WARN HIP failure 'out of memory'", OUTSIDE, "RCCL", None),
        ("RuntimeError: Failed: CUDA error /w/DeepEP/csrc/deep_ep.cpp:89 'out of memory'", OUTSIDE,
         "DeepEP", None),
        ("deep_ep: Failed to allocate 2384731136 bytes for the NVL buffer", OUTSIDE, "DeepEP",
         2_384_731_136),
        ("/nvshmem/src/host/mem/mem_heap.cpp:1509: non-zero status: 2 cuMemCreate failed", OUTSIDE,
         "NVSHMEM", None),
        ("hipMalloc failed: hipErrorOutOfMemory", OUTSIDE, "the driver", None),
        ("cublasCreate: CUBLAS_STATUS_ALLOC_FAILED", OUTSIDE, "CUBLAS", None),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a "
         "total capacity of 79.11 GiB of which 1.25 GiB is free.", POOL, "PyTorch's allocator",
         2 * GIB),
    ],
)  # fmt: skip
def test_a_failed_allocation_is_told_by_whom_and_of_how_much(line, kind, who, size):
    (message,) = read(line)
    assert (message.failure.kind, message.failure.who) == (kind, who)
    assert message.failure.request_bytes == size


@pytest.mark.parametrize(
    "line",
    [
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.37GiB with freed_by_count=0. "
        "The caller indicates that this is not a failure, but this may mean that there could be "
        "performance gains if more memory were available.",
        "RESOURCE_EXHAUSTED: Received message larger than max (5000000 vs. 4194304)",
        "Allocating 3.2 GiB for the data cache",
        "step 7 loss 2.1",
    ],
)
def test_what_is_no_failure_of_memory_is_none(line):
    assert read(line) == ()


def test_the_pool_and_the_error_of_one_failure_are_one_message():
    """26.83 GiB rounded up to 28804500480 B, and 28804500256 B: the exact request counts."""
    (message,) = read(
        "W x/bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of memory trying to allocate "
        "26.83GiB (rounded to 28804500480)requested by op\n"
        "W x/bfc_allocator.cc:497] Allocator (GPU_2_bfc) ran out of memory trying to allocate "
        "26.83GiB (rounded to 28804500480)requested by op\n"
        "I x/bfc_allocator.cc:1109] Sum Total of in-use chunks: 74.1GiB\n"
        "I x/bfc_allocator.cc:1113] Stats: \n"
        "Limit:                     79886811136\n"
        "InUse:                     79564849152\n"
        "MaxInUse:                  79564849152\n"
        "E1015 16:30:47.781354  473320 pjrt.cc:3084] Execution of replica 0 failed: "
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 28804500256 bytes."
    )
    assert message.failure.request_bytes == 28_804_500_256
    assert message.devices == ("0", "2")
    assert (message.pool.limit_bytes, message.pool.in_use_bytes) == (79_886_811_136, 79_564_849_152)
    assert message.failure.is_raised


def test_a_traceback_that_tells_the_error_again_lists_its_buffers_once():
    error = (
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4.00GiB.\n"
        "Peak buffers:\n\tBuffer 1:\n\t\tSize: 4.00GiB\n\t\tXLA Label: fusion\n"
        "\t\tShape: f32[1073741824]\n\t\t==========================\n"
    )
    (message,) = read(error + "Traceback (most recent call last):\n" + error)
    assert len(message.program.buffers) == 1
    assert message.repeats == 2


def test_ranks_that_fail_alike_are_one_message_and_others_their_own():
    text = "\n".join(
        [
            "[rank3]: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9.60GiB.",
            "[rank5]: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9.60GiB.",
            "[rank3]: BufferAssignment stats:",
            "[rank5]: Limit: 100",
            "[rank3]:      preallocated temp allocation:    9.60GiB",
            "7: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.00GiB.",
        ]
    )
    first, second = read(text)
    assert first.ranks == ("3", "5")
    assert first.program.temp_bytes == round(9.6 * GIB)
    assert second.ranks == ("7",)


def test_what_ended_a_step_comes_before_what_an_allocator_tried():
    first, second = read(
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.00GiB (rounded to "
        "1073741824)requested by op\n"
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9.60GiB."
    )
    assert first.failure.request_bytes == round(9.6 * GIB)
    assert not second.failure.is_raised


def test_lines_with_ray_and_srun_labels_and_colours_are_read():
    (message,) = read(
        "71\x1b[2m\x1b[36m(MeshHostWorker pid=489)\x1b[0m RESOURCE_EXHAUSTED: Out of memory while "
        "trying to allocate 1.00GiB.\n"
    )
    assert message.failure.request_bytes == GIB
    (other,) = read("[1,3]<stderr>: RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes.")
    assert other.ranks == ("3",)


TPU = """
jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 36.59G of 31.25G hbm. Exceeded hbm capacity by 5.34G.

Total hbm usage >= 36.84G:
    reserved        258.00M
    program          14.31G
    arguments        22.28G

Output size 22.28G; shares 22.00G with arguments.

Program hbm requirement 14.31G:
    global           481.0K
    HLO temp         14.31G (100.0% utilization: Unpadded (14.25G) Padded (14.25G))

  Largest program allocations in hbm:

  1. Size: 4.00G
     Operator: op_name="jit(train_step)/jit(main)/jvp(T)/decoder/logits_dense/dot_general" source_file="/d/l.py" source_line=3
     Shape: f32[8,1024,131072]{2,1,0:T(8,128)}
     Unpadded size: 3.00G
     Extra memory due to padding: 1.00G (1.3x expansion)
     XLA label: convert.15982 = convert(param.72)
     Allocation type: HLO temp
     ==========================
"""  # noqa: E501


def test_the_report_of_the_compiler_for_tpu_is_read():
    (message,) = read(TPU)
    failure, program = message.failure, message.program
    assert (failure.kind, failure.space) == (COMPILE, "hbm")
    assert failure.needed_bytes == round(36.59 * GIB)
    assert failure.capacity_bytes == round(31.25 * GIB)
    assert program.argument_bytes == round(22.28 * GIB)
    assert program.temp_bytes == round(14.31 * GIB)
    assert program.alias_bytes == 22 * GIB
    assert program.reserved_bytes == 258 * MIB
    (buffer,) = program.buffers
    assert (buffer.size_bytes, buffer.padding_bytes) == (4 * GIB, GIB)
    assert (buffer.shape, buffer.label, buffer.source) == (
        "f32[8,1024,131072]", "convert", "/d/l.py:3",
    )  # fmt: skip


def test_a_program_that_the_tpu_runtime_could_not_load_is_no_larger_than_it_is():
    """Total hbm usage holds what others allocated; the program is what it requires."""
    (message,) = read(
        "Resource exhausted: Attempting to reserve 3.95G at the bottom of memory. That was not "
        "possible. There are 1.92G free, 0B reserved, and 1.92G reservable.;\n"
        "HBM capacity 8.00G:\n"
        "          Currently allocated:    6.08G (   6,532,939,776 bytes)\n"
        "Total hbm usage >= 10.94G:\n"
        "    reserved(Infeed/Outfeed/Continuations) 529.00M\n"
        "    program                    4.34G\n"
        "    Max free chunk             1.92G (0.0% fragmentation)\n"
        "    reserved           4.0K\n"
        "    HLO temp          3.93G (97.4% utilization)\n"
    )
    assert message.program.total_bytes is None
    assert message.program.reserved_bytes == 529 * MIB
    assert (message.pool.limit_bytes, message.pool.in_use_bytes) == (8 * GIB, 6_532_939_776)
    assert message.pool.largest_free_bytes == round(1.92 * GIB)


def test_a_dump_of_the_allocator_tells_the_largest_free_piece():
    (message,) = read(
        "W x/bfc.cc:501] Allocator (GPU_0_bfc) ran out of memory trying to allocate 4.16GiB "
        "(rounded to 4467985408)requested by op\n"
        "I x/bfc.cc:1] Bin for 4.16GiB was 256.00MiB, Chunk State:\n"
        "I x/bfc.cc:1]   Size: 3.90GiB | Requested Size: 3.90GiB | in_use: 0 | bin_num: 20\n"
        "I x/bfc.cc:1] Free  at 7f3be1000000 next 18446744073709551615 of size 4121948160\n"
        "I x/bfc.cc:1] Total bytes in pool: 8589934592 memory_limit_: 10562958132 available bytes: "
        "19730\n"
        "InUse:                      4467985408\nLargestFreeBlock:                    0\n"
    )
    assert message.program.buffers == ()
    assert message.pool.limit_bytes == 10_562_958_132
    assert message.pool.largest_free_bytes == 4_121_948_160


def test_what_rematerialization_could_not_save_is_read():
    (message,) = read(
        "W x/hlo_rematerialization.cc:3005] Can't reduce memory use below 21.15GiB (22705764841 "
        "bytes) by rematerialization; only reduced to 90.75GiB (97440000040 bytes), down from "
        "91.75GiB (98513741864 bytes) originally\n"
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 26.83GiB."
    )
    told = message.program
    assert (told.budget_bytes, told.after_remat_bytes) == (22_705_764_841, 97_440_000_040)
    assert told.before_remat_bytes == 98_513_741_864


def test_a_packed_log_is_read_and_a_cut_one_said_in_a_line(tmp_path):
    data = gzip.compress(b"RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes.\n" * 50)
    whole, cut = tmp_path / "log.gz", tmp_path / "cut.gz"
    whole.write_bytes(data)
    cut.write_bytes(data[: len(data) // 2])
    (message,) = read_log(whole)
    assert message.repeats == 50
    with pytest.raises(TraceError, match="packed with gzip"):
        read_log(cut)


@pytest.mark.parametrize(
    "lines",
    [
        [
            "Peak buffers:",
            "Buffer 1:",
            "Size: garbage",
            'Operator: op_name="open',
            "Shape: bf16[1,",
        ],
        ["Peak buffers:", "Buffer 1:", "Size: 99999999999999GiB", "XLA Label: (((", "Shape: ((("],
        ["Limit: 99999999999999999999999999", "InUse: x", "Sum Total of in-use chunks: "],
        ["parameter allocation: GiB", "HLO temp", "Total hbm usage >= G", "in use of of"],
    ],
)
def test_damaged_text_beside_a_failure_costs_no_more_than_itself(lines):
    error = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5.00GiB."
    (message,) = messages_in([error, *lines])
    assert message.failure.request_bytes == 5 * GIB
    (info,) = build_oom("log", [Told(message, listed_buffers(message.program))])["messages"]
    assert info["request"]["size_bytes"] == 5 * GIB


def test_a_log_that_comes_through_a_pipe_is_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    error = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5.00GiB.\n"
    writer = threading.Thread(target=pipe.write_text, args=(error,))
    writer.start()
    (message,) = read_log(pipe)
    writer.join()
    assert message.failure.request_bytes == 5 * GIB
