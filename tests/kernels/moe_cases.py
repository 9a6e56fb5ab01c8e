"""Routings and the machinery that runs a per-rank function on virtual devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from moeprof.kernels import moe_combine, moe_dispatch

from . import moe_numpy
from .devices import devices, ranks

CHANNELS = 32  # of the default num_sms, 64
HIDDEN = 8


class Tokens(NamedTuple):
    """Tokens of all ranks: x [EP, T, hidden], topk_idx and topk_weights [EP, T, K]."""

    x: np.ndarray
    topk_idx: np.ndarray
    topk_weights: np.ndarray
    num_experts: int

    @property
    def ranks(self) -> int:
        return self.x.shape[0]


def draw(
    ranks: int, tokens: int, slots: int, num_experts: int, *, seed: int = 0, dtype: str = "float32"
) -> Tokens:
    """Random tokens; about a tenth of the slots is unused, and experts may repeat in a token."""
    rng = np.random.default_rng(seed)
    idx = rng.integers(0, num_experts, (ranks, tokens, slots), np.int32)
    idx[rng.random(idx.shape) < 0.1] = -1
    weights = rng.normal(size=idx.shape).astype(np.float32)
    x = np.asarray(jnp.asarray(rng.normal(size=(ranks, tokens, HIDDEN)), dtype))
    return Tokens(x, idx, weights, num_experts)


def all_to(expert: int, ranks: int, tokens: int, num_experts: int) -> Tokens:
    """Every token of every rank goes to one expert."""
    some = draw(ranks, tokens, 1, num_experts)
    return some._replace(topk_idx=np.full_like(some.topk_idx, expert))


# Name -> tokens. Every rank has the same number of tokens, as JAX's shapes demand.
ROUTINGS: dict[str, Callable[[], Tokens]] = {
    "random": lambda: draw(ranks(8), 37, 3, 16),
    "one_rank": lambda: draw(1, 6, 3, 4),
    "two_ranks": lambda: draw(2, 5, 2, 4),
    "three_ranks": lambda: draw(3, 7, 2, 6),
    "one_token": lambda: draw(ranks(4), 1, 2, 8),
    "one_slot": lambda: draw(ranks(8), 9, 1, 8),
    "more_tokens_than_channels": lambda: draw(ranks(4), 100, 4, 8),
    "last_rank_gets_all": lambda: all_to(15, ranks(8), 20, 16),
    "first_rank_gets_all": lambda: all_to(0, ranks(4), 33, 4),
    "nothing_is_sent": lambda: all_to(-1, ranks(4), 6, 8),
    "no_multiple_of_channels": lambda: draw(2, 4095, 1, 2),
}


def mesh_of(ranks: int, axis_name: str = "expert") -> Mesh:
    return Mesh(np.array(devices(ranks)), (axis_name,))


def on_ranks(
    function: Callable[..., object], mesh: Mesh, **options: object
) -> Callable[..., object]:
    """Jit ``function`` of per-rank arrays; arguments and results have the ranks as leading axis."""
    spec = PartitionSpec(mesh.axis_names)

    def per_rank(*arrays: jax.Array) -> object:
        out = function(*(array[0] for array in arrays))
        return jax.tree.map(lambda array: array[None], out)

    options = {"check_vma": False, **options}
    return jax.jit(jax.shard_map(per_rank, mesh=mesh, in_specs=spec, out_specs=spec, **options))


def dispatch_on_ranks(tokens: Tokens, mesh: Mesh) -> moe_numpy.DispatchedByRank:
    """What every rank receives."""
    run = on_ranks(lambda *args: moe_dispatch(*args, tokens.num_experts), mesh)
    recv_x, recv_idx, recv_weights, handle = run(tokens.x, tokens.topk_idx, tokens.topk_weights)
    return moe_numpy.DispatchedByRank(*map(np.asarray, (recv_x, recv_idx, recv_weights, *handle)))


def expected_dispatch(tokens: Tokens) -> moe_numpy.DispatchedByRank:
    return moe_numpy.dispatch(*tokens, num_channels=CHANNELS)


def round_trip(x: jax.Array, idx: jax.Array) -> jax.Array:
    """The tokens again: combine(dispatch(x)) / number of ranks that each token went to."""
    recv_x, _, _, handle = moe_dispatch(x, idx, jnp.ones(idx.shape, jnp.float32), 16)
    return moe_combine(recv_x, handle) / handle[4].sum(axis=1, keepdims=True)


def experts_of_all_ranks(tokens: Tokens) -> Callable[..., jax.Array]:
    """A per-rank MoE layer whose expert e multiplies by ``weight × (e + 1)``."""

    def layer(x: jax.Array, topk_idx: jax.Array, topk_weights: jax.Array) -> jax.Array:
        recv_x, local_idx, weights, handle = moe_dispatch(
            x, topk_idx, topk_weights, tokens.num_experts
        )
        first = jax.lax.axis_index("expert") * (tokens.num_experts // tokens.ranks)
        factor = jnp.where(local_idx >= 0, weights * (local_idx + first + 1), 0.0).sum(axis=1)
        return moe_combine((recv_x * factor[:, None]).astype(recv_x.dtype), handle)

    return layer


def expected_layer(tokens: Tokens) -> np.ndarray:
    """The same layer without any exchange, in float64."""
    used = tokens.topk_idx >= 0
    factor = np.where(used, tokens.topk_weights.astype(np.float64) * (tokens.topk_idx + 1), 0)
    return tokens.x.astype(np.float64) * factor.sum(axis=2, keepdims=True)
