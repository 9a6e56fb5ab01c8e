"""Train a Mixture-of-Experts language model that has three problems, and can do without each.

    moeprof capture examples/planted_faults.py
    moeprof capture examples/planted_faults.py --late-rank -1 --product grouped_gemm --capacity 1.5

1. One rank comes late: it weighs its bytes with many more passes than its peers, which wait for it
   in the next collective (`--late-rank`, `--late-passes`).
2. The experts' products are `jax.lax.ragged_dot`, for which XLA has no kernel on most devices: it
   multiplies every row by every local expert's matrix (`--product`).
3. Receive buffers have room for all tokens of all ranks, and are mostly empty (`--capacity`).

Tokens and experts are split over one mesh axis; dispatch and combine are explicit all-to-alls.
"""

import argparse
import os
import sysconfig
from pathlib import Path

import numpy as np

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--ranks", type=int, default=8, help="devices; virtual ones on CPU")
parser.add_argument("--late-rank", type=int, default=5, help="-1: none")
parser.add_argument("--late-passes", type=int, default=200, help="its passes; peers make one")
parser.add_argument("--product", choices=("ragged_dot", "grouped_gemm"), default="ragged_dot")
parser.add_argument(
    "--capacity",
    type=float,
    default=0,
    help="rows that a rank may send to another, times an even share; tokens beyond are dropped. "
    "0: as many as there can be (default)",
)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--experts", type=int, default=32)
parser.add_argument("--top-k", type=int, default=2)
parser.add_argument("--batch", type=int, default=1, help="sequences per rank")
parser.add_argument("--length", type=int, default=64, help="bytes per sequence")
parser.add_argument("--lr", type=float, default=1e-3)
args = parser.parse_args()

# Only counts where there is no accelerator; JAX must not be imported yet.
count = f"--xla_force_host_platform_device_count={args.ranks}"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {count}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

import moeprof.routing  # noqa: E402

