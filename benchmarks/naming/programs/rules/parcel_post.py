"""Four devices: rows put in boxes, boxes exchanged and sent back; one bucket of gradients; lion."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

DEVICES = 4
SIZES = {"d": 84, "f": 52, "e": 8, "k": 2, "l": 2, "b": 8, "s": 46, "v": 302, "h": 6, "near": 16}
LARGE = {"d": 2048, "f": 2048, "e": 32, "l": 4, "b": 32, "s": 1024, "v": 32768, "h": 16}
LARGE |= {"near": 512}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
AXIS = "ep"
CAPACITY_FACTOR = 1.5
LOCAL = {"expert_in", "expert_gate", "expert_out"}


def rmsnorm(x):
    var = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)  # is: norm
    return (x * lax.rsqrt(var + 1e-6)).astype(x.dtype)  # is: norm


def partial_rope(x):
    """Only the first half of each head is turned."""
    turned, kept = jnp.split(x, [x.shape[-1] // 4 * 2], axis=-1)  # is: attention
    n = turned.shape[-1] // 2
    t = jnp.arange(x.shape[1])[:, None] / (1e4 ** (jnp.arange(n) / n))  # is: attention
    rot = jnp.exp(1j * t)[:, None]  # is: attention
    z = lax.complex(*jnp.split(turned.astype(jnp.float32), 2, -1)) * rot  # is: attention
    return jnp.concatenate([z.real, z.imag, kept], -1).astype(x.dtype)  # is: attention


def local_attention(p, x):
    b, s, d = x.shape
    q, k, v = jnp.einsum("bsd,dnhc->nbshc", x, p["qkv"])  # is: attention
    q, k = partial_rope(q), partial_rope(k)
    w = jnp.einsum("bqhc,bkhc->bhqk", q, k) * q.shape[-1] ** -0.5  # is: attention
    gap = jnp.arange(s)[:, None] - jnp.arange(s)[None]  # is: attention
    w = jnp.where((gap >= 0) & (gap < SIZES["near"]), w.astype(jnp.float32), -1e9)  # is: attention
    sink = jnp.broadcast_to(p["sink"][:, None, None], (b, SIZES["h"], s, 1))  # is: attention
    w = jnp.concatenate([w, sink.astype(jnp.float32)], axis=-1)  # is: attention
    w = jax.nn.softmax(w)[..., :-1].astype(x.dtype)  # is: attention
    y = jnp.einsum("bhqk,bkhc->bqhc", w, v)  # is: attention
    return y.reshape(b, s, d) @ p["proj"]  # is: attention


def moe_layer(p, x):
    n_tok, d = x.shape
    n_exp, k, local = SIZES["e"], SIZES["k"], SIZES["e"] // DEVICES
    cap = int(np.ceil(n_tok * k * CAPACITY_FACTOR / n_exp))

    logits = x.astype(jnp.float32) @ p["router"].astype(jnp.float32)  # is: router
    top, ids = lax.top_k(logits, k)  # is: router
    gates = jax.nn.softmax(top, axis=-1).astype(x.dtype)  # is: router
    z_loss = jnp.mean(jax.nn.logsumexp(logits, -1) ** 2)  # is: router|loss

    ids = ids.T.reshape(-1)  # is: router|permute
    one_hot = (ids[:, None] == jnp.arange(n_exp)).astype(jnp.int32)  # is: router|permute
    place = jnp.sum((jnp.cumsum(one_hot, axis=0) - 1) * one_hot, axis=1)  # is: router|permute
    box = ids * cap + place  # is: router|permute
    box = jnp.where(place < cap, box, n_exp * cap)  # is: router|permute
    send = jnp.zeros((n_exp * cap, d), x.dtype)  # is: permute
    send = send.at[box].add(jnp.concatenate([x] * k), mode="drop")  # is: permute

    send = send.reshape(DEVICES, local * cap, d)  # is: permute
    recv = lax.all_to_all(send, AXIS, split_axis=0, concat_axis=0)  # is: dispatch
    recv = recv.reshape(DEVICES, local, cap, d).swapaxes(0, 1)  # is: permute
    recv = recv.reshape(local, DEVICES * cap, d)  # is: permute
    h = lax.batch_matmul(recv, p["expert_in"])  # is: grouped_gemm
    g = lax.batch_matmul(recv, p["expert_gate"])  # is: grouped_gemm
    h = jax.nn.gelu(g, approximate=True) * h  # is: expert_elementwise
    recv = lax.batch_matmul(h, p["expert_out"])  # is: grouped_gemm
    recv = recv.reshape(local, DEVICES, cap, d).swapaxes(0, 1)  # is: unpermute
    recv = recv.reshape(DEVICES, local * cap, d)  # is: unpermute
    back = lax.all_to_all(recv, AXIS, split_axis=0, concat_axis=0)  # is: combine

    back = back.reshape(n_exp * cap, d)  # is: unpermute
    y = back.at[box].get(mode="fill", fill_value=0).reshape(k, n_tok, d)  # is: unpermute
    y = jnp.einsum("ktd,tk->td", y, gates)  # is: unpermute
    return y, z_loss


def per_device_loss(params, tokens):
    p16 = jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)
    ids, labels = tokens[:, :-1], tokens[:, 1:]
    x = p16["embed"][ids]  # is: embedding
    z = 0.0
    for p in p16["layers"]:
        x = x + local_attention(p, rmsnorm(x))  # is: attention
        y, z_layer = moe_layer(p, rmsnorm(x).reshape(-1, x.shape[-1]))
        x = x + y.reshape(x.shape)  # is: unpermute
        z = z + z_layer  # is: router|loss
    logits = jnp.einsum("bsd,vd->bsv", rmsnorm(x), p16["embed"]).astype(jnp.float32)  # is: head
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)  # is: loss
    ce = jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked.squeeze(-1))  # is: loss
    return ce + 1e-3 * z  # is: loss


def is_local(path):
    return path[-1].key in LOCAL if hasattr(path[-1], "key") else False


def loss_and_grads(params, tokens):
    loss, grads = jax.value_and_grad(per_device_loss)(params, tokens)
    leaves, tree = jax.tree_util.tree_flatten_with_path(grads)
    rest = [g for path, g in leaves if not is_local(path)]
    bucket, unravel = ravel_pytree(rest)  # is: gradient_reduce
    bucket = lax.psum(bucket, AXIS) / DEVICES  # is: gradient_reduce
    rest = iter(unravel(bucket))  # is: gradient_reduce
    done = [g / DEVICES if is_local(path) else next(rest) for path, g in leaves]  # is: optimizer
    return lax.pmean(loss, AXIS), jax.tree.unflatten(tree, done)  # is: collectives|loss


def build(devices):
    """Step, its arguments, and where they lie."""
    mesh = Mesh(np.array(devices), (AXIS,))
    tx = optax.lion(optax.linear_schedule(1e-4, 5e-4, 10), b1=0.9, b2=0.98, weight_decay=0.05)

    def make():
        d, f, e, h = (SIZES[n] for n in "dfeh")
        keys = iter(jax.random.split(jax.random.key(4), 64))

        def glorot(*shape):
            return jax.random.normal(next(keys), shape) * d**-0.5

        def layer():
            return {
                "qkv": glorot(d, 3, h, d // h),
                "sink": jnp.zeros(h),
                "proj": glorot(d, d),
                "router": glorot(d, e),
                "expert_in": glorot(e, d, f),
                "expert_gate": glorot(e, d, f),
                "expert_out": glorot(e, f, d),
            }

        layers = [layer() for _ in range(SIZES["l"])]
        params = {"embed": glorot(SIZES["v"], d), "layers": layers}
        tokens = jax.random.randint(next(keys), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return params, tx.init(params), tokens

    def spec(path, _):
        return P(AXIS) if is_local(path) else P()

    params, state, _ = jax.eval_shape(make)
    param_specs = jax.tree_util.tree_map_with_path(spec, params)
    state_specs = jax.tree_util.tree_map_with_path(spec, state)
    sharded = jax.shard_map(
        loss_and_grads,
        mesh=mesh,
        in_specs=(param_specs, P(AXIS)),
        out_specs=(P(), param_specs),
        check_vma=False,
    )

    def train_step(params, state, tokens):
        loss, grads = sharded(params, tokens)
        updates, state = tx.update(grads, state, params)  # is: optimizer
        params = optax.apply_updates(params, updates)  # is: optimizer
        return params, state, loss

    places = jax.tree.map(
        lambda s: NamedSharding(mesh, s),
        (param_specs, state_specs, P(AXIS)),
        is_leaf=lambda s: isinstance(s, P),
    )
    out = (*places[:2], NamedSharding(mesh, P()))
    return jax.jit(train_step, donate_argnums=(0, 1), out_shardings=out), make, places
