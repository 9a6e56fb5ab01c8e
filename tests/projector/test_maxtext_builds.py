"""Two builds of MaxText: AMD's container by what it published, the release by what XLA lays out."""

from dataclasses import replace

import pytest

from moeprof.errors import SpecError
from moeprof.projector.memory import project
from moeprof.projector.setting import Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import MlaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import parse_strategy


def deepseek(strategy: str, pdbs: int, **changes: object) -> Setting:
    return Setting(
        load_preset("deepseek3-671b"),
        ParallelPlan(fsdp=8, expert=8),
        parse_strategy(strategy),
        load_hardware("mi355x"),
        pdbs=pdbs,
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("strategy", "pdbs", "temp_gib", "within"),
    [  # benchmarks/results/maxtext_compiled.json
        # Other models have gradients of experts in flight there, which this one has not.
        ("dense-cf1.25", 1, 69.50, 0.19),
        ("dense-cf1.25", 8, 122.17, 0.06),
        ("dense-cf4", 4, 117.55, 0.03),
        ("sparse-ragged-dot", 1, 311.69, 0.03),
    ],
)
def test_the_release_as_it_is_compiled_for_64_devices(
    strategy: str, pdbs: int, temp_gib: float, within: float
) -> None:
    found = project(deepseek(strategy, pdbs, maxtext_build="0.2.5"))
    assert found.temp_bytes is not None
    assert found.temp_bytes / 2**30 == pytest.approx(temp_gib, rel=within)


def test_the_other_build_is_told_where_it_matters() -> None:
    """Stacked copies of 58 layers' experts and those of all ranks: 19 + 21 GiB more."""
    container = project(deepseek("dense-cf1.25", 4))
    (note,) = [note for note in container.notes if "MaxText" in note]
    assert note.startswith("counts are those of MaxText rocm-26.2; with 0.2.5 the step takes ")
    release = project(deepseek("dense-cf1.25", 4, maxtext_build="0.2.5"))
    assert (release.temp_bytes or 0) > (container.temp_bytes or 0) + 20 * 2**30


@pytest.mark.parametrize(
    ("device", "build"),
    [
        *(("mi355x", "rocm-26.2"), ("mi300x", "rocm-26.2")),
        *(("h100_sxm", "0.2.5"), ("gb200", "0.2.5")),
    ],
)
def test_the_build_follows_from_the_device(device: str, build: str) -> None:
    setting = replace(deepseek("sparse-gmm", 1), hardware=load_hardware(device))
    assert setting.build == build
    asked = replace(setting, maxtext_build="rocm-26.2")
    assert asked.build == "rocm-26.2"
    assert project(setting).temp_bytes == project(replace(setting, maxtext_build=build)).temp_bytes


def test_other_programs_have_one_build() -> None:
    for framework in ("bundled", "megatron"):
        assert deepseek("sparse-gmm", 1, framework=framework).build is None


def test_a_build_is_maxtexts_alone() -> None:
    with pytest.raises(SpecError, match=r"0\.2\.5: framework megatron has no MaxText"):
        deepseek("sparse-gmm", 1, framework="megatron", maxtext_build="0.2.5")
    with pytest.raises(SpecError, match=r"maxtext_build: expected one of rocm-26\.2, 0\.2\.5"):
        deepseek("sparse-gmm", 1, maxtext_build="1")


def captured(**changes: object) -> Setting:
    """The step of MaxText 0.2.5 that ran on two H100: its shapes are those of its program."""
    model = ModelSpec(
        layers=5,
        dense_layers=1,
        hidden=2048,
        heads=16,
        attention=MlaSpec(768, 512, 128, 64, 128),
        experts=16,
        top_k=4,
        moe_ffn=1024,
        dense_ffn=8192,
        vocab=32768,
        compute_dtype="bfloat16",
        weight_dtype="bfloat16",
    )
    return Setting(
        model,
        ParallelPlan(expert=2),
        parse_strategy("dense-cf1.25"),
        load_hardware("h100_sxm"),
        **{
            "sequence": 2048,
            "pdbs": 2,
            "attention": "whole",
            "maxtext_build": "0.2.5",
            **changes,
        },  # type: ignore[arg-type]
    )


def test_the_release_as_it_ran_on_two_h100() -> None:
    """memory_analysis of the run: arguments 2,009,196,532 B, temp 3,898,152,944 B."""
    found = project(captured())
    assert found.args_bytes == pytest.approx(2_009_196_532, rel=0.001)
    assert found.temp_bytes == pytest.approx(3_898_152_944, rel=0.05)


