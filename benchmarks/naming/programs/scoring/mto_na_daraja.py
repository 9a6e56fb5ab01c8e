"""Kila kipande huchagua wataalamu: a stretch of text fetches its experts' weights; adamw, mask."""

import json
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 54, "f": 130, "e": 7, "k": 2, "l": 3, "b": 3, "s": 40, "v": 260, "h": 6}
SIZES |= {"kipande": 8}
LARGE = {"d": 1024, "f": 3072, "e": 12, "k": 2, "l": 5, "b": 8, "s": 1024, "v": 32768, "h": 16}
LARGE |= {"kipande": 256}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
UPANA, NDANI, WATAALAMU, WANGAPI, TABAKA = (SIZES[n] for n in "dfekl")
VICHWA, KIPANDE = SIZES["h"], SIZES["kipande"]
NUSU = jnp.bfloat16


def sawazisha(x, uzito, nyongeza):
    y = x.astype(jnp.float32)  # is: norm
    y = jax.nn.standardize(y, axis=-1, epsilon=1e-5)  # is: norm
    return (y * uzito + nyongeza).astype(x.dtype)  # is: norm


def angalia(w, x):
    _, s, d = x.shape
    y = jnp.einsum("bsd,djhc->jbhsc", x, w["tazama"])  # is: attention
    swali, jibu, maana = y + w["tazama_b"][:, None, :, None]  # is: attention
    alama = jnp.einsum("bhsc,bhtc->bhst", swali, jibu) * (d // VICHWA) ** -0.5  # is: attention
    mbele = jax.lax.broadcasted_iota(jnp.int32, (s, s), 1)  # is: attention
    nyuma = jax.lax.broadcasted_iota(jnp.int32, (s, s), 0)  # is: attention
    alama = jnp.where(mbele > nyuma, -1e9, alama.astype(jnp.float32))  # is: attention
    alama = jax.nn.softmax(alama, axis=-1).astype(x.dtype)  # is: attention
    y = jnp.einsum("bhst,bhtc->bshc", alama, maana)  # is: attention
    return jnp.einsum("bshc,hcd->bsd", y, w["toa"]) + w["toa_b"]  # is: attention


def chagua(w, x):
    """Pick by the mean of the stretch before, so that nothing looks ahead."""
    b, n, _, _ = x.shape
    wastani = jnp.mean(x.astype(jnp.float32), axis=2)  # is: router
    wastani = jnp.pad(wastani, ((0, 0), (1, 0), (0, 0)))[:, :-1]  # is: router
    alama = jnp.tanh(wastani @ w["lango1"]) @ w["lango2"]  # is: router
    nafasi = jax.nn.softmax(alama.reshape(b * n, WATAALAMU), axis=-1)  # is: router
    kiasi, nani = jax.lax.top_k(nafasi, WANGAPI)  # is: router
    kiasi = kiasi / jnp.sum(kiasi, axis=-1, keepdims=True)  # is: router
    mzigo = jnp.mean(jax.nn.one_hot(nani, WATAALAMU), axis=(0, 1))  # is: router|loss
    usawa = WATAALAMU * jnp.sum(mzigo * jnp.mean(nafasi, axis=0))  # is: router|loss
    return kiasi.astype(x.dtype).reshape(-1), nani.reshape(-1), usawa


def shauri(w, x):
    b, s, d = x.shape
    y = x.reshape(b, s // KIPANDE, KIPANDE, d)
    kiasi, nani, usawa = chagua(w, y)
    y = y.reshape(-1, KIPANDE, d)
    wenyewe = jnp.repeat(jnp.arange(y.shape[0]), WANGAPI)  # is: permute
    z = y[wenyewe]  # is: permute
    panua, punguza = w["panua"][nani], w["punguza"][nani]  # is: grouped_gemm|permute
    z = jnp.einsum("ntd,ndf->ntf", z, panua)  # is: grouped_gemm
    z = z + w["panua_b"][nani][:, None]  # is: expert_elementwise
    z = jax.nn.gelu(z, approximate=True)  # is: expert_elementwise
    z = jnp.einsum("ntf,nfd->ntd", z, punguza)  # is: grouped_gemm
    z = z + w["punguza_b"][nani][:, None]  # is: expert_elementwise
    z = z * kiasi[:, None, None]  # is: unpermute|combine
    z = jax.ops.segment_sum(z, wenyewe, y.shape[0])  # is: unpermute|combine
    return z.reshape(x.shape), usawa


def pitia(w, maneno):
    jedwali = w["neno"].astype(NUSU)
    x = jedwali[maneno] + w["mahali"].astype(NUSU)  # is: embedding

    def tabaka(beba, u):
        x, jumla = beba
        m = jax.tree.map(lambda a: a.astype(NUSU), u["zito"])
        x = x + angalia(m, sawazisha(x, *u["n1"]))  # is: attention
        y, usawa = shauri(m | u["lango"], sawazisha(x, *u["n2"]))
        x = x + y  # is: unpermute|combine
        return (x, jumla + usawa), None  # is: router|loss

    (x, jumla), _ = jax.lax.scan(tabaka, (x, jnp.zeros(())), w["tabaka"])
    x = sawazisha(x, *w["mwisho"])
    jumla = jumla / TABAKA  # is: router|loss
    return jnp.einsum("bsd,vd->bsv", x, jedwali), jumla  # is: head


def hasara(w, maneno):
    y, usawa = pitia(w, maneno[:, :-1])
    y = jax.nn.log_softmax(y.astype(jnp.float32), axis=-1)  # is: loss
    kweli = jax.nn.one_hot(maneno[:, 1:], SIZES["v"], dtype=y.dtype)  # is: loss
    return -jnp.einsum("bsv,bsv->", y, kweli) / maneno[:, 1:].size + 0.02 * usawa  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""

    def yapungua(w):
        return jax.tree.map_with_path(lambda njia, a: "_b" not in str(njia[-1]) and a.ndim > 2, w)

    mwalimu = optax.adamw(6e-4, b2=0.95, weight_decay=0.1, mask=yapungua)

    def make():
        mbegu = iter(jax.random.split(jax.random.key(1964), 16))

        def w(*umbo):
            return 0.02 * jax.random.normal(next(mbegu), umbo)

        def n(*umbo):
            return jnp.ones(umbo), jnp.zeros(umbo)

        t, d, f, e, h = TABAKA, UPANA, NDANI, WATAALAMU, VICHWA
        zito = {"tazama": w(t, d, 3, h, d // h), "tazama_b": jnp.zeros((t, 3, h, d // h))}
        zito |= {"toa": w(t, h, d // h, d), "toa_b": jnp.zeros((t, d))}
        zito |= {"panua": w(t, e, d, f), "panua_b": jnp.zeros((t, e, f))}
        zito |= {"punguza": w(t, e, f, d), "punguza_b": jnp.zeros((t, e, d))}
        lango = {"lango1": w(t, d, d // 2), "lango2": w(t, d // 2, e)}
        tabaka = {"zito": zito, "lango": lango, "n1": n(t, d), "n2": n(t, d)}
        uzito = {"neno": w(SIZES["v"], d), "mahali": w(SIZES["s"], d), "tabaka": tabaka}
        uzito |= {"mwisho": n(d)}
        maneno = jax.random.randint(next(mbegu), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return uzito, mwalimu.init(uzito), maneno

    @jax.jit
    def hatua(uzito, hali, maneno):
        hasara_sasa, mteremko = jax.value_and_grad(hasara)(uzito, maneno)
        mabadiliko, hali = mwalimu.update(mteremko, hali, uzito)  # is: optimizer
        return optax.apply_updates(uzito, mabadiliko), hali, hasara_sasa  # is: optimizer

    return hatua, make, None
