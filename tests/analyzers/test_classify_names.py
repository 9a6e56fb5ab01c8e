import pytest

from moeprof.analyzers.classify.components import phase_of
from moeprof.analyzers.classify.names import MOE_CONTEXT, component_of, innermost, scopes
from moeprof.analyzers.classify.op_kinds import component_of_target


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("router", "router"),
        ("top_k", "router"),
        ("gate", "router"),
        ("gate_proj", None),
        ("dispatch", "dispatch"),
        ("combine", "combine"),
        ("permute", "permute"),
        ("unpermute", "unpermute"),
        ("local_permute", "permute"),
        ("sort_activations", "permute"),
        ("weight_sum", "unpermute"),
        ("experts", "grouped_gemm"),
        ("ragged_dot", "grouped_gemm"),
        ("shared_expert", "shared_expert"),
        ("self_attention", "attention"),
        ("MultiHeadAttention", "attention"),
        ("causal_attn", "attention"),
        ("RMSNorm", "norm"),
        ("pre_self_attention_layer_norm", "norm"),
        ("decoder_norm", "norm"),
        ("clip_by_global_norm", "optimizer"),
        ("token_embedder", "embedding"),
        ("logits_dense", "head"),
        ("head", "head"),
        ("loss", "loss"),
        ("dense_mlp", "dense_mlp"),
        ("grad_sync", "gradient_reduce"),
        ("weight_gather", "weight_gather"),
        ("apply_mask_to_logits", None),
        ("l2norm_pytree", "optimizer"),
        ("DeepSeekMoeBlock_0", MOE_CONTEXT),
        ("MoEBlock", MOE_CONTEXT),
        ("SparseMLP", MOE_CONTEXT),
        ("moe_ffn", MOE_CONTEXT),
        ("FSDP::all_gather (layers.3)", "weight_gather"),
        ("FSDP::post_backward_reduce", "gradient_reduce"),
        ("token_permutation", "permute"),
        ("token_unpermutation", "unpermute"),
        ("TEGroupedMLP_0", "grouped_gemm"),
        ("MixtralBlockSparseTop2MLP_7", "grouped_gemm"),
        ("Qwen3MoeAttention_0", "attention"),
        ("Qwen3MoeDecoderLayer_0", None),
        ("Qwen3MoeSparseMoeBlock_0", MOE_CONTEXT),
        ("Qwen3MoeMLP_1", "dense_mlp"),
        ("Qwen3MoeForCausalLM_0", None),
        ("BertLMHeadModel_0", None),
        ("BertOnlyMLMHead_0", "head"),
        ("MoEModel", None),
        ("MoeMLP", MOE_CONTEXT),
        ("ecd,edf->ecf", None),
        ("ln,nm->lm", None),
        ("while", None),
        ("", None),
    ],
)
def test_a_name_stands_for(name, component):
    assert component_of(name) == component


def test_scopes_of_pytorch_are_what_users_name():
    """ATen's words and autograd's say what is done, not what for."""
    name = "torch/backward/Model_0/Router_0/aten::topk/TopkBackward0/aten::scatter_"
    assert scopes(name) == [["Model_0", "Router_0"]]
    assert phase_of(name) == "backward"


def test_scopes_lose_program_primitive_and_derivative():
    name = "jit(step)/shard_map/transpose(jvp(moe))/dispatch/all_to_all"
    assert scopes(name) == [["shard_map", "moe", "dispatch"]]


def test_older_versions_add_a_main():
    assert scopes("jit(step)/jit(main)/jvp(M)/decoder/mul") == [["M", "decoder"]]


def test_a_hoisted_op_keeps_its_first_scope():
    assert scopes("moe_layers/Block_0/mul") == [["moe_layers", "Block_0"]]


def test_merged_names_give_one_path_per_part():
    name = "jit(step)/(transpose(jvp())/moe/psum:jvp()/head/psum)"
    assert scopes(name) == [["moe"], ["head"]]


@pytest.mark.parametrize(
    ("op_name", "phase"),
    [
        ("jit(s)/jvp(M)/dot_general", "forward"),
        ("jit(s)/transpose(jvp(M))/dot_general", "backward"),
        ("jit(s)/transpose(jvp())/while/body/checkpoint/rematted_computation/mul", "recompute"),
        ("jit(s)/optimizer/sub", "other"),
        ("", "other"),
    ],
)
def test_the_phase_is_what_the_name_stack_says(op_name, phase):
    assert phase_of(op_name) == phase


@pytest.mark.parametrize(
    ("target", "component"),
    [
        ("moeprof_grouped_gemm", "grouped_gemm"),
        ("moeprof_grouped_gemm_variable_k", "grouped_gemm"),
        ("ck_grouped_gemm", "grouped_gemm"),
        ("ck_grouped_gemm_fp8_variable_k", "grouped_gemm"),
        ("compute_group_offs", "expert_elementwise"),
        ("moeprof_moe_dispatch_inproc", "dispatch"),
        ("moeprof_moe_cached_dispatch_inproc", "dispatch"),
        ("moeprof_moe_combine_inproc", "combine"),
        ("moe_dispatch", "dispatch"),
        ("moe_internode_cached_dispatch_per_process", "dispatch"),
        ("moe_internode_combine_per_process", "combine"),
        ("moe_dispatch_other", None),
        ("TopK", None),
        ("", None),
    ],
)
def test_custom_calls_are_known_by_their_target(target, component):
    assert component_of_target(target) == component


def test_what_encloses_the_moe_layer_does_not_name_its_inside():
    assert innermost(["norm", MOE_CONTEXT]) == "norm"
    assert innermost([None, MOE_CONTEXT, "dense_mlp", "attention"]) == MOE_CONTEXT
    assert innermost([None, MOE_CONTEXT, "dense_mlp", "grouped_gemm"]) == "grouped_gemm"
    assert innermost([MOE_CONTEXT, "shared_expert"]) == "shared_expert"
    assert innermost(["dense_mlp"], in_moe=True) == MOE_CONTEXT


@pytest.mark.parametrize(
    ("parts", "phase"),
    [
        ("transpose(jvp())/mul:jvp()/rematted_computation/mul", "backward"),
        ("jvp()/rematted_computation/mul:jvp()/mul", "recompute"),
        ("optimizer/mul:jvp()/mul", "forward"),
        ("optimizer/mul:metrics/mul", "other"),
    ],
)
def test_a_merged_name_counts_as_the_latest_phase_of_its_parts(parts, phase):
    assert phase_of(f"jit(s)/({parts})") == phase