def test_a_stack_of_one_layer_is_not_recomputed_by_the_release() -> None:
    """Its two arrays of scores, bf16[2, 16, 2048, 2048], stay: 2 · 256 MiB."""
    scores = [
        row.size_bytes
        for row in project(captured()).rows
        if row.kind == "activations" and "scores" in row.name
    ]
    assert scores == [2 * 2 * 16 * 2048 * 2048 * 2]
    flash = project(captured(attention="flash"))
    assert not any("scores" in row.name for row in flash.rows)


# A grouped GEMM in the release: the layer of examples/maxtext_kernels.py.


def grouped(strategy: str, plan: ParallelPlan, top_k: int = 8, remat: str = "full") -> Setting:
    """DeepSeek-V3 with 16 experts, on H100."""
    model = replace(load_preset("deepseek3-671b"), experts=16, top_k=top_k)
    plan = replace(plan, remat=Remat(remat))
    return Setting(model, plan, parse_strategy(strategy), load_hardware("h100_sxm"), sequence=2048)


def sizes(setting: Setting, moment: str) -> dict[str, int]:
    peaks = {peak.name: peak.rows for peak in project(setting).worst.peaks}
    return {row.name: int(row.size_bytes or 0) for row in peaks[moment]}


def test_a_received_row_is_fanned_out_to_experts_of_its_rank_alone() -> None:
    """EP 4: 2048 · 4 rows arrive, each for at most min(16 / 4, 8) = 4 of the rank's experts.

    N = 8192 · 4 = 32,768; [N, 7168] in bfloat16 are 469,762,048 B, [N, 2048] 134,217,728 B.
    """
    rows = sizes(
        grouped("sparse-gmm-deepep", ParallelPlan(fsdp=2, expert=4)), "backward of a MoE layer"
    )
    assert rows["fanned-out and returned rows, cotangents"] == 4 * 469_762_048
    assert rows["rows inside experts: product, cotangents"] == 3 * 134_217_728
    assert rows["cotangents of received rows"] == 8192 * 7168 * 2
    container = replace(
        grouped("sparse-gmm-deepep", ParallelPlan(fsdp=2, expert=4)), maxtext_build="rocm-26.2"
    )
    name = "fanned-out and returned rows, cotangents"
    assert sizes(container, "backward of a MoE layer")[name] == 3.5 * 2 * 469_762_048


def test_rows_of_experts_wait_for_the_attention_before_them() -> None:
    """Without EP N is tokens · top-k: 16,384."""
    rows = sizes(grouped("sparse-gmm", ParallelPlan(fsdp=8)), "backward of attention")
    assert rows["rows and cotangents of experts"] == 2 * 16_384 * 7168 * 2
    assert rows["rows inside experts"] == 3 * 16_384 * 2048 * 2


@pytest.mark.parametrize(
    ("strategy", "kept"),
    [
        # What experts return is weighted before the last product, so it is kept for nothing.
        ("sparse-gmm", {"mlpwi_0", "mlpwi_1"}),
        ("sparse-gmm-deepep", {"mlpwi_0", "mlpwi_1"}),
        ("sparse-ragged-dot", {"mlpwi_0", "mlpwo"}),
        ("dense-cf1.25", {"mlpwi_0", "mlpwi_1", "mlpwo"}),
    ],
)
def test_what_a_policy_keeps_of_routed_experts(strategy: str, kept: set[str]) -> None:
    run = grouped(strategy, ParallelPlan(expert=8), remat="minimal")
    names = {row.name for row in project(run).rows if row.name.endswith(", routed experts")}
    assert names == {f"{name}, routed experts" for name in kept}


def test_gradients_of_experts_wait_on_several_hosts() -> None:
    """Two matrices of 16 experts, 7168 · 2048 each, in bfloat16; none on one host."""
    moment = "backward of a MoE layer, second gradient of experts"
    name = "gradients of expert matrices, not reduced"
    far = sizes(grouped("dense-cf1.25", ParallelPlan(fsdp=8, expert=8)), moment)
    assert far[name] == 2 * 16 * 7168 * 2048 * 2
    assert sizes(grouped("dense-cf1.25", ParallelPlan(expert=8)), moment)[name] == 0
