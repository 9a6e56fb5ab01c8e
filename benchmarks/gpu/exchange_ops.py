"""Question: which exchanges of tokens are compared, and how does one program run one many times?

Ops alone:

    moe_dispatch, spread_rows (the cached dispatch), moe_combine        ours: a token once per rank
    ragged_all_to_all: tokens    the same rows as ours, a token once per rank
    ragged_all_to_all: pairs     a row per (token, expert) pair, as dropless paths send without ours
    all_to_all: tokens           padded to T rows per pair of ranks, the most that tokens can need
    all_to_all: pairs            padded to T × min(experts per rank, 8) rows per pair of ranks
    ppermute                     T rows to the next rank and nothing else

A step is there and back: dispatch and combine, or two of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpu.exchange_load import Load, Op, most_leaving, routing, rows_between

AXIS = "expert"


class Exchanges:
    """The ops over all devices of this process, on inputs that lie there."""

    def __init__(self, load: Load) -> None:
        """Draws tokens and routing."""
        import jax
        import jax.numpy as jnp
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        self.load = load
        self.ranks = jax.device_count()
        self.mesh = Mesh(np.array(jax.devices()), (AXIS,))
        self.spread = PartitionSpec(AXIS)
        place = NamedSharding(self.mesh, self.spread)
        rows = self.ranks * load.tokens
        draw = jax.jit(
            lambda: jax.random.normal(
                jax.random.key(0, impl="unsafe_rbg"), (rows, load.hidden), jnp.bfloat16
            ),
            out_shardings=place,
        )
        experts = routing(load, self.ranks)
        self.tokens, self.pairs = rows_between(experts, load, self.ranks)
        self.x = draw()
        self.experts = jax.device_put(experts, place)
        weights = np.full((rows, load.top_k), 1 / load.top_k, np.float32)
        self.weights = jax.device_put(weights, place)

    def mapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` of per-device arrays, compiled; all arrays are split by their first axis."""
        import jax

        return jax.jit(
            jax.shard_map(
                function,
                mesh=self.mesh,
                in_specs=self.spread,
                out_specs=self.spread,
                check_vma=False,
            )
        )

    def chain(
        self, op: Callable[..., Any], rows: Any, *others: Any, how: str
    ) -> Callable[[int], Callable[[], Any]]:
        """``op(rows, *others)`` many times over in one program, as `looped` says."""

        def repeat(times: int) -> Callable[[], Any]:
            compiled = self.mapped(looped(op, times, how))
            return lambda: compiled(rows, *others)

        return repeat

    def difference(self, back: Any) -> float:
        """The largest difference of ``back``, a token's sum over its ranks, from what it must be.

        The float32 sum of up to 8 equal bfloat16 is rounded once, as the product with their number
        is, so none is expected.
        """
        import jax
        import jax.numpy as jnp

        owner = np.asarray(self.experts) // (self.load.experts // self.ranks)
        copies = (owner[..., None] == np.arange(self.ranks)).any(axis=1).sum(axis=1)
        expected = (self.x.astype(jnp.float32) * copies[:, None]).astype(jnp.bfloat16)
        difference = jnp.abs(back.astype(jnp.float32) - expected.astype(jnp.float32))
        return float(jax.device_get(jnp.max(difference)))

    def ours(self) -> list[Op]:
        """moe_dispatch, spread_rows, moe_combine, and a step of dispatch and combine.

        Raises:
            RuntimeError: they bring back other sums than they must.
        """
        from moeprof.kernels import moe_combine, moe_dispatch, setup
        from moeprof.kernels.exchange.ops import spread_rows

        setup(mesh=self.mesh, ep_axis_name=AXIS, hidden_bytes=self.load.row_bytes)
        rows = most_leaving(self.tokens)
        x, experts, weights = self.x, self.experts, self.weights

        def dispatch(x: Any, experts: Any, weights: Any) -> Any:
            return moe_dispatch(x, experts, weights, self.load.experts)

        def step(x: Any, experts: Any, weights: Any) -> Any:
            received, _, _, handle = dispatch(x, experts, weights)
            return moe_combine(received, handle)

        received, _, _, handle = self.mapped(dispatch)(x, experts, weights)
        difference = self.difference(self.mapped(moe_combine)(received, handle))
        if not difference == 0:
            raise RuntimeError(f"sums differ by up to {difference} from those expected")

        return [
            Op(
                "moe_dispatch",
                self.chain(lambda *a: dispatch(*a)[0], x, experts, weights, how="apart"),
                rows,
                rows,
            ),
            Op(
                "spread_rows",
                self.chain(lambda x, *h: spread_rows(x, h), x, *handle, how="apart"),
                rows,
                rows,
            ),
            Op(
                "moe_combine",
                self.chain(lambda x, *h: moe_combine(x, h), received, *handle, how="apart"),
                rows,
                rows,
            ),
            Op(
                "step: moe_dispatch, moe_combine",
                self.chain(step, x, experts, weights, how="feeds"),
                rows,
                rows,
                True,
            ),
        ]

    def ragged(self, what: str, rows: np.ndarray, longest: int) -> list[Op]:
        """ragged_all_to_all of ``rows`` [source, destination] rows, there, and there and back."""
        import jax
        import jax.numpy as jnp

        sizes = jnp.asarray(rows, jnp.int32)
        width = self.load.hidden
        leaving_rows = int(rows.sum(axis=1).max())
        crossing = most_leaving(rows)

        def send(x: Any, sizes: Any, out_rows: int) -> Any:
            me = jax.lax.axis_index(AXIS)
            leaving, arriving = sizes[me], sizes[:, me]
            landing = (jnp.cumsum(sizes, axis=0) - sizes)[me]
            return jax.lax.ragged_all_to_all(
                x,
                jnp.zeros((out_rows, width), x.dtype),
                jnp.cumsum(leaving) - leaving,
                leaving,
                landing,
                arriving,
                axis_name=AXIS,
            )

        def there(x: Any) -> Any:
            return send(x, sizes, self.ranks * longest)

        def there_and_back(x: Any) -> Any:
            return send(there(x), sizes.T, leaving_rows)

        start = self._rows(leaving_rows)
        return [
            Op(
                f"ragged_all_to_all: {what}",
                self.chain(there, start, how="touches"),
                crossing,
                crossing,
            ),
            Op(
                f"step: ragged_all_to_all: {what}",
                self.chain(there_and_back, start, how="feeds"),
                crossing,
                crossing,
                True,
            ),
        ]

    def padded(self, what: str, rows: np.ndarray, block: int) -> list[Op]:
        """all_to_all of ``block`` rows per pair of ranks, there, and there and back."""
        import jax

        crossing, on_wire = most_leaving(rows), block * (self.ranks - 1)

        def there(x: Any) -> Any:
            return jax.lax.all_to_all(x, AXIS, split_axis=0, concat_axis=0, tiled=True)

        start = self._rows(self.ranks * block)
        return [
            Op(f"all_to_all: {what}", self.chain(there, start, how="feeds"), crossing, on_wire),
            Op(
                f"step: all_to_all: {what}",
                self.chain(lambda x: there(there(x)), start, how="feeds"),
                crossing,
                on_wire,
                True,
            ),
        ]

    def ppermute(self) -> Op:
        """T rows to the next rank."""
        import jax

        around = [(rank, (rank + 1) % self.ranks) for rank in range(self.ranks)]
        rows = self.load.tokens
        return Op(
            "ppermute",
            self.chain(lambda x: jax.lax.ppermute(x, AXIS, around), self.x, how="feeds"),
            rows,
            rows,
        )

    def _rows(self, per_rank: int) -> Any:
        """Random rows, ``per_rank`` on every rank."""
        import jax
        import jax.numpy as jnp

        def draw() -> Any:
            key = jax.random.fold_in(jax.random.key(1, impl="unsafe_rbg"), jax.lax.axis_index(AXIS))
            return jax.random.normal(key, (per_rank, self.load.hidden), jnp.bfloat16)

        return self.mapped(draw)()


def looped(op: Callable[..., Any], times: int, how: str) -> Callable[..., Any]:
    """A function of an op's operands that calls it ``times`` over, one after the other.

    ``how`` "feeds": a result is the next call's rows. "touches": one element of it goes into them,
    which costs a small kernel. "apart": the compiler is told that the rows depend on it, which
    costs nothing; for ops with side effects, which XLA neither drops nor merges once it has
    forgotten that. JAX itself drops calls whose results nobody uses.
    """
    import jax

    def program(rows: Any, *others: Any) -> Any:
        for _ in range(times):
            out = op(rows, *others)
            if how == "feeds":
                rows = out
            elif how == "touches":
                rows = rows.at[0, 0].set(out[0, 0])
            else:
                rows, out = jax.lax.optimization_barrier((rows, out))
        return out[:1]

    return program
