"""What a step's time is made of, with values worked out by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprof.projector.setting import Degrees, Setting, degrees_of
from moeprof.projector.shares import routed_rows, stage_loads
from moeprof.projector.step_time.beside_layers import waiting_share
from moeprof.projector.step_time.flops import layer_work, matrices, model_flops_per_token
from moeprof.projector.step_time.layer_time import exchange_s, places_needed, recomputed
from moeprof.projector.step_time.rates import (
    PLAIN,
    Groups,
    Links,
    all_to_all_s,
    gather_s,
    ground_of,
    groups_of,
)
from moeprof.specs.hardware import load_hardware
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.remat import FULL, Remat
from moeprof.specs.schedule import Schedule
from moeprof.specs.stages import split_stages, whole_stages
from moeprof.specs.strategy import parse_strategy

DEEPSEEK = load_preset("deepseek_v3")


def setting(strategy: str = "sparse-gmm", **changes: object) -> Setting:
    """DeepSeek-V3 on 8 × 8 MI355X, one sequence of 4,096 tokens per device."""
    base = Setting(
        DEEPSEEK,
        ParallelPlan(fsdp=8, expert=8),
        parse_strategy(strategy),
        load_hardware("mi355x"),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def work_of(strategy: str, name: str, kind: str = "moe") -> float:
    """Forward operations of one layer's component, over all its products."""
    run = setting(strategy)
    degrees = degrees_of(run)
    rows = routed_rows(run, degrees, 4096)
    works = layer_work(run, degrees, 4096, rows, kind)  # type: ignore[arg-type]
    return float(sum(work.flops for work in works if work.name == name))


def test_attention_projections_are_those_of_the_low_rank_matrices():
    # q 7168·1536 + 1536·128·192, kv 7168·576 + 512·128·256, out 128·128·7168: 187,105,280.
    sizes = matrices(DEEPSEEK, "moe")
    assert sizes.query == 7168 * 1536 + 1536 * 128 * 192
    assert sizes.key_value == 7168 * 576 + 512 * 128 * 256
    assert sizes.query + sizes.key_value + sizes.output == 187_105_280
    assert work_of("sparse-gmm", "attention projections") == 2 * 4096 * 187_105_280


def test_causal_attention_is_half_of_the_square():
    # Scores 2 · 4096² / 2 · 128 · 192, mixing the same with 128.
    assert work_of("sparse-gmm", "attention core") == 4096**2 * 128 * (192 + 128)


def test_without_flash_all_scores_are_made_and_pass_memory():
    run = setting(attention="whole")
    degrees = degrees_of(run)
    works = layer_work(run, degrees, 4096, routed_rows(run, degrees, 4096), "moe")
    (core,) = (work for work in works if work.name == "attention core")
    assert core.flops == 2 * 4096**2 * 128 * (192 + 128)
    # Queries, keys, values and results in bfloat16, scores four times in float32.
    rows = 2 * 128 * (192 + 128) * 4096
    assert core.memory_bytes == 2 * rows + 4 * 4 * 4096**2 * 128
    assert core.backward == 2


def test_experts_of_a_dropless_strategy_compute_top_k_rows():
    # 4096 · 8 rows through three matrices of 7168 × 2048.
    assert work_of("sparse-gmm", "routed experts") == 2 * 4096 * 8 * 3 * 7168 * 2048


def test_a_capacity_factor_pads():
    # ceil(4096 · 8 / 256) = 128 slots, · 1.25 = 160, of 256 experts: 40,960 rows, not 32,768.
    assert work_of("dense-cf1.25", "routed experts") == 2 * 40_960 * 3 * 7168 * 2048
    # Dispatch and combine multiply [4096, 40960] masks with [.., 7168].
    assert work_of("dense-cf1.25", "dispatch and combine products") == 2 * 2 * 4096 * 40_960 * 7168


def test_ragged_dot_multiplies_every_row_of_its_buffer_with_every_local_expert():
    # Buffer 4096 · 8 · min(8, 256 / 8) = 262,144 rows, 32 local experts.
    assert work_of("sparse-ragged-dot", "routed experts") == 2 * 262_144 * 32 * 3 * 7168 * 2048
    on_tpu = setting("sparse-ragged-dot", hardware=load_hardware("tpu_v5p"))
    assert routed_rows(on_tpu, degrees_of(on_tpu), 4096).multiplied == 4096 * 8


def buffer_rows(strategy: str, expert: int, **changes: object) -> float:
    """Rows that gathers pass on one of `expert` ranks; 4096 · 8 = 32,768 with an even routing."""
    run = setting(strategy, plan=ParallelPlan(expert=expert), **changes)
    return float(routed_rows(run, degrees_of(run), 4096).buffer)


