"""Verdicts from three pools, worked out by hand."""

import dataclasses

import pytest

from moeprof.errors import SpecError
from moeprof.projector.breakdown import MemoryBreakdown, Peak, Row, StageBreakdown
from moeprof.projector.setting import Precision, Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import GqaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.strategy import parse_strategy

GIB = 2**30
EP_BUFFERS = 2_384_731_136


def setting(mem_fraction: float = 0.93) -> Setting:
    model = ModelSpec(
        layers=2,
        hidden=64,
        heads=4,
        attention=GqaSpec(kv_heads=2, head_dim=16),
        experts=4,
        top_k=2,
        moe_ffn=32,
        vocab=128,
    )
    card = dataclasses.replace(load_hardware("h100_sxm"), hbm_bytes=80 * GIB)
    return Setting(
        model, ParallelPlan(), parse_strategy("sparse-gmm"), card, mem_fraction=mem_fraction
    )


def row(name: str, pool: str, size: int | None) -> Row:
    return Row(name, pool, "temporaries", size, "given", "a test", "exact")


def breakdown(mem_fraction: float, temp: int | None = 72 * GIB) -> MemoryBreakdown:
    outside = (row("EP", "outside", EP_BUFFERS), row("NCCL", "outside", 3 * GIB // 2))
    peak = Peak("loss", (row("logits", "temp", temp),))
    stage = StageBreakdown(0, (row("weights", "args", 0),), (peak,), outside)
    return MemoryBreakdown(setting(mem_fraction), (stage,))


def test_two_pools_decide() -> None:
    """80 GiB, 72 inside, 2.22 + 1.5 = 3.72 outside (NVIDIA/nccl#2038)."""
    inside = breakdown(0.93)
    assert inside.verdict == "borderline"  # 72 of 74.4 GiB: 3.2 % below the pool
    over = breakdown(0.98)
    assert (over.verdict, over.breaks_first) == ("oom", "outside the pool")
    small = breakdown(0.8)  # 64 GiB, of an account that was not measured: 0.9 · 72 is 64.8
    assert (small.verdict, small.breaks_first) == ("oom", "loss: logits")
    low, high = inside.mem_fraction_range or (0, 0)
    assert low == pytest.approx(0.90)
    assert high == pytest.approx(1 - 3.7209715 / 80, abs=1e-6)  # 0.953


def test_an_unknown_row_leaves_no_verdict() -> None:
    unknown = breakdown(0.93, None)
    assert unknown.temp_bytes is None
    assert unknown.total_bytes is None
    assert unknown.verdict == "unknown"
    assert unknown.mem_fraction_range is None


def test_rows_sum_to_the_total() -> None:
    whole = breakdown(0.93)
    assert sum(r.size_bytes for r in whole.rows) == whole.total_bytes
    assert whole.total_bytes == 72 * GIB + EP_BUFFERS + 3 * GIB // 2


def test_the_fullest_peak_and_the_worst_stage_are_the_headline() -> None:
    peaks = (Peak("layer", (row("a", "temp", 5),)), Peak("loss", (row("b", "temp", 7),)))
    light = StageBreakdown(0, (), peaks, ())
    heavy = StageBreakdown(1, (row("w", "args", 9),), peaks[:1], ())
    both = MemoryBreakdown(setting(), (light, heavy))
    assert light.peak.name == "loss"
    assert both.worst is heavy
    assert both.args_bytes == 9


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"mem_fraction": 1.5}, "mem-fraction: expected a share"),
        ({"optimizer": "lamb"}, "optimizer: expected one of adamw"),
        ({"pdbs": 0}, "pdbs: expected at least 1, found 0"),
        ({"overload": 0.5}, "imbalance: expected at least 1, since the fullest rank"),
        ({"ragged_buffer_factor": 0.0}, "ragged_buffer_factor: expected a number above 0"),
        ({"sequence": 10**12}, "sequence: expected at most 16,777,216 tokens"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, object], expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        dataclasses.replace(setting(), **change)


def test_a_number_format_that_there_is_none_of() -> None:
    with pytest.raises(SpecError, match="precision weights: expected one of float32"):
        Precision(weights="int4")
