"""Reader and writer; every other layer sparse, two of E by group, noise on the input; adafactor."""

import json
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 64, "f": 108, "e": 6, "l": 2, "b": 4, "s": 45, "t": 27, "v": 290, "h": 4, "g": 4}
LARGE = {"d": 1024, "f": 4096, "e": 32, "l": 4, "b": 32, "s": 512, "t": 256, "v": 32128, "h": 16}
LARGE |= {"g": 16}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
D, F, E, L, H = (SIZES[n] for n in "dfelh")
C = D // H


def t5ln(x, g):
    ms = jnp.mean(jax.lax.square(x.astype("f4")), -1, keepdims=True)  # is: norm
    return (x * jax.lax.rsqrt(ms + 1e-6)).astype(x.dtype) * g.astype(x.dtype)  # is: norm


def buckets(rel, both, n=16, far=64):
    out = jnp.zeros_like(rel)
    if both:
        n //= 2
        out = out + (rel > 0) * n
        rel = jnp.abs(rel)
    else:
        rel = jnp.maximum(-rel, 0)
    exact = n // 2
    big = jnp.log(jnp.maximum(rel, 1) / exact) / jnp.log(far / exact) * (n - exact)
    big = jnp.minimum(exact + big.astype(jnp.int32), n - 1)
    return out + jnp.where(rel < exact, rel, big)


def rel_bias(tab, q, k, both):
    rel = jnp.arange(k)[None, :] - jnp.arange(q)[:, None]  # is: attention
    bias = jnp.take(tab, buckets(rel, both), axis=0)  # is: attention
    bias = jnp.transpose(bias, (2, 0, 1))[None]  # is: attention
    if not both:
        bias = bias + jnp.where(rel > 0, -1e9, 0.0)  # is: attention
    return bias


def mha(p, xq, xk, bias):
    q = jnp.einsum("bqd,dhc->bhqc", xq, p["q"].astype(xq.dtype))  # is: attention
    k = jnp.einsum("bkd,dhc->bhkc", xk, p["k"].astype(xq.dtype))  # is: attention
    v = jnp.einsum("bkd,dhc->bhkc", xk, p["v"].astype(xq.dtype))  # is: attention
    a = jnp.einsum("bhqc,bhkc->bhqk", q, k).astype("f4")  # is: attention
    if bias is not None:
        a = a + bias  # is: attention
    a = jax.nn.softmax(a, -1).astype(xq.dtype)  # is: attention
    o = jnp.einsum("bhqk,bhkc->bhqc", a, v)  # is: attention
    return jnp.einsum("bhqc,hcd->bqd", o, p["o"].astype(xq.dtype))  # is: attention


def geglu(p, x):
    a = x @ p["wi0"].astype(x.dtype)
    b = x @ p["wi1"].astype(x.dtype)
    return (jax.nn.gelu(a) * b) @ p["wo"].astype(x.dtype)


def top2(probs, cap):
    """Dispatch and combine of groups x tokens x experts x places."""
    p1, i1 = jnp.max(probs, -1), jnp.argmax(probs, -1)  # is: router
    o1 = jax.nn.one_hot(i1, E)  # is: router
    rest = probs * (1 - o1)  # is: router
    p2, i2 = jnp.max(rest, -1), jnp.argmax(rest, -1)  # is: router
    o2 = jax.nn.one_hot(i2, E)  # is: router
    total = p1 + p2 + 1e-9  # is: router
    aux = jnp.mean(jnp.mean(o1, 1) * jnp.mean(probs, 1)) * E * E  # is: router|loss
    at1 = (jnp.cumsum(o1, 1) - 1) * o1  # is: router|permute
    o1 = o1 * (at1 < cap)  # is: router|permute
    at2 = (jnp.cumsum(o2, 1) - 1 + jnp.sum(o1, 1, keepdims=True)) * o2  # is: router|permute
    o2 = o2 * (at2 < cap)  # is: router|permute
    at1 = jnp.sum(at1 * o1, -1).astype(jnp.int32)  # is: router|permute
    at2 = jnp.sum(at2 * o2, -1).astype(jnp.int32)  # is: router|permute
    w1 = (p1 / total)[..., None] * o1  # is: router|permute
    w2 = (p2 / total)[..., None] * o2  # is: router|permute
    comb = w1[..., None] * jax.nn.one_hot(at1, cap)[:, :, None]  # is: router|permute
    comb = comb + w2[..., None] * jax.nn.one_hot(at2, cap)[:, :, None]  # is: router|permute
    return comb > 0, comb, aux  # is: router|permute


