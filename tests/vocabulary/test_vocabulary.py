"""The table of names on names as libraries, compilers and profilers write them."""

import ast
from pathlib import Path

import pytest

from moeprof import vocabulary
from moeprof.analyzers.classify.op_kinds import KINDS
from moeprof.vocabulary import COMMUNICATION, direction_of, kind_of_kernel, stream_kind_of

ROOT = Path(__file__).parents[2]

KERNELS = [
    # cuBLAS
    ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "cuBLAS", "gemm"),
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "cuBLAS", "gemm"),
    ("ampere_sgemm_64x32_tn", "cuBLAS", "gemm"),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8", "cuBLAS", "gemm"),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "cuBLAS", "gemm"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>", "cuBLAS", "gemm"),
    ("void gemv2T_kernel_val<int, int, float2, float2, float2, 128, 16, 2, 2>", "cuBLAS", "gemm"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x256>", "CUTLASS", "gemm"),
    # hipBLASLt and Tensile, as rocprofiler writes them too
    (
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_CMS_SN.kd",
        "hipBLASLt, Tensile",
        "gemm",
    ),
    (
        "Custom_Cijk_Alik_Bljk_F8B8BS_BH_SAB_UserArgs_MT256x256x128_gfx950",
        "hipBLASLt, Tensile",
        "gemm",
    ),
    # composable kernel
    ("void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm>", "composable kernel", "gemm"),
    ("void ck::kernel_grouped_gemm_xdl_splitk<int>", "composable kernel", "grouped_gemm"),
    (
        "void ck_tile::kentry<1, ck_tile::GroupedGemmKernel<ck_tile::GemmSpatiallyLocal>>",
        "composable kernel",
        "grouped_gemm",
    ),
    (
        "void ck_tile::kentry<ck_tile::gfx950_t, 2, ck_tile::FmhaBwdOGradDotOKernel<int>>",
        "composable kernel",
        "attention",
    ),
    ("ck_tile::MoeSortingKernel", "any", "sort"),
    # AITER, demangled and not
    ("aiter::fmha_fwd_hd192_hd128_bf16_causal_group", "AITER", "attention"),
    ("_ZN5aiter31fmha_bwd_hd128_bf16_a16_psskddvE.kd", "AITER", "attention"),
    ("_ZN5aiter59fmoe_stage1_bf16_pertokenFp8_blockscale_g1u1E", "AITER", "grouped_gemm"),
    ("_ZN5aiter42fp8gemm_bf16_blockscale_BpreShuffle_32x128E", "AITER", "gemm"),
    ("aiter::cross_device_reduce_2stage", "vLLM, AITER", "all_reduce"),
    ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256E", "any", "reduce"),
    # cuDNN, TransformerEngine, MIOpen, others' attention
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_32", "cuDNN", "attention"),
    ("sm80_xmma_fprop_implicit_gemm_bf16bf16_cudnn", "cuDNN", "convolution"),
    (
        "transformer_engine::fused_attn_rocm::populate_rng_state_kernel(long*) [clone .kd]",
        "TransformerEngine",
        "attention",
    ),
    ("Im3d2Col", "MIOpen", "convolution"),
    ("igemm_wrw_gtcx2_nhwc_bf16_bx0_ex1_bt128x128x32", "MIOpen", "convolution"),
    ("attn_fwd", "aotriton", "attention"),
    ("flash_fwd_splitkv_kernel", "any", "attention"),
    # Triton, Pallas, megablox, tokamax
    ("gemm_fusion_dot_12", "XLA, Triton", "gemm"),
    ("gemm_fusion_dot.kd", "XLA, Triton", "gemm"),
    ("_matmul_kernel", "any", "gemm"),
    ("mha_backward", "Pallas", "attention"),
    ("splash_mha_fwd", "Pallas", "attention"),
    ("tgmm", "megablox", "grouped_gemm"),
    ("ragged_dot_kernel", "tokamax", "grouped_gemm"),
    ("grouped_matmul_kernel", "any", "grouped_gemm"),
    # Primus-Turbo and moeprof
    ("primus_turbo::compute_grouped_gemm_args", "Primus-Turbo", "grouped_gemm"),
    ("moeprof::gpu::(anonymous namespace)::GroupedGemmPlan()", "moeprof", "grouped_gemm"),
    # collectives
    (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "NCCL, RCCL, XLA",
        "all_reduce",
    ),
    ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*)", "NCCL, RCCL, XLA", "all_reduce"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "NCCL, RCCL", "reduce_scatter"),
    ("ncclSymkDevKernel_AllGather_ST(ncclSymkDevWorkArgs4K)", "NCCL, RCCL", "all_gather"),
    ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "NCCL, RCCL", "communication"),
    ("void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage)", "NCCL, RCCL", "communication"),
    ("mscclKernel_Sum_half_Simple_false(ncclDevComm*)", "NCCL, RCCL", "communication"),
    ("mscclpp::collective::allgatherFullmesh2", "MSCCL++", "all_gather"),
    ("nvshmemi_transfer_put", "NVSHMEM, rocSHMEM, MSCCL++", "communication"),
    ("void stream_executor::gpu::AllReduceKernelImpl<float>", "NCCL, RCCL, XLA", "all_reduce"),
    ("void RaggedAllToAllKernelImpl<long>", "XLA", "ragged_all_to_all"),
    # copies and memory sets of drivers and of blit kernels
    ("CopyDeviceToDevice", "driver", "copy"),
    ("CopyDeviceToHost", "driver", "host_transfer"),
    ("MemcpyD2H", "driver", "host_transfer"),
    ("MemcpyP2P", "driver", "permute"),
    ("__amd_rocclr_copyBufferRectAligned.kd", "rocclr", "copy"),
    ("__amd_rocclr_fillBufferAligned.kd", "rocclr", "memset"),
    ("memcpy32_post", "driver", "copy"),
    # XLA's own, by their ops
    ("loop_add_gather_fusion", "any", "gather"),
    ("input_scatter_fusion_4", "any", "scatter"),
    ("input_reduce_fusion_1.kd", "any", "reduce"),
    ("loop_transpose_fusion", "XLA fusions", "copy"),
    ("loop_conv_fusion.1", "XLA fusions", "elementwise"),
    ("wrapped_convert.kd", "XLA fusions", "elementwise"),
    ("fusion.317", "XLA fusions", "elementwise"),
    ("sort_3_1", "any", "sort"),
    # TPU: names of instructions
    ("convolution.31", "any", "convolution"),
    ("all-reduce-start.2", "XLA", "all_reduce"),
    ("copy-done.7", "XLA", "copy"),
]

