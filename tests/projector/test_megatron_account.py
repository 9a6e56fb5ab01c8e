"""Megatron's account of memory: values worked out by hand, and published measurements."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from moeprof.errors import SpecError
from moeprof.projector.breakdown import MemoryBreakdown, total
from moeprof.projector.frameworks.megatron import MIXED_PRECISION
from moeprof.projector.frameworks.megatron.account import flight_of_chunks
from moeprof.projector.memory import project, project_many
from moeprof.projector.setting import Degrees, MegatronOptions, Setting, degrees_of
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import GqaSpec, LinearSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.remat import Remat
from moeprof.specs.schedule import Schedule
from moeprof.specs.schedule_order import in_flight_by_chunk
from moeprof.specs.strategy import Strategy

GIB = 2**30
MIB = 2**20
# Two MoE layers. Attention: 2·d·d + 2·d·(2·128) = 2.5 Mi per layer; experts 3·d·512 = 1.5 Mi each.
SMALL = ModelSpec(
    layers=2,
    hidden=1024,
    heads=8,
    attention=GqaSpec(2, 128),
    experts=4,
    top_k=2,
    moe_ffn=512,
    vocab=4096,
    shared_experts=0,
)
NONE = ParallelPlan(remat=Remat("none"))


def setting(model: ModelSpec = SMALL, plan: ParallelPlan = NONE, **options: object) -> Setting:
    """A run of Megatron on H100."""
    given = {"precision": MIXED_PRECISION, "sequence": 1024, "pdbs": 1, **options}
    return Setting(
        model=model,
        plan=plan,
        strategy=given.pop("strategy", Strategy("sparse-gmm")),  # type: ignore[arg-type]
        hardware=load_hardware("h100_sxm"),
        framework="megatron",
        **given,  # type: ignore[arg-type]
    )


def size(result: MemoryBreakdown, name: str, stage: int = -1) -> int:
    """Bytes of the rows of a stage whose name starts so, over args and all peaks' distinct rows."""
    rows = {r.name: r for peak in result.stages[stage].peaks for r in peak.rows}
    rows |= {r.name: r for r in result.stages[stage].args}
    return sum(r.size_bytes for n, r in rows.items() if n.startswith(name))  # type: ignore[misc]


