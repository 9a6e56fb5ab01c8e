"""Train a Mixture-of-Experts language model with Flax NNX, as its users write one.

    python tests/clients/nnx_moe.py --data 2 --expert 4

The weights are made where they belong, by a jitted constructor with partitioned initializers; a
step is `nnx.jit` of a function that updates the model and its optimizer in place. Every expert
takes a fixed number of tokens of a sequence. Tokens are drawn on the host. It knows nothing of
moeprof and needs Flax and Optax.
"""

from __future__ import annotations

import argparse
import os

import numpy as np

parser = argparse.ArgumentParser()
for name, value in {
    "steps": 20, "data": 2, "expert": 4, "layers": 2, "width": 128, "heads": 4, "experts": 8,
    "top-k": 2, "batch": 16, "length": 64, "vocabulary": 512,
}.items():  # fmt: skip
    parser.add_argument(f"--{name}", type=int, default=value)
parser.add_argument("--capacity", type=float, default=1.25, help="times an even share")
args = parser.parse_args()
if "cpu" in os.environ.get("JAX_PLATFORMS", "cpu"):
    count = f"--xla_force_host_platform_device_count={args.data * args.expert}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {count}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

devices = np.array(jax.devices()[: args.data * args.expert]).reshape(args.data, args.expert)
mesh = Mesh(devices, ("data", "expert"))
BATCH = PartitionSpec(("data", "expert"))


def drawn(*axes: str | None):
    return nnx.with_partitioning(nnx.initializers.lecun_normal(), axes)


class Attention(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        kinds = {"use_bias": False, "param_dtype": jnp.float32, "dtype": jnp.bfloat16}
        self.norm = nnx.RMSNorm(args.width, rngs=rngs)
        self.qkv = nnx.Linear(
            args.width, 3 * args.width, kernel_init=drawn("data", None), rngs=rngs, **kinds
        )
        self.out = nnx.Linear(
            args.width, args.width, kernel_init=drawn("data", None), rngs=rngs, **kinds
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        batch, length, _ = x.shape
        q, k, v = jnp.split(self.qkv(self.norm(x)), 3, axis=-1)
        q, k, v = (each.reshape(batch, length, args.heads, -1) for each in (q, k, v))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.reshape(x.shape))


class Experts(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        hidden = 2 * args.width
        self.norm = nnx.RMSNorm(args.width, rngs=rngs)
        self.router = nnx.Linear(args.width, args.experts, use_bias=False, rngs=rngs)
        draw = drawn("expert", "data", None)
        self.up = nnx.Param(draw(rngs.params(), (args.experts, args.width, hidden)))
        self.down = nnx.Param(draw(rngs.params(), (args.experts, hidden, args.width)))

    def __call__(self, x: jax.Array) -> jax.Array:
        rows = self.norm(x)
        weights, chosen = jax.lax.top_k(jax.nn.softmax(self.router(rows)), args.top_k)
        room = max(1, round(args.capacity * args.top_k * x.shape[1] / args.experts))
        picked = jax.nn.one_hot(chosen, args.experts, dtype=jnp.int32)
        place = jnp.cumsum(picked.sum(2), axis=1)[:, :, None, :] * picked - 1
        slots = jax.nn.one_hot(place, room, dtype=jnp.bfloat16)  # a place beyond has no one
        dispatch = slots.sum(2)
        combine = (slots * weights[..., None, None].astype(jnp.bfloat16)).sum(2)
        inside = jnp.einsum("btec,btd->ebcd", dispatch, rows.astype(jnp.bfloat16))
        inside = jax.lax.with_sharding_constraint(
            inside, NamedSharding(mesh, PartitionSpec("expert", "data"))
        )
        up, down = (each[...].astype(jnp.bfloat16) for each in (self.up, self.down))
        hidden = jax.nn.silu(jnp.einsum("ebcd,edf->ebcf", inside, up))
        outside = jnp.einsum("ebcf,efd->ebcd", hidden, down)
        return x + jnp.einsum("btec,ebcd->btd", combine, outside)


class Decoder(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.table = nnx.Embed(
            args.vocabulary, args.width, embedding_init=drawn(None, "data"), rngs=rngs
        )
        self.layers = nnx.List(
            [layer(rngs) for _ in range(args.layers) for layer in (Attention, Experts)]
        )
        self.norm = nnx.RMSNorm(args.width, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.table(tokens).astype(jnp.bfloat16)
        for layer in self.layers:
            x = layer(x)
        return self.table.attend(self.norm(x).astype(jnp.float32))


@nnx.jit
def made():
    model = Decoder(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    for each in (model, optimizer):
        state = nnx.state(each)
        nnx.update(each, jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))
    return model, optimizer


@nnx.jit
def train_step(model: Decoder, optimizer: nnx.Optimizer, tokens: jax.Array) -> jax.Array:
    def loss_of(model: Decoder) -> jax.Array:
        logits = model(tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    loss, slopes = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, slopes)
    return loss


draws = np.random.default_rng(0)
with jax.set_mesh(mesh):
    model, optimizer = made()
    for step in range(args.steps):
        batch = draws.integers(0, args.vocabulary, (args.batch, args.length + 1), dtype=np.int32)
        tokens = jax.device_put(batch, NamedSharding(mesh, BATCH))
        loss = train_step(model, optimizer, tokens)
        if step % 5 == 0 or step == args.steps - 1:
            print(f"step {step:3d}  loss {float(loss):.4f}", flush=True)
