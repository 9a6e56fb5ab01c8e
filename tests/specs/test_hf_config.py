from __future__ import annotations

import json

import pytest

from moeprof.errors import SpecError
from moeprof.specs.model import MlaSpec
from moeprof.specs.parameters import active_parameter_count, parameter_count
from moeprof.specs.presets import load_preset
from moeprof.specs.sources.hf_config import read_hf_config

from .hf_configs import FAMILIES

SAME_AS = {
    "deepseek_v2": "deepseek_v2_lite",
    "deepseek_v3": "deepseek_v3",
    "kimi_k2": "kimi_k2",
    "mixtral": "mixtral_8x7b",
    "qwen3_moe": "qwen3_30b_a3b",
    "qwen3_next": "qwen3_next_80b_a3b",
    "gpt_oss": "gpt_oss_20b",
    "llama4": "llama4_maverick",
    "glm4_moe": "glm_4_5",
    "grok-1": "grok_1",
    "dbrx": "dbrx",
    "olmoe": "olmoe",
    "minimax_m2": "minimax_m2",
    "minimax_text_01": "minimax_m1",
}


def write(folder, keys) -> object:
    path = folder / "config.json"
    path.write_text(keys if isinstance(keys, str) else json.dumps(keys), encoding="utf-8")
    return path


def changed(family: str, **keys) -> dict[str, object]:
    return {**FAMILIES[family].keys, **keys}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_the_published_parameters(tmp_path, family):
    published = FAMILIES[family]
    model = read_hf_config(write(tmp_path, published.keys)).model
    assert parameter_count(model) / 1e9 == pytest.approx(published.total_billions, rel=0.012)
    assert active_parameter_count(model) / 1e9 == pytest.approx(published.active_billions, rel=0.01)


@pytest.mark.parametrize(("family", "preset"), SAME_AS.items())
def test_a_config_gives_the_model_of_its_preset(tmp_path, family, preset):
    model, known = read_hf_config(write(tmp_path, FAMILIES[family].keys)).model, load_preset(preset)
    assert parameter_count(model) == parameter_count(known)
    assert model.moe_layer_indices == known.moe_layer_indices
    assert (model.attention, model.linear) == (known.attention, known.linear)


def test_a_folder_stands_for_the_config_in_it(tmp_path):
    path = write(tmp_path, FAMILIES["olmoe"].keys)
    assert read_hf_config(tmp_path).origin == str(path)


def test_it_says_what_no_key_says(tmp_path):
    notes = read_hf_config(write(tmp_path, FAMILIES["qwen2_moe"].keys)).notes
    assert "model_type qwen2_moe: query, key and value have a bias, which no key says" in notes
    assert "no tie_word_embeddings: the head is taken as not tied" in notes
    assert "no torch_dtype: taken as bfloat16" in notes


def test_a_dense_model_is_taken_for_one_aloud(tmp_path):
    loaded = read_hf_config(write(tmp_path, FAMILIES["llama"].keys))
    assert (loaded.model.experts, loaded.model.dense_layers) == (0, 32)
    (note,) = (note for note in loaded.notes if "dense" in note)
    assert "gives no number of experts above 1 (looked for num_experts, n_routed_experts" in note


def test_further_predictions_are_left_out_aloud(tmp_path):
    loaded = read_hf_config(write(tmp_path, FAMILIES["deepseek_v3"].keys))
    assert loaded.model.mtp_layers == 0
    assert loaded.options["mtp_layers"] == 1
    assert any("1 module of multi-token prediction left out" in note for note in loaded.notes)
    assert any("quantization_config is ignored" in note for note in loaded.notes)


@pytest.mark.parametrize(
    ("written", "read", "note"),
    [
        ("float16", "float16", "torch_dtype float16 read; a dtype that is asked for wins"),
        ("torch.float32", "float32", "torch_dtype torch.float32 read"),
        ("float8_e4m3fn", "bfloat16", "is not one to train in: taken as bfloat16"),
    ],
)
def test_the_dtype_is_read_and_told(tmp_path, written, read, note):
    loaded = read_hf_config(write(tmp_path, changed("olmoe", torch_dtype=written)))
    assert (loaded.model.weight_dtype, loaded.model.compute_dtype) == (read, read)
    assert loaded.options["torch_dtype"] == written
    assert any(note in told for told in loaded.notes)


def test_a_nested_decoder_is_read_without_the_rest(tmp_path):
    loaded = read_hf_config(write(tmp_path, FAMILIES["llama4"].keys))
    assert loaded.model.layers == 48
    assert loaded.notes[0] == "read from text_config; the other parts of the model are not counted"
    assert loaded.model.weight_dtype == "bfloat16"


def test_a_residual_feed_forward_is_a_shared_expert(tmp_path):
    model = read_hf_config(write(tmp_path, FAMILIES["grok-2"].keys)).model
    assert (model.shared_width, model.moe_ffn, model.final_softcap) == (32768, 16384, True)


