"""The table of kernel names on names as libraries and profilers write them."""

import pytest

from moeprof.tables.kernel_names import (
    KERNEL_NAMES,
    direction_of,
    family_of,
    moves_as,
    stream_kind_of,
)

GOLDEN = [
    # name, library, kind, stream work, direction
    (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "NCCL, RCCL, XLA, vLLM",
        "all_reduce",
        "kernel",
        "",
    ),
    (
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "NCCL, RCCL, NVSHMEM, rocSHMEM, MSCCL++",
        "communication",
        "kernel",
        "",
    ),
    ("rccl_main_kernel", "NCCL, RCCL, NVSHMEM, rocSHMEM, MSCCL++", "communication", "kernel", ""),
    (
        "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(EpDispatchCombineArgs<>)",
        "MORI",
        "all_to_all",
        "kernel",
        "dispatch",
    ),
    (
        "void mori::moe::EpCombineIntraNodeKernel<__hip_fp8_e4m3>(EpDispatchCombineArgs<>)",
        "MORI",
        "all_to_all",
        "kernel",
        "combine",
    ),
    ("EpDispatchInterNodeV1Kernel_fp8", "MORI", "all_to_all", "kernel", "dispatch"),
    (
        "_ZN4mori3moe24EpCombineIntraNodeKernelI12hip_bfloat16EEvNS0_21EpDispatchCombineArgsIT_EE",
        "MORI",
        "all_to_all",
        "kernel",
        "combine",
    ),
    (
        "void deep_ep::intranode::cached_notify_combine<8>(void**, int*)",
        "DeepEP",
        "all_to_all",
        "kernel",
        "combine",
    ),
    (
        "primus_turbo::deep_ep::intranode::notify_dispatch<8>",
        "DeepEP",
        "all_to_all",
        "kernel",
        "dispatch",
    ),
    ("void deep_ep::intranode::barrier<4>(int**, int)", "DeepEP", "all_to_all", "kernel", ""),
    (
        "moeprof::(anonymous namespace)::combine_rows<float>",
        "moeprof",
        "all_to_all",
        "kernel",
        "combine",
    ),
    (
        "nvshmemi_transfer_put",
        "NCCL, RCCL, NVSHMEM, rocSHMEM, MSCCL++",
        "communication",
        "kernel",
        "",
    ),
    ("__amd_rocclr_fillBufferAligned.kd", "rocclr", "memset", "memset", ""),
    ("__amd_rocclr_fillBufferAligned2D", "rocclr", "memset", "memset", ""),
    ("__amd_rocclr_copyBufferRectAligned.kd", "rocclr", "copy", "copy", ""),
    ("__amd_rocclr_copyImageToBuffer", "rocclr", "copy", "copy", ""),
    ("CopyDeviceToDevice", "driver", "copy", "copy", ""),
    ("MemcpyD2H", "driver", "host_transfer", "copy", ""),
    ("MemcpyP2P", "driver", "permute", "copy", ""),
    ("Memset", "driver", "memset", "memset", ""),
    ("memcpy32_post", "XLA", "copy", "kernel", ""),
    ("Stream Synchronize", "driver", "", "sync", ""),
    ("moe_cached_dispatch_inproc", "Primus-Turbo", "", "kernel", "dispatch"),
]


@pytest.mark.parametrize(("name", "library", "kind", "stream", "direction"), GOLDEN)
def test_a_name_is_of_a_library_and_moves_data_in_one_way(name, library, kind, stream, direction):
    family = family_of(name)
    assert family is not None
    assert (family.library, moves_as(name)) == (library, kind)
    assert (stream_kind_of(name), direction_of(name)) == (stream, direction)


@pytest.mark.parametrize(
    "name",
    [
        "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>",
        "cublasLt::splitKreduce_kernel",
        "Cijk_Alik_Bljk_BBS_BH_MT256x128x64",
        "deep_ep::layout::get_dispatch_layout<1, 4>",  # counts, sends nothing
        "mori::moe::ConvertDispatchOutputKernel<float>",  # lays out anew what has come
        "loop_transpose_fusion_3",
        "__amd_rocclr_gwsInit",
    ],
)
def test_what_computes_is_of_no_family(name):
    assert (moves_as(name), direction_of(name), stream_kind_of(name)) == ("", "", "kernel")


@pytest.mark.parametrize("row", KERNEL_NAMES, ids=lambda row: row.example)
def test_the_example_of_each_family_is_of_it(row):
    assert family_of(row.example) is row
    assert row.library
    assert row.source
    assert row.direction in ("", "dispatch", "combine")
    assert row.stream in ("kernel", "copy", "memset", "sync")
