"""No key of a configuration that decides parameters or memory is dropped in silence."""

from __future__ import annotations

import csv
import json
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from moeprof.errors import SpecError
from moeprof.specs.parameters import parameter_count
from moeprof.specs.sources.hf_config import read_hf_config
from moeprof.specs.sources.maxtext_yaml import read_maxtext_yaml

TEN = {
    "model_type": "some_moe",
    "hidden_size": 64,
    "intermediate_size": 256,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 10,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
YAML = {
    "decoder_block": "mixtral",
    "base_emb_dim": 64,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 2,
    "head_dim": 16,
    "base_mlp_dim": 128,
    "base_num_decoder_layers": 6,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 1000,
}
QUIET = ("torch_dtype bfloat16 read; a dtype that is asked for wins",)


def hf(folder: Path, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps(TEN | keys), encoding="utf-8")
    return read_hf_config(path)


def maxtext(folder: Path, **keys):
    path = folder / "run.yml"
    path.write_text(yaml.safe_dump(YAML | keys), encoding="utf-8")
    return read_maxtext_yaml(path)


# attention 64·(64+32+32+64) = 12,288, two norms 128, dense 3·64·256 = 49,152, router and experts
# 8·64 + 8 (a bias) + 8·3·64·32 = 49,672; embedding and head 2·64,000, last norm 64.
ATTENTION, DENSE, EXPERTS, ENDS = 12_288 + 128, 49_152, 49_672, 128_064


@pytest.mark.parametrize(
    ("keys", "dense"),
    [
        ({}, 0),
        ({"first_k_dense": 3}, 3),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 1}, 1),
        ({"num_dense_layers": 2}, 2),
        ({"dense_layers": 4}, 4),
        ({"dense_layers": [0, 1, 2]}, 3),
        ({"moe_layer_num_skipped": 2}, 2),
        ({"moe_layer_list": [4, 5, 6, 7, 8, 9]}, 4),
        ({"moe_layer_list": [0, 0, 1, 1, 1, 1, 1, 1, 1, 1]}, 2),
        ({"moe_layer_list": "1,2,3,4,5,6,7,8,9"}, 1),
        ({"mlp_only_layers": [0]}, 1),
        ({"mlp_only_layers": [0, 1, 2, 3], "decoder_sparse_step": 1}, 4),
        ({"moe_layer_freq": [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]}, 3),
        ({"moe_layer_freq": [0] + [1] * 9, "first_k_dense_replace": 1}, 1),
        ({"moe_layer_frequency": 2}, 5),
        ({"moe_every_n_layers": 5}, 8),
        ({"moe_layer_start_index": 2, "moe_layer_end_index": -1, "moe_layer_interval": 1}, 2),
        ({"moe_layer_start_index": 3, "moe_layer_end_index": -1}, 3),
        ({"moe_layer_start_index": -1, "moe_layer_end_index": -1}, 0),
        ({"moe_layer_start_index": [1, 1], "moe_layer_end_index": [-1, -1]}, 1),
        ({"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 8, "first_k_dense_replace": 2}, 2),
    ],
)
def test_each_key_that_places_experts_is_heard(tmp_path, keys, dense):
    loaded = hf(tmp_path, **keys)
    assert loaded.model.dense_layers == dense
    assert loaded.notes == QUIET
    counted = 10 * ATTENTION + dense * DENSE + (10 - dense) * EXPERTS + ENDS
    assert parameter_count(loaded.model) == counted


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"moe_layer_end_index": 7}, "experts in 8 of 10 layers"),
        ({"moe_layer_end_index": 10}, "key moe_layer_end_index: expected -1, or a layer from 0"),
        ({"moe_layer_start_index": [1, 2]}, r"key moe_layer_start_index.*found \[1, 2\]"),
        ({"moe_layer_list": [4, 5, 11]}, r"key moe_layer_list: expected layers from 0 to 9"),
        ({"moe_layer_list": [4, 4, 5]}, "expected each layer once, or 0 or 1 for each of 10"),
        ({"moe_layer_list": "all"}, "key moe_layer_list: expected indices of layers"),
        ({"moe_layer_freq": [2] * 10}, "key moe_layer_freq: expected 0 or 1 for each of 10"),
        ({"mlp_layer_types": ["dense"] * 9 + ["mamba"]}, "key mlp_layer_types: expected dense or"),
        ({"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 8, "first_k_dense_replace": 3},
         "agree on the layers with experts, found mlp_layer_types.*first_k_dense_replace"),
        ({"moe_layer_list": [4, 5, 6, 7, 8, 9], "dense_layers": 3}, "moe_layer_list.*dense_layers"),
        ({"moe_layers": [1, 3], "moe_layer_list": [1, 4]}, "found moe_layers.*and moe_layer_list"),
        ({"num_local_experts": 16}, "key num_experts: expected 16 as num_local_experts says"),
        ({"moe_topk": [3] * 10}, "key num_experts_per_tok: expected 3 as moe_topk says, found 2"),
        ({"num_experts": [8, 8]}, r"key num_experts: expected an integer.*found \[8, 8\]"),
        ({"layer_types": ["full_attention"] * 9 + ["mamba"]}, "key layer_types.*found 'mamba'"),
        ({"layer_types": ["conv"] * 10}, "key layer_types: expected full_attention.*found 'conv'"),
        ({"layer_types": ["linear_attention"] * 10}, "expected the key linear_num_key_heads"),
        ({"layer_types": ["full_attention"] * 9}, "one kind for each of 10 layers"),
        ({"layer_group_size": 5}, "key layer_group_size: expected it absent, as linear attention"),
        ({"use_cla": True}, "key use_cla.*layers that share keys and values cannot be counted"),
        ({"moe_latent_size": 16}, "key moe_latent_size"),
        ({"v_head_dim": 8}, "key v_head_dim: expected 16, as in all heads and layers, found 8"),
        ({"swa_num_key_value_heads": 4}, "key swa_num_key_value_heads: expected 2"),
        ({"block_configs": [{"ffn": 3}]}, "key block_configs"),
    ],
)  # fmt: skip
def test_what_has_no_place_in_a_model_is_refused_in_one_line(tmp_path, keys, message):
    with pytest.raises(SpecError, match=message) as caught:
        hf(tmp_path, **keys)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"use_bias": True}, "use_bias True: biases of attention and feed-forwards are not"),
        ({"lm_head_bias": True}, "lm_head_bias True: one bias per entry of the vocabulary"),
        ({"sliding_window": 128}, "layers attend within a window of 128 tokens: the same"),
        (
            {"layer_types": ["sliding_attention", "full_attention"] * 5, "sliding_window": 64},
            "5 of 10 layers attend within a window of 64 tokens",
        ),
        ({"layer_types": ["chunked_attention"] * 10}, "10 of 10 layers attend within a window"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "about the published weights (fp8)",
        ),
        ({"num_mtp_layers": 2}, "2 modules of multi-token prediction left out"),
        ({"router_hidden_dim": 7, "num_hyper_layers": [3, 4]},
         "not understood, so not in the account: router_hidden_dim 7, num_hyper_layers [3, 4]"),
        ({"expert_dtype": "fp4"}, "not in the account: expert_dtype 'fp4'"),
        ({"ffn_dim_multiplier": 1.3}, "not in the account: ffn_dim_multiplier 1.3"),
        ({"use_mixed_mlp_moe": False, "num_shared_expert": 1}, "the 1 shared experts are not"),
    ],
)  # fmt: skip
def test_what_is_not_in_the_account_is_named_with_its_effect(tmp_path, keys, note):
    loaded = hf(tmp_path, **keys)
    assert any(note in told for told in loaded.notes), loaded.notes
    assert parameter_count(loaded.model) == 10 * (ATTENTION + EXPERTS) + ENDS


