"""Whose kernels are exported, and what is said about the others."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest

import moeprof.kernels
from moeprof.errors import NativeError
from moeprof.kernels import provider
from moeprof.kernels.backends import cpu_library, gpu_library

pytestmark = pytest.mark.cpu("whose kernels run without a GPU")


def pretend_installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: ModuleSpec(name, None) if name in names else real(name),
    )


def test_the_native_library_runs_here_and_the_reason_says_why_not_primus_turbo():
    choice = provider.describe()
    assert choice.name == "native_cpu"
    assert choice.native_library == cpu_library.library_path()
    assert "the package primus_turbo is not installed" in choice.reason


def test_without_the_library_the_twins_run_and_the_reason_is_its_own(monkeypatch):
    monkeypatch.setattr(cpu_library, "unavailable_reason", lambda: "no library at /nowhere")
    choice = provider.describe()
    assert (choice.name, choice.native_library) == ("reference", None)
    assert choice.native_problem == "no library at /nowhere"
    assert "no library at /nowhere" in choice.reason


@pytest.mark.parametrize(
    ("installed", "has_plugin", "platforms", "problem"),
    [
        (["primus_turbo"], True, "", "has no JAX part"),
        (["primus_turbo", "primus_turbo.jax"], False, "", "no JAX plugin for ROCm"),
        (["primus_turbo", "primus_turbo.jax"], True, "cpu", "JAX_PLATFORMS=cpu leaves ROCm out"),
        (["primus_turbo", "primus_turbo.jax"], True, "rocm,cpu", "no AMD GPU"),
    ],
)
def test_each_thing_that_primus_turbo_lacks_is_named(
    monkeypatch, tmp_path, installed, has_plugin, platforms, problem
):
    pretend_installed(monkeypatch, *installed)
    monkeypatch.setattr(provider, "_has_plugin", lambda platform: has_plugin)
    monkeypatch.setattr(provider, "_AMD_GPU_DRIVER", tmp_path / "kfd")
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    if installed == ["primus_turbo"]:
        real = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name: None if name == "primus_turbo.jax" else real(name),
        )
    assert problem in str(provider.describe().primus_turbo_problem)


def test_primus_turbo_on_an_amd_gpu_is_used(monkeypatch, tmp_path):
    pretend_installed(monkeypatch, "primus_turbo", "primus_turbo.jax")
    monkeypatch.setattr(provider, "_has_plugin", lambda platform: True)
    monkeypatch.setattr(provider, "_AMD_GPU_DRIVER", tmp_path)
    monkeypatch.setenv("JAX_PLATFORMS", "")
    assert provider.uses_primus_turbo()
    assert provider.describe().name == "primus_turbo"


@pytest.mark.parametrize(
    ("platforms", "plugins", "library_problem", "problem"),
    [
        ("cpu", ["cuda"], None, "JAX_PLATFORMS=cpu leaves CUDA out"),
        ("", [], None, "no JAX plugin for CUDA"),
        ("cuda,cpu", ["cuda"], "no NVIDIA GPU: the driver sees none", "the driver sees none"),
    ],
)
def test_each_thing_that_our_gpu_kernels_lack_is_named(
    monkeypatch, platforms, plugins, library_problem, problem
):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(provider, "_has_plugin", lambda platform: platform in plugins)
    monkeypatch.setattr(gpu_library, "unavailable_reason", lambda: library_problem)
    choice = provider.describe()
    assert (choice.name, choice.gpu_library) == ("native_cpu", None)
    assert problem in str(choice.gpu_problem)


def test_our_kernels_on_an_nvidia_gpu_go_before_those_of_the_cpu(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setattr(provider, "_has_plugin", lambda platform: platform == "cuda")
    monkeypatch.setattr(gpu_library, "unavailable_reason", lambda: None)
    choice = provider.describe()
    assert (choice.name, choice.gpu_problem) == ("native_gpu", None)
    assert choice.gpu_library == gpu_library.library_path()


def test_a_gpu_library_that_is_absent_is_named_with_the_way_to_build_it(monkeypatch, tmp_path):
    monkeypatch.setenv("MOEPROF_GPU_LIBRARY", str(tmp_path / "nothing.so"))
    gpu_library.load.cache_clear()
    with pytest.raises(NativeError, match=r"GPU library: expected .*/nothing.so, found nothing"):
        gpu_library.load()


def test_the_package_exports_the_names_of_primus_turbo_and_the_gradient_of_matrices():
    assert sorted(moeprof.kernels.__all__) == [
        "Config",
        "compute_group_offs",
        "get_ep_size",
        "grouped_gemm",
        "grouped_gemm_variable_k",
        "is_internode",
        "moe_combine",
        "moe_dispatch",
        "reset_runtime",
        "set_ep_group",
        "setup",
    ]
    assert all(callable(getattr(moeprof.kernels, name)) for name in moeprof.kernels.__all__)


def test_describing_starts_no_backend():
    script = (
        "from moeprof.kernels import provider; provider.describe();"
        "from jax._src import xla_bridge; print(xla_bridge.backends_are_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
