"""Question: how fast do tokens travel between two GPUs, with ours and with XLA's exchanges?

    python benchmarks/gpu_exchange.py [--tokens 4096] [--out FILE.json] [--smoke]

T tokens per rank of ``hidden`` bfloat16, top-8 of 256 experts drawn evenly, EP over all devices of
this process. Every figure is the time of one op inside one compiled program that runs it many times
over, one after the other (`Exchanges.chain` says how that is held); ops alone:

    moe_dispatch, spread_rows (the cached dispatch), moe_combine        ours: a token once per rank
    ragged_all_to_all: tokens    the same rows as ours, a token once per rank
    ragged_all_to_all: pairs     a row per (token, expert) pair, as dropless paths send without ours
    all_to_all: tokens           padded to T rows per pair of ranks, the most that tokens can need
    all_to_all: pairs            padded to T × min(experts per rank, 8) rows per pair of ranks
    ppermute                     T rows to the next rank and nothing else
    peer copy                    torch's copy of T rows between devices, both ways at once

A step is there and back: dispatch and combine, or two of the others. ``payload_GB_s`` is the bytes
of rows that must cross the link, per direction, over the time: the most that any rank sends to
others as tokens (pairs for the rows per pair), times the bytes of a row; padding is no payload, and
neither are ids and weights. ``wire_GB_s`` counts the padding too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gpu_machine import gpu_machine
from gpu_timing import Contestant, Timing, jax_sample, take_turns, telling_line

RESULTS = Path(__file__).parent / "results"
AXIS = "expert"
ITEM_BYTES = 2


@dataclass(frozen=True)
class Load:
    """``tokens`` per rank of ``hidden`` features, each to ``top_k`` of ``experts`` experts."""

    tokens: int
    hidden: int = 7168
    experts: int = 256
    top_k: int = 8

    @property
    def row_bytes(self) -> int:
        """Of one token."""
        return self.hidden * ITEM_BYTES


SMOKE = Load(tokens=16, hidden=64, experts=8, top_k=2)


@dataclass(frozen=True)
class Op:
    """One exchange: ``repeat(times)`` is a compiled program that runs it ``times`` over.

    ``payload_rows`` and ``wire_rows`` cross the link per direction and call, the latter with
    padding.
    """

    name: str
    repeat: Callable[[int], Callable[[], Any]]
    payload_rows: int
    wire_rows: int
    is_step: bool = False


def routing(load: Load, ranks: int, seed: int = 0) -> np.ndarray:
    """Distinct experts of every token, int32 [ranks · T, K], each set as likely as any other."""
    random = np.random.default_rng(seed)
    scores = random.random((ranks * load.tokens, load.experts), np.float32)
    return np.argpartition(scores, load.top_k, axis=1)[:, : load.top_k].astype(np.int32)


def rows_between(experts: np.ndarray, load: Load, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and pairs from source to destination rank, int [ranks, ranks] each."""
    owner = experts.reshape(ranks, load.tokens, load.top_k) // (load.experts // ranks)
    sent = owner[..., None] == np.arange(ranks)
    return sent.any(axis=2).sum(axis=1), sent.sum(axis=(1, 2))


def most_leaving(rows: np.ndarray) -> int:
    """Of ``rows`` [source, destination]: the most that one rank sends to, or gets from, others."""
    off = rows - np.diag(np.diag(rows))
    return int(max(off.sum(axis=1).max(), off.sum(axis=0).max()))


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
        from moeprof.kernels.moe_linear import spread_rows

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


def measure(load: Load, options: argparse.Namespace) -> dict[str, Any]:
    """All ops for one load; slow ones are repeated less often inside their program."""
    import jax

    exchanges = Exchanges(load)
    local = load.experts // exchanges.ranks
    longest = load.tokens * min(local, load.top_k)
    ops: list[Op] = []
    failed: dict[str, str] = {}
    makers: dict[str, Callable[[], list[Op]]] = {
        "ours": exchanges.ours,
        "all_to_all: tokens": lambda: exchanges.padded("tokens", exchanges.tokens, load.tokens),
        "all_to_all: pairs": lambda: exchanges.padded("pairs", exchanges.pairs, longest),
        "ppermute": lambda: [exchanges.ppermute()],
        "ragged: tokens": lambda: exchanges.ragged("tokens", exchanges.tokens, load.tokens),
        "ragged: pairs": lambda: exchanges.ragged("pairs", exchanges.pairs, longest),
    }
    for name, make in makers.items():
        try:
            ops += make()
        except Exception as error:  # wrong, or no room for a buffer: the others go on
            failed[name] = telling_line(error)
            print(f"  {name}: {failed[name][:110]}", flush=True)
    contestants, times = [], {}
    for op in ops:
        times[op.name] = 1 if "ragged" in op.name else options.repetitions
        try:
            sample = jax_sample(op.repeat(times[op.name]))
            sample(1)
        except Exception as error:  # not implemented on this backend, or no room
            failed[op.name] = telling_line(error)
            continue
        contestants.append(Contestant(op.name, sample))
    timings, more = take_turns(contestants, options.samples, options.sample_s, options.limit_s)
    rows = [row(op, timings[op.name], times[op.name], load) for op in ops if op.name in timings]
    result = {
        **asdict(load),
        "ranks": exchanges.ranks,
        "platform": jax.devices()[0].platform,
        "tokens_between_ranks": exchanges.tokens.tolist(),
        "pairs_between_ranks": exchanges.pairs.tolist(),
        "ops": rows,
        "failed": {**failed, **more},
    }
    for entry in rows:
        print(line(entry), flush=True)
    for name, reason in result["failed"].items():
        print(f"  {name}: {reason[:110]}", flush=True)
    return result