@pytest.mark.parametrize(
    ("keys", "indices"),
    [
        ({"moe_layers": [1, 3, 5, 7]}, (1, 3, 5, 7)),
        ({"decoder_sparse_step": 2}, (1, 3, 5, 7)),
        ({"mlp_only_layers": [0, 1], "decoder_sparse_step": 1}, tuple(range(2, 8))),
        ({"expert_layer_period": 2, "expert_layer_offset": 1}, (1, 3, 5, 7)),
        ({"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 5}, (3, 4, 5, 6, 7)),
        ({"moe_layer_freq": [0, 1, 1, 1, 1, 1, 1, 1]}, tuple(range(1, 8))),
        ({"moe_layer_start_index": 1, "moe_layer_interval": 1}, tuple(range(1, 8))),
    ],
)
def test_layers_with_experts_are_placed_by_any_spelling(tmp_path, keys, indices):
    eight = changed("olmoe", num_hidden_layers=8, **keys)
    assert read_hf_config(write(tmp_path, eight)).model.moe_layer_indices == indices


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden_size": "2048"}, "key hidden_size: expected an integer from 1.*found '2048'"),
        ({"hidden_size": -1}, "key hidden_size: expected an integer from 1.*found -1"),
        ({"hidden_size": True}, "key hidden_size.*found True"),
        ({"hidden_size": 10**30}, "key hidden_size: expected an integer from 1 to 1,000,000,000"),
        (
            {"num_hidden_layers": 10**6},
            "key num_hidden_layers: expected an integer from 1 to 10,000",
        ),
        ({"hidden_size": None}, r"expected the key hidden_size \(or d_model, n_embd\), found none"),
        ({"num_experts": -8}, "key num_experts: expected an integer from 0.*found -8"),
        ({"num_experts": [64, 32]}, r"key num_experts.*found \[64, 32\]"),
        ({"num_experts_per_tok": 65}, "top_k 65 is more than the 64 experts"),
        ({"num_key_value_heads": 3}, "16 heads cannot share 3"),
        ({"tie_word_embeddings": "no"}, "key tie_word_embeddings: expected true or false"),
        ({"torch_dtype": 16}, "key torch_dtype: expected a text, found 16"),
        ({"moe_layers": [2, 3, 9]}, "experts in some of its layers 0 to 15|every n-th layer"),
        ({"moe_layers": [0, 1, 2]}, "experts in every n-th layer, found experts in 3 of 16"),
        ({"decoder_sparse_step": 17}, "some of its layers 0 to 15, found none"),
        ({"num_attention_heads": 15}, "expected the key head_dim, since hidden 2048"),
        ({"mamba_d_state": 16}, "found the key mamba_d_state: such layers are not known"),
        ({"num_encoder_layers": 12}, "found the key num_encoder_layers"),
        ({"attn_type_list": [0, 1]}, "key attn_type_list: expected a list of 16 × int"),
    ],
)
def test_what_does_not_fit_is_one_line_with_the_path(tmp_path, keys, message):
    path = write(tmp_path, changed("olmoe", **keys))
    with pytest.raises(SpecError, match=message) as caught:
        read_hf_config(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected JSON, found damage"),
        ("", "expected JSON, found damage"),
        ("[]", "expected a JSON object with the keys of a model, found a list"),
        ("{}", r"expected the key num_hidden_layers \(or "),
        ("[" * 200_000, "nested too deep|found damage"),
        ('{"num_hidden_layers": 1e999, "hidden_size": NaN}', "key num_hidden_layers.*found inf"),
    ],
)
def test_damage_is_one_line(tmp_path, text, message):
    with pytest.raises(SpecError, match=message):
        read_hf_config(write(tmp_path, text))


def test_what_is_no_small_text_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"expected a Hugging Face config\.json, found a folder"):
        read_hf_config(tmp_path)
    with pytest.raises(SpecError, match="found no such file"):
        read_hf_config(tmp_path / "none.json")
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(SpecError, match="in UTF-8, found byte 0xff at 0"):
        read_hf_config(path)
    with path.open("wb") as file:
        file.truncate(5 * 2**20)
    with pytest.raises(SpecError, match="of at most 4 MiB, found 5 MiB"):
        read_hf_config(path)


def test_a_bom_is_no_damage(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("\ufeff" + json.dumps(FAMILIES["mixtral"].keys), encoding="utf-8")
    assert read_hf_config(path).model.experts == 8


def test_sizes_that_nobody_read_are_named(tmp_path):
    loaded = read_hf_config(write(tmp_path, changed("olmoe", adapter_dim=64, seq_classes=2)))
    assert "not understood, so not in the account: adapter_dim 64" in loaded.notes


def test_texts_of_a_file_cannot_move_a_cursor(tmp_path):
    keys = changed("olmoe", model_type="ol\x1b[2Jmoe\n", _name_or_path="\x1b]0;x\x07" + "n" * 300)
    model = read_hf_config(write(tmp_path, keys)).model
    assert model.name == "]0;x" + "n" * 96


def test_latent_attention_without_query_rank(tmp_path):
    attention = read_hf_config(write(tmp_path, FAMILIES["deepseek_v2"].keys)).model.attention
    assert attention == MlaSpec(0, 512, 128, 64, 128)