@pytest.mark.parametrize(
    "keys",
    [
        {"use_bias": False, "lm_head_bias": None, "use_cla": False, "num_kv_shared_layers": 0},
        {"sliding_window": 128, "use_sliding_window": False},
        {"sliding_window": 4096, "max_position_embeddings": 4096},
        {"moe_topk": [2] * 10},
        {"sliding_window": None, "layer_types": ["full_attention"] * 10},
        {"mlp_only_layers": [], "decoder_sparse_step": 1, "max_window_layers": 10},
        {"rms_norm_eps": 1e-6, "attention_dropout": 0.1, "router_aux_loss_coef": 0.001,
         "bos_token_id": 1, "max_position_embeddings": 4096, "rope_theta": 1e6, "n_group": 8,
         "topk_group": 4, "norm_topk_prob": True, "initializer_range": 0.02, "hidden_act": "silu",
         "moe_capacity": [64, 64, 64], "moe_router_dtype": "float32", "vision_start_token_id": 5},
    ],
)  # fmt: skip
def test_what_decides_nothing_is_passed_over(tmp_path, keys):
    assert hf(tmp_path, **keys).notes == QUIET


def test_entries_of_a_table_that_nobody_reads_are_named(tmp_path):
    table = {"ffn_hidden_size": 32, "moe_num_experts": 8, "moe_top_k": 2, "shared_width": 5}
    flat = {key: None for key in ("num_experts", "num_experts_per_tok", "moe_intermediate_size")}
    loaded = hf(tmp_path, ffn_config=table, **flat)
    assert loaded.notes[-1] == "not understood, so not in the account: ffn_config.shared_width 5"
    assert parameter_count(loaded.model) == 10 * (ATTENTION + EXPERTS) + ENDS