def row(op: Op, timing: Timing, times: int, load: Load) -> dict[str, Any]:
    """Time per op, and 10^9 bytes per second and direction that crossed the link."""
    ways = 2 if op.is_step else 1
    seconds = timing.median_s / times
    return {
        "op": op.name,
        "us": round(seconds * 1e6, 2),
        "us_quartiles": [
            round(s / times * 1e6, 2) for s in (timing.lower_quartile_s, timing.upper_quartile_s)
        ],
        "repetitions": times,
        "samples": timing.samples,
        "payload_bytes_per_direction": ways * op.payload_rows * load.row_bytes,
        "payload_GB_s": round(ways * op.payload_rows * load.row_bytes / seconds / 1e9, 2),
        "wire_GB_s": round(ways * op.wire_rows * load.row_bytes / seconds / 1e9, 2),
    }


def line(entry: dict[str, Any]) -> str:
    """One row of the table."""
    return (
        f"  {entry['op']:<34}{entry['us']:>12.1f} µs{entry['payload_GB_s']:>10.1f} GB/s payload"
        f"{entry['wire_GB_s']:>10.1f} GB/s on the wire"
    )


def copy_between_peers(load: Load, samples: int = 20) -> list[dict[str, Any]]:
    """torch's copies of T rows between the first two devices: one way, and both ways at once."""
    import torch

    rows = [
        torch.randn(load.tokens, load.hidden, device=f"cuda:{device}", dtype=torch.bfloat16)
        for device in range(2)
    ]
    landing = [torch.empty_like(rows[device]) for device in range(2)]
    streams = [torch.cuda.Stream(device=f"cuda:{device}") for device in range(2)]
    results = []
    for name, sources in (("peer copy, one way", (0,)), ("peer copy, both ways", (0, 1))):
        seconds = []
        for _ in range(samples + 2):
            for device in range(2):
                torch.cuda.synchronize(device)
            began = time.perf_counter()
            for _ in range(20):
                for source in sources:
                    with torch.cuda.stream(streams[source]):
                        landing[1 - source].copy_(rows[source], non_blocking=True)
            for device in range(2):
                torch.cuda.synchronize(device)
            seconds.append((time.perf_counter() - began) / 20)
        timed = seconds[2:]
        quartiles = np.quantile(timed, (0.25, 0.5, 0.75))
        timing = Timing(float(quartiles[1]), float(quartiles[0]), float(quartiles[2]), samples, 20)
        op = Op(name, lambda times: lambda: None, load.tokens, load.tokens)
        results.append(row(op, timing, 1, load))
    return results


def peer_copy(load: Load) -> list[dict[str, Any]]:
    """`copy_between_peers` in a process of its own; nothing where torch or two GPUs are missing."""
    command = [sys.executable, __file__, "--peer-copy", json.dumps(asdict(load))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    except subprocess.TimeoutExpired:
        print("  peer copy: no result within 90 s", flush=True)
        return []
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"  peer copy: {last[:110]}", flush=True)
        return []
    results: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    for entry in results:
        print(line(entry), flush=True)
    return results


def main() -> None:
    """Measure every load, print tables, write JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-copy", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, action="append", help="per rank: 4096 and 8192")
    parser.add_argument("--repetitions", type=int, default=20, help="of an op in one program")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--sample-s", type=float, default=0.06, help="seconds per sample")
    parser.add_argument("--limit-s", type=float, default=1.2, help="per op")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on any backend")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_exchange.json")
    options = parser.parse_args()
    if options.peer_copy:
        print(json.dumps(copy_between_peers(Load(**json.loads(options.peer_copy)))))
        return
    began = time.monotonic()
    loads = [SMOKE] if options.smoke else [Load(t) for t in options.tokens or (4096, 8192)]
    document: dict[str, Any] = {"machine": gpu_machine(), "loads": []}
    for load in loads:
        print(f"{load.tokens} tokens per rank, {load.row_bytes} bytes each")
        copies = [] if options.smoke else peer_copy(load)
        document["loads"].append({**measure(load, options), "peer_copies": copies})
        document["seconds"] = round(time.monotonic() - began, 1)
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.3")
    main()
