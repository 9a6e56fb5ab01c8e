"""Question: what does `--routing auto` cost a step? The step with and without indices, in turns.

    python benchmarks/gpu/routing_auto.py [--rounds N] [--steps N] [--SIZE N…] [--smoke] [--out F]

One process trains a dropless MoE in bfloat16 that records nothing (attention, top-k, ragged_dot,
layers in a scan under a checkpoint, adam with donated state), by its own jitted step and by the
stand-in that the capture runs until its window closes. Each round starts both from the same state
and batches, the one that begins alternates. A round is a number of steps sent off without waiting,
then one wait; indices are kept for all of it, as in a window, and counted behind it, which is timed
by itself. ``ratio`` is that of the medians over the rounds, ``ratios`` is by round.

Losses of all steps are compared bit by bit, and counts with the tokens that there are. Ends with
status 1 where counts are wrong, losses are further apart than `TOLERANCE`, or the ratio is above
`BOUND`; on a CPU the ratio is no criterion. Needs one GPU, jax, numpy and pandas; ``--smoke`` none.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.gate import begin, write_result
from gpu.machine import gpu_machine
from moeprof.recording.choices.auto import StandIn, stand_in_for
from moeprof.recording.choices.outputs import Chosen

RESULTS = Path(__file__).parents[1] / "results"
BOUND = 1.02
TOLERANCE = 1e-3
"""Of a loss, relative: an output more may change how XLA fuses, and so how bfloat16 rounds."""
SIZES = {"d": 2048, "f": 1024, "e": 32, "k": 4, "l": 4, "b": 4, "s": 2048, "v": 32000}
SMOKE = {"d": 64, "f": 32, "e": 4, "k": 2, "l": 2, "b": 2, "s": 32, "v": 128}
HEAD = 32
RATE, BETA, EPSILON = 1e-4, 0.9, 1e-8

wait: Any = jax.block_until_ready  # without types in some versions of JAX
State = dict[str, Any]
Call = Callable[[State, jax.Array], tuple[State, jax.Array, list[Any]]]


class Round(NamedTuple):
    """One round of one step: seconds a step, its losses, and the indices of its routers."""

    step_s: float
    losses: np.ndarray
    indices: list[list[Any]]


def initial(sizes: dict[str, int]) -> State:
    """Weights and adam's two moments."""
    d, f, e, layers = (sizes[name] for name in "dfel")
    shapes = {
        "embed": (sizes["v"], d),
        "head": (d, sizes["v"]),
        "qkv": (layers, d, 3 * d),
        "out": (layers, d, d),
        "router": (layers, d, e),
        "up": (layers, e, d, 2 * f),
        "down": (layers, e, f, d),
    }
    keys = jax.random.split(jax.random.key(0), len(shapes))
    weights = {
        name: (jax.random.normal(key, shape) * 0.02).astype(jnp.bfloat16)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    zeros = jax.tree.map(jnp.zeros_like, weights)
    return {"weights": weights, "mean": zeros, "square": jax.tree.map(jnp.copy, zeros)}


def normed(x: jax.Array) -> jax.Array:
    """Root mean square norm."""
    square = jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)
    return (x * jax.lax.rsqrt(square + 1e-6)).astype(x.dtype)


