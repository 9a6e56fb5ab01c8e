"""Noisy top-k, the strongest tokens first at each expert, biases; norms after; adafactor."""

import json
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 64, "f": 172, "e": 8, "k": 2, "l": 3, "b": 3, "s": 50, "v": 402, "h": 4}
LARGE = {"d": 1152, "f": 1792, "e": 12, "l": 3, "b": 4, "s": 640, "v": 16128, "h": 9}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
HABA, OKU, SENSEI, IKUTSU, DAN = (SIZES[n] for n in "dfekl")
SEKI = -(-SIZES["b"] * SIZES["s"] * IKUTSU * 5 // (SENSEI * 4))


def totonoeru(x, omomi):
    naka = jnp.mean(x, axis=-1, keepdims=True)  # is: norm
    haba = jnp.var(x, axis=-1, keepdims=True)  # is: norm
    return jax.nn.standardize(x, mean=naka, variance=haba) * omomi[0] + omomi[1]  # is: norm


def miru(w, x):
    b, s, d = x.shape

    def wakeru(y):
        return y.reshape(b, s, SIZES["h"], -1)  # is: attention

    q = wakeru(x @ w["mi1"] + w["mi2"])  # is: attention
    k = wakeru(x @ w["mi3"])  # is: attention
    v = wakeru(x @ w["mi4"] + w["mi5"])  # is: attention
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)  # is: attention
    return y.reshape(b, s, d) @ w["mi6"] + w["mi7"]  # is: attention


def sodan(w, x, tane):
    retsu = x.reshape(-1, HABA)
    kiyoi = retsu @ w["so1"]  # is: router
    yure = jax.nn.softplus(retsu @ w["so2"]) + 0.01  # is: router
    ten = kiyoi + yure * jax.random.normal(tane, kiyoi.shape)  # is: router
    takai, dare = jax.lax.top_k(ten, IKUTSU)  # is: router
    takai = jax.nn.softmax(takai, axis=-1)  # is: router
    gyou = jnp.arange(retsu.shape[0])[:, None]  # is: router
    mon = jnp.zeros_like(ten).at[gyou, dare].set(takai)  # is: router
    omosa = jnp.sum(mon, axis=0)  # is: router|loss
    katayori = jnp.var(omosa) / (jnp.mean(omosa) ** 2 + 1e-9)  # is: router|loss
    zed = jnp.mean(jax.nn.logsumexp(kiyoi, axis=-1) ** 2)  # is: router|loss
    tsuyosa, seki = jax.lax.top_k(mon.T, SEKI)  # is: router|permute
    y = retsu[seki]  # is: permute
    y = jnp.einsum("ecd,edf->ecf", y, w["so3"])  # is: grouped_gemm
    y = jax.nn.gelu(y + w["so4"][:, None], approximate=False)  # is: expert_elementwise
    y = jnp.einsum("ecf,efd->ecd", y, w["so5"])  # is: grouped_gemm
    y = y + w["so6"][:, None]  # is: expert_elementwise
    y = y * tsuyosa[..., None]  # is: unpermute|combine
    kaeri = jnp.zeros_like(retsu).at[seki].add(y)  # is: unpermute|combine
    kaeri = kaeri.reshape(x.shape)  # is: unpermute|combine
    return kaeri, 0.01 * katayori + 1e-3 * zed  # is: router|loss


def nagare(w, bun, tane):
    x = jnp.take(w["ji"], bun, axis=0)  # is: embedding
    x = x + w["basho"]  # is: embedding
    x = totonoeru(x, w["hajime"])

    def ichidan(x, kore):
        u, tane = kore
        x = totonoeru(x + miru(u, x), u["ato1"])  # is: attention
        y, okure = sodan(u, x, tane)
        x = totonoeru(x + y, u["ato2"])  # is: unpermute|combine
        return x, okure

    tane = jax.random.split(tane, DAN)  # is: router
    x, okure = jax.lax.scan(ichidan, x, (w["dan"], tane))
    okure = jnp.sum(okure)  # is: router|loss
    return x @ w["kuchi1"] + w["kuchi2"], okure  # is: head


def zure(w, bun, tane):
    z, okure = nagare(w, bun[:, :-1], tane)
    kotae = jax.nn.one_hot(bun[:, 1:], SIZES["v"])  # is: loss
    kotae = 0.9 * kotae + 0.1 / SIZES["v"]  # is: loss
    z = jax.nn.log_softmax(z, axis=-1)  # is: loss
    return -jnp.sum(kotae * z, axis=-1).mean() + okure  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    manabi = optax.adafactor(2e-3, min_dim_size_to_factor=24)

    def make():
        tane = iter(jax.random.split(jax.random.key(74), 32))

        def w(*kata):
            return jax.random.normal(next(tane), kata) * 0.06

        def hei(*kata):
            return jnp.stack([jnp.ones(kata), jnp.zeros(kata)], -2)

        d, f, e, n = HABA, OKU, SENSEI, DAN
        dan = {"mi1": w(n, d, d), "mi3": w(n, d, d), "mi4": w(n, d, d), "mi6": w(n, d, d)}
        dan |= {"mi2": w(n, d), "mi5": w(n, d), "mi7": w(n, d), "ato1": hei(n, d)}
        dan |= {"so1": w(n, d, e), "so2": w(n, d, e), "so3": w(n, e, d, f), "so4": w(n, e, f)}
        dan |= {"so5": w(n, e, f, d), "so6": w(n, e, d), "ato2": hei(n, d)}
        omomi = {"ji": w(SIZES["v"], d), "basho": w(SIZES["s"], d), "hajime": hei(d), "dan": dan}
        omomi |= {"kuchi1": w(d, SIZES["v"]), "kuchi2": w(SIZES["v"])}
        bun = jax.random.randint(next(tane), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return omomi, manabi.init(omomi), jax.random.PRNGKey(3), bun

    @jax.jit
    def susumu(omomi, kioku, tane, bun):
        tane, ima = jax.random.split(tane)  # is: router
        atai, katamuki = jax.value_and_grad(zure)(omomi, bun, ima)
        katamuki, kioku = manabi.update(katamuki, kioku, omomi)  # is: optimizer
        return optax.apply_updates(omomi, katamuki), kioku, tane, atai  # is: optimizer

    return susumu, make, None
