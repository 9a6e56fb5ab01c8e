"""Eight devices, two by four; each row's tokens are queued by themselves; norms on both sides."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DEVICES = 8
SIZES = {"d": 64, "f": 40, "e": 12, "k": 3, "l": 2, "b": 8, "s": 44, "v": 312, "h": 8, "kv": 2}
LARGE = {"d": 2048, "f": 1536, "e": 64, "k": 4, "l": 4, "b": 64, "s": 1024, "v": 32768, "h": 16}
LARGE |= {"kv": 4}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))

RULES = {
    "batch": ("data", "expert"),
    "rows": "data",
    "exp": "expert",
    "fsdp": ("data", "expert"),
    "fsdp_exp": "data",
    None: None,
}
AXES = {
    "tok_embed": ("fsdp", None),
    "out_norm": (None,),
    "unembed": ("fsdp", None),
    "pre_attn": (None, None),
    "post_attn": (None, None),
    "pre_moe": (None, None),
    "post_moe": (None, None),
    "q": (None, "fsdp", None),
    "k": (None, "fsdp", None),
    "v": (None, "fsdp", None),
    "o": (None, "fsdp", None),
    "gate": (None, None, None),
    "wi": (None, "exp", "fsdp_exp", None, None),
    "wo": (None, "exp", "fsdp_exp", None),
}


class Partitioner:
    def __init__(self, mesh):
        self.mesh = mesh

    def sharding(self, *logical):
        return NamedSharding(self.mesh, PartitionSpec(*(RULES[a] for a in logical)))

    def __call__(self, x, *logical):
        return jax.lax.with_sharding_constraint(x, self.sharding(*logical))

    def unshard(self, name, w):
        """The weight in bf16 as the matmul wants it: whole, but for its experts."""
        axes = AXES[name][-w.ndim :]
        w = self(w.astype(jnp.bfloat16), *axes)
        return self(w, *(a if a == "exp" else None for a in axes))


def rms(x, scale):
    x32 = jnp.asarray(x, jnp.float32)  # is: norm
    x32 = x32 / jnp.sqrt(jnp.mean(x32**2, -1, keepdims=True) + 1e-6)  # is: norm
    return (x32 * (1 + scale)).astype(x.dtype)  # is: norm


def rope(x):
    pos = jnp.arange(x.shape[1], dtype=jnp.float32)  # is: attention
    ts = 10_000 ** jnp.linspace(0, 1, x.shape[-1] // 2, endpoint=False)  # is: attention
    rad = (pos[:, None] / ts)[:, None, :]  # is: attention
    a, b = jnp.split(x, 2, axis=-1)  # is: attention
    cos, sin = jnp.cos(rad).astype(x.dtype), jnp.sin(rad).astype(x.dtype)  # is: attention
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)  # is: attention


def gqa(part, w, x):
    b, s, d = x.shape
    q = rope((x @ w["q"]).reshape(b, s, SIZES["h"], -1))  # is: attention
    k = rope((x @ w["k"]).reshape(b, s, SIZES["kv"], -1))  # is: attention
    v = (x @ w["v"]).reshape(b, s, SIZES["kv"], -1)  # is: attention
    q = part(q, "batch", None, None, None)  # is: attention
    out = jax.nn.dot_product_attention(q, k, v, is_causal=True)  # is: attention
    return out.reshape(b, s, d) @ w["o"]  # is: attention


def plan(gate, x):
    """Of each row: who sits in each expert's seats, and where each token's answers will be."""
    s, e, k = x.shape[0], SIZES["e"], SIZES["k"]
    seats = -(-s * k * 5 // (4 * e))
    logits = jnp.dot(x, gate, preferred_element_type=jnp.float32)  # is: router
    probs = jax.nn.softmax(logits)  # is: router
    weight, expert = jax.lax.top_k(probs, k)  # is: router
    weight = weight / weight.sum(-1, keepdims=True)  # is: router
    flat = expert.reshape(-1)  # is: router|permute
    order = jnp.argsort(flat, stable=True)  # is: permute
    sorted_ = flat[order]  # is: permute
    first = jnp.searchsorted(sorted_, jnp.arange(e), side="left")  # is: router|permute
    rank = jnp.arange(s * k) - first[sorted_]  # is: permute
    rank = jnp.zeros_like(rank).at[order].set(rank)  # is: permute
    seat = jnp.where(rank < seats, flat * seats + rank, e * seats)  # is: permute
    sitter = jnp.full(e * seats, s).at[seat].set(jnp.arange(s * k) // k, mode="drop")  # is: permute
    load = jnp.bincount(flat, length=e) / (s * k)  # is: router|permute
    aux = e * jnp.vdot(load, probs.mean(0))  # is: router|loss
    return sitter, seat, weight, aux


def moe(part, w, x):
    b, s, d = x.shape
    sitter, seat, weight, aux = jax.vmap(plan, (None, 0))(w["gate"], x)
    take = jax.vmap(lambda rows, i: rows.at[i].get(mode="fill", fill_value=0))
    y = take(x, sitter).reshape(b, SIZES["e"], -1, d)  # is: permute
    y = part(y, "batch", None, None, None)  # is: permute|dispatch
    y = part(y, "rows", "exp", None, None)  # is: dispatch
    y = jnp.einsum("becd,edzf->beczf", y, w["wi"])  # is: grouped_gemm
    y = jax.nn.silu(y[..., 0, :]) * y[..., 1, :]  # is: expert_elementwise
    y = jnp.einsum("becf,efd->becd", y, w["wo"])  # is: grouped_gemm
    y = part(y, "rows", "exp", None, None)  # is: combine
    y = part(y, "batch", None, None, None)  # is: combine
    y = take(y.reshape(b, -1, d), seat).reshape(b, s, SIZES["k"], d)  # is: unpermute
    y = jnp.einsum("bskd,bsk->bsd", y, weight.astype(y.dtype))  # is: unpermute|combine
    y = part(y, "batch", None, None)  # is: unpermute|combine
    return y, aux.mean()  # is: router|loss


def decoder(part, params, ids):
    table = part.unshard("tok_embed", params["tok_embed"])
    x = table[ids] * np.sqrt(SIZES["d"]).astype(jnp.bfloat16)  # is: embedding
    x = part(x, "batch", None, None)  # is: embedding

    def layer(carry, w):
        x, total = carry
        w = {n: part.unshard(n, a) for n, a in w.items()}
        y = gqa(part, w, rms(x, w["pre_attn"]))
        y = rms(y, w["post_attn"])
        x = part(x + y, "batch", None, None)  # is: attention
        y, aux = moe(part, w, rms(x, w["pre_moe"]))
        y = rms(y, w["post_moe"])
        x = part(x + y, "batch", None, None)  # is: unpermute|combine
        return (x, total + aux), None  # is: router|loss

    remat = jax.checkpoint(layer, prevent_cse=False)
    (x, total), _ = jax.lax.scan(remat, (x, 0.0), params["layers"])
    x = rms(x, params["out_norm"])
    unembed = part.unshard("unembed", params["unembed"])
    logits = jnp.einsum("bsd,dv->bsv", x, unembed)  # is: head
    logits = part(logits, "batch", None, None)  # is: head
    return logits, total


def build(devices):
    """Step, its arguments, and where they lie."""
    part = Partitioner(Mesh(np.array(devices).reshape(2, 4), ("data", "expert")))
    tx = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(1e-3, b2=0.95, mu_dtype="bfloat16")
    )

    def objective(params, batch):
        logits, aux = decoder(part, params, batch[:, :-1])
        logits = logits.astype(jnp.float32)  # is: loss
        logp = jax.nn.log_softmax(logits)  # is: loss
        hot = jax.nn.one_hot(batch[:, 1:], SIZES["v"], dtype=logp.dtype)  # is: loss
        return -jnp.mean(jnp.einsum("bsv,bsv->bs", logp, hot)) + 0.01 * aux  # is: loss

    def make():
        d, f, e, n = (SIZES[x] for x in "dfel")
        c = d // SIZES["h"] * SIZES["kv"]
        shapes = {"q": (d, d), "k": (d, c), "v": (d, c), "o": (d, d), "gate": (d, e)}
        shapes |= {"wi": (e, d, 2, f), "wo": (e, f, d)}
        keys = jax.random.split(jax.random.key(40), len(shapes) + 3)

        def draw(key, shape, fan):
            return jax.random.normal(key, shape) * fan**-0.5

        layers = {
            name: draw(key, (n, *shape), f if name == "wo" else d)
            for key, (name, shape) in zip(keys, shapes.items(), strict=False)
        }
        layers |= {x: jnp.zeros((n, d)) for x in AXES if x.startswith(("pre", "post"))}
        params = {"layers": layers, "out_norm": jnp.zeros(d)}
        params["tok_embed"] = draw(keys[-3], (SIZES["v"], d), d)
        params["unembed"] = draw(keys[-2], (d, SIZES["v"]), d)
        batch = jax.random.randint(keys[-1], (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return params, tx.init(params), batch

    def place(path, x):
        names = [p.key for p in path if hasattr(p, "key")]
        return part.sharding(*AXES[names[-1]]) if names and x.ndim else part.sharding()

    params, state, _ = jax.eval_shape(make)
    where = jax.tree_util.tree_map_with_path(place, (params, state))

    def update(params, state, batch):
        value, grads = jax.value_and_grad(objective)(params, batch)
        grads = jax.tree.map(jax.lax.with_sharding_constraint, grads, where[0])
        changes, state = tx.update(grads, state, params)  # is: optimizer
        return optax.apply_updates(params, changes), state, value  # is: optimizer

    out = (*where, part.sharding())
    step = jax.jit(update, donate_argnums=(0, 1), out_shardings=out)
    return step, make, (*where, part.sharding("batch", None))