def layer(top: int, x: jax.Array, w: State) -> tuple[jax.Array, None]:
    """Attention, then experts; what was chosen leaves the layer in no way."""
    batch, length, width = x.shape
    heads = max(1, width // (4 * HEAD))
    q, k, v = jnp.split((normed(x) @ w["qkv"]).reshape(batch, length, 3 * heads, -1), 3, 2)
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + attended.reshape(x.shape) @ w["out"]
    tokens = normed(x).reshape(-1, width)
    best, chosen = jax.lax.top_k(jax.nn.softmax((tokens @ w["router"]).astype(jnp.float32)), top)
    order = jnp.argsort(chosen.reshape(-1))
    loads = jnp.bincount(chosen.reshape(-1), length=w["up"].shape[0]).astype(jnp.int32)
    hidden, gate = jnp.split(jax.lax.ragged_dot(tokens[order // top], w["up"], loads), 2, -1)
    rows = jax.lax.ragged_dot(jax.nn.silu(gate) * hidden, w["down"], loads)
    rows = rows * best.reshape(-1)[order][:, None].astype(rows.dtype)
    return x + jnp.zeros_like(tokens).at[order // top].add(rows).reshape(x.shape), None


def loss(top: int, weights: State, tokens: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next token."""
    stacks = {name: weights[name] for name in ("qkv", "out", "router", "up", "down")}
    x, _ = jax.lax.scan(jax.checkpoint(partial(layer, top)), weights["embed"][tokens], stacks)
    logits = (normed(x) @ weights["head"]).astype(jnp.float32)[:, :-1]
    right = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - right).mean()


def make_step(top: int) -> Callable[[State, jax.Array], tuple[State, jax.Array]]:
    """The jitted training step of somebody who knows nothing of moeprof."""

    @partial(jax.jit, donate_argnums=0)
    def step(state: State, tokens: jax.Array) -> tuple[State, jax.Array]:
        value, slopes = jax.value_and_grad(partial(loss, top))(state["weights"], tokens)
        mean = jax.tree.map(lambda m, g: BETA * m + (1 - BETA) * g, state["mean"], slopes)
        square = jax.tree.map(lambda s, g: BETA * s + (1 - BETA) * g * g, state["square"], slopes)
        weights = jax.tree.map(
            lambda w, m, s: w - RATE * m / (jnp.sqrt(s) + EPSILON), state["weights"], mean, square
        )
        return {"weights": weights, "mean": mean, "square": square}, value

    return step


def batches(sizes: dict[str, int], steps: int) -> list[jax.Array]:
    """Random tokens."""
    draw = np.random.default_rng(0)
    shape = sizes["b"], sizes["s"]
    return [jnp.asarray(draw.integers(0, sizes["v"], shape)) for _ in range(steps)]


def substituted(found: StandIn) -> Call:
    """The stand-in as the capture calls it."""

    def call(state: State, tokens: jax.Array) -> tuple[State, jax.Array, list[Any]]:
        arguments: tuple[tuple[Any, ...], dict[str, Any]] = (state, tokens), {}
        if not found.fits(arguments):
            sys.exit("the stand-in does not fit the step's arguments")
        (state, value), indices = found(found.leaves(arguments))
        return state, value, indices

    return call


def timed_round(call: Call, start: State, every: list[jax.Array]) -> Round:
    """A step after another from a copy of `start`, one wait at the end."""
    state = wait(jax.tree.map(jnp.copy, start))
    losses, kept = [], []
    began = time.perf_counter()
    for tokens in every:
        state, value, indices = call(state, tokens)
        losses.append(value)
        kept.append(indices)
    wait((state, losses, kept))
    seconds = (time.perf_counter() - began) / len(every)
    return Round(seconds, np.array([float(value) for value in losses]), kept)


def counted(found: StandIn, indices: list[list[Any]]) -> tuple[np.ndarray, float]:
    """[steps, layers, experts] of a round, and the seconds that a step's counting took."""
    began = time.perf_counter()
    counts = []
    for of_step in indices:
        chosen = Chosen(found.layout)
        chosen.add(of_step)
        counts.append(np.asarray(chosen))
    return np.stack(counts), (time.perf_counter() - began) / len(indices)


def compare(sizes: dict[str, int], rounds: int, steps: int) -> dict[str, Any]:
    """All rounds in turns, and what they say."""
    step, start, every = make_step(sizes["k"]), initial(sizes), batches(sizes, steps)
    found = stand_in_for(step, ((start, every[0]), {}))
    calls: dict[str, Call] = {"off": lambda s, t: (*step(s, t), []), "auto": substituted(found)}
    done: dict[str, list[Round]] = {name: [] for name in calls}
    for call in calls.values():
        timed_round(call, start, every[:3])
    counts, count_s = np.zeros(0), 0.0
    for number in range(rounds):
        for name in sorted(calls, reverse=bool(number % 2)):
            done[name].append(timed_round(calls[name], start, every))
        counts, count_s = counted(found, done["auto"][-1].indices)
        done["auto"][-1] = done["auto"][-1]._replace(indices=[])
    return {**_summary(done), **_right(done, counts, sizes, found), "count_ms": count_s * 1e3}


def _summary(done: dict[str, list[Round]]) -> dict[str, Any]:
    times = {name: [one.step_s * 1e3 for one in rounds] for name, rounds in done.items()}
    off, auto = (statistics.median(times[name]) for name in ("off", "auto"))
    ratios = [b / a for a, b in zip(times["off"], times["auto"], strict=True)]
    return {
        "step_ms": {name: [round(value, 4) for value in values] for name, values in times.items()},
        "median_ms": {"off": round(off, 4), "auto": round(auto, 4)},
        "ratio": round(auto / off, 5),
        "ratios": [round(value, 5) for value in ratios],
    }


def _right(
    done: dict[str, list[Round]], counts: np.ndarray, sizes: dict[str, int], found: StandIn
) -> dict[str, Any]:
    losses = {name: np.stack([one.losses for one in rounds]) for name, rounds in done.items()}
    apart = np.abs(losses["auto"] - losses["off"]) / np.abs(losses["off"])
    own = np.abs(losses["off"] - losses["off"][0]) / np.abs(losses["off"][0])
    tokens = sizes["b"] * sizes["s"] * sizes["k"]
    return {
        "losses": int(apart.size),
        "losses_equal": int((apart == 0).sum()),
        "losses_apart": float(apart.max()),
        "losses_apart_between_rounds_off": float(own.max()),
        "counts_right": bool((counts.sum(-1) == tokens).all()),
        "busiest_over_mean": round(float(counts.max() * sizes["e"] / tokens), 3),
        "index_bytes_per_step": found.bytes_per_call,
    }


def line(row: dict[str, Any]) -> str:
    """The figures, short."""
    ratios = row["ratios"]
    return "\n".join(
        [
            f"{name:<6} {row['median_ms'][name]:9.3f} ms a step  "
            f"({min(row['step_ms'][name]):.3f} to {max(row['step_ms'][name]):.3f})"
            for name in ("off", "auto")
        ]
        + [
            f"ratio  {row['ratio']:.4f}  (by round {min(ratios):.4f} to {max(ratios):.4f}; "
            f"bound {BOUND})",
            f"losses {row['losses_equal']} of {row['losses']} equal to the bit, at most "
            f"{row['losses_apart']:.1e} apart (off, between rounds: "
            f"{row['losses_apart_between_rounds_off']:.1e})",
            f"counts {'right' if row['counts_right'] else 'WRONG'}; indices "
            f"{row['index_bytes_per_step']:,} bytes a step, counted in {row['count_ms']:.1f} ms",
        ]
    )


def main() -> int:
    """Compare, print, write JSON; 1 where a bound is passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=30, help="of each round")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, help=f"default: {size}")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on any backend")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_routing_auto.json")
    options = parser.parse_args()
    begin(parser.prog, 1, options.out, smoke=options.smoke)
    given = {name: getattr(options, name) for name in SIZES if getattr(options, name)}
    sizes = {**(SMOKE if options.smoke else SIZES), **given}
    row = compare(sizes, options.rounds, options.steps)
    print(line(row))
    head = {"machine": gpu_machine(), "backend": jax.default_backend(), "sizes": sizes}
    setting = {"rounds": options.rounds, "steps": options.steps, "bound": BOUND}
    write_result(options.out, {**head, **setting, "tolerance": TOLERANCE, **row})
    is_right = row["counts_right"] and row["losses_apart"] <= TOLERANCE
    is_cheap = row["ratio"] <= BOUND or jax.default_backend() == "cpu"
    return int(not (is_right and is_cheap))


if __name__ == "__main__":
    sys.exit(main())
