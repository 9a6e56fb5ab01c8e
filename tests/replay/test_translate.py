"""What is written computes what JAX computes from the HLO that it was written from."""

import jax
import jax.numpy as jnp
import pytest
from builders.translated import translated
from jax import lax

from moeprof.errors import ReplayError

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype")


def made(*shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(len(shape)), shape, dtype)


INDEX = jnp.array([0, 2, 1, 2])


def activation(x):
    some = jax.nn.silu(x) + jax.nn.gelu(x) + jnp.where(x > 0, jnp.exp(-x), jnp.tanh(x))
    return some, jnp.round(x), (x * 3).astype(jnp.int32), x.astype(jnp.bfloat16)


def slices(x, place):
    one = jnp.ones((1, 2), x.dtype)
    zero = jnp.zeros((), place.dtype)
    part = lax.dynamic_slice(x, (place, zero), (2, 3))
    return part, lax.dynamic_update_slice(x, one, (place, place))


def moved(x):
    padded = jnp.pad(x, ((1, 2), (0, 3)))[::2, 1:]
    return padded, x.T.reshape(-1), jnp.concatenate([x, x], 1)[:, ::-1]


def dense_experts(x, w, index):
    def loss(x):
        chosen = jax.nn.one_hot(index, 4, dtype=x.dtype)
        return (jnp.einsum("td,edf,te->tf", x, w, chosen) ** 2).sum()

    return jax.grad(loss)(x)


@pytest.mark.parametrize(
    ("function", "args", "opcodes"),
    [
        (lambda x: jax.nn.softmax(x), (made(4, 8),), {"reduce", "broadcast", "exponential"}),
        (lambda x, w: jnp.einsum("bij,bkj->kbi", x, w), (made(2, 3, 4), made(2, 5, 4)), {"dot"}),
        (lambda x, i: x[i] * 2, (made(5, 3), INDEX), {"gather", "bitcast"}),
        (lambda x, i, u: x.at[i].add(u), (made(5, 3), INDEX, made(4, 3)), {"scatter"}),
        (lambda x, i, u: x.at[i].max(u), (made(5, 3), INDEX, made(4, 3)), {"scatter"}),
        (slices, (made(5, 4), jnp.array(1)), {"dynamic-slice", "dynamic-update-slice"}),
        (moved, (made(3, 4),), {"pad", "slice", "reverse", "concatenate", "transpose"}),
        (lambda x: (jnp.cumsum(x, 1), jnp.argmax(x, 1)), (made(3, 7),), {"reduce-window", "iota"}),
        (lambda x: lax.fori_loop(0, 5, lambda i, c: c * 1.5 + i, x), (made(3),), {"while"}),
        (activation, (made(4, 5),), {"select", "compare", "convert", "fusion"}),
        (dense_experts, (made(4, 6), made(4, 6, 5), INDEX), {"dot", "iota"}),
        (lambda x: (x >> 1, x & 3, -x), (jnp.array([5, 3, 9]),), {"and"}),
    ],
)
def test_a_translated_program_computes_the_same(same, function, args, opcodes):
    assert opcodes <= same(function, *args)


def test_sorts_of_floats_and_of_pairs(same):
    """Only as written: the CPU's compiler turns the comparison into one of bit patterns."""
    args = (made(3, 7),)
    opcodes = same(lambda x: (jnp.sort(x), jnp.argsort(x)), *args, is_compiled=False)
    assert "sort" in opcodes


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: lax.sort((x, x), num_keys=2), r"sort.* \(sort\) compares by more than"),
        (lambda x: jnp.fft.fft(x).real, "has opcode fft, which has no translation"),
        (lambda x: x + jnp.arange(3.0) ** 0.5 * jnp.array([1.0, 5, 2]), "keeps only scalars"),
    ],
    ids=["two keys", "opcode", "constant"],
)
def test_what_has_no_faithful_translation_is_refused_by_name(function, said):
    lowered = jax.jit(function).lower(made(3))
    with pytest.raises(ReplayError, match=said):
        translated(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
