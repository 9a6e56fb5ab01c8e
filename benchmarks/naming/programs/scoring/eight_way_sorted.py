"""Eight devices: tokens sorted by expert, sent in fixed blocks by all_to_all; lion by hand."""

import json
import os

import jax
from jax import lax
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

DEVICES = 8
SIZES = {"d": 60, "f": 116, "e": 16, "k": 3, "l": 2, "b": 8, "s": 50, "v": 272, "h": 5}
LARGE = {"d": 1200, "f": 768, "e": 32, "l": 3, "b": 8, "s": 1024, "v": 10240, "h": 10}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"e=d": {"e": 40, "d": 40}}
d_model, d_expert, n_experts, top_n, n_blocks = (SIZES[n] for n in "dfekl")
here = n_experts // DEVICES


def prenorm(h):
    return h * lax.rsqrt((h**2).mean(-1, keepdims=True) + 1e-6)  # is: norm


def causal_mixing(h, wqkv, wout):
    length = h.shape[1]
    qkv = jnp.einsum("rld,dpnc->prnlc", h, wqkv)  # is: attention
    sim = jnp.einsum("rnic,rnjc->rnij", qkv[0], qkv[1])  # is: attention
    sim = sim * qkv.shape[-1] ** -0.5  # is: attention
    past = lax.broadcasted_iota(jnp.int32, (length, length), 0)  # is: attention
    sim = jnp.where(past >= past.T, sim, -1e10)  # is: attention
    sim = jax.nn.softmax(sim, axis=-1)  # is: attention
    out = jnp.einsum("rnij,rnjc->rinc", sim, qkv[2])  # is: attention
    return jnp.einsum("rinc,ncd->rid", out, wout)  # is: attention