def test_gathers_pass_the_buffer_that_memory_holds():
    # 64 ranks of 4 experts: min(64, 256 / 8) = 32 times an even share; with DeepEP a slot for each
    # of 8 experts per row and rank: 64 times.
    assert buffer_rows("sparse-gmm", 64) == 32 * 32_768
    assert buffer_rows("sparse-gmm-deepep", 64) == 64 * 32_768
    # A limit makes the buffer smaller, by either name, and never larger than the worst case.
    assert buffer_rows("sparse-gmm", 8, overload=2.0) == 2 * 32_768
    assert buffer_rows("sparse-gmm", 8, ragged_buffer_factor=2.0) == 2 * 32_768
    assert buffer_rows("sparse-gmm", 8, ragged_buffer_factor=100.0) == 8 * 32_768
    assert buffer_rows("sparse-gmm", 64, framework="megatron") == 32_768
    assert buffer_rows("sparse-gmm", 64, framework="megatron", overload=1.5) == 1.5 * 32_768


def test_shared_expert_and_dense_layer():
    assert work_of("sparse-gmm", "shared expert") == 2 * 4096 * 3 * 7168 * 2048
    assert work_of("sparse-gmm", "dense feed-forward", "dense") == pytest.approx(
        2 * 4096 * 3 * 7168 * 18432
    )


def test_useful_operations_of_a_token():
    # 36.625 B active without embedding, router biases and norms; attention 61 · 4096 · 128 · 320.
    attention = 61 * 4096 * 128 * 320
    layers = 61 * 187_105_280 + 3 * 3 * 7168 * 18432
    moe = 58 * (7168 * 256 + 9 * 3 * 7168 * 2048)
    expected = 3 * (attention + 2 * (layers + moe + 129_280 * 7168))
    assert model_flops_per_token(DEEPSEEK, 4096) == pytest.approx(expected, rel=1e-12)


def test_places_that_hold_one_of_a_tokens_experts():
    assert places_needed(4, 1, 2) == pytest.approx(1)
    # Two of four experts, two each on two ranks: the same rank in 1 of 3 cases.
    assert places_needed(4, 2, 2) == pytest.approx(5 / 3)
    assert places_needed(4, 4, 2) == pytest.approx(2)
    assert places_needed(256, 8, 1) == pytest.approx(1)


