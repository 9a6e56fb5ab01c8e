"""The account "primus" against AMD's figures of MoE-1T and MoE-2T on 768 GPUs, decimal GB.

AMD-AGI/Primus, examples/moe_package/images/moe-1t-memory-projection.png and moe-2t-….
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moeprof.projector.breakdown import MemoryBreakdown, total
from moeprof.projector.frameworks.megatron import MIXED_PRECISION
from moeprof.projector.memory import project
from moeprof.projector.setting import MegatronOptions, Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import Strategy

GB = 10**9
# model, PP, EP, VPP: weights, gradients, master, moments, activations as printed
FIGURES = {
    ("moe_1t", 24, 8, 4): (12.8, 12.8, 3.2, 12.8, 153.4),
    ("moe_1t", 24, 16, 4): (7.5, 7.5, 3.7, 14.9, 153.4),
    ("moe_1t", 48, 8, 2): (7.2, 7.2, 3.6, 14.4, 183.8),
    ("moe_2t", 24, 8, 4): (23.3, 23.3, 5.8, 23.3, 262.2),
    ("moe_2t", 24, 16, 4): (12.8, 12.8, 6.4, 25.5, 262.2),
    ("moe_2t", 48, 8, 2): (12.5, 12.5, 6.2, 25.0, 314.6),
}


def study(model: str, pp: int, ep: int, vpp: int, account: str, context: int = 1) -> Setting:
    """A plan of the study: 768 GPUs, sequences of 4,096 tokens, micro batch 1."""
    plan = ParallelPlan(
        data=768 // (pp * context),
        expert=ep,
        pipeline=pp,
        virtual=vpp,
        context=context,
        remat=Remat("none"),
    )
    return Setting(
        model=load_preset(model),
        plan=plan,
        strategy=Strategy("sparse-gmm"),
        hardware=load_hardware("mi355x"),
        sequence=4096,
        pdbs=1,
        microbatches=pp * vpp,
        framework="megatron",
        precision=MIXED_PRECISION,
        megatron=MegatronOptions(account=account),
    )


def bars(result: MemoryBreakdown) -> tuple[float, ...]:
    """The five bars, GB."""
    sizes = [float(row.size_bytes or 0) / GB for row in result.stages[0].args]
    return (*sizes, (result.temp_bytes or 0) / GB)


@pytest.mark.parametrize(("plan", "printed"), FIGURES.items(), ids=str)
def test_each_bar_to_the_printed_digit(
    plan: tuple[str, int, int, int], printed: tuple[float, ...]
) -> None:
    assert bars(project(study(*plan, "primus"))) == pytest.approx(printed, abs=0.06)


@pytest.mark.parametrize("account", ["primus", "megatron"])
def test_two_way_context_parallelism_halves_activations(account: str) -> None:
    one = project(study("moe_1t", 24, 8, 4, account))
    two = project(study("moe_1t", 24, 8, 4, account, context=2))
    fixed = 2 * 838_860_800 if account == "megatron" else 0  # the embedding's gradient in bf16
    half = (two.stages[0].peak.size_bytes or 0) - fixed
    assert half * 2 + fixed == one.stages[0].peak.size_bytes


def test_our_account_beside_it() -> None:
    """MoE-1T, PP 24, EP 8, first stage: 4 layers and the embedding.

    A layer: attention 2·8192² + 2·8192·1024 = 150,994,944; 28 experts of 47,185,920; a shared one;
    router 1,835,008 and 224 biases; norms 2·8192. With the embedding of 838,860,800:
    6,923,813,760 parameters, 13.85 GB in bf16 where the figure has 12.8: it leaves out queries and
    the output projection.
    """
    result = project(study("moe_1t", 24, 8, 4, "megatron"))
    first = result.stages[0]
    weights = total([row for row in first.args if row.kind == "params"])
    assert weights == 2 * 6_923_813_760
    grads = total([row for row in first.args if row.kind == "grads"])
    assert grads == 2 * (weights or 0)
    # Kept of a layer, in elements per token: 6·d + k + v = 51,200; statistics 128; experts
    # 8·(2·d + 3·f) = 177,152; shared 3·f = 5,760; router 224·17/2 = 1,904; of 119 layers. Then
    # two gradients of 8·4096 rows, and the embedding's in bf16.
    kept = 119 * 4096 * 2 * (51_200 + 128 + 177_152 + 5_760 + 1_904)
    assert first.peak.size_bytes == kept + 2 * 8 * 4096 * 8192 * 2 + 2 * 838_860_800


def test_micro_batch_doubles_activations_alone() -> None:
    one = study("moe_1t", 24, 8, 4, "primus")
    two = replace(one, pdbs=2)
    assert (project(two).temp_bytes or 0) == 2 * (project(one).temp_bytes or 0)
    assert project(two).args_bytes == project(one).args_bytes
