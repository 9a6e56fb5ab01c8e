"""Programs for GPUs that are not there: custom calls inside `planning` alone, and never run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from moeprof.kernels import grouped_gemm, moe_combine, moe_dispatch
from moeprof.kernels.preflight import PreflightError
from moeprof.kernels.runtime.ep_groups import is_planning, planning
from moeprof.kernels.runtime.expert_parallel import frozen_state
from moeprof.projector.compiled.compiler import register_placeholders

pytestmark = pytest.mark.cpu("programs for GPUs that are not there")

ROWS, MATRICES = jnp.ones((4, 8)), jnp.ones((2, 8, 16))


def _lowered(run, *args, platform="cuda"):
    return jax.jit(run).trace(*args).lower(lowering_platforms=(platform,)).as_text()


def _product(rows, matrices):
    return grouped_gemm(rows, matrices, jnp.array([1, 3]))


@pytest.mark.filterwarnings("ignore:moeprof.kernels runs its slow twins")
@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_a_planned_product_is_one_call_and_its_twin_outside(platform):
    def run(rows, matrices):
        return _product(rows, matrices)

    assert "moeprof_grouped_gemm" not in _lowered(run, ROWS, MATRICES, platform=platform)
    with planning(2, "expert"):
        assert is_planning()
        assert "moeprof_grouped_gemm" in _lowered(
            lambda a, b: _product(a, b), ROWS, MATRICES, platform=platform
        )
    assert not is_planning()


def _exchanged(x):
    experts = jnp.zeros((x.shape[0], 1), jnp.int32)
    received, _, _, handle = moe_dispatch(x, experts, jnp.ones((x.shape[0], 1)), 64)
    return moe_combine(received, handle)


def test_a_planned_exchange_needs_no_setup_and_has_any_size():
    with planning(64, "expert"):
        state = frozen_state()
        assert (state.ep_size, state.is_internode, state.source_meta_bytes) == (64, True, 8)
        text = _lowered(_exchanged, jnp.ones((4, 16), jnp.bfloat16))
        # 64 ranks × 4 tokens may all come here.
        assert "256x16xbf16" in text
    assert "moeprof_moe_dispatch" in text
    assert "moeprof_moe_combine" in text


def test_a_planned_call_that_is_run_after_all_fails():
    register_placeholders(["moeprof_test_placeholder"], "cpu")
    shape = jax.ShapeDtypeStruct((4,), np.float32)
    call = jax.ffi.ffi_call("moeprof_test_placeholder", shape)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"UNIMPLEMENTED.*cannot be run"):
        jax.block_until_ready(call(jnp.ones(4)))


def test_outside_planning_an_exchange_is_not_compiled_for_a_gpu():
    with planning(2, "expert"):
        traced = jax.make_jaxpr(_exchanged)(jnp.ones((4, 16), jnp.bfloat16))
    run = jaxpr_as_fun(traced)
    with pytest.raises(PreflightError, match="no native exchange here, only plans of memory"):
        _lowered(run, jnp.ones((4, 16), jnp.bfloat16))