TARGETS = [
    # target, kind, direction
    ("__cublas$gemm", "gemm", ""),
    ("__cublas$lt$matmul$f8", "gemm", ""),
    ("__cublas$lt$groupedMatmul", "grouped_gemm", ""),
    ("__onednn$matmul", "gemm", ""),
    ("__cudnn$fmhaSoftmaxBackward", "attention", ""),
    ("__cudnn$convBackwardFilter", "convolution", ""),
    ("te_fused_attn_forward_ffi", "attention", ""),
    ("te_gemm_ffi", "gemm", ""),
    ("te_grouped_gemm_ffi", "grouped_gemm", ""),
    ("ck_grouped_gemm_fp8_variable_k", "grouped_gemm", ""),
    ("grouped_gemm_variable_k", "grouped_gemm", ""),
    ("moeprof_grouped_gemm", "grouped_gemm", ""),
    ("gmm", "grouped_gemm", ""),
    ("moeprof_moe_cached_dispatch_inproc", "all_to_all", "dispatch"),
    ("moe_internode_combine_per_process", "all_to_all", "combine"),
    ("mori_ep_dispatch", "all_to_all", "dispatch"),
    ("mori_ep_combine_recv", "all_to_all", "combine"),
    ("xla.gpu.ext.cub_sort_pairs", "sort", ""),
    ("__gpu$TopK", "top_k", ""),
    ("rmsnorm_fwd", "reduce", ""),
]

EXCHANGES = [
    ("void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>()", "MORI", "dispatch"),
    ("EpCombineIntraNodeKernel_bf16_p2p.kd", "MORI", "combine"),
    ("EpDispatchCopyToStaging_fp8_fnuz", "MORI", "dispatch"),
    ("void deep_ep::intranode::cached_notify_combine<8>(void**, int*)", "DeepEP", "combine"),
    ("primus_turbo::deep_ep::intranode::notify_dispatch<8>", "DeepEP", "dispatch"),
    ("void nccl_ep::internode_ll::combine<(bool)0>", "DeepEP", "combine"),
    ("void deep_ep::intranode::barrier<4>(int**, int)", "DeepEP", ""),
    ("moeprof::gpu::(anonymous namespace)::MoeCachedDispatch()", "moeprof", "dispatch"),
]


@pytest.mark.parametrize(("name", "library", "kind"), KERNELS)
def test_a_kernel_is_of_a_library_and_a_kind(name, library, kind):
    entry = vocabulary.kernel(name)
    assert entry is not None
    assert (entry.library, kind_of_kernel(name)) == (library, kind)


@pytest.mark.parametrize(("name", "kind", "direction"), TARGETS)
def test_a_custom_call_is_of_a_kind(name, kind, direction):
    entry = vocabulary.target(name)
    assert entry is not None
    assert (entry.kind, entry.direction) == (kind, direction)


