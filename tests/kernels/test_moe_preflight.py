"""Arguments that no kernel could take: refused before any device call, with value and rule."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.kernels import Config, moe_combine, moe_dispatch, setup
from moeprof.kernels.runtime.config import (
    combine_config,
    dispatch_config,
    nvl_buffer_size_bytes,
    rdma_buffer_size_bytes,
)

from .moe_cases import mesh_of, on_ranks

pytestmark = pytest.mark.cpu("arguments are refused before any device is asked")

TOKENS, HIDDEN = 4, 64


def arguments(**changes: object) -> SimpleNamespace:
    """Sound arguments of a dispatch over 8 ranks, with some of them changed."""
    x = jax.ShapeDtypeStruct((TOKENS, HIDDEN), jnp.bfloat16)
    idx = jax.ShapeDtypeStruct((TOKENS, 2), jnp.int32)
    weights = jax.ShapeDtypeStruct((TOKENS, 2), jnp.float32)
    return SimpleNamespace(
        **({"x": x, "idx": idx, "weights": weights, "num_experts": 16} | changes)
    )


def shapes_of(args: SimpleNamespace, **options: object) -> object:
    setup()
    return jax.eval_shape(
        lambda x, idx, weights: moe_dispatch(x, idx, weights, args.num_experts, **options),
        args.x,
        args.idx,
        args.weights,
    )


def struct(dtype: str, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def slots(top_k: int) -> dict[str, jax.ShapeDtypeStruct]:
    return {"idx": struct("int32", TOKENS, top_k), "weights": struct("float32", TOKENS, top_k)}


def test_shapes_follow_the_contract_without_any_device():
    recv_x, recv_idx, recv_weights, handle = shapes_of(arguments())
    assert (recv_x.shape, recv_x.dtype) == ((32, 64), jnp.bfloat16)
    assert recv_idx.shape == recv_weights.shape == (32, 2)
    assert [(a.shape, a.dtype.name) for a in handle] == [
        ((8, 8), "int32"),
        ((8, 32), "int32"),
        ((8, 32), "int32"),
        ((32,), "int32"),
        ((4, 8), "bool"),
        ((4, 8), "int32"),
    ]


def test_half_the_units_of_a_config_are_the_channels_of_the_handle():
    *_, handle = shapes_of(arguments(), config=Config(num_sms=24))
    assert handle[1].shape == handle[2].shape == (8, 12)


@pytest.mark.parametrize("hidden", [3584, 7168])
def test_common_widths_and_16_experts_per_token_are_taken(hidden: int):
    shapes_of(arguments(x=struct("bfloat16", TOKENS, hidden), **slots(16)))


REFUSALS = {
    "33 slots": (slots(33), r"top-k from 1 to 32, found 33. Nearest valid choice: 32"),
    "no slot": (slots(0), r"top-k from 1 to 32, found 0. Nearest valid choice: 1"),
    "odd width": (
        {"x": struct("bfloat16", TOKENS, 7001)},
        r"multiple of 16 bytes, found hidden 7001 × 2 B = 14002 B. Nearest .*: 7000 or 7008",
    ),
    "narrow": ({"x": struct("float32", TOKENS, 3)}, r"found hidden 3 × 4 B.*hidden: 4"),
    "three dimensions": ({"x": struct("bfloat16", 1, TOKENS, HIDDEN)}, r"found shape \(1, 4, 64\)"),
    "integers": (
        {"x": struct("int32", TOKENS, HIDDEN)},
        r"bfloat16 or float16 or float32, found int",
    ),
    "fp8 without scales": ({"x": struct("float8_e4m3fn", TOKENS, HIDDEN)}, r"found float8_e4m3fn"),
    "fp8 with few scales": (
        {"x": (struct("float8_e4m3fn", TOKENS, 256), struct("float32", TOKENS, 1))},
        r"scales of shape \(4, 2\), found values \(4, 256\) and scales \(4, 1\)",
    ),
    "no token": (
        {"x": struct("bfloat16", 0, HIDDEN), "idx": struct("int32", 0, 2)},
        r"1 to 268435455 tokens per rank .*found 0",
    ),
    "other tokens": ({"idx": struct("int32", 5, 2)}, r"with 4 tokens as x, found \(5, 2\)"),
    "int16 ids": ({"idx": struct("int16", TOKENS, 2)}, r"dtype int32, found int16. Cast it"),
    "bfloat16 weights": (
        {"weights": struct("bfloat16", TOKENS, 2)},
        r"topk_weights: expected float32 of shape \(4, 2\) as topk_idx, found bfloat16",
    ),
    "12 experts": ({"num_experts": 12}, r"EP size 8, found 12. Nearest valid choice: 8 or 16"),
    "4 experts": ({"num_experts": 4}, r"found 4. Nearest valid choice: 8"),
    "too many experts": ({"num_experts": 8200}, r"at most 1024 .* 8200 / 8 = 1025.*choice: 8192"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_names_the_value_and_the_rule(name: str):
    changes, text = REFUSALS[name]
    with pytest.raises(ValueError, match=text) as caught:
        shapes_of(arguments(**changes))
    assert isinstance(caught.value, AssertionError)  # as Primus-Turbo raises some of them


def test_an_alignment_below_one_is_refused():
    with pytest.raises(ValueError, match="expert_alignment: expected at least 1, found 0"):
        shapes_of(arguments(), expert_alignment=0)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((63,), "even number of at least 2 .* found 63. Nearest valid choice: 64"),
        ((64, 256, 256), "send 256 and recv 256. Nearest valid recv: 257"),
        ((64, 300, 256), "send 300 and recv 256. Nearest valid recv: 301"),
        ((64, 6, 256, 129, 128), "send 129 and recv 129. Nearest valid recv: 258"),
    ],
)
def test_a_config_that_the_device_would_only_assert_is_refused(values: tuple[int, ...], text: str):
    with pytest.raises(ValueError, match=text):
        Config(*values)


def test_configs_follow_the_published_tables():
    assert dispatch_config(8, 64) == Config(64, 6, 256, 6, 128)
    assert combine_config(2, 64) == Config(64, 10, 256, 6, 128)
    assert combine_config(144, 20) == Config(20, 2, 720, 8, 128)


@pytest.mark.parametrize(("ranks", "row"), [(1, 2), (3, 4), (5, 8), (6, 8), (7, 8)])
def test_sizes_between_the_tables_take_the_next_larger_row(ranks: int, row: int):
    assert dispatch_config(ranks, 64) == dispatch_config(row, 64)


@pytest.mark.parametrize("ranks", [0, 12, 48, 161])
def test_other_sizes_are_refused_with_the_nearest(ranks: int):
    with pytest.raises(
        ValueError, match=rf"Unsupported number of EP ranks.*found {ranks}. Nearest"
    ):
        dispatch_config(ranks, 64)


@pytest.mark.parametrize(
    ("ranks", "num_sms", "nvl", "rdma"),
    [
        # Published for rows of 14,336 B (hidden 7168, bfloat16), source meta of 8 B.
        (8, 64, 1_074_271_232, 0),
        (8, 32, 537_135_616, 0),
        (8, 20, 335_709_824, 0),
        (64, 64, 1_208_568_832, 1_176_162_304),
        (64, 32, 604_284_416, 588_081_152),
        (16, 64, 1_208_556_544, 294_040_576),
        (32, 64, 1_208_560_640, 537_675_776),
    ],
)
def test_buffer_sizes_are_the_published_ones(ranks: int, num_sms: int, nvl: int, rdma: int):
    config = dispatch_config(ranks, num_sms)
    assert nvl_buffer_size_bytes(ranks, 14_336, config) == nvl
    assert rdma_buffer_size_bytes(ranks, 14_336, config) == rdma


def combine_of(handle: tuple[jax.ShapeDtypeStruct, ...], x: jax.ShapeDtypeStruct) -> object:
    return jax.eval_shape(moe_combine, x, handle)


def test_a_handle_must_fit_the_rows():
    handle = shapes_of(arguments())[3]
    assert combine_of(handle, struct("bfloat16", 32, 64)).shape == (4, 64)
    with pytest.raises(ValueError, match=r"expected 32 rows .* found 16"):
        combine_of(handle, struct("bfloat16", 16, 64))
    with pytest.raises(ValueError, match="the 6 arrays that moe_dispatch returned, found 5"):
        combine_of(handle[:5], struct("bfloat16", 32, 64))
    with pytest.raises(ValueError, match="handle: expected shapes"):
        combine_of((*handle[:5], struct("int32", 3, 8)), struct("bfloat16", 24, 64))
    with pytest.raises(ValueError, match="int32 arrays and a bool fifth"):
        combine_of((*handle[:5], struct("float32", 4, 8)), struct("bfloat16", 32, 64))


def test_fp8_has_no_gradient_and_says_so():
    setup()
    x = (jnp.ones((4, 128), jnp.float8_e4m3fn), jnp.ones((4, 1), jnp.float32))
    weights = jnp.ones((4, 2), jnp.float32)
    with pytest.raises(ValueError, match="has no gradient"):
        jax.eval_shape(
            jax.grad(lambda w: moe_dispatch(x, jnp.zeros((4, 2), jnp.int32), w, 16)[2].sum()),
            weights,
        )


def test_a_call_outside_of_shard_map_is_refused_when_compiled():
    setup()
    x, idx = jnp.ones((4, 8)), jnp.zeros((4, 1), jnp.int32)
    with pytest.raises(ValueError, match="expected to run inside jax"):
        jax.jit(lambda: moe_dispatch(x, idx, jnp.ones((4, 1)), 8))()


def test_the_twin_asks_for_an_axis_of_the_right_size(monkeypatch: pytest.MonkeyPatch):
    from moeprof.kernels.exchange import ops

    monkeypatch.setattr(ops, "_runs_native", lambda _: False)
    setup(mesh=mesh_of(4))
    run = on_ranks(lambda x, i, w: moe_dispatch(x, i, w, 8)[0], mesh_of(8, "model"))
    x, idx = np.ones((8, 4, 8), np.float32), np.zeros((8, 4, 1), np.int32)
    with pytest.raises(ValueError, match=r"axis 'expert' of size 4 .*found axes \{'model': 8\}"):
        run(x, idx, np.ones((8, 4, 1), np.float32))


def test_a_timeout_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MOEPROF_EP_TIMEOUT_S", "soon")
    setup()
    run = on_ranks(lambda x, i, w: moe_dispatch(x, i, w, 8)[0], mesh_of(8))
    x, idx = np.ones((8, 4, 8), np.float32), np.zeros((8, 4, 1), np.int32)
    with pytest.raises(ValueError, match=r"MOEPROF_EP_TIMEOUT_S: .* found 'soon'"):
        run(x, idx, np.ones((8, 4, 1), np.float32))
