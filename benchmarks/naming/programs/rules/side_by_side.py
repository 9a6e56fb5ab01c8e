"""Attention and top-1 experts side by side on one norm; fused kernels on GPUs; German names."""

import json
import os

import jax
import jax.numpy as jnp
from jax import lax

SIZES = {"d": 80, "f": 180, "e": 7, "k": 1, "l": 3, "b": 2, "s": 64, "v": 330, "h": 5}
LARGE = {"d": 1280, "f": 2432, "e": 14, "l": 4, "b": 4, "s": 1024, "v": 12800, "h": 20}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"e=d": {"e": 80, "d": 80}}
BREITE, TIEFE, FACH = SIZES["d"], SIZES["f"], SIZES["e"]
KURZ = jnp.bfloat16


def glaetten(x, staerke):
    lang = x.astype(jnp.float32)  # is: norm
    mitte = lang.mean(-1, keepdims=True)  # is: norm
    streuung = lang.var(-1, keepdims=True)  # is: norm
    return ((lang - mitte) * lax.rsqrt(streuung + 1e-5) * staerke).astype(x.dtype)  # is: norm


def blick(g, x, art):
    b, s, d = x.shape
    qkv = lax.dot_general(x, g["qkv"].astype(KURZ), (((2,), (0,)), ((), ())))  # is: attention
    q, k, v = (qkv[:, :, i] for i in range(3))  # is: attention
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=art)  # is: attention
    return y.reshape(b, s, d) @ g["raus"].astype(KURZ)  # is: attention


def fachleute(g, x):
    zeilen = x.reshape(-1, BREITE)
    punkte = zeilen.astype(jnp.float32) @ g["weiche"]  # is: router
    wahl = jnp.argmax(punkte, -1)  # is: router
    anteil = jax.nn.softmax(punkte)  # is: router
    anteil = jnp.take_along_axis(anteil, wahl[:, None], 1)  # is: router
    platz = wahl.size * 2 // FACH + 1
    reihe = lax.sort((wahl, jnp.arange(wahl.size)), num_keys=1)[1]  # is: permute
    sortiert = wahl[reihe]  # is: permute
    anfang = jnp.searchsorted(sortiert, jnp.arange(FACH))  # is: permute|router
    stelle = jnp.arange(wahl.size) - anfang[sortiert]  # is: permute|router
    kasten = jnp.zeros((FACH, platz, BREITE), KURZ)  # is: permute
    kasten = kasten.at[sortiert, stelle].set(zeilen[reihe], mode="drop")  # is: permute

    def einer(_, teil):
        drin, auf, zu = teil
        mehr = drin @ auf.astype(KURZ)  # is: grouped_gemm
        mehr = jax.nn.relu6(mehr)  # is: expert_elementwise
        return None, mehr @ zu.astype(KURZ)  # is: grouped_gemm

    _, kasten = lax.scan(einer, None, (kasten, g["auf"], g["zu"]))
    zurueck = kasten.at[sortiert, stelle].get(mode="fill", fill_value=0)  # is: unpermute|combine
    leer = jnp.zeros_like(zeilen)  # is: unpermute|combine
    zeilen = leer.at[reihe].set(zurueck)  # is: unpermute|combine
    return (zeilen * anteil.astype(KURZ)).reshape(x.shape)  # is: unpermute|combine


def durchlauf(g, wort, art):
    x = g["wort"][wort].astype(KURZ) + g["ort"].astype(KURZ)  # is: embedding
    for lage in g["lagen"]:
        y = glaetten(x, lage["norm"])
        a = blick(lage, y, art)
        x = x + a + fachleute(lage, y)  # is: unpermute|combine|attention
    return glaetten(x, g["ende"])


def abstand(g, wort, art):
    x = durchlauf(g, wort[:, :-1], art)
    z = jnp.dot(x, g["mund"].astype(KURZ), preferred_element_type=jnp.float32)  # is: head
    z = jax.nn.log_softmax(z)  # is: loss
    ziel = jax.nn.one_hot(wort[:, 1:], SIZES["v"])  # is: loss
    return -(z * ziel).sum(-1).mean()  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    art = "xla" if devices[0].platform == "cpu" else "cudnn"

    def make():
        saat = iter(jax.random.split(jax.random.key(37), 64))

        def w(*form):
            return jax.random.normal(next(saat), form) * 0.05

        def lage():
            c = BREITE // SIZES["h"]
            teile = {"norm": jnp.ones(BREITE), "qkv": w(BREITE, 3, SIZES["h"], c)}
            teile |= {"raus": w(BREITE, BREITE), "weiche": w(BREITE, FACH)}
            return teile | {"auf": w(FACH, BREITE, TIEFE), "zu": w(FACH, TIEFE, BREITE)}

        g = {"wort": w(SIZES["v"], BREITE), "ort": w(SIZES["s"], BREITE)}
        g |= {"lagen": [lage() for _ in range(SIZES["l"])], "ende": jnp.ones(BREITE)}
        g["mund"] = w(BREITE, SIZES["v"])
        schwung = jax.tree.map(lambda p: jnp.zeros_like(p, KURZ), g)
        wort = jax.random.randint(next(saat), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return g, schwung, wort

    @jax.jit
    def schritt(g, schwung, wort):
        wert, d = jax.value_and_grad(abstand)(g, wort, art)

        def folge(p, s, d):
            s = 0.95 * s.astype(jnp.float32) + d  # is: optimizer
            p = p - 0.01 * (d + 0.95 * s) - 1e-5 * p  # is: optimizer
            return p, s.astype(KURZ)  # is: optimizer

        paare = jax.tree.map(folge, g, schwung, d)
        g, schwung = (jax.tree.map(lambda _, n, i=i: n[i], g, paare) for i in (0, 1))
        return g, schwung, wert

    return schritt, make, None
