from __future__ import annotations

import pytest

from moeprof.errors import SelectionError, SpecError
from moeprof.specs.parameters import active_parameter_count, parameter_count
from moeprof.specs.presets import load_preset, preset_facts, preset_key, preset_names

PUBLISHED = [name for name in preset_names() if name != "small"]

# What is published and what the published widths give differ by more than 1.2 %, and why.
ROUND_NAMES = {"moe_515b", "moe_1t", "moe_2t", "moe_4t", "kimi_k2"}


def test_there_are_twenty_six_published_models_and_one_to_train():
    assert len(PUBLISHED) == 26
    facts = [preset_facts(name) for name in PUBLISHED]
    assert all(fact.source and fact.name and fact.total_published_billions for fact in facts)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_count_is_that_of_the_widths(name):
    facts, model = preset_facts(name), load_preset(name)
    assert parameter_count(model) / 1e9 == pytest.approx(facts.total_computed_billions, rel=0.005)
    assert active_parameter_count(model) / 1e9 == pytest.approx(
        facts.active_computed_billions, rel=0.005
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_count_is_that_published(name):
    facts = preset_facts(name)
    published = float(facts.total_published_billions)
    counted = parameter_count(load_preset(name)) / 1e9
    if name in ROUND_NAMES:
        assert "published is a round name" in facts.note
        assert abs(counted / published - 1) < 0.04
    else:
        assert counted == pytest.approx(published, rel=0.012)


def test_qwen3_next_by_hand():
    """36 layers of Gated DeltaNet, 12 of gated attention, 512 experts of 512."""
    keys, values, hidden = 16 * 128, 32 * 128, 2048
    linear = hidden * (2 * keys + 2 * values + 2 * 32) + 4 * (2 * keys + values)
    linear += 2 * 32 + 128 + values * hidden
    softmax = hidden * 256 * (2 * 16 + 2 * 2) + 16 * 256 * hidden + 2 * 256
    experts = 513 * 3 * hidden * 512 + hidden * 512 + 512
    embedding = 151936 * hidden
    total = 36 * linear + 12 * softmax + 48 * (experts + 2 * hidden) + 2 * embedding + hidden
    assert parameter_count(load_preset("qwen3_next_80b_a3b")) == total


def test_grok_ties_its_head_and_maverick_interleaves():
    assert load_preset("grok_1").tied_head
    assert load_preset("llama4_maverick").moe_layer_indices[:3] == (1, 3, 5)
    dense = load_preset("llama3_1_405b")
    assert (dense.experts, dense.moe_layers) == (0, 0)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("deepseek3-671b", "deepseek_v3"),
        ("deepseek2-16b", "deepseek_v2_lite"),
        ("qwen3-30b-a3b", "qwen3_30b_a3b"),
        ("Mixtral-8x7B", "mixtral_8x7b"),
        ("moe_1T", "moe_1t"),
        ("llama3.1-405b", "llama3_1_405b"),
        ("gpt-5", None),
    ],
)
def test_names_of_other_tools_are_known(name, key):
    assert preset_key(name) == key


def test_no_name_stands_for_two_models():
    names = [(preset_facts(key).key, *preset_facts(key).aliases) for key in preset_names()]
    plain = [name.lower().replace("-", "_") for each in names for name in set(each)]
    twice = {name for name in plain if plain.count(name) > 1}
    # An alias that differs from its own key by the hyphen alone is that key.
    assert all(preset_key(name) == name for name in twice)


def test_presets_load_with_each_attention_they_offer():
    assert type(load_preset("small", "gqa").attention).__name__ == "GqaSpec"
    assert type(load_preset("small").attention).__name__ == "MlaSpec"
    assert preset_facts("small").attentions == ("mla", "gqa")


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(SelectionError, match=r"one of deepseek_v2_lite, .*small, found 'large'"):
        load_preset("large")
    with pytest.raises(SpecError, match="deepseek3-671b attention: expected one of mla, found"):
        load_preset("deepseek3-671b", "gqa")
