"""Eight devices as data x expert: one-hot dispatch partitioned by the compiler, ZeRO states."""

import json
import os
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as PS

DEVICES = 8
SIZES = {"d": 64, "f": 136, "e": 12, "k": 2, "l": 2, "b": 8, "s": 48, "v": 304, "h": 4}
LARGE = {"d": 1024, "f": 2176, "e": 16, "l": 3, "b": 16, "s": 512, "v": 16384, "h": 8}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
cfg = SimpleNamespace(**SIZES)
cfg.slots = -(-cfg.s * cfg.k * 3 // (2 * cfg.e))


class Net:
    def __init__(self, mesh):
        self.mesh = mesh

    def pin(self, x, *names):
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, PS(*names)))

    def ln(self, x, w):
        mu, ms = jnp.mean(x, -1, keepdims=True), jnp.mean(x * x, -1, keepdims=True)  # is: norm
        return (x - mu) * jax.lax.rsqrt(ms - mu * mu + 1e-5) * w  # is: norm

    def sa(self, x, w):
        q, k, v = (jnp.tensordot(x, w[n], 1) for n in ("wq", "wk", "wv"))  # is: attention
        z = jnp.einsum("bqhc,bkhc->bhqk", q, k) / np.sqrt(q.shape[-1])  # is: attention
        z = z + np.triu(np.full((cfg.s, cfg.s), -1e9, np.float32), 1)  # is: attention
        z = jnp.einsum("bhqk,bkhc->bqhc", jax.nn.softmax(z, -1), v)  # is: attention
        return jnp.einsum("bqhc,hcd->bqd", z, w["wo"])  # is: attention

    def gates(self, x, w):
        g = jax.nn.softmax(jnp.einsum("bsd,de->bse", x, w["wg"]), -1)  # is: router
        g1, e1 = jnp.max(g, -1), jnp.argmax(g, -1)  # is: router
        m1 = jax.nn.one_hot(e1, cfg.e)  # is: router
        g2, e2 = jnp.max(g * (1 - m1), -1), jnp.argmax(g * (1 - m1), -1)  # is: router
        m2 = jax.nn.one_hot(e2, cfg.e) * (cfg.k > 1)  # is: router
        aux = jnp.mean(jnp.mean(g, 1) * jnp.mean(m1, 1)) * cfg.e**2  # is: router|loss
        p1 = jnp.cumsum(m1, 1) * m1 - m1  # is: router|permute
        p2 = (jnp.cumsum(m2, 1) + m1.sum(1, keepdims=True)) * m2 - m2  # is: router|permute
        g1, g2 = g1 / (g1 + g2 + 1e-9), g2 / (g1 + g2 + 1e-9)  # is: router
        g1, g2 = g1 * m1.sum(-1), g2 * m2.sum(-1)  # is: router
        o1 = jax.nn.one_hot(p1.sum(-1), cfg.slots) * g1[..., None]  # is: router|permute
        o2 = jax.nn.one_hot(p2.sum(-1), cfg.slots) * g2[..., None]  # is: router|permute
        both = m1[..., None] * o1[..., None, :]  # is: router|permute
        both = both + m2[..., None] * o2[..., None, :]  # is: router|permute
        return both, aux

    def ff(self, x, w):
        both, aux = self.gates(x, w)
        mask = (both > 0).astype(x.dtype)  # is: router|permute
        z = jnp.einsum("bsec,bsd->ebcd", mask, x)  # is: permute|dispatch
        z = self.pin(z, "expert", "data")  # is: dispatch|permute
        z = jnp.einsum("ebcd,edf->ebcf", z, w["w1"])  # is: grouped_gemm
        z = jax.nn.silu(z)  # is: expert_elementwise
        z = jnp.einsum("ebcf,efd->ebcd", z, w["w2"])  # is: grouped_gemm
        z = self.pin(z, "expert", "data")  # is: combine|unpermute
        y = jnp.einsum("bsec,ebcd->bsd", both, z)  # is: unpermute|combine
        return self.pin(y, ("data", "expert")), aux  # is: unpermute|combine

    def __call__(self, w, ids):
        x = self.pin(w["te"][ids] + w["pe"], ("data", "expert"))  # is: embedding
        total = 0.0
        for lw in w["ls"]:
            x = x + self.sa(self.ln(x, lw["n1"]), lw)  # is: attention
            y, aux = self.ff(self.ln(x, lw["n2"]), lw)
            x, total = x + y, total + aux  # is: unpermute|combine
        return self.ln(x, w["nf"]) @ w["te"].T, total  # is: head


def build(devices):
    """Step, its arguments, and where they lie."""
    mesh = Mesh(np.reshape(devices, (2, 4)), ("data", "expert"))
    net, tx = Net(mesh), optax.adamw(2e-4, weight_decay=0.05)

    def criterion(w, ids):
        logits, aux = net(w, ids[:, :-1])
        ce = optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:])  # is: loss
        return ce.mean() + 0.01 * aux  # is: loss

    def make():
        ks = iter(jax.random.split(jax.random.key(31), 64))

        def r(*s):
            return jax.random.normal(next(ks), s) * 0.04

        def one():
            h, c = cfg.h, cfg.d // cfg.h
            a = {n: r(cfg.d, h, c) for n in ("wq", "wk", "wv")} | {"wo": r(h, c, cfg.d)}
            b = {"wg": r(cfg.d, cfg.e), "w1": r(cfg.e, cfg.d, cfg.f), "w2": r(cfg.e, cfg.f, cfg.d)}
            return {"n1": jnp.ones(cfg.d), "n2": jnp.ones(cfg.d), **a, **b}

        w = {"te": r(cfg.v, cfg.d), "pe": r(cfg.s, cfg.d), "ls": [one() for _ in range(cfg.l)]}
        w["nf"] = jnp.ones(cfg.d)
        return w, tx.init(w), jax.random.randint(next(ks), (cfg.b, cfg.s + 1), 0, cfg.v)

    def place(path, x):
        is_expert = any(getattr(p, "key", "") in ("w1", "w2") for p in path)
        if is_expert:
            return NamedSharding(mesh, PS("expert", "data"))
        is_wide = x.ndim > 1 and x.shape[0] % DEVICES == 0
        return NamedSharding(mesh, PS(("data", "expert")) if is_wide else PS())

    w, m, _ = jax.eval_shape(make)
    lie = jax.tree_util.tree_map_with_path(place, (w, m))
    batch = NamedSharding(mesh, PS(("data", "expert")))

    def advance(w, m, ids):
        v, g = jax.value_and_grad(criterion)(w, ids)
        u, m = tx.update(g, m, w)  # is: optimizer
        return optax.apply_updates(w, u), m, v  # is: optimizer

    out = (*lie, NamedSharding(mesh, PS()))
    return jax.jit(advance, donate_argnums=(0, 1), out_shardings=out), make, (*lie, batch)
