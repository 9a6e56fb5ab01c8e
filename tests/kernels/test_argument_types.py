"""Arguments of the wrong kind: one line that names the argument, what it takes and what it got."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.kernels import (
    Config,
    compute_group_offs,
    grouped_gemm,
    grouped_gemm_variable_k,
    moe_combine,
    moe_dispatch,
    set_ep_group,
    setup,
)
from moeprof.kernels.preflight import PreflightError

pytestmark = pytest.mark.cpu("arguments are refused before any device is asked")

A, B, LENS = np.ones((8, 4), np.float32), np.ones((2, 4, 4), np.float32), [3, 5]
X, IDX = np.ones((4, 64), np.float32), np.zeros((4, 2), np.int32)
WEIGHTS = np.ones((4, 2), np.float32)


def product(**changes):
    return lambda: grouped_gemm(**({"a": A, "b": B, "group_lens": LENS} | changes))


def gradient(**changes):
    return lambda: grouped_gemm_variable_k(**({"lhs": A, "rhs": A, "group_lens": LENS} | changes))


def dispatch(**changes):
    given = {"x": X, "topk_idx": IDX, "topk_weights": WEIGHTS, "num_experts": 8} | changes
    return lambda: moe_dispatch(**given)


def combine(**changes):
    return lambda: (setup(), moe_combine(**({"x": X, "handle": (X,) * 6} | changes)))


REFUSALS = {
    "mesh": (lambda: setup(mesh=3), r"setup: mesh: expected a jax.sharding.Mesh .*found int 3\.$"),
    "num_sms": (lambda: setup(num_sms="8"), "setup: num_sms: expected an integer, found str '8'"),
    "hidden_bytes": (lambda: setup(hidden_bytes=1.5), "hidden_bytes: .* found float 1.5"),
    "axis name": (lambda: setup(ep_axis_name=1), "ep_axis_name: expected the name of a mesh axis"),
    "ep_ranks": (lambda: setup(ep_ranks=3), "ep_ranks: expected a sequence of integers, found int"),
    "text group": (lambda: set_ep_group("ab"), "sequence of integers, found str 'ab'"),
    "float group": (lambda: set_ep_group([0, 1.0]), r"ranks\[1\]: .*integer, found float 1.0"),
    "config field": (lambda: Config(num_sms=20.0), "Config: num_sms: .*found float 20.0"),
    "config": (
        dispatch(config=3),
        "expected a moeprof.kernels.Config or None, found int 3",
    ),
    "text experts": (dispatch(num_experts="4"), "num_experts: expected an integer, found str '4'"),
    "float experts": (dispatch(num_experts=8.0), "num_experts: .* found float 8.0"),
    "alignment": (dispatch(expert_alignment=None), "expert_alignment: .* found None"),
    "list of rows": (dispatch(x=[[1.0]]), r"x: expected an array, found list \[\[1.0\]\]"),
    "no scales": (dispatch(x=(X, None)), r"x\[1\]: expected an array, found None"),
    "no ids": (dispatch(topk_idx=None), "topk_idx: expected an array, found None"),
    "no handle": (combine(handle=None), "handle: expected the 6 arrays .*found None"),
    "hole in handle": (combine(handle=(X,) * 5 + (None,)), r"handle\[5\]: expected an array"),
    "scalar in handle": (combine(handle=(jnp.int32(1),) * 6), "handle: expected shapes"),
    "combine a list": (combine(x=[1.0]), "x: expected an array, found list"),
    "combine config": (combine(config=3), "config: expected a moeprof.kernels.Config"),
    "num_cu": (product(num_cu="x"), "num_cu: expected an integer, found str 'x'"),
    "float num_cu": (gradient(num_cu=2.7), "num_cu: expected an integer, found float 2.7"),
    "ragged rows": (product(a=[[1.0], [1.0, 2.0]]), "a: expected an array, or lists of numbers"),
    "no lengths": (product(group_lens=None), "group_lens: expected one integer per .*found None"),
    "text lengths": (product(group_lens="ab"), "group_lens: .* found str 'ab'"),
    "ragged lengths": (product(group_lens=[[1], [2, 3]]), r"group_lens: .* found list \[\[1\]"),
    "float lengths": (product(group_lens=[3.0, 5.0]), "group_lens: expected int32 or int64"),
    "text lengths of NumPy": (product(group_lens=np.array(["a"])), "expected int32 or int64"),
    "no such type": (
        gradient(preferred_element_type="bogus"),
        "preferred_element_type: expected a dtype, found str 'bogus'",
    ),
    "other type": (
        gradient(preferred_element_type="float16"),
        "expected preferred_element_type float32, found float16",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_one_line_with_what_was_expected_and_found(name: str):
    call, text = REFUSALS[name]
    with pytest.raises(PreflightError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_flag_is_no_number():
    with pytest.raises(PreflightError, match="num_cu: expected an integer, found bool True"):
        product(num_cu=True)()


def test_integers_of_numpy_and_jax_are_integers():
    assert grouped_gemm(A, B, LENS, num_cu=np.int64(1)).shape == (8, 4)
    assert grouped_gemm(A, B, LENS, num_cu=jnp.int32(1)).shape == (8, 4)


def test_an_empty_list_is_the_lengths_of_no_group():
    assert compute_group_offs([]).tolist() == [0]
    assert not grouped_gemm(A, B[:0], []).any()


def test_a_list_may_hold_traced_lengths():
    out = jax.jit(lambda n: grouped_gemm(A, B, [n, jnp.int32(5)]))(jnp.int32(2))
    assert (np.asarray(out)[:7] == 4).all()
    assert not out[7:].any()


def test_offsets_past_int32_are_refused_where_the_lengths_are_known():
    lens = jnp.array([2**31 - 1, 1, 5], jnp.int32)
    with pytest.raises(PreflightError, match="groups 0 to 1 sum to 2147483648, more than int32"):
        compute_group_offs(lens)
    assert jax.jit(compute_group_offs)(lens)[2] == -(2**31)


@pytest.mark.parametrize("side", ["rows", "k", "n"])
def test_a_side_past_32_bits_is_refused_when_traced(side: str):
    sizes = {"rows": 8, "k": 8, "n": 8} | {side: 2**31}
    a = jax.ShapeDtypeStruct((sizes["rows"], sizes["k"]), jnp.float32)
    b = jax.ShapeDtypeStruct((2, sizes["k"], sizes["n"]), jnp.float32)
    lens = jax.ShapeDtypeStruct((2,), jnp.int32)
    with pytest.raises(PreflightError, match=f"{side} of at most 2147483647, found 2147483648"):
        jax.eval_shape(grouped_gemm, a, b, lens)


@pytest.mark.parametrize("side", ["rows", "m", "n"])
def test_a_side_of_the_gradient_past_32_bits_is_refused_when_traced(side: str):
    sizes = {"rows": 8, "m": 8, "n": 8} | {side: 2**31}
    lhs = jax.ShapeDtypeStruct((sizes["rows"], sizes["m"]), jnp.float32)
    rhs = jax.ShapeDtypeStruct((sizes["rows"], sizes["n"]), jnp.float32)
    lens = jax.ShapeDtypeStruct((2,), jnp.int32)
    with pytest.raises(PreflightError, match=f"{side} of at most 2147483647, found 2147483648"):
        jax.eval_shape(grouped_gemm_variable_k, lhs, rhs, lens)