@pytest.mark.parametrize(("name", "library", "direction"), EXCHANGES)
def test_a_token_exchange_goes_one_way(name, library, direction):
    entry = vocabulary.kernel(name)
    assert entry is not None
    assert (entry.library, entry.kind, direction_of(name)) == (library, "all_to_all", direction)
    assert library in vocabulary.token_exchanges()


@pytest.mark.parametrize(
    ("name", "stream"),
    [
        ("MemcpyD2H", "copy"),
        ("CopyDeviceToDevice", "copy"),
        ("__amd_rocclr_copyImageToBuffer", "copy"),
        ("__amd_rocclr_fillBufferAligned2D", "memset"),
        ("Memset 3", "memset"),
        ("Stream Synchronize", "sync"),
        ("memcpy32_post", "kernel"),
        ("frobnicate", "kernel"),
    ],
)
def test_a_stream_does_work_of_a_kind(name, stream):
    assert stream_kind_of(name) == stream


@pytest.mark.parametrize(
    "name",
    [
        "deep_ep::layout::get_dispatch_layout<1, 4>",  # counts, sends nothing
        "mori::moe::ConvertDispatchOutputKernel<float>",  # lays out anew what has come
        "ConvertCombineInputKernel_bf16",
        "__amd_rocclr_gwsInit",
        "frobnicate",
    ],
)
def test_what_no_row_knows_is_a_kernel(name):
    assert (kind_of_kernel(name), direction_of(name), stream_kind_of(name)) == (
        "kernel",
        "",
        "kernel",
    )


def test_an_op_called_like_an_exchange_says_its_direction_but_is_none_by_that():
    assert direction_of("moe_cached_dispatch_inproc.3") == "dispatch"
    assert kind_of_kernel("moe_cached_dispatch_inproc.3") == "kernel"


@pytest.mark.parametrize("name", ["", "my_call", "moe_dispatch_mask", "convert_layout"])
def test_a_target_that_no_row_knows_has_no_kind(name):
    assert vocabulary.kind_of_target(name) == ""


@pytest.mark.parametrize("row", vocabulary.entries(), ids=lambda row: row.example[:40])
def test_each_row_is_the_first_to_match_its_examples(row):
    """So no row hides another one, and none stands in the table without a name to show for it."""
    asked = {"kernel": (vocabulary.kernel,), "target": (vocabulary.target,)}
    for example in row.examples:
        for ask in asked.get(row.matches, (vocabulary.kernel, vocabulary.target)):
            assert ask(example) is row, example


@pytest.mark.parametrize("row", vocabulary.entries(), ids=lambda row: row.example[:40])
def test_each_row_is_complete(row):
    assert row.library
    assert row.matches in ("kernel", "target", "both")
    assert row.kind in {*KINDS, ""} - {"kernel", "custom_call"}
    assert row.direction in ("", "dispatch", "combine")
    assert row.stream in ("kernel", "copy", "memset", "sync") or row.matches == "target"
    assert row.vendor in ("nvidia", "amd", "tpu", "any")
    own = [part.strip() for part in row.source.split(";") if part.strip().startswith("native/")]
    assert row.source
    assert all((ROOT / path).exists() for path in own)


def test_every_kind_of_communication_has_a_meaning():
    assert set(KINDS) >= COMMUNICATION


def test_amds_profiler_names_kernels_by_their_descriptor():
    assert vocabulary.source_name("loop_add_fusion_3.kd") == "loop_add_fusion_3"
    assert vocabulary.source_name("void f<int>(long*) [clone .kd]") == "void f<int>(long*)"
    assert vocabulary.source_name("a.kd.b") == "a.kd.b"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("memcpy32_post", True),
        ("Memset 3", True),
        ("__amd_rocclr_copyBuffer.kd", True),
        ("loop_transpose_fusion", False),
        ("copy.3", False),
        ("MemcpyD2H", False),
    ],
)
def test_copies_of_the_driver_are_told_from_ops_that_move(name, expected):
    assert vocabulary.is_driver_copy(name) is expected


def test_the_number_of_an_instruction_changes_nothing():
    assert vocabulary.kernel("loop_add_fusion_12") is vocabulary.kernel("loop_add_fusion")
    assert vocabulary.kernel("gemm_fusion_dot_3.kd") is vocabulary.kernel("gemm_fusion_dot.kd")


_NAMES_OF_LIBRARIES = ("cijk", "nvjet", "__cublas", "__cudnn$", "cutlass", "rocclr", "deep_ep::")
_PACKAGES = ("analyzers", "moeprof/ingest", "moeprof/replay", "moeprof/tables", "reports")


@pytest.mark.parametrize("package", _PACKAGES)
def test_no_other_module_has_names_of_libraries(package):
    """Patterns and prefixes stand in the one table; docstrings and comments may tell of them."""
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value.lower()
                if id(node) not in told and any(name in text for name in _NAMES_OF_LIBRARIES):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found
