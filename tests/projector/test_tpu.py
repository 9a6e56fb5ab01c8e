"""What a TPU does otherwise: ragged_dot has a kernel, the pool is all, DeepEP and Megatron are not.

AI-Hypercomputer/maxtext, layers/moe.py; docs.jax.dev, GPU memory allocation (the fraction is a
matter of GPUs).
"""

import json
from dataclasses import replace

import pytest

from moeprof.cli import main as command_line
from moeprof.errors import SpecError
from moeprof.projector.levers import levers
from moeprof.projector.memory import project
from moeprof.projector.setting import Setting, usual_of
from moeprof.specs.hardware import load_hardware
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.strategy import parse_strategy


def on_tpu(strategy: str, **changes: object) -> Setting:
    return Setting(
        load_preset("mixtral-8x7b"),
        ParallelPlan(expert=8),
        parse_strategy(strategy),
        load_hardware("tpu_v5p"),
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("build", ["rocm-26.2", "0.2.5"])
def test_ragged_dot_has_a_kernel_there(build: str) -> None:
    ragged = project(on_tpu("sparse-ragged-dot", maxtext_build=build))
    grouped = project(on_tpu("sparse-gmm", maxtext_build=build))
    assert ragged.temp_bytes == grouped.temp_bytes
    assert not any("fallback" in row.name for row in ragged.rows)


def test_xla_has_all_of_it() -> None:
    assert usual_of(load_hardware("tpu_v5p"))["mem_fraction"] == 1
    assert usual_of(load_hardware("h100_sxm"))["mem_fraction"] == 0.93


def test_deepep_is_a_library_of_gpus() -> None:
    with pytest.raises(SpecError, match=r"sparse-gmm-deepep: DeepEP runs on GPUs, found Google"):
        on_tpu("sparse-gmm-deepep")
    tight = on_tpu("sparse-gmm", pdbs=64)
    assert not any("deepep" in lever.change for lever in levers(project(tight)))


def test_megatron_runs_on_gpus() -> None:
    with pytest.raises(SpecError, match=r"megatron: Megatron-LM runs on GPUs, found Google"):
        on_tpu("sparse-gmm", framework="megatron")


@pytest.fixture
def memory(monkeypatch, capsys):
    """Run the command on eight v5p: exit code, stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        shared = ("--model", "mixtral_8x7b", "--hardware", "tpu_v5p", "--devices", "8")
        monkeypatch.setattr("sys.argv", ["moeprof", "memory", *arguments, *shared])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


def test_the_command_leaves_deepep_out_and_takes_all_of_the_device(memory) -> None:
    code, text, _ = memory("--ep", "8")
    assert code == 0
    assert "sparse-gmm-deepep: left out, DeepEP runs on GPUs" in text
    assert "pool 95.7 GiB" in text


def test_a_tpu_has_the_release_and_no_measured_error(memory) -> None:
    code, text, _ = memory("--ep", "8", "--pdbs", "1", "--strategy", "sparse-gmm")
    assert code == 0
    text = " ".join(text.split())
    assert "MaxText 0.2.5: sparse-gmm" in text
    assert "rocm" not in text
    assert ": not measured for such a plan" in text
    assert "counts are those of MaxText 0.2.5 on GPUs: of its steps for TPUs none" in text


def test_the_search_leaves_deepep_out(memory) -> None:
    code, text, _ = memory("search", "--json")
    assert code == 0
    assert not any(p["strategy"] == "sparse-gmm-deepep" for p in json.loads(text)["plans"])


def test_deepep_asked_for_is_refused(memory) -> None:
    code, _, said = memory("--ep", "8", "--strategy", "sparse-gmm-deepep")
    assert code == 2
    assert "DeepEP runs on GPUs, found Google TPU v5p" in said


def test_a_gpu_keeps_its_fraction() -> None:
    gpu = replace(on_tpu("sparse-gmm"), hardware=load_hardware("h100_sxm"))
    assert project(gpu).pool_bytes < gpu.hardware.hbm_bytes
