import pytest

from moeprof.analyzers.classify.kernels import COMMUNICATION, kind_of_kernel
from moeprof.analyzers.classify.kinds import KINDS


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ragged_dot_kernel", "grouped_gemm"),
        ("gmm", "grouped_gemm"),
        ("tgmm", "grouped_gemm"),
        ("grouped_matmul_kernel", "grouped_gemm"),
        ("te_grouped_gemm_ffi", "grouped_gemm"),
        ("ck::kernel_grouped_gemm_xdl", "grouped_gemm"),
        ("primus_turbo::compute_grouped_gemm_args", "grouped_gemm"),
        ("_matmul_kernel", "gemm"),
        ("gemm_fusion_dot_12", "gemm"),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "gemm"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64", "gemm"),
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_128x256", "gemm"),
        ("void RaggedAllToAllKernelImpl<long>", "ragged_all_to_all"),
        ("void stream_executor::gpu::AllReduceKernelImpl<float>", "all_reduce"),
        ("primus_turbo::deep_ep::intranode::dispatch<8, 768>", "all_to_all"),
        ("deep_ep::intranode::combine", "all_to_all"),
        ("nvshmemi_transfer_put", "communication"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32", "all_reduce"),
        ("MemcpyP2P", "permute"),
        ("MemcpyD2D", "copy"),
        ("MemcpyH2D", "host_transfer"),
        ("memcpy32_post", "copy"),
        ("Memset 3", "memset"),
        ("__amd_rocclr_copyBuffer.kd", "copy"),
        ("__amd_rocclr_fillBufferAligned.kd", "memset"),
        ("flash_fwd_splitkv_kernel", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "attention"),
        ("splash_mha_fwd", "attention"),
        ("aiter::fmha_fwd_hd128_bf16_causal", "attention"),
        ("sm80_xmma_fprop_implicit_gemm_bf16bf16_cudnn", "convolution"),
        ("Im3d2Col", "convolution"),
        ("input_reduce_fusion", "reduce"),
        ("loop_conv_fusion.1", "elementwise"),
        ("input_scatter_fusion_4", "scatter"),
        ("loop_gather_fusion_3", "gather"),
        ("loop_select_fusion_2", "elementwise"),
        ("loop_transpose_fusion", "copy"),
        ("frobnicate", "kernel"),
    ],
)
def test_a_kernel_is_of_a_kind(name, kind):
    assert kind_of_kernel(name) == kind
    assert kind in KINDS


def test_every_kind_of_communication_has_a_meaning():
    assert set(KINDS) >= COMMUNICATION
