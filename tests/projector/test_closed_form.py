"""The closed form of MaxText's step against figures worked out by hand and published ones."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from moeprof.projector.breakdown import MemoryBreakdown
from moeprof.projector.memory import project, project_many
from moeprof.projector.setting import Degrees, Precision, Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import parse_strategy

GIB = 2**30
MODEL = load_preset("deepseek3-671b")


def deepseek(strategy: str, pdbs: int | None, **changes: object) -> Setting:
    """DeepSeek-V3 on 64 MI355X, FSDP 8 between nodes and EP 8 inside them, sequence 4096."""
    return Setting(
        MODEL,
        ParallelPlan(fsdp=8, expert=8),
        parse_strategy(strategy),
        load_hardware("mi355x"),
        pdbs=pdbs,
        **changes,  # type: ignore[arg-type]
    )


def size(breakdown: MemoryBreakdown, name: str) -> float:
    """GiB of a row."""
    (found,) = [row for row in breakdown.rows if row.name == name]
    assert found.size_bytes is not None
    return float(found.size_bytes) / GIB


def test_state_is_exact_to_the_byte() -> None:
    """(P - replicated) / 64 · 6 B + replicated · 6 B; replicated are norms and router biases.

    P = 671,026,419,200; replicated = 61 · 16,384 + 7,168 + 58 · 256 = 1,021,440.
    A batch is five int32 arrays: 20 B per token.
    """
    for pdbs in (1, 9):
        state = project(deepseek("sparse-gmm", pdbs)).args_bytes
        assert state == 62_914_759_680 + 20 * 4096 * pdbs


@pytest.mark.parametrize(
    ("strategy", "clear", "largest"),
    [
        # Published: 16 was the largest tried with factor 1.25; 16, 8, 7, 9 fit and the next tried
        # did not; ragged_dot did not fit at all. Between `clear` and `largest` the verdict is
        # borderline: within 5 % of the pool, or 10 % of the arena.
        ("dense-cf1.25", 18, 23),
        ("dense-cf2", 13, 17),
        ("dense-cf4", 7, 10),
        ("sparse-gmm", 6, 7),
        ("sparse-gmm-deepep", 7, 9),
        ("sparse-ragged-dot", 0, 0),
    ],
)
def test_largest_batch_of_the_published_table(strategy: str, clear: int, largest: int) -> None:
    verdicts = [project(deepseek(strategy, pdbs)).verdict for pdbs in range(1, 24)]
    assert verdicts == ["fits"] * clear + ["borderline"] * (largest - clear) + ["oom"] * (
        23 - largest
    )


@pytest.mark.parametrize(
    ("strategy", "pdbs", "published_gib", "within"),
    [
        ("dense-cf4", 9, 212, 0.01),
        ("sparse-gmm", 8, 242, 0.05),
        ("sparse-ragged-dot", 1, 444, 0.01),
    ],
)
def test_size_of_a_failed_allocation(
    strategy: str, pdbs: int, published_gib: float, within: float
) -> None:
    temp = project(deepseek(strategy, pdbs)).temp_bytes
    assert temp is not None
    assert temp / GIB == pytest.approx(published_gib, rel=within)


def test_rows_sum_to_the_total_exactly() -> None:
    for strategy in ("dense-cf1.25", "sparse-gmm", "sparse-gmm-deepep", "sparse-ragged-dot"):
        found = project(deepseek(strategy, 3))
        pools = (found.args_bytes, found.temp_bytes, found.outside_bytes)
        assert sum(row.size_bytes or 0 for row in found.rows) == found.total_bytes
        assert sum(pool or 0 for pool in pools) == found.total_bytes


def test_without_a_batch_activations_are_unknown_not_zero() -> None:
    found = project(deepseek("sparse-gmm", None))
    assert found.temp_bytes is None
    assert found.verdict == "unknown"
    assert "cannot estimate activations: pdbs not given." in found.notes
    unknown = [row for row in found.rows if row.size_bytes is None]
    assert all(row.formula.startswith("cannot estimate") for row in unknown)
    weights = [row for row in found.rows if row.name == "weights"]
    assert weights[0].size_bytes is not None


def buffer_gib(expert: int, **changes: object) -> float:
    """One [N, d] array of DeepSeek-V3 in bfloat16, sequence 4096, one sequence per device."""
    setting = deepseek("sparse-gmm", 1, **changes)
    setting = dataclasses.replace(setting, plan=ParallelPlan(expert=expert))
    (peak,) = [
        peak for peak in project(setting).worst.peaks if peak.name == "backward of a MoE layer"
    ]
    (row,) = [row for row in peak.rows if row.name.startswith("received, sorted")]
    assert row.size_bytes is not None
    return float(row.size_bytes) / GIB / 5  # five of them


def test_worst_case_rows_of_a_dropless_buffer() -> None:
    """64 ranks, 4 experts each, top-8: 64 · 4096 · min(4, 8) = 1,048,576 rows of 14,336 B."""
    assert buffer_gib(64) == 14.0
    assert buffer_gib(8) == 3.5  # 8 · 4096 · 8 = 262,144 rows
    assert buffer_gib(64, ragged_buffer_factor=1.0) == 448 / 1024  # 4096 · 8 = 32,768 rows
    assert buffer_gib(64, overload=1.0) == 448 / 1024


def test_deepep_receives_one_row_per_rank_and_token() -> None:
    """8 · 4096 = 32,768 rows arrive, each with 8 slots: 262,144 rows after the fan-out."""
    found = project(deepseek("sparse-gmm-deepep", 1))
    assert size(found, "fanned-out and returned rows, cotangents") == 3.5 * 3.5


def test_overload_raises_routed_rows_alone() -> None:
    even, twice = (project(deepseek("sparse-gmm", 4, overload=x)) for x in (1.0, 2.0))
    for before, after in zip(even.rows, twice.rows, strict=True):
        assert before.name == after.name
        assert before.size_bytes is not None
        assert after.size_bytes == (2 if before.is_routed else 1) * before.size_bytes


def test_formats_stand_each_for_itself() -> None:
    """Weights float32, master none, moments 4 + 2: 10 B per parameter instead of 6."""
    precision = Precision(weights="float32", first_moment="float32", second_moment="bfloat16")
    found = project(deepseek("sparse-gmm", 1, precision=precision))
    assert found.args_bytes == 62_914_759_680 // 6 * 10 + 20 * 4096
    said = "weights in float32 as asked; the model's configuration says bfloat16."
    assert said in found.notes


@pytest.mark.parametrize(
    ("policy", "gib"),
    [
        # 61 layers, 4096 tokens, 2 B: out_proj 7168 wide; q and k 128 · 192, v 128 · 128.
        ("save_out_proj", 61 * 4096 * 7168 * 2 / GIB),
        ("save_qkv_proj", 61 * 4096 * (2 * 128 * 192 + 128 * 128) * 2 / GIB),
        ("qkv_proj_offloaded", 0.0),
    ],
)
def test_a_policy_adds_what_it_names(policy: str, gib: float) -> None:
    plan = ParallelPlan(fsdp=8, expert=8, remat=Remat(policy))
    full = project(deepseek("sparse-gmm-deepep", 1))
    kept = project(dataclasses.replace(full.setting, plan=plan))
    assert full.temp_bytes is not None
    assert kept.temp_bytes is not None
    assert (kept.temp_bytes - full.temp_bytes) / GIB == pytest.approx(gib)


def test_published_steps_between_policies() -> None:
    """sparse-gmm-deepep at pdbs 7: keeping mlpwo adds 1,421 GiB (ROCm/rocm-blogs).

    58 MoE layers · 7 · 3.5 GiB; no gradient needs what shared experts and dense layers add.
    """
    plans = [
        ParallelPlan(fsdp=8, expert=8, remat=Remat(policy))
        for policy in ("save_dot_except_mlp", "save_dot_except_mlpwi")
    ]
    base = deepseek("sparse-gmm-deepep", 7)
    less, more = (project(dataclasses.replace(base, plan=plan)) for plan in plans)
    added = (more.temp_bytes or 0) - (less.temp_bytes or 0)
    assert added == 58 * 7 * 3.5 * GIB
    assert any("keeps whole dispatch buffers" in note for note in more.notes)


def test_many_plans_at_once_are_each_alone() -> None:
    shapes = [(8, 8, 1), (1, 64, 2), (64, 1, 3), (2, 16, 4)]
    for strategy in ("dense-cf2", "sparse-gmm", "sparse-gmm-deepep", "sparse-ragged-dot"):
        base = deepseek(strategy, 1)
        fsdp, expert, pdbs = (np.array(column) for column in zip(*shapes, strict=True))
        degrees = Degrees(1, fsdp, expert, 1, 1, 1, 1, 1, pdbs, 1, 4096)
        many = project_many(base, degrees)
        for k, (f, e, p) in enumerate(shapes):
            plan = ParallelPlan(fsdp=f, expert=e)
            one = project(dataclasses.replace(base, plan=plan, pdbs=p))
            assert many.args[k] == one.args_bytes
            assert many.temp[k] == one.temp_bytes
            assert many.outside[k] == one.outside_bytes


def test_the_closed_form_needs_no_jax() -> None:
    """Answers in milliseconds: neither JAX nor pandas is imported on the way."""
    program = (
        "import sys, moeprof.projector.memory, moeprof.projector.levers; "
        "print([name for name in ('jax', 'pandas', 'optax') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_layers_that_are_not_scanned_are_said_to_be_counted_as_scanned() -> None:
    found = project(deepseek("sparse-gmm", 1, is_scanned=False))
    assert any(note.startswith("layers are not scanned") for note in found.notes)
    assert not any("not scanned" in note for note in project(deepseek("sparse-gmm", 1)).notes)


@pytest.mark.parametrize("build", ["rocm-26.2", "0.2.5"])
@pytest.mark.parametrize("strategy", ["sparse-gmm", "sparse-gmm-deepep", "sparse-ragged-dot"])
def test_experts_in_fp8_hold_one_array_of_rows_in_fp8(strategy: str, build: str) -> None:
    """The kept operand 1 B in place of 2, a quantised cotangent 1 B beside: as much as in bf16."""
    precision = Precision(experts="float8_e4m3fn")
    wide = project(deepseek(strategy, 4, maxtext_build=build))
    fp8 = project(deepseek(strategy, 4, maxtext_build=build, precision=precision))
    assert fp8.inside_bytes == wide.inside_bytes
    rows = 4 * 4096 * 8 * 8  # tokens · top-k · EP
    assert size(fp8, "rows quantised for fp8 products: an operand, a cotangent") == (
        pytest.approx(2 * rows * 7168 / 2**30)
    )


def test_adamw_updates_in_place() -> None:
    """At the update gradients are left, and of embedding and head, bf16[129280, 7168] / 64 each,
    the clipped one and two that are reduced: no array like the experts' 6.34 GiB beside them."""
    (stage,) = project(deepseek("dense-cf1.25", 1)).stages
    (update,) = (peak for peak in stage.peaks if peak.name == "optimizer update")
    gradients = next(row.size_bytes for row in update.rows if row.name == "gradients")
    assert update.size_bytes == gradients + 3 * 129280 * 7168 * 2 // 64