RANKS, LOCAL = args.ranks, args.experts // args.ranks
mesh = jax.make_mesh((RANKS,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
optimizer = optax.adamw(args.lr)


def init_params(key):
    width, hidden = args.width, args.width // 2

    def dense(key, *shape):
        return jax.random.normal(key, shape) * shape[-2] ** -0.5

    def block(key):
        keys = jax.random.split(key, 5)
        return {
            "qkv": dense(keys[0], width, 3 * width),
            "proj": dense(keys[1], width, width) * 0.1,
            "gate": dense(keys[2], width, args.experts),
            "w1": dense(keys[3], args.experts, width, hidden),
            "w2": dense(keys[4], args.experts, hidden, width),
        }

    first, second, *rest = jax.random.split(key, args.layers + 2)
    return {
        "embed": jax.random.normal(first, (256, width)) * 0.1,
        "place": jax.random.normal(second, (args.length, width)) * 0.2,
        "blocks": [block(key) for key in rest],
    }


def spec_of(path, _leaf):
    """Expert weights are split over the ranks; everything else is copied."""
    is_expert = {"w1", "w2"} & {getattr(part, "key", None) for part in path}
    return PartitionSpec("expert") if is_expert else PartitionSpec()


def normalised(x):
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5)


def loss_weights(tokens, passes):
    """How much each byte of the sequences counts in the loss: rare neighbours count more.

    Each pass spreads the table of neighbours by one step, on the late rank again and again.
    """
    table = jnp.zeros((256, 256)).at[tokens[:, :-1], tokens[:, 1:]].add(1.0) + 1e-2
    table = table / table.sum(-1, keepdims=True)
    spread = jax.lax.fori_loop(0, passes[0], lambda _, rows: rows @ table, table)
    weights = 1 / (0.1 + spread[tokens[:, :-1], tokens[:, 1:]])
    return weights / weights.mean()


def attention(x, p):
    b, t, d = x.shape
    q, k, v = jnp.split((x @ p["qkv"]).reshape(b, t, args.heads, -1), 3, axis=-1)
    logits = jnp.einsum("bthd,bshd->bhts", q, k) * (d // args.heads) ** -0.5
    logits = jnp.where(jnp.tril(jnp.ones((t, t), bool)), logits, -jnp.inf)
    out = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(logits), v)
    return out.reshape(b, t, d) @ p["proj"]


def product(rows, weights, group_sizes):
    """Each expert's rows times its matrix."""
    if args.product == "ragged_dot":
        return jax.lax.ragged_dot(rows, weights, group_sizes)
    from moeprof.kernels import grouped_gemm

    return grouped_gemm(rows, weights, group_sizes)


def slots_per_peer(tokens):
    """Rows that a rank has room for from each of its peers."""
    most = tokens * min(args.top_k, LOCAL)
    if not args.capacity:
        return most
    return min(most, max(1, round(args.capacity * tokens * args.top_k / RANKS)))


def exchange(rows):
    return jax.lax.all_to_all(rows, "expert", 0, 0, tiled=True)


def moe(x, p):
    """x [tokens, width] of a rank -> output, (balancing loss, tokens per expert, rows received)."""
    tokens = x.shape[0]
    slots = slots_per_peer(tokens)
    logits = x @ p["gate"]
    probs = jax.nn.softmax(logits - logits.mean(0))  # else what all tokens share fills one expert
    weight, choice = jax.lax.top_k(probs, args.top_k)
    expert = choice.reshape(-1)
    peer = expert // LOCAL
    to_peer = jax.nn.one_hot(peer, RANKS, dtype=jnp.int32)
    slot = jnp.take_along_axis(jnp.cumsum(to_peer, 0) - 1, peer[:, None], 1)[:, 0]
    place = jnp.where(slot < slots, peer * slots + slot, RANKS * slots)  # the last: dropped

    with jax.named_scope("dispatch"):
        pairs = jnp.repeat(x, args.top_k, axis=0)
        send = jnp.zeros((RANKS * slots, x.shape[1])).at[place].set(pairs, mode="drop")
        label = jnp.full(RANKS * slots, LOCAL).at[place].set(expert % LOCAL, mode="drop")
        rows, label = exchange(send), exchange(label)
    with jax.named_scope("experts"):
        order = jnp.argsort(label)
        sizes = jnp.bincount(label, length=LOCAL).astype(jnp.int32)
        hidden = jax.nn.gelu(product(rows[order], p["w1"], sizes))
        out = jnp.zeros_like(rows).at[order].set(product(hidden, p["w2"], sizes))
    with jax.named_scope("combine"):
        back = exchange(out).at[place].get(mode="fill", fill_value=0)
        y = (back.reshape(tokens, args.top_k, -1) * weight[..., None]).sum(1)

    picked = jax.nn.one_hot(choice, args.experts).sum((0, 1))
    balance = args.experts * jnp.sum(picked / picked.sum() * probs.mean(0))
    return y, (balance, picked.astype(jnp.int32), sizes.sum())


def loss_of_rank(params, tokens, passes):
    """Mean loss of all ranks, and what their routers did."""
    x = params["embed"][tokens[:, :-1]] + params["place"]
    # without these weights no rank can go on: they are part of what the others wait for
    x, weights = jax.lax.optimization_barrier((x, loss_weights(tokens, passes)))
    seen = []
    for p in params["blocks"]:
        x = x + attention(normalised(x), p)
        y, report = moe(normalised(x).reshape(-1, args.width), p)
        x = x + y.reshape(x.shape)
        seen.append(report)
    balance, picked, received = (jnp.stack(parts) for parts in zip(*seen, strict=True))
    logits = normalised(x) @ params["embed"].T
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    loss = jax.lax.pmean((nll * weights).mean() + 0.02 * balance.sum(), "expert")
    return loss, (jax.lax.psum(picked, "expert"), received[:, None, None])


def make_step(specs):
    by_rank, same = PartitionSpec("expert"), PartitionSpec()
    loss = jax.shard_map(
        loss_of_rank,
        mesh=mesh,
        in_specs=(specs, by_rank, by_rank),
        out_specs=(same, (same, PartitionSpec(None, None, "expert"))),
    )

    def train_step(state, tokens, passes):
        params, moments = state
        (value, routed), grads = jax.value_and_grad(loss, has_aux=True)(params, tokens, passes)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value, routed

    return jax.jit(train_step, donate_argnums=0)


def windows(rng):
    """Random pieces of the standard library's sources."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = np.frombuffer(b"".join(path.read_bytes() for path in paths[:80]), np.uint8)
    while True:
        start = rng.integers(0, len(text) - args.length, args.batch * RANKS)
        yield text[start[:, None] + np.arange(args.length + 1)].astype(np.int32)


def main():
    if args.experts % RANKS:
        parser.error(f"{args.experts} experts cannot be split evenly over {args.ranks} ranks")
    params = init_params(jax.random.key(0))
    specs = jax.tree.map_with_path(spec_of, params)
    params = jax.tree.map(
        lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec)), params, specs
    )
    state = params, optimizer.init(params)
    step = make_step(specs)
    by_rank = NamedSharding(mesh, PartitionSpec("expert"))
    is_late = np.arange(RANKS) == args.late_rank
    passes = jax.device_put(np.where(is_late, args.late_passes, 1).astype(np.int32), by_rank)
    data = windows(np.random.default_rng(0))
    for i in range(args.steps):
        tokens = jax.device_put(next(data), by_rank)
        with jax.profiler.StepTraceAnnotation("train", step_num=i):
            state, loss, (picked, received) = step(state, tokens, passes)
            moeprof.routing.record(i, picked, received_rows=received)
        if i % 5 == 0 or i == args.steps - 1:
            print(f"step {i:4d}  loss {float(loss):.4f}", flush=True)


if __name__ == "__main__":
    main()
