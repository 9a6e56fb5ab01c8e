"""Lengths and offsets: which are taken, which refused, and with what words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from moeprof.errors import SpecError
from moeprof.kernels.products.grouped_product import compute_group_offs, grouped_gemm, with_64_bits
from moeprof.kernels.products.primitive import bind_variable_k

pytestmark = pytest.mark.quick

ROWS, K, N = 512, 8, 4
Lens = list[int] | np.ndarray | jax.Array


def ones(groups: int) -> tuple[jax.Array, jax.Array]:
    """Operands for which every used row of the result is ``K * (group + 1)``."""
    scale = jnp.arange(1, groups + 1, dtype=jnp.float32)[:, None, None]
    return jnp.ones((ROWS, K), jnp.float32), jnp.ones((groups, K, N), jnp.float32) * scale


def run(lens: Lens, offs: Lens | None = None) -> np.ndarray:
    return np.asarray(grouped_gemm(*ones(len(lens)), lens, offs))


@pytest.mark.parametrize("used", [512, 511, 0])
def test_groups_may_sum_to_the_rows_or_to_less(used: int):
    out = run([used // 2, used - used // 2])
    assert (out[: used // 2] == K).all()
    assert (out[used // 2 : used] == 2 * K).all()
    assert not out[used:].any()


# JAX raises ValueError or JaxRuntimeError for INVALID_ARGUMENT, depending on its version.
INVALID_ARGUMENT = (ValueError, jax.errors.JaxRuntimeError)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("lens", "complaint"),
    [
        ([300, 300, 0], r"group_lens\[1\] is 300: groups 0 to 1 sum to 600 rows, .* 512 rows"),
        ([-1, 5, 5], r"group_lens\[0\] is -1; a length is at least 0"),
        ([5, -7, 5], r"group_lens\[1\] is -7"),
        ([512, 0, 1], r"group_lens\[2\] is 1: groups 0 to 2 sum to 513 rows"),
        ([1, 2**31 - 1, 2**31 - 1], r"group_lens\[1\] is 2147483647: .* 2147483648 rows"),
    ],
)
def test_lengths_that_do_not_fit_are_refused_with_index_value_and_bound(lens, complaint, dtype):
    with pytest.raises(INVALID_ARGUMENT, match=complaint):
        run(np.array(lens, dtype))


def test_lengths_are_also_checked_for_the_gradient_of_the_matrices():
    rows, no_offsets = jnp.ones((ROWS, K)), jnp.zeros((0,), jnp.int32)
    with pytest.raises(INVALID_ARGUMENT, match=r"variable_k: group_lens\[0\] is 513"):
        jax.block_until_ready(
            bind_variable_k(rows, rows, jnp.array([513, 0]), no_offsets, max_threads=0)
        )


def test_a_refused_call_writes_nothing_past_its_output_and_the_next_call_is_right():
    for _ in range(20):
        with pytest.raises(INVALID_ARGUMENT):
            run([600, 0])
        assert (run([512, 0]) == K).all()


def test_offsets_of_the_caller_are_taken():
    lens = jnp.array([3, 0, 9])
    np.testing.assert_array_equal(run(lens, compute_group_offs(lens)), run(lens))


@pytest.mark.parametrize(
    ("offs", "complaint"),
    [
        ([0, 3, 4, 12], r"group_offs\[2\] is 4, but the lengths before it sum to 3"),
        ([1, 3, 3, 12], r"group_offs\[0\] is 1, but the lengths before it sum to 0"),
        ([0, 3, 3, 13], r"group_offs\[3\] is 13, but the lengths before it sum to 12"),
    ],
)
def test_offsets_that_are_not_the_sums_of_the_lengths_are_refused(offs, complaint):
    with pytest.raises(INVALID_ARGUMENT, match=complaint):
        run([3, 0, 9], offs)


def test_offsets_are_the_exclusive_prefix_sum_in_the_dtype_of_the_lengths():
    offs = compute_group_offs(jnp.array([4, 0, 2], jnp.int32))
    assert offs.tolist() == [0, 4, 4, 6]
    assert offs.dtype == jnp.int32
    with with_64_bits():
        assert compute_group_offs(jnp.array([4, 2], jnp.int64)).dtype == jnp.int64
    assert compute_group_offs(jnp.zeros((0,), jnp.int32)).tolist() == [0]


def eager(lens: Lens) -> jax.Array:
    return grouped_gemm(*ones(len(lens)), lens)


def under_jit(lens: Lens) -> jax.Array:
    return jax.jit(eager)(lens)


def under_grad(lens: Lens) -> jax.Array:
    a, b = ones(len(lens))
    return jax.grad(lambda a: grouped_gemm(a, b, lens).sum())(a)


def under_vmap(lens: Lens) -> jax.Array:
    a, b = ones(len(lens))
    return jax.vmap(lambda a: grouped_gemm(a, b, lens))(a[None])[0]


def under_shard_map(lens: Lens) -> jax.Array:
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    spec = PartitionSpec()
    return jax.shard_map(eager, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(lens)


@pytest.fixture(params=[False, True], ids=["x64-off", "x64-on"])
def _x64(request: pytest.FixtureRequest) -> Iterator[None]:
    with with_64_bits(request.param):
        yield


@pytest.mark.usefixtures("_x64")
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("how", [eager, under_jit, under_grad, under_vmap, under_shard_map])
def test_int32_and_int64_lengths_give_the_same_with_64_bit_mode_on_or_off(
    how: Callable[[Lens], jax.Array], dtype: type[np.signedinteger]
):
    found = np.asarray(how(np.array([7, 0, 100], dtype)))
    width = found.shape[1]
    per_row = (K if width == N else N) * np.repeat([1, 3, 0], [7, 100, ROWS - 107])
    np.testing.assert_array_equal(found, np.broadcast_to(per_row[:, None], found.shape))


def test_an_int64_length_that_int32_cannot_hold_is_refused_rather_than_cut():
    too_long = np.array([1, 2**32 + 1], np.int64)
    with pytest.raises(ValueError, match=r"group_lens\[1\] is 4294967297, more than int32 holds"):
        eager(too_long)
    with with_64_bits(), pytest.raises(INVALID_ARGUMENT, match=r"4294967297"):
        eager(too_long).block_until_ready()


def test_wrong_dtypes_and_shapes_are_named():
    a, b = ones(2)
    with pytest.raises(
        TypeError, match="group_lens: expected int32 or int64, found float32"
    ) as caught:
        grouped_gemm(a, b, jnp.array([1.0, 2.0]))
    assert isinstance(caught.value, SpecError)  # one line for the command line
    with pytest.raises(TypeError, match="a and b dtype mismatch: a is float32, b is bfloat16"):
        grouped_gemm(a, b.astype(jnp.bfloat16), [1, 1])
    with pytest.raises(TypeError, match="expected float32, bfloat16 or float16, found int32"):
        grouped_gemm(a.astype(jnp.int32), b.astype(jnp.int32), [1, 1])
    with pytest.raises(ValueError, match=r"b \(2, 8, 4\) has 2 groups, .* shape \(2,\), found"):
        grouped_gemm(a, b, [1, 1, 1])
    with pytest.raises(ValueError, match=r"group_offs must have shape \(3,\), found \(2,\)"):
        grouped_gemm(a, b, [1, 1], [0, 1])
    with pytest.raises(ValueError, match=r"is 8 wide, but b .* multiplies 4"):
        grouped_gemm(a, b, [1, 1], transB=True)
    with pytest.raises(ValueError, match="expected a with 2 axes and b with 3"):
        grouped_gemm(a[None], b, [1, 1])
    with pytest.raises(ValueError, match="group_lens: expected one axis"):
        grouped_gemm(a, b, np.ones((1, 2), np.int32))