@pytest.mark.parametrize("top_k", [1, 2, 3, 4])
@pytest.mark.parametrize("places", [1, 2, 3, 4, 12])
def test_places_agree_with_all_ways_to_choose(top_k, places):
    experts = 12
    ways = [
        len({e * places // experts for e in chosen})
        for chosen in itertools.combinations(range(experts), top_k)
    ]
    assert places_needed(experts, top_k, places) == pytest.approx(np.mean(ways))


LINKS = Links(peer_bytes_per_s=100e9, network_bytes_per_s=10e9, domain=8)


def axes(**degrees: int) -> Degrees:
    """Degrees of which all but the given are 1."""
    return Degrees(**{**dict.fromkeys(Degrees._fields, 1), **degrees})


def groups(**degrees: int) -> Groups:
    """Groups of a JAX plan on domains of 8."""
    return groups_of("maxtext", axes(**degrees), 8)


def test_peers_are_neighbours_from_the_inside():
    plan = groups(tensor=2, expert=8, fsdp=4)
    assert tuple(plan.tensor) == (2, 2)
    assert tuple(plan.exchange) == (8, 4)
    assert tuple(plan.expert_weights) == (4, 1)
    assert tuple(plan.other_weights) == (32, 4)


def test_megatron_folds_experts_into_the_devices_of_a_stage():
    # 2 × 2 × 8 devices of a stage: ranks of experts lie side by side, 32 / 16 replicas of each.
    plan = groups_of("megatron", axes(tensor=2, context=2, data=8, expert=16), 8)
    assert tuple(plan.exchange) == (16, 8)
    assert tuple(plan.expert_weights) == (2, 1)
    assert tuple(plan.other_weights) == (16, 4)


def test_an_all_to_all_inside_a_domain_and_across_two():
    # 8 GB to 8 ranks: 7 GB leave over 100 GB/s.
    assert all_to_all_s(8e9, groups(expert=8).exchange, LINKS) == pytest.approx(0.07)
    # 16 ranks in two domains: half goes over the network, 4 GB at 10 GB/s.
    assert all_to_all_s(8e9, groups(expert=16).exchange, LINKS) == pytest.approx(0.4)


def test_a_gather_shares_what_a_domain_receives_among_its_cards():
    plan = groups(expert=8, fsdp=8)
    # 8 GB over 8 domains of one member each: 7 GB through one card.
    assert gather_s(8e9, plan.expert_weights, LINKS) == pytest.approx(0.7)
    # 8 domains of 8 members: the same 7 GB through 8 cards; inside 63/64 of 8 GB.
    assert gather_s(8e9, plan.other_weights, LINKS) == pytest.approx(7e9 / 8 / 10e9)


def test_what_stays_inside_needs_no_network():
    unknown = LINKS._replace(network_bytes_per_s=float("nan"))
    assert np.isfinite(all_to_all_s(8e9, groups(expert=8).exchange, unknown))
    assert np.isnan(all_to_all_s(8e9, groups(expert=16).exchange, unknown))


def test_deepep_sends_one_copy_per_rank_and_ragged_all_to_all_one_per_expert():
    both = []
    for strategy in ("sparse-gmm", "sparse-gmm-deepep"):
        run = setting(strategy)
        ground = ground_of(run, degrees_of(run), PLAIN)._replace(links=LINKS)
        both.append(exchange_s(ground, routed_rows(run, degrees_of(run), 4096)))
    token = 4096 * 7168 * 2
    assert both[0] == pytest.approx(2 * token * 8 * 7 / 8 / 100e9)
    assert both[1] == pytest.approx(2 * token * places_needed(256, 8, 8) * 7 / 8 / 100e9)


def test_without_expert_parallelism_nothing_is_exchanged():
    run = setting(plan=ParallelPlan(fsdp=64))
    ground = ground_of(run, degrees_of(run), PLAIN)
    assert exchange_s(ground, routed_rows(run, degrees_of(run), 4096)) == 0


def test_what_is_kept_is_not_done_again():
    assert recomputed(FULL, "query") == 1
    assert recomputed(Remat("none"), "query") == 0
    kept = Remat("save:query_proj,mlpwi_0,mlpwi_1")
    assert recomputed(kept, "query") == 0
    assert recomputed(kept, "key and value") == 1
    assert recomputed(kept, "feed-forward in") == 0
    assert recomputed(kept, "feed-forward out") == 1


def test_modules_are_done_again_and_nothing_else():
    selective = Remat("selective:core_attn,mlp")
    assert recomputed(selective, "attention core", "attention core") == 1
    assert recomputed(selective, "feed-forward in", "dense feed-forward") == 1
    assert recomputed(selective, "feed-forward in", "routed experts") == 0
    assert recomputed(selective, "exchange") == 0
    assert recomputed(Remat("selective:moe"), "feed-forward in", "routed experts") == 1
    assert recomputed(Remat("minimal_offloaded"), "query") == 0


@given(
    st.sampled_from(["deepseek_v3", "llama4_maverick", "mixtral_8x7b", "kimi_k2"]),
    st.integers(1, 16),
    st.integers(1, 4),
    st.sampled_from(["1f1b", "v-half"]),
)
@settings(max_examples=60, deadline=None)
def test_stages_hold_what_an_even_split_gives_them(name, pipeline, virtual, schedule):
    model = load_preset(name)
    virtual = 2 if schedule == "v-half" else virtual
    if pipeline * virtual > model.layers:
        return
    plan = ParallelPlan(pipeline=pipeline, virtual=virtual)
    run = setting(model=model, plan=plan, schedule=schedule)
    load = stage_loads(run, degrees_of(run))
    stages = whole_stages(split_stages(model, pipeline, virtual, schedule=schedule))
    kinds = [min(k, pipeline - 1) for k in (0, 1, 2)] + [max(pipeline - 2, 0), pipeline - 1]
    for kind, stage in enumerate(kinds):
        expected = stages[stage]
        assert (load.dense[kind], load.moe[kind]) == (expected.dense_layers, expected.moe_layers)
        assert load.heads[kind] == expected.has_head


def test_stages_of_one_program_share_what_is_outside_the_pipeline():
    run = setting(plan=ParallelPlan(pipeline=2), schedule="circular")
    load = stage_loads(run, degrees_of(run))
    assert (float(load.dense[0]), float(load.moe[0]), float(load.heads[0])) == (1.5, 29, 0.5)


@pytest.mark.parametrize(
    ("name", "stages", "virtual"),
    [("1f1b", 16, 1), ("1f1b", 16, 6), ("zb-h1", 8, 1), ("zbv", 8, 2)],
)
def test_waiting_gives_the_bubble_of_the_schedule(name, stages, virtual):
    known = "interleaved" if name == "1f1b" and virtual > 1 else name
    bubble = Schedule(known, stages, 64, virtual).bubble
    wait = (stages - 1) * float(waiting_share(name, stages, virtual))
    assert wait / (64 + wait) == pytest.approx(bubble)
