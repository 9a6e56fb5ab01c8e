from __future__ import annotations

import re

import pytest

from moeprof.errors import SelectionError, SpecError
from moeprof.specs.parameters import parameter_count
from moeprof.specs.presets import load_preset
from moeprof.specs.sources import load_model
from moeprof.specs.sources.maxtext_yaml import read_maxtext_yaml

DEEPSEEK = """
decoder_block: deepseek
base_emb_dim: 7168
base_num_query_heads: 128
base_num_kv_heads: 128
base_mlp_dim: 18432
base_moe_mlp_dim: 2048
base_num_decoder_layers: 61
first_num_dense_layers: 3
mlp_activations: [silu, linear]
vocab_size: 129_280
num_experts: 256
num_experts_per_tok: 8
shared_experts: 1
attention_type: mla
q_lora_rank: 1536
kv_lora_rank: 512
qk_nope_head_dim: 128
qk_rope_head_dim: 64
v_head_dim: 128
"""
MAVERICK = """
decoder_block: llama4
base_emb_dim: 5120
base_num_decoder_layers: 48
base_num_query_heads: 40
base_num_kv_heads: 8
base_mlp_dim: 16384
base_moe_mlp_dim: 8192
vocab_size: 202048
num_experts: 128
shared_experts: 1
num_experts_per_tok: 1
interleave_moe_layer_step: 2
"""
NEXT = """
decoder_block: qwen3_next
base_emb_dim: 2048
base_num_decoder_layers: 48
base_num_query_heads: 16
base_num_kv_heads: 2
head_dim: 256
vocab_size: 151936
base_mlp_dim: 512
base_moe_mlp_dim: 512
num_experts: 512
shared_experts: 1
num_experts_per_tok: 10
inhomogeneous_layer_cycle_interval: 4
gdn_conv_kernel_dim: 4
gdn_key_head_dim: 128
gdn_value_head_dim: 128
gdn_num_key_heads: 16
gdn_num_value_heads: 32
"""
GPT_OSS = """
decoder_block: gpt_oss
base_emb_dim: 2880
base_num_query_heads: 64
base_num_kv_heads: 8
head_dim: 64
attention_bias: true
attention_sink: true
mlp_bias: true
base_mlp_dim: 2880
base_moe_mlp_dim: 2880
num_experts: 32
num_experts_per_tok: 4
base_num_decoder_layers: 24
vocab_size: 201088
"""
MIXTRAL = """
decoder_block: mixtral
base_emb_dim: 4096
base_num_query_heads: 32
base_num_kv_heads: 8
base_mlp_dim: 14336
base_num_decoder_layers: 32
head_dim: 128
vocab_size: 32000
num_experts: 8
num_experts_per_tok: 2
"""


def mixtral(key: str, value: str) -> str:
    """The file with another value of a key."""
    return re.sub(rf"^{key}: .*$", f"{key}: {value}", MIXTRAL, flags=re.MULTILINE)


def write(folder, text: str):
    path = folder / "run.yml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "preset"),
    [
        (DEEPSEEK, "deepseek_v3"),
        (MAVERICK, "llama4_maverick"),
        (NEXT, "qwen3_next_80b_a3b"),
        (GPT_OSS, "gpt_oss_20b"),
        (MIXTRAL, "mixtral_8x7b"),
        (MIXTRAL + "base_moe_mlp_dim: -1\n", "mixtral_8x7b"),
    ],
)
def test_the_keys_of_maxtext_give_the_model_of_the_preset(tmp_path, text, preset):
    model, known = read_maxtext_yaml(write(tmp_path, text)).model, load_preset(preset)
    assert parameter_count(model) == parameter_count(known)
    assert model.moe_layer_indices == known.moe_layer_indices
    assert (model.attention, model.linear) == (known.attention, known.linear)


def test_defaults_are_those_of_maxtext(tmp_path):
    model = read_maxtext_yaml(write(tmp_path, MAVERICK)).model
    assert (model.compute_dtype, model.weight_dtype) == ("bfloat16", "float32")
    assert model.attention.head_dim == 128


