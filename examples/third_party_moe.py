"""Train a Mixture-of-Experts language model in plain JAX and Optax.

This script knows nothing of moeprof: no import, no annotation, no scope. It stands for the training
script that you have.

    python examples/third_party_moe.py --steps 50
    moeprof capture examples/third_party_moe.py --data 2 --expert 4

Experts are split over one mesh axis and sequences over both; the compiler places the collectives.
Each expert takes a fixed number of tokens of a sequence, and an auxiliary loss keeps it from
overflowing (Fedus et al., "Switch Transformers", 2021).
"""

import argparse
import os
import sysconfig
from pathlib import Path

import numpy as np

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--data", type=int, default=2, help="copies of the experts")
parser.add_argument("--expert", type=int, default=4, help="devices that share one copy")
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--experts", type=int, default=8)
parser.add_argument("--top-k", type=int, default=2)
parser.add_argument("--capacity", type=float, default=1.5, help="times an even share")
parser.add_argument("--batch", type=int, default=16, help="sequences, over all devices")
parser.add_argument("--length", type=int, default=64, help="bytes per sequence")
parser.add_argument("--lr", type=float, default=3e-3)
args = parser.parse_args()

# Only counts where there is no accelerator; JAX must not be imported yet.
count = f"--xla_force_host_platform_device_count={args.data * args.expert}"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {count}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

devices = np.array(jax.devices()).reshape(args.data, args.expert)
mesh = Mesh(devices, ("data", "expert"))
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(args.lr))


def sharding(*axes):
    return NamedSharding(mesh, PartitionSpec(*axes))


def init_params(key):
    width, hidden = args.width, 2 * args.width

    def dense(key, *shape):
        return jax.random.normal(key, shape) * shape[-2] ** -0.5

    def block(key):
        keys = jax.random.split(key, 5)
        return {
            "ln1": jnp.ones(width),
            "qkv": dense(keys[0], width, 3 * width),
            "proj": dense(keys[1], width, width),
            "ln2": jnp.ones(width),
            "gate": dense(keys[2], width, args.experts),
            "w1": dense(keys[3], args.experts, width, hidden),
            "w2": dense(keys[4], args.experts, hidden, width),
        }

    first, last, *rest = jax.random.split(key, args.layers + 2)
    return {
        "wte": jax.random.normal(first, (256, width)) * 0.02,
        "blocks": [block(key) for key in rest],
        "ln_f": jnp.ones(width),
        "lm_head": dense(last, width, 256),
    }


def place(path, leaf):
    """Expert weights, and their moments, are split; everything else is copied."""
    return (
        sharding("expert") if {"w1", "w2"} & {getattr(p, "key", None) for p in path} else sharding()
    )


def layer_norm(x, scale):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale


def causal_attention(x, p):
    b, t, d = x.shape
    q, k, v = jnp.split((x @ p["qkv"]).reshape(b, t, args.heads, -1), 3, axis=-1)
    logits = jnp.einsum("bthd,bshd->bhts", q, k) * (d // args.heads) ** -0.5
    logits = jnp.where(jnp.tril(jnp.ones((t, t), bool)), logits, -jnp.inf)
    out = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(logits), v)
    return out.reshape(b, t, d) @ p["proj"]


def moe(x, p):
    """x [b, t, d] -> (output, load-balancing loss)."""
    b, t, _ = x.shape
    slots = max(1, int(args.capacity * args.top_k * t / args.experts))
    probs = jax.nn.softmax(x @ p["gate"])
    weight, choice = jax.lax.top_k(probs, args.top_k)
    weight = weight / weight.sum(-1, keepdims=True)

    # First choices fill the slots first, so count along [choice, token].
    picked = jax.nn.one_hot(choice, args.experts).swapaxes(1, 2)  # b k t e
    order = jnp.cumsum(picked.reshape(b, -1, args.experts), axis=1).reshape(picked.shape)
    slot = jnp.sum((order - 1) * picked, axis=-1).astype(int)
    mask = picked[..., None] * jax.nn.one_hot(slot, slots)[..., None, :]  # b k t e c
    send = mask.sum(1)
    share = jnp.einsum("bktec,btk->btec", mask, weight)

    inbox = jnp.einsum("btec,btd->ebcd", send, x)
    inbox = jax.lax.with_sharding_constraint(inbox, sharding("expert", "data"))
    hidden = jax.nn.gelu(jnp.einsum("ebcd,edf->ebcf", inbox, p["w1"]))
    outbox = jnp.einsum("ebcf,efd->ebcd", hidden, p["w2"])
    outbox = jax.lax.with_sharding_constraint(outbox, sharding("expert", "data"))
    y = jnp.einsum("btec,ebcd->btd", share, outbox)

    fraction = picked[:, 0].mean((0, 1))
    return y, args.experts * jnp.sum(fraction * probs.mean((0, 1)))


@jax.checkpoint
def block(x, p):
    x = x + causal_attention(layer_norm(x, p["ln1"]), p)
    y, balance = moe(layer_norm(x, p["ln2"]), p)
    return x + y, balance


def loss_fn(params, tokens):
    x = params["wte"][tokens[:, :-1]]
    balance = 0.0
    for p in params["blocks"]:
        x, extra = block(x, p)
        balance += extra
    logits = layer_norm(x, params["ln_f"]) @ params["lm_head"]
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()
    return nll + 0.01 * balance, nll


def init(key):
    params = init_params(key)
    return params, optimizer.init(params)


def update(state, tokens):
    params, opt_state = state
    (_, nll), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, tokens)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), nll


def windows(rng):
    """Random pieces of the standard library's sources."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = np.frombuffer(b"".join(path.read_bytes() for path in paths[:80]), np.uint8)
    while True:
        start = rng.integers(0, len(text) - args.length, args.batch)
        yield text[start[:, None] + np.arange(args.length + 1)].astype(np.int32)


def main():
    key = jax.random.key(0)
    state_sharding = jax.tree.map_with_path(place, jax.eval_shape(init, key))
    state = jax.jit(init, out_shardings=state_sharding)(key)
    by_sequence = sharding(("data", "expert"))
    step = jax.jit(
        update,
        in_shardings=(state_sharding, by_sequence),
        out_shardings=(state_sharding, sharding()),
        donate_argnums=0,
    )
    data = windows(np.random.default_rng(0))
    for i in range(args.steps):
        state, loss = step(state, jax.device_put(next(data), by_sequence))
        if i % 5 == 0 or i == args.steps - 1:
            print(f"{i:5d}  {float(loss):.4f}", flush=True)


if __name__ == "__main__":
    main()