def switch(p, x, rng):
    g = SIZES["g"]
    y = x.reshape(g, -1, D)
    cap = max(4, -(-y.shape[1] * 5 // (2 * E)))
    noise = jax.random.uniform(rng, y.shape, minval=0.99, maxval=1.01)  # is: router
    lg = jnp.einsum("gsd,de->gse", y.astype("f4") * noise, p["wr"])  # is: router
    zl = jnp.mean(jnp.square(jax.nn.logsumexp(lg, -1)))  # is: router|loss
    disp, comb, aux = top2(jax.nn.softmax(lg, -1), cap)
    disp, comb = disp.astype(x.dtype), comb.astype(x.dtype)  # is: router|permute
    y = jnp.einsum("gsec,gsd->egcd", disp, y)  # is: permute
    y = jnp.einsum("egcd,edf->egcf", y, p["wi"].astype(x.dtype))  # is: grouped_gemm
    y = jax.nn.relu(y)  # is: expert_elementwise
    y = jnp.einsum("egcf,efd->egcd", y, p["wo"].astype(x.dtype))  # is: grouped_gemm
    y = jnp.einsum("gsec,egcd->gsd", comb, y)  # is: unpermute|combine
    y = y.reshape(x.shape)  # is: unpermute|combine
    return y, 0.01 * aux + 1e-3 * zl  # is: router|loss


def ffn(p, x, rng):
    y = t5ln(x, p["nf"])
    if "wr" not in p:
        return x + geglu(p, y), 0.0  # is: dense_mlp
    y, aux = switch(p, y, rng)
    return x + y, aux  # is: unpermute|combine


def reader(p, x, rngs):
    bias, extra = rel_bias(p["rel"], x.shape[1], x.shape[1], True), 0.0
    for q, rng in zip(p["ls"], rngs, strict=True):
        y = t5ln(x, q["ns"])
        x = x + mha(q["self"], y, y, bias)  # is: attention
        x, aux = ffn(q, x, rng)
        extra = extra + aux  # is: router|loss
    return t5ln(x, p["nz"]), extra


def writer(p, x, m, rngs):
    bias, extra = rel_bias(p["rel"], x.shape[1], x.shape[1], False), 0.0
    for q, rng in zip(p["ls"], rngs, strict=True):
        y = t5ln(x, q["ns"])
        x = x + mha(q["self"], y, y, bias)  # is: attention
        x = x + mha(q["cross"], t5ln(x, q["nc"]), m, None)  # is: attention
        x, aux = ffn(q, x, rng)
        extra = extra + aux  # is: router|loss
    return t5ln(x, p["nz"]), extra


def cost(w, src, dst, rng):
    rngs = jax.random.split(rng, (2, L))  # is: router
    emb = w["emb"].astype("bfloat16")  # is: embedding
    m, aux1 = reader(w["enc"], emb[src], rngs[0])  # is: embedding
    start = jnp.pad(dst[:, :-1], ((0, 0), (1, 0)))  # is: embedding
    y, aux2 = writer(w["dec"], emb[start], m, rngs[1])  # is: embedding
    lg = jnp.einsum("btd,vd->btv", y * D**-0.5, emb).astype("f4")  # is: head
    lse = jax.nn.logsumexp(lg, -1, keepdims=True)  # is: loss
    hot = jax.nn.one_hot(dst, SIZES["v"])  # is: loss
    nll = -jnp.sum((lg - lse) * hot, -1)  # is: loss
    real = (dst > 0).astype("f4")  # is: loss
    nll = nll + 1e-4 * jnp.square(lse[..., 0])  # is: loss
    return jnp.sum(nll * real) / jnp.sum(real) + aux1 + aux2  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    opt = optax.adafactor(
        3e-3, multiply_by_parameter_scale=False, min_dim_size_to_factor=32, clipping_threshold=1.0
    )

    def make():
        key = iter(jax.random.split(jax.random.key(20), 40 * L))

        def n(*shape, fan):
            return jax.random.truncated_normal(next(key), -2, 2, shape) * fan**-0.5

        def heads():
            p = {x: n(D, H, C, fan=D) for x in "kv"}
            return p | {"q": n(D, H, C, fan=D * C), "o": n(H, C, D, fan=D)}

        def layer(i, cross):
            p = {"ns": jnp.ones(D), "nf": jnp.ones(D), "self": heads()}
            if cross:
                p |= {"nc": jnp.ones(D), "cross": heads()}
            if i % 2:
                p |= {"wr": n(D, E, fan=D), "wi": n(E, D, F, fan=D), "wo": n(E, F, D, fan=F)}
            else:
                p |= {"wi0": n(D, F, fan=D), "wi1": n(D, F, fan=D), "wo": n(F, D, fan=F)}
            return p

        def stack(cross):
            p = {"rel": n(16, H, fan=16), "nz": jnp.ones(D)}
            return p | {"ls": [layer(i, cross) for i in range(L)]}

        w = {"emb": n(SIZES["v"], D, fan=1), "enc": stack(False), "dec": stack(True)}
        src = jax.random.randint(next(key), (SIZES["b"], SIZES["s"]), 0, SIZES["v"])
        dst = jax.random.randint(next(key), (SIZES["b"], SIZES["t"]), 0, SIZES["v"])
        return w, opt.init(w), jax.random.key(3), src, dst

    @jax.jit
    def go(w, st, rng, src, dst):
        rng, use = jax.random.split(rng)  # is: router
        c, gr = jax.value_and_grad(cost)(w, src, dst, use)
        up, st = opt.update(gr, st, w)  # is: optimizer
        w = optax.apply_updates(w, up)  # is: optimizer
        return w, st, rng, c

    return go, make, None
