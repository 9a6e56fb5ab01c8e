from __future__ import annotations

import dataclasses

import pytest

from moeprof.errors import SpecError
from moeprof.specs.parameters import parameter_count, parameters, partition
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset, preset_names

from .test_model import SMALL


def split_of(path: tuple[str, ...], model, plan) -> tuple[tuple[str, ...], ...]:
    (found,) = (p for p in parameters(model) if p.path == path)
    return partition(found, plan)


def test_deepseek_v3_has_671_billion_parameters():
    """The sum of its parts, from the published widths (Technical Report, section 4.2)."""
    mla = 7168 * 1536 + 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 + 512 * 128 * 256
    mla += 128 * 128 * 7168
    layer = mla + 2 * 7168
    dense = 3 * 7168 * 18432
    moe = 7168 * 256 + 256 + (256 + 1) * 3 * 7168 * 2048
    total = 2 * 129280 * 7168 + 61 * layer + 3 * dense + 58 * moe + 7168
    assert parameter_count(load_preset("deepseek3-671b")) == total == 671_026_419_200


def test_a_tied_head_has_no_matrix_of_its_own():
    untied = parameter_count(SMALL)
    tied = parameter_count(dataclasses.replace(SMALL, tied_head=True))
    assert untied - tied == 8 * 16


def test_experts_are_split_by_expert_and_other_matrices_over_both_axes():
    plan = ParallelPlan(fsdp=2, expert=4)
    assert split_of(("moe_layers", "experts", "gate"), SMALL, plan) == (
        (),
        ("expert",),
        ("fsdp",),
        (),
    )
    assert split_of(("head",), SMALL, plan) == (("fsdp", "expert"), ())
    assert split_of(("final_norm",), SMALL, plan) == ((),)


def test_a_dimension_that_does_not_divide_stays_whole_on_that_axis():
    # hidden 8: not over 4 × 4 = 16 devices, but over fsdp 4. Over fsdp 3 not at all; expert 4 fits.
    assert split_of(("head",), SMALL, ParallelPlan(fsdp=4, expert=4)) == (("fsdp",), ())
    assert split_of(("head",), SMALL, ParallelPlan(fsdp=3, expert=4)) == (("expert",), ())
    assert split_of(("head",), SMALL, ParallelPlan(fsdp=3)) == ((), ())


def test_presets_load_with_each_attention_they_offer():
    assert preset_names() == ("deepseek3-671b", "small")
    assert type(load_preset("small", "gqa").attention).__name__ == "GqaSpec"
    assert type(load_preset("small").attention).__name__ == "MlaSpec"


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(SpecError, match="one of deepseek3-671b, small, found 'large'"):
        load_preset("large")
    with pytest.raises(SpecError, match="deepseek3-671b attention: expected one of mla, found"):
        load_preset("deepseek3-671b", "gqa")
