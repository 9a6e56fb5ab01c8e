"""What programs for NVIDIA GPUs call, seen without one."""

from __future__ import annotations

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.kernels import grouped_gemm, grouped_gemm_variable_k, moe_combine, moe_dispatch, setup
from moeprof.kernels.backends import gpu_library
from moeprof.kernels.exchange.primitives import bind_combine
from moeprof.kernels.preflight import PreflightError
from moeprof.kernels.products.primitive import _warn_once
from moeprof.kernels.runtime.expert_parallel import frozen_state
from moeprof.projector.compiled import compiler

from .moe_cases import mesh_of, on_ranks

pytestmark = pytest.mark.cpu("programs that are compiled and not run")

ROWS, MATRICES = jnp.ones((64, 16), jnp.bfloat16), jnp.ones((2, 16, 24), jnp.bfloat16)
LENS = jnp.array([30, 20])


@pytest.fixture
def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_library, "unavailable_reason", lambda: None)


def calls(run, *args) -> list[str]:
    lowered = jax.jit(run).trace(*args).lower(lowering_platforms=("cuda",))
    return re.findall(r"custom_call @(moeprof_.*)", lowered.as_text())


@pytest.mark.usefixtures("_library")
def test_rows_that_run_along_the_second_axis_are_transposed_first():
    (call,) = calls(lambda a, b: grouped_gemm(a, b, LENS, transA=True, num_cu=7), ROWS.T, MATRICES)
    assert "{max_threads = 7 : i64, trans_a = false, trans_b = false}" in call
    assert (
        "(tensor<1x64x16xbf16>, tensor<1x2x16x24xbf16>, tensor<1x2xi32>, tensor<1x0xi32>)" in call
    )


@pytest.mark.usefixtures("_library")
def test_matrices_are_read_as_they_lie():
    turned = jnp.swapaxes(MATRICES, 1, 2)
    (call,) = calls(lambda a, b: grouped_gemm(a, b, LENS, transB=True), ROWS, turned)
    assert "trans_b = true" in call
    assert "tensor<1x2x24x16xbf16>" in call


@pytest.mark.usefixtures("_library")
def test_the_type_of_the_result_asks_for_float32_sums():
    run = lambda a, d: grouped_gemm_variable_k(a, d, LENS, preferred_element_type=jnp.float32)  # noqa: E731
    (call,) = calls(run, ROWS, ROWS)
    assert call.startswith("moeprof_grouped_gemm_variable_k(")
    assert "mhlo.backend_config = {max_threads = 0 : i64}" in call
    assert call.endswith("-> tensor<1x2x16x16xf32>")


def round_trip(x, idx):
    recv_x, _, _, handle = moe_dispatch(x, idx, jnp.ones(idx.shape), 4)
    return moe_combine(recv_x, handle)


X, IDX = np.ones((2, 4, 8), np.float32), np.zeros((2, 4, 1), np.int32)


@pytest.mark.usefixtures("_library")
def test_an_exchange_names_its_groups_and_its_patience(monkeypatch):
    monkeypatch.setenv("MOEPROF_EP_TIMEOUT_S", "1.5")
    mesh = mesh_of(2)
    setup(mesh=mesh)
    dispatch, combine = calls(on_ranks(round_trip, mesh), X, IDX)
    assert dispatch.startswith("moeprof_moe_dispatch_inproc(")
    assert combine.startswith("moeprof_moe_combine_inproc(")
    for call in (dispatch, combine):
        assert "ep_groups = dense<[0, 1]> : tensor<2xi64>, ep_size = 2 : i64" in call
        assert "timeout_ms = 1500 : i64" in call
        assert "has_side_effect = true" in call
    assert "num_experts = 4 : i64" in dispatch


@pytest.mark.usefixtures("_library")
def test_an_array_without_elements_is_passed_as_a_constant():
    # As a parameter of the program it would crash XLA's GPU compiler (jaxlib 0.11.2).
    mesh = mesh_of(2)
    setup(mesh=mesh)
    groups = frozen_state().groups

    def combine(x, weights, prefix, channels, heads):
        handle = (prefix, channels, prefix, heads, heads >= 0, heads)
        return bind_combine(x, weights, handle, groups=groups)

    shapes = ((2, 2), (2, 32), (4, 2))
    handle = [np.zeros((2, *shape), np.int32) for shape in shapes]
    x, no_weights = np.ones((2, 8, 16), np.float32), np.zeros((2, 8, 0), np.float32)
    traced = on_ranks(combine, mesh).trace(x, no_weights, *handle)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    (name,) = re.findall(r"custom_call @moeprof_moe_combine_inproc\(%\w+, (%\w+),", text)
    assert re.search(rf"{name} = stablehlo.(constant|broadcast_in_dim).*tensor<8x0xf32>", text)


def test_without_the_library_an_exchange_is_not_compiled_for_a_gpu_and_says_why(monkeypatch):
    monkeypatch.setattr(gpu_library, "unavailable_reason", lambda: "no such library")
    mesh = mesh_of(2)
    setup(mesh=mesh)
    with pytest.raises(PreflightError, match=r"dispatch_inproc: .*only plans of memory: no such"):
        calls(on_ranks(round_trip, mesh), X, IDX)


def test_without_the_library_the_twin_runs_and_says_why(monkeypatch):
    monkeypatch.setattr(gpu_library, "unavailable_reason", lambda: "no library, as told")
    with pytest.warns(RuntimeWarning, match="slow twins: no library, as told"):
        assert calls(lambda a, b: grouped_gemm(a, b, LENS), ROWS, MATRICES) == []


@pytest.mark.parametrize(
    ("platform", "why"), [("rocm", "no kernel for AMD GPUs"), ("tpu", "CPUs and NVIDIA GPUs alone")]
)
def test_where_there_is_no_kernel_one_warning_says_why(platform, why):
    _warn_once.cache_clear()

    def lower(rows: int) -> str:
        run = jax.jit(lambda a, b: grouped_gemm(a, b, LENS))
        traced = run.trace(ROWS[:rows], MATRICES)
        return traced.lower(lowering_platforms=(platform,)).as_text()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert "moeprof_grouped_gemm" not in lower(64) + lower(56)
    (warning,) = caught
    assert why in str(warning.message)
    assert warning.category is RuntimeWarning


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_a_plan_takes_no_placeholder_for_what_the_library_has(monkeypatch, platform):
    class Topology:
        devices = ("a device",)

    placed: list[str] = []
    monkeypatch.setattr(
        gpu_library, "registered_targets", lambda: frozenset(gpu_library.GPU_TARGETS)
    )
    monkeypatch.setattr(compiler, "register_placeholders", lambda names, _: placed.extend(names))
    monkeypatch.setattr(compiler.topologies, "get_topology_desc", lambda **_: Topology)
    target = compiler.Target("any", platform, config="", devices=1, topology="1x1x1")
    assert compiler.devices_of(target) == ["a device"]
    assert ("moeprof_grouped_gemm" in placed) == (platform == "rocm")
    assert "moeprof_moe_dispatch" in placed  # the name in plans has no ending