class TestState:
    """Weights, gradients and optimizer state."""

    def test_eighteen_bytes_without_distributed_optimizer(self) -> None:
        result = project(setting(has_distributed_optimizer=False))
        experts = 2 * 4 * 3 * 1024 * 512
        names = ("weights", "gradients", "master weights", "first moment", "second moment")
        assert [size(result, f"{n}, routed") // experts for n in names] == [2, 4, 4, 4, 4]

    def test_experts_are_shared_by_edp_and_the_rest_by_dp(self) -> None:
        # 8 devices: DP 8, EDP = 8 / 2 = 4; experts per rank 6 Mi, attention 2 · 2.5 Mi + head 4 Mi
        # + embedding 4 Mi split over nothing (TP 1).
        result = project(setting(plan=replace(NONE, data=8, expert=2)))
        assert size(result, "weights, routed") == 6 * MIB * 2
        assert size(result, "master weights, routed") == 6 * MIB // 4 * 4
        assert size(result, "master weights, split over TP") == 13 * MIB // 8 * 4

    def test_tp_leaves_experts_whole_unless_etp(self) -> None:
        plan = replace(NONE, data=2, tensor=2, expert=2)
        assert size(project(setting(plan=plan)), "weights, routed") == 6 * MIB * 2
        split = replace(plan, expert_tensor=2)
        assert size(project(setting(plan=split)), "weights, routed") == 3 * MIB * 2

    def test_half_of_the_moments_on_the_host(self) -> None:
        whole = project(setting())
        half = project(setting(megatron=MegatronOptions(optimizer_on_host=0.5)))
        for name in ("first moment", "second moment"):
            assert size(half, name) * 2 == size(whole, name)
        assert size(half, "master weights") == size(whole, "master weights")
        assert size(half, "gradients") == size(whole, "gradients")

    def test_muon_has_one_momentum_for_matrices(self) -> None:
        muon, adam = (project(setting(optimizer=name)) for name in ("muon", "adamw"))
        assert size(muon, "first moment") == size(adam, "first moment")
        assert size(muon, "second moment, routed") == 0
        # embedding and head stay with Adam: 8 Mi · 4 B
        assert size(muon, "second moment, split over TP") == 32 * MIB

    def test_fsdp_splits_weights_and_gradients(self) -> None:
        plan = replace(NONE, fsdp=4, expert=2)
        result = project(setting(plan=plan))
        assert size(result, "weights, split over TP") == 13 * MIB // 4 * 2
        assert size(result, "gradients, routed") == 6 * MIB // 2 * 4

    def test_what_stays_between_steps(self) -> None:
        result = project(setting())
        # embedding and head of 4 Mi, in bf16; two workspaces and four of a grouped GEMM
        assert size(result, "gradients of embedding and head") == 2 * 4 * MIB * 2
        assert size(result, "GEMM workspaces") == 6 * 32 * MIB
        a100 = replace(setting(), hardware=load_hardware("a100_80"))
        assert size(project(a100), "GEMM workspaces") == 6 * 4 * MIB
        mi300x = replace(setting(), hardware=load_hardware("mi300x"))
        assert size(project(mi300x), "GEMM workspaces") == 0

    def test_no_adafactor(self) -> None:
        with pytest.raises(SpecError, match="framework megatron has adamw, muon, sgd"):
            project(setting(optimizer="adafactor"))


class TestKept:
    """Activations of one layer, T = t = 1024 tokens, N = 2048 rows."""

    def test_tensors_of_a_layer(self) -> None:
        result = project(setting())
        expected = {
            "layer input, MoE": 2,  # 1024 · 1024 · 2 B
            "query, MoE": 2,
            "key, MoE": 0.5,
            "value, MoE": 0.5,
            "attention output, MoE": 2,
            "expert input, MoE": 4,
            "experts before their activation, MoE": 4,
            "expert activation, MoE": 2,
            "expert output, MoE": 4,
        }
        found = {name: size(result, name) / MIB / 2 for name in expected}
        assert found == expected

    def test_sequence_parallelism_splits_what_lies_between_blocks(self) -> None:
        plan = replace(NONE, tensor=2)
        off = MegatronOptions(has_sequence_parallel=False)
        with_sp, without = (
            project(setting(plan=plan)),
            project(setting(plan=plan, megatron=off)),
        )
        assert size(without, "layer input, MoE") == 2 * size(with_sp, "layer input, MoE")
        assert size(without, "query, MoE") == size(with_sp, "query, MoE")

    def test_context_parallelism_halves_every_activation(self) -> None:
        one = project(setting(plan=replace(NONE, data=2)))
        two = project(setting(plan=replace(NONE, context=2)))
        fixed = size(one, "gradients of embedding and head") + size(one, "GEMM workspaces")
        assert ((two.temp_bytes or 0) - fixed) * 2 == (one.temp_bytes or 0) - fixed
        assert two.args_bytes == one.args_bytes

    def test_overload_moves_routed_rows_alone(self) -> None:
        even, twice = project(setting()), project(setting(overload=2.0))
        assert size(twice, "expert input, MoE") == 2 * size(even, "expert input, MoE")
        for before, after in zip(even.rows, twice.rows, strict=True):
            if before.pool != "outside":
                assert before.is_routed or before.size_bytes == after.size_bytes

    def test_deepep_keeps_no_expert_output(self) -> None:
        result = project(setting(strategy=Strategy("sparse-gmm-deepep")))
        assert size(result, "expert output") == 0

    def test_full_recompute_keeps_inputs_and_one_layer(self) -> None:
        result = project(setting(plan=ParallelPlan()))
        assert size(result, "layer input, MoE") == 2 * 2 * MIB
        assert size(result, "query, MoE") == 0
        assert size(result, "query, at work") == 2 * MIB

    def test_selective_recompute_drops_the_named_modules(self) -> None:
        plan = replace(NONE, remat=Remat("selective:moe_act,layernorm"))
        result = project(setting(plan=plan))
        assert size(result, "expert activation, MoE") == 0
        assert size(result, "normed MLP input, MoE") == 0
        assert size(result, "experts before their activation, MoE") == 8 * MIB

    def test_loss(self) -> None:
        unfused, fused = project(setting()), project(setting(has_fused_loss=True))
        logits = 1024 * 4096
        assert size(unfused, "logits and their gradient") == logits * 4
        assert size(unfused, "softmax of the logits") == logits * 4
        assert size(fused, "softmax of the logits") == 0

    def test_unknown_batch_is_unknown_not_zero(self) -> None:
        result = project(setting(pdbs=None))
        assert result.temp_bytes is None
        assert result.args_bytes is not None
        assert result.verdict == "unknown"
        assert "cannot estimate activations" in result.worst.peak.rows[0].formula


class TestSomeLayers:
    """Recomputation of some layers, linear attention, fp8."""

    def test_block_recomputation_recomputes_the_first_layers_of_a_stage(self) -> None:
        result = project(setting(plan=ParallelPlan(), recomputed_layers=1))
        assert size(result, "layer input, MoE layer") == 2 * 2 * MIB  # of both
        assert size(result, "query, MoE layer without recomputation") == 2 * MIB

    def test_hybrid_attention(self) -> None:
        linear = LinearSpec(key_heads=4, key_dim=64, value_heads=8, value_dim=64, conv_width=4)
        model = replace(SMALL, linear_layers=1, linear=linear)
        result = project(setting(model=model))
        # projections and what the convolution makes of them: 2 · 1024 · (2 · 256 + 512) · 2 B
        assert size(result, "linear queries") == 4 * MIB
        assert size(result, "query, MoE layer") == 2 * MIB
        assert size(result, "layer input, linear MoE layer") == 2 * MIB

    def test_fp8_keeps_narrow_inputs_of_products(self) -> None:
        fp8 = replace(MIXED_PRECISION, compute="float8_e4m3fn")
        result = project(setting(precision=fp8))
        assert size(result, "expert input, MoE") == 2 * 2 * MIB
        assert size(result, "layer input, MoE") == 2 * 2 * MIB
        # both layers' attention 5 Mi, router 8 Ki and experts 12 Mi, twice a byte
        assert size(result, "weights in fp8") == 2 * (5 * MIB + 8192 + 12 * MIB)

    def test_v_shaped_schedules_come_back_to_the_first_stage(self) -> None:
        model = replace(SMALL, layers=4)
        plan = replace(NONE, pipeline=2, virtual=2)
        result = project(setting(model=model, plan=plan, schedule="zbv", microbatches=8))
        assert [p.name for p in result.stages[0].peaks] == ["backward of a MoE layer", "loss"]
        assert [p.name for p in result.stages[1].peaks] == ["backward of a MoE layer"]


class TestOffload:
    """What the run options of every world mean here."""

    def test_optimizer(self) -> None:
        result = project(setting(offload=frozenset({"optimizer"})))
        assert size(result, "first moment") == 0
        assert size(result, "master weights") > 0
        assert "100% of the optimizer's moments" in " ".join(result.notes)

    def test_activations_leave_one_layers_and_what_has_no_module(self) -> None:
        result = project(setting(offload=frozenset({"activations"})))
        assert size(result, "expert input, MoE") == 0
        assert size(result, "expert input, at work") == 4 * MIB
        assert size(result, "expert output, MoE") == 2 * 4 * MIB

    def test_capacity_pads_experts(self) -> None:
        result = project(setting(strategy=Strategy("dense", 1.5)))
        assert size(result, "expert input, MoE") == 2 * 6 * MIB


class TestMany:
    """Thousands of plans in one call give what one by one gives."""

    def test_arrays_equal_numbers(self) -> None:
        base = setting(model=replace(SMALL, layers=8, experts=8), microbatches=8)
        plans = [
            replace(NONE, data=data, fsdp=fsdp, expert=expert, tensor=tensor, pipeline=pipeline)
            for data, fsdp, expert, tensor, pipeline in itertools.product(
                (4, 8), (1, 2), (1, 2, 4), (1, 2), (1, 2, 4)
            )
        ]
        alone = [project(replace(base, plan=plan)) for plan in plans]
        each = [degrees_of(result.setting) for result in alone]
        columns = [np.array(column) for column in zip(*each, strict=True)]
        many = project_many(base, Degrees(*columns))
        assert many.args.tolist() == [result.args_bytes for result in alone]
        assert many.temp.tolist() == [result.temp_bytes for result in alone]
        assert many.outside.tolist() == [result.outside_bytes for result in alone]


class TestStages:
    """Microbatches in flight, and rows that sum."""

    @pytest.mark.parametrize(
        ("stage", "expected"),
        [(0, (4.0,)), (3, (1.0,))],
    )
    def test_1f1b(self, stage: int, expected: tuple[float, ...]) -> None:
        assert flight_of_chunks("1f1b", 4, 1, 8, stage) == expected

    def test_interleaved_last_stage_holds_one_of_its_last_chunk(self) -> None:
        # (2 − 1) · 4 + 1 = 5 chunks: four of the first, one of the last.
        assert flight_of_chunks("1f1b", 4, 2, 8, 3) == (4.0, 1.0)
        # stage 0: 2 · 3 + 4 + 1 = 11 = 8 and 3 more of the first chunk
        assert flight_of_chunks("1f1b", 4, 2, 8, 0) == (7.0, 4.0)

    def test_never_more_than_there_are(self) -> None:
        assert flight_of_chunks("1f1b", 4, 1, 2, 0) == (2.0,)

    def test_rows_sum_to_the_total(self) -> None:
        result = project(setting(plan=replace(NONE, pipeline=2)))
        assert result.total_bytes == int(total(result.rows) or 0)
        assert [s.stage for s in result.stages] == [0, 1]


@pytest.mark.parametrize(
    "name", ["1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "v-half", "v-min"]
)
@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_more_microbatches_repeat_what_a_stage_held(name, stages):
    virtual = {"interleaved": 3, "zbv": 2, "v-half": 2, "v-min": 2}.get(name, 1)
    for times in (5, 8):
        for stage in range(stages):
            played = in_flight_by_chunk(Schedule(name, stages, times * stages, virtual), stage)
            assert flight_of_chunks(name, stages, virtual, times * stages, stage) == played
