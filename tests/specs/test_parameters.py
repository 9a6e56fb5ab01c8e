from __future__ import annotations

import dataclasses

from moeprof.specs.model import LIGHTNING, LinearSpec, MlaSpec
from moeprof.specs.parameters import (
    active_parameter_count,
    parameter_count,
    parameters,
    partition,
)
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset

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


def counted(**changes) -> int:
    """Weights of a model of one MoE layer more than those of `SMALL` with one layer."""
    one = dataclasses.replace(SMALL, layers=1)
    return parameter_count(dataclasses.replace(one, **changes)) - parameter_count(one)


def test_each_addition_counts_its_own_weights():
    # hidden 8, 4 heads and 2 key heads of 4, 4 experts and 1 shared one of 3 · 8 · 8.
    assert counted(is_gated=False) == -5 * 8 * 8
    assert counted(attention_bias=True) == (4 + 2 + 2) * 4
    assert counted(output_bias=True) == 8
    assert counted(expert_bias=True) == 4 * (8 + 8 + 8)
    assert counted(has_sinks=True) == 4
    assert counted(qk_norm="head") == 4 + 4
    assert counted(qk_norm="all") == 16 + 8
    assert counted(has_attention_gate=True) == 8 * 16
    assert counted(shared_ffn=20) == 3 * 8 * (20 - 8)
    assert counted(final_softcap=True) == 0
    # A module: a MoE layer (384 attention, 16 norms, 996 mixture), two norms, 16 × 8.
    assert counted(mtp_layers=1) == 1396 + 16 + 128


def test_queries_may_be_projected_by_one_matrix():
    low_rank = MlaSpec(q_lora_rank=4, kv_lora_rank=4, nope_dim=4, rope_dim=2, value_dim=4)
    plain = dataclasses.replace(low_rank, q_lora_rank=0)
    # 8 · 4 + 4 + 4 · 24 against 8 · 24.
    assert counted(attention=plain) - counted(attention=low_rank) == 192 - 132


def test_linear_layers_have_their_own_weights():
    deltanet = LinearSpec(key_heads=2, key_dim=4, value_heads=4, value_dim=4, conv_width=4)
    two = dataclasses.replace(SMALL, layers=2)
    hybrid = dataclasses.replace(two, linear_layers=1, linear=deltanet)
    # queries and keys 8 · 8 each, values and gate 8 · 16 each, strength and decay 8 · 4 each,
    # two per head, norm 4, convolution (8 + 8 + 16) · 4, out 16 · 8; softmax attention is 384.
    weights = 2 * 64 + 2 * 128 + 2 * 32 + 2 * 4 + 4 + 128 + 128
    assert parameter_count(hybrid) - parameter_count(two) == weights - 384
    lightning = LinearSpec(key_heads=4, key_dim=4, value_heads=4, value_dim=4, kind=LIGHTNING)
    other = dataclasses.replace(two, linear_layers=1, linear=lightning)
    assert parameter_count(other) - parameter_count(two) == 5 * 8 * 16 + 16 - 384


def test_active_weights_are_all_but_the_experts_not_chosen():
    assert parameter_count(SMALL) - active_parameter_count(SMALL) == 2 * 2 * 3 * 8 * 8
    with_module = dataclasses.replace(SMALL, mtp_layers=1)
    assert active_parameter_count(with_module) == active_parameter_count(SMALL)