def test_a_long_list_of_unknown_keys_is_cut(tmp_path):
    loaded = hf(tmp_path, **{f"layer_{i:02}": i + 1 for i in range(15)})
    assert loaded.notes[-1].endswith("layer_11 12 and 3 more")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"share_kv_projections": True}, "key share_kv_projections: expected it absent"),
        ({"attention_output_dim": 32}, "key attention_output_dim.*found 32"),
        ({"mhc_expansion_rate": 4}, "streams beside the residual one cannot be counted yet"),
        ({"model_name": "mixtral-8x7b", "num_kv_shared_layers": 2}, "key num_kv_shared_layers"),
    ],
)
def test_maxtext_keys_that_have_no_place_are_refused(tmp_path, keys, message):
    with pytest.raises(SpecError, match=message):
        maxtext(tmp_path, **keys)


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"quantization": "fp8"}, "quantization 'fp8': weights and activations are counted in"),
        ({"parameter_memory_host_offload": True}, "weights are counted on the device"),
        ({"shard_optimizer_over_data": True}, "the optimizer is counted whole on each replica"),
        ({"use_multimodal": True}, "encoders beside the decoder are not counted"),
        ({"mlp_bias": True}, "mlp_bias True: biases of feed-forwards of mixtral are not counted"),
        ({"sliding_window_size": 256}, "as if every token saw all earlier ones"),
        ({"num_hyper_experts": 3}, "not understood, so not in the account: num_hyper_experts 3"),
        ({"model_name": "mixtral-8x7b", "use_dpo": True}, "the reference model is not counted"),
    ],
)
def test_maxtext_keys_outside_the_account_are_named(tmp_path, keys, note):
    notes = maxtext(tmp_path, **keys).notes
    assert any(note in told for told in notes), notes


def test_defaults_of_maxtext_are_passed_over(tmp_path):
    keys = {"attention_output_dim": -1, "global_head_dim": 0, "compress_ratios": [],
            "quantization": "", "pipeline_parallel_layers": -1, "num_moe_token_chunks": 1,
            "dropout_rate": 0.0, "indexer_n_heads": 64, "hidden_size_for_vit": 1408,
            "sa_block_q": 512, "scan_layers": True, "ici_expert_parallelism": 4}  # fmt: skip
    assert maxtext(tmp_path, **keys).notes == ()


def test_the_table_has_one_row_for_each_key_with_a_known_verdict():
    text = (files("moeprof.specs") / "config_keys.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert len({(row["source"], row["key"]) for row in rows}) == len(rows)
    assert {row["source"] for row in rows} == {"hf", "maxtext"}
    assert {row["verdict"] for row in rows} == {"refuse", "note", "read", "silent"}
    assert all(row["effect"] and None not in row.values() and None not in row for row in rows)
