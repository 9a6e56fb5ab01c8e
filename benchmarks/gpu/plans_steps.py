"""Question: which steps does `plans.py` plan and run, and with which arguments?

Each takes (state, tokens), consumes the state and returns the next one and what it tells: the
bundled model's with each strategy, one of plain JAX as scripts have them, and one of Flax's nnx.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

BUNDLED = {"dense-cf1.25": 4, "sparse-ragged-dot": 1, "sparse-gmm": 4, "sparse-gmm-deepep": 4}
"""Sequences of a batch by strategy; `ragged_dot` multiplies every row by every expert here."""
CASES = (*BUNDLED, "plain", "nnx")


class Sizes(NamedTuple):
    """Of the model that `plain` and `nnx` both are, and of its batch."""

    d: int
    f: int
    experts: int
    k: int
    layers: int
    length: int
    batch: int
    vocabulary: int
    head: int


PLAIN = Sizes(2048, 4096, 8, 2, 6, 2048, 4, vocabulary=32000, head=128)
SMOKE_PLAIN = Sizes(32, 16, 4, 2, 2, 32, 2, vocabulary=256, head=16)


@dataclass(frozen=True)
class Case:
    """A jitted step that gives its first argument up.

    ``like`` are its arguments as shapes, ``arguments`` makes them on the device.
    """

    step: Callable[..., Any]
    like: tuple[Any, ...]
    arguments: Callable[[], tuple[Any, ...]]


def why_absent(name: str) -> str:
    """ "" where a case can be made here."""
    if name == "nnx" and importlib.util.find_spec("flax") is None:
        return "flax is not installed"
    return ""


def made(name: str, *, smoke: bool) -> Case:
    """The case of a name of `CASES`."""
    sizes = SMOKE_PLAIN if smoke else PLAIN
    if name in BUNDLED:
        return _bundled(name, 1 if smoke else BUNDLED[name], smoke=smoke)
    return _plain(sizes) if name == "plain" else _nnx(sizes)


def _bundled(strategy: str, sequences: int, *, smoke: bool) -> Case:
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding

    from gpu.ab_process import batch_of, state_on_devices
    from gpu.ab_setting import MLA, SMOKE_SEQUENCE, model_of
    from gpu.memory import MODEL, SEQUENCE
    from moeprof.model.layout import BATCH, build_mesh
    from moeprof.model.train import (
        OptimizerSettings,
        TrainState,
        adamw,
        make_job,
        make_step,
        state_specs,
        weight_shapes,
    )
    from moeprof.specs.model import MlaSpec, ModelSpec
    from moeprof.specs.plan import ParallelPlan
    from moeprof.specs.remat import FULL
    from moeprof.specs.strategy import parse_strategy

    model = model_of(smoke=True) if smoke else ModelSpec(attention=MlaSpec(**MLA), **MODEL)
    length = SMOKE_SEQUENCE if smoke else SEQUENCE
    plan, settings = ParallelPlan(remat=FULL), OptimizerSettings()
    mesh = build_mesh(plan, model)
    job = make_job(model, plan, parse_strategy(strategy), mesh)
    optimizer = adamw(settings)
    weights = weight_shapes(model)
    bias = jax.ShapeDtypeStruct((model.moe_layers, model.experts), jnp.float32)
    state = TrainState(weights, bias, jax.eval_shape(optimizer.init, weights))

    def laid_out(leaf: Any, spec: Any) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    like = jax.tree.map(laid_out, state, state_specs(job, optimizer))
    tokens = laid_out(jax.ShapeDtypeStruct((sequences, length + 1), jnp.int32), BATCH)
    return Case(
        make_step(job, mesh, settings),
        (like, tokens),
        lambda: (
            state_on_devices(job, mesh, settings),
            batch_of("synthetic", sequences, length, model.vocab, mesh),
        ),
    )


def _tokens(batch: int, length: int, vocabulary: int) -> Any:
    import jax

    return jax.random.randint(jax.random.key(1), (batch, length), 0, vocabulary)


def _plain(sizes: Sizes) -> Case:
    """A transformer whose every expert multiplies every token, masked by the router."""
    import jax
    import jax.numpy as jnp
    import optax

    d, f, experts, k, layers, length, batch, vocabulary, head = sizes
    shapes = {
        "table": (vocabulary, d),
        "head": (d, vocabulary),
        "layers": {
            "qkv": (layers, d, 3 * d),
            "out": (layers, d, d),
            "router": (layers, d, experts),
            "gate": (layers, experts, d, f),
            "up": (layers, experts, d, f),
            "down": (layers, experts, f, d),
        },
    }

    def block(x: Any, w: Any) -> tuple[Any, None]:
        qkv = (_norm(x) @ w["qkv"]).reshape(*x.shape[:2], -1, head)
        x = x + _attention(*jnp.split(qkv, 3, 2)).reshape(x.shape) @ w["out"]
        return x + _moe(_norm(x), w, experts, k), None

    def loss(w: Any, tokens: Any) -> Any:
        x, _ = jax.lax.scan(block, w["table"][tokens], w["layers"])
        return _loss(_norm(x) @ w["head"], tokens)

    optimizer = optax.adam(1e-4)

    def train_step(state: Any, tokens: Any) -> tuple[Any, Any]:
        w, moments = state
        value, slopes = jax.value_and_grad(loss)(w, tokens)
        updates, moments = optimizer.update(slopes, moments, w)
        return (optax.apply_updates(w, updates), moments), value

    def drawn() -> Any:
        dims, tree = jax.tree.flatten(shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
        keys = jax.random.split(jax.random.key(0, impl="unsafe_rbg"), len(dims))
        leaves = [
            jax.random.normal(key, size, jnp.bfloat16) * jnp.bfloat16(0.02)
            for key, size in zip(keys, dims, strict=True)
        ]
        w = jax.tree.unflatten(tree, leaves)
        return w, optimizer.init(w)

    return Case(
        jax.jit(train_step, donate_argnums=0),
        (jax.eval_shape(drawn), jax.eval_shape(lambda: _tokens(batch, length, vocabulary))),
        lambda: (jax.jit(drawn)(), _tokens(batch, length, vocabulary)),
    )


def _norm(x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    mean = jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)
    return (x * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype)


def _attention(q: Any, k: Any, v: Any) -> Any:
    """Causal; its products are of bf16 alone, where `jax.nn.dot_product_attention` has float32."""
    import jax
    import jax.numpy as jnp

    scores = (jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5).astype(jnp.float32)
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    odds = jax.nn.softmax(jnp.where(seen, scores, -1e30)).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", odds, v)


def _moe(x: Any, w: Any, experts: int, k: int) -> Any:
    """Every expert on every token, those that the router did not choose times zero."""
    import jax
    import jax.numpy as jnp

    odds = jax.nn.softmax((x @ w["router"]).astype(jnp.float32))
    best, chosen = jax.lax.top_k(odds, k)
    mask = (jax.nn.one_hot(chosen, experts) * best[..., None]).sum(-2).astype(x.dtype)
    gate = jnp.einsum("btd,edf->betf", x, w["gate"])
    rows = jax.nn.silu(gate) * jnp.einsum("btd,edf->betf", x, w["up"])
    return jnp.einsum("betf,efd,bte->btd", rows, w["down"], mask)


def _loss(logits: Any, tokens: Any) -> Any:
    import jax.numpy as jnp
    import optax

    told = logits[:, :-1].astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(told, tokens[:, 1:]).mean()


def _nnx(sizes: Sizes) -> Case:
    """The same model as modules of Flax, its layers one after the other."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    d, f, experts, k, layers, length, batch, vocabulary, head = sizes
    bf16 = {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16, "use_bias": False}

    class Block(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: Any) -> None:
            self.qkv = nnx.Linear(d, 3 * d, rngs=rngs, **bf16)
            self.out = nnx.Linear(d, d, rngs=rngs, **bf16)
            for name, shape in {
                "router": (d, experts),
                "gate": (experts, d, f),
                "up": (experts, d, f),
                "down": (experts, f, d),
            }.items():
                values = jax.random.normal(rngs.params(), shape, jnp.bfloat16) * jnp.bfloat16(0.02)
                setattr(self, name, nnx.Param(values))

        def __call__(self, x: Any) -> Any:
            qkv = self.qkv(_norm(x)).reshape(*x.shape[:2], -1, head)
            mixed = jax.nn.dot_product_attention(*jnp.split(qkv, 3, 2), is_causal=True)
            x = x + self.out(mixed.reshape(x.shape))
            names = ("router", "gate", "up", "down")
            return x + _moe(_norm(x), {n: getattr(self, n)[...] for n in names}, experts, k)

    class Decoder(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: Any) -> None:
            self.table = nnx.Embed(
                vocabulary, d, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16, rngs=rngs
            )
            self.blocks = nnx.Sequential(*(Block(rngs) for _ in range(layers)))
            self.head = nnx.Linear(d, vocabulary, rngs=rngs, **bf16)

        def __call__(self, tokens: Any) -> Any:
            return self.head(_norm(self.blocks(self.table(tokens))))

    def drawn() -> Any:
        model = Decoder(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-4), wrt=nnx.Param)

    graph, like = nnx.split(nnx.eval_shape(drawn))

    def train_step(state: Any, tokens: Any) -> tuple[Any, Any]:
        model, optimizer = nnx.merge(graph, state)
        value, slopes = nnx.value_and_grad(lambda model: _loss(model(tokens), tokens))(model)
        optimizer.update(model, slopes)
        return nnx.state((model, optimizer)), value

    return Case(
        jax.jit(train_step, donate_argnums=0),
        (like, jax.eval_shape(lambda: _tokens(batch, length, vocabulary))),
        lambda: (jax.jit(lambda: nnx.split(drawn())[1])(), _tokens(batch, length, vocabulary)),
    )