def sparse_mixing(h, wgate, win, wlin, wout):
    x = h.reshape(-1, d_model)
    n_tokens = x.shape[0]
    block = -(-n_tokens * top_n * 3 // (2 * DEVICES))
    dist = jax.nn.softmax(x @ wgate)  # is: router
    prob, pick = lax.top_k(dist, top_n)  # is: router
    prob = prob / prob.sum(1, keepdims=True)  # is: router
    pick = pick.reshape(-1)  # is: router|permute
    order = jnp.argsort(pick)  # is: permute
    pick = pick[order]  # is: permute
    target = pick // here  # is: permute
    begin = jnp.searchsorted(target, jnp.arange(DEVICES))  # is: permute
    offset = jnp.arange(order.size) - begin[target]  # is: permute
    offset = jnp.where(offset < block, offset, block)  # is: permute
    outbox = jnp.zeros((DEVICES, block + 1, d_model))  # is: permute
    outbox = outbox.at[target, offset].set(x[order // top_n])  # is: permute
    labels = jnp.full((DEVICES, block + 1), here)  # is: permute|router
    labels = labels.at[target, offset].set(pick % here)  # is: permute|router
    inbox = lax.all_to_all(outbox[:, :-1], "ranks", 0, 0)  # is: dispatch
    labels = lax.all_to_all(labels[:, :-1], "ranks", 0, 0)  # is: dispatch|router|permute
    inbox, labels = inbox.reshape(-1, d_model), labels.reshape(-1)
    again = jnp.argsort(labels)  # is: permute
    sizes = (labels[:, None] == jnp.arange(here)).sum(0)  # is: permute|router
    y = inbox[again]  # is: permute
    a = lax.ragged_dot(y, win, sizes)  # is: grouped_gemm
    y = lax.ragged_dot(y, wlin, sizes)  # is: grouped_gemm
    y = jnp.square(jax.nn.relu(a)) * y  # is: expert_elementwise
    y = lax.ragged_dot(y, wout, sizes)  # is: grouped_gemm
    inbox = jnp.zeros_like(inbox).at[again].set(y)  # is: unpermute
    inbox = inbox.reshape(DEVICES, block, d_model)  # is: unpermute
    answer = lax.all_to_all(inbox, "ranks", 0, 0)  # is: combine
    answer = jnp.pad(answer, ((0, 0), (0, 1), (0, 0)))  # is: unpermute
    answer = answer[target, offset]  # is: unpermute
    answer = answer * prob.reshape(-1)[order][:, None]  # is: unpermute
    total = jnp.zeros_like(x).at[order // top_n].add(answer)  # is: unpermute
    return total.reshape(h.shape)


def run_blocks(w, h):
    def one(h, w):
        h = h + causal_mixing(prenorm(h), w["wqkv"], w["wo"])  # is: attention
        y = sparse_mixing(prenorm(h), w["wgate"], w["win"], w["wlin"], w["wout"])
        return h + y, None  # is: unpermute

    return lax.scan(jax.remat(one), h, w)[0]


def perplexity(w, seq):
    h = w["lookup"][seq[:, :-1]]  # is: embedding
    h = run_blocks(w["blocks"], h)
    logits = prenorm(h) @ w["lookup"].T  # is: head
    logits = 30 * jnp.tanh(logits / 30)  # is: head|loss
    gold = jnp.take_along_axis(logits, seq[:, 1:, None], 2)[..., 0]  # is: loss
    return (jax.nn.logsumexp(logits, 2) - gold).mean()  # is: loss


def lion(p, g, m):
    u = jnp.sign(0.9 * m + 0.1 * g)  # is: optimizer
    return p - 1e-4 * (u + 0.1 * p), 0.99 * m + 0.01 * g  # is: optimizer


def one_round(w, m, seq):
    value, g = jax.value_and_grad(perplexity)(w, seq)
    mine = {k: g["blocks"][k] / DEVICES for k in ("win", "wlin", "wout")}  # is: optimizer
    rest = {k: v for k, v in g["blocks"].items() if k not in mine}
    lookup, rest = lax.pmean((g["lookup"], rest), "ranks")  # is: gradient_reduce
    g = {"lookup": lookup, "blocks": {**rest, **mine}}
    pairs = jax.tree.map(lion, w, g, m)
    w, m = (jax.tree.map(lambda _, n, i=i: n[i], w, pairs) for i in (0, 1))
    return w, m, lax.pmean(value, "ranks")  # is: collectives|loss


def build(devices):
    """Step, its arguments, and where they lie."""
    mesh = Mesh(devices, ("ranks",))
    one, many = Spec(), Spec(None, "ranks")
    blocks = {"wqkv": one, "wo": one, "wgate": one, "win": many, "wlin": many, "wout": many}
    spec = {"lookup": one, "blocks": blocks}
    specs = (spec, spec, Spec("ranks"))

    def make():
        keys = iter(jax.random.split(jax.random.key(13), 9))

        def drawn(*s, fan):
            return jax.random.normal(next(keys), s) * fan**-0.5

        n, d, f, e, h = n_blocks, d_model, d_expert, n_experts, SIZES["h"]
        blocks = {
            "wqkv": drawn(n, d, 3, h, d // h, fan=d),
            "wo": drawn(n, h, d // h, d, fan=d),
            "wgate": drawn(n, d, e, fan=d),
            "win": drawn(n, e, d, f, fan=d),
            "wlin": drawn(n, e, d, f, fan=d),
            "wout": drawn(n, e, f, d, fan=f),
        }
        w = {"lookup": drawn(SIZES["v"], d, fan=d), "blocks": blocks}
        seq = jax.random.randint(next(keys), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return w, jax.tree.map(jnp.zeros_like, w), seq

    step = jax.shard_map(
        one_round, mesh=mesh, in_specs=specs, out_specs=(spec, spec, one), check_vma=False
    )
    places = jax.tree.map(
        lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, Spec)
    )
    return jax.jit(step, donate_argnums=(0, 1)), make, places
