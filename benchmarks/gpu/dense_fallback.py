"""What does the dense fallback of ``ragged_dot`` cost a step, and what does a grouped GEMM save?

    python benchmarks/gpu/dense_fallback.py [--out FILE.json] [--steps 10]

Trains a dropless Mixture-of-Experts model on one GPU twice, with `jax.lax.ragged_dot` and with
`moeprof.kernels.grouped_gemm` in its place: the line that the report's first finding says to
change. Each is a process of its own, since an allocator's peak is that of its process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.machine import gpu_machine

RESULTS = Path(__file__).parents[1] / "results"
SIZES = {"d": 2048, "f": 1024, "experts": 32, "k": 4, "layers": 4, "length": 2048, "batch": 4}
SIZES |= {"vocabulary": 32000, "head": 128}
PRODUCTS = ("ragged_dot", "grouped_gemm")
LIMIT_S = 200


def train(product_name: str, steps: int) -> dict[str, float]:
    """Times of `steps` training steps in ms, and the allocator's peak in GB."""
    import jax
    import jax.numpy as jnp
    import optax

    product: Callable[..., Any]
    if product_name == "grouped_gemm":
        from moeprof.kernels import grouped_gemm as product
    else:
        product = jax.lax.ragged_dot
    d, f, experts, k, layers, length, batch, vocabulary, head = SIZES.values()

    def norm(x: Any) -> Any:
        mean = jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)
        return (x * jax.lax.rsqrt(mean + 1e-6)).astype(jnp.bfloat16)

    def block(x: Any, w: Any) -> tuple[Any, None]:
        q, key, v = jnp.split((norm(x) @ w["qkv"]).reshape(batch, length, -1, head), 3, 2)
        mixed = jax.nn.dot_product_attention(q, key, v, is_causal=True)
        x = x + mixed.reshape(batch, length, d) @ w["out"]
        tokens = norm(x).reshape(-1, d)
        odds = jax.nn.softmax((tokens @ w["router"]).astype(jnp.float32))
        weights, chosen = jax.lax.top_k(odds, k)
        order = jnp.argsort(chosen.reshape(-1))
        rows = tokens[order // k]
        sizes = jnp.bincount(chosen.reshape(-1), length=experts).astype(jnp.int32)
        gate, up = jnp.split(product(rows, w["in"], sizes), 2, -1)
        done = product(jax.nn.silu(gate) * up, w["down"], sizes)
        done = done * weights.reshape(-1)[order][:, None].astype(jnp.bfloat16)
        return x + jnp.zeros_like(tokens).at[order // k].add(done).reshape(x.shape), None

    def loss(w: Any, tokens: Any) -> Any:
        x, _ = jax.lax.scan(jax.checkpoint(block), w["table"][tokens], w["layers"])
        logits = (norm(x) @ w["head"]).astype(jnp.float32)
        wanted = tokens[:, 1:]
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], wanted).mean()

    keys = iter(jax.random.split(jax.random.key(0), 16))

    def weight(*shape: int) -> Any:
        return (jax.random.normal(next(keys), shape) * 0.02).astype(jnp.bfloat16)

    w = {
        "table": weight(vocabulary, d),
        "head": weight(d, vocabulary),
        "layers": {
            "qkv": weight(layers, d, 3 * d),
            "out": weight(layers, d, d),
            "router": weight(layers, d, experts),
            "in": weight(layers, experts, d, 2 * f),
            "down": weight(layers, experts, f, d),
        },
    }
    optimizer = optax.adamw(1e-4)
    state = optimizer.init(w)

    def step(w: Any, state: Any, tokens: Any) -> tuple[Any, Any, Any]:
        value, gradients = jax.value_and_grad(loss)(w, tokens)
        updates, state = optimizer.update(gradients, state, w)
        return optax.apply_updates(w, updates), state, value

    run = jax.jit(step, donate_argnums=(0, 1))
    tokens = jax.random.randint(jax.random.key(1), (batch, length), 0, vocabulary)
    times = []
    for number in range(steps + 3):
        begun = time.perf_counter()
        w, state, value = run(w, state, tokens)
        value = float(value)
        if number >= 3:
            times.append(1000 * (time.perf_counter() - begun))
    stats = jax.devices()[0].memory_stats() or {}
    return {
        "step_ms_median": round(median(times), 2),
        "step_ms_least": round(min(times), 2),
        "peak_gb": round(stats.get("peak_bytes_in_use", 0) / 1e9, 2),
        "loss": round(value, 4),
    }


def measured(product: str, steps: int) -> dict[str, Any]:
    """The figures of a process of its own, or the last line of what it said."""
    command = [sys.executable, __file__, "--product", product, "--steps", str(steps)]
    done = subprocess.run(
        command, env={**os.environ}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no reason was said"])[-1][:300]}
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def main() -> int:
    """Run both, print and write; how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--product", choices=PRODUCTS, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_dense_fallback.json")
    asked = parser.parse_args()
    if asked.product:
        print(json.dumps(train(asked.product, asked.steps)))
        return 0
    document: dict[str, Any] = {"machine": gpu_machine(), "sizes": SIZES, "steps": asked.steps}
    for product in PRODUCTS:
        document[product] = measured(product, asked.steps)
        print(f"{product:14} {document[product]}", flush=True)
        asked.out.write_text(json.dumps(document, indent=1) + "\n")
    return sum("failed" in document[product] for product in PRODUCTS)


if __name__ == "__main__":
    sys.exit(main())