def test_a_model_name_is_a_preset_and_run_options_are_handed_on(tmp_path):
    text = """
    base_config: base.yml
    model_name: deepseek3-671b
    per_device_batch_size: 7
    max_target_length: 4096
    ici_expert_parallelism: 8
    dcn_fsdp_parallelism: -1
    remat_policy: full
    weight_dtype: bfloat16
    capacity_factor: 1.25
    steps: 15
    """
    loaded = read_maxtext_yaml(write(tmp_path, text))
    assert parameter_count(loaded.model) == 671_026_419_200
    assert loaded.model.weight_dtype == "bfloat16"
    assert loaded.options == {
        "model_name": "deepseek3-671b",
        "per_device_batch_size": 7,
        "max_target_length": 4096,
        "ici_expert_parallelism": 8,
        "dcn_fsdp_parallelism": -1,
        "remat_policy": "full",
        "weight_dtype": "bfloat16",
        "capacity_factor": 1.25,
    }
    assert loaded.notes == ("model_name deepseek3-671b: the preset deepseek_v3",)


def test_a_model_name_wins_over_widths_as_in_maxtext(tmp_path):
    loaded = read_maxtext_yaml(write(tmp_path, MIXTRAL + "model_name: mixtral-8x22b\n"))
    assert loaded.model.hidden == 6144
    assert "the widths in the file are ignored, as model_name wins in MaxText" in loaded.notes


def test_one_expert_is_a_dense_model(tmp_path):
    text = MIXTRAL.replace("num_experts: 8", "num_experts: 1")
    loaded = read_maxtext_yaml(write(tmp_path, text))
    assert loaded.model.experts == 0
    assert any("taken for a dense model" in note for note in loaded.notes)


def test_a_layer_of_gemma2_is_two(tmp_path):
    text = MIXTRAL.replace("mixtral", "gemma2").replace("num_experts: 8", "num_experts: 1")
    assert read_maxtext_yaml(write(tmp_path, text)).model.layers == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a YAML mapping of keys to values, found an empty file"),
        ("- a\n- b\n", "found a list"),
        ("a: [", "expected YAML, found damage"),
        ("a: !!python/object/apply:os.getcwd []", "expected YAML, found damage"),
        ("steps: 3", "expected base_emb_dim, .* or a model_name that is known, found neither"),
        ("model_name: gpt-5", "found model_name 'gpt-5', which is no preset"),
        (mixtral("base_emb_dim", "1e3"), "key base_emb_dim: expected an integer"),
        (mixtral("num_experts", "-8"), "key num_experts: expected an integer from 0"),
        (MIXTRAL + "global_parameter_scale: 4\n", "expected global_parameter_scale 1, found 4"),
        (MIXTRAL + "dtype: int4\n", "key dtype: expected one of float32"),
        (mixtral("decoder_block", "gemma4"), "key decoder_block.*found gemma4, whose layers"),
        (mixtral("num_experts_per_tok", "9"), "top_k 9 is more than the 8 experts"),
        (MIXTRAL.replace("vocab_size", "vocab"), "expected the key vocab_size, found none"),
    ],
)
def test_what_does_not_fit_is_one_line_with_the_path(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(SpecError, match=message) as caught:
        read_maxtext_yaml(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_repeated_aliases_do_not_grow(tmp_path):
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    with pytest.raises(SpecError, match="found neither"):
        read_maxtext_yaml(write(tmp_path, "\n".join(lines)))


def test_a_name_or_a_path_is_a_model(tmp_path):
    path = write(tmp_path, MIXTRAL)
    assert load_model(str(path)).origin == str(path)
    assert load_model("DeepSeek3-671b").origin == "deepseek_v3"
    assert load_model("small", "gqa").model.attention.kv_heads == 2
    assert "round name" in load_model("kimi_k2").notes[0]
    with pytest.raises(SelectionError, match=r"model: expected a preset, a config\.json or"):
        load_model("gpt-5")
    with pytest.raises(SelectionError, match="model: expected a preset"):
        load_model("x" * 5000)
    with pytest.raises(SpecError, match="found no such file"):
        load_model(str(tmp_path / "none.json"))
    with pytest.raises(SpecError, match="attention gqa: only presets offer a choice"):
        load_model(str(path), "gqa")
