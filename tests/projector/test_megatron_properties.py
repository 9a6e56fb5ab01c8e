"""What must hold of Megatron's account whatever the run."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from moeprof.projector.breakdown import total
from moeprof.projector.frameworks.megatron import MIXED_PRECISION
from moeprof.projector.memory import project
from moeprof.projector.setting import Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import GqaSpec, MlaSpec, ModelSpec
from moeprof.specs.parameters import parameter_count
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import Strategy

ATTENTION = [GqaSpec(4, 64), MlaSpec(0, 64, 32, 16, 32), MlaSpec(96, 64, 32, 16, 32)]
MODELS = st.builds(
    ModelSpec,
    layers=st.just(8),
    hidden=st.sampled_from([256, 512]),
    heads=st.just(8),
    attention=st.sampled_from(
        [GqaSpec(4, 64), MlaSpec(0, 64, 32, 16, 32), MlaSpec(96, 64, 32, 16, 32)]
    ),
    experts=st.just(8),
    top_k=st.sampled_from([1, 2, 4]),
    moe_ffn=st.sampled_from([128, 512]),
    vocab=st.sampled_from([1024, 4096]),
    dense_layers=st.sampled_from([0, 1, 3]),
    dense_ffn=st.just(1024),
    shared_experts=st.sampled_from([0, 1]),
    is_gated=st.booleans(),
)
REMATS = ("none", "full", "selective:moe_act", "selective:moe,layernorm", "save:query_proj,mlpwi_0")
RUNS = st.builds(
    lambda model, tensor, expert, pipeline, virtual, remat, deepep, overload: Setting(
        model=model,
        plan=ParallelPlan(
            data=4,
            tensor=tensor,
            expert=expert,
            pipeline=pipeline,
            virtual=virtual if pipeline > 1 else 1,
            remat=Remat(remat),
        ),
        strategy=Strategy("sparse-gmm-deepep" if deepep else "sparse-gmm"),
        hardware=load_hardware("mi355x"),
        sequence=512,
        pdbs=2,
        microbatches=8,
        framework="megatron",
        precision=MIXED_PRECISION,
        overload=overload,
    ),
    MODELS,
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from(REMATS),
    st.booleans(),
    st.sampled_from([None, 1.5, 2.0]),
)


@settings(max_examples=60, deadline=None)
@given(RUNS)
def test_rows_are_whole_bytes_and_sum_to_the_total(run: Setting) -> None:
    result = project(run)
    for stage in result.stages:
        for peak in stage.peaks:
            sizes = [row.size_bytes for row in (*stage.args, *peak.rows, *stage.outside)]
            assert all(isinstance(size, int) and size >= 0 for size in sizes)
    assert result.total_bytes == sum(int(row.size_bytes or 0) for row in result.rows)


@settings(max_examples=60, deadline=None)
@given(RUNS)
def test_stages_hold_the_model_once(run: Setting) -> None:
    whole = replace(run, plan=replace(run.plan, tensor=1, expert=1))
    weights = sum(
        int(row.size_bytes or 0)
        for stage in project(whole).stages
        for row in stage.args
        if row.kind == "params"
    )
    assert weights == 2 * parameter_count(run.model)


@settings(max_examples=60, deadline=None)
@given(RUNS)
def test_twice_the_sequences_are_twice_what_grows_with_tokens(run: Setting) -> None:
    one, two = project(run), project(replace(run, pdbs=4))
    for before, after in zip(one.stages, two.stages, strict=True):
        assert before.args == after.args
        for less, more in zip(before.peaks, after.peaks, strict=True):
            for small, large in zip(less.rows, more.rows, strict=True):
                if small.kind == "activations":
                    assert large.size_bytes == 2 * (small.size_bytes or 0)


@settings(max_examples=60, deadline=None)
@given(RUNS)
def test_recomputation_and_deepep_never_need_more_kept_activations(run: Setting) -> None:
    def kept(setting: Setting) -> int:
        rows = project(setting).stages[0].peaks[0].rows
        return int(total([r for r in rows if not r.name.endswith("at work")]) or 0)

    nothing = replace(run, plan=replace(run.plan, remat=Remat("none")))
    everything = replace(run, plan=replace(run.plan, remat=Remat("full")))
    assert kept(everything) <= kept(run) <= kept(nothing)
    assert kept(replace(run, strategy=Strategy("sparse-gmm-deepep"))) <= kept(run)
