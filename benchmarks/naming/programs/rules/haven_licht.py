"""Het woord zelf kiest zijn kenner; de helft slaat blokken over; stuksgewijs verlies."""

import json
import os

import jax
import jax.numpy as jnp
from jax.lax import ragged_dot, rsqrt, top_k

SIZES = {"d": 70, "f": 94, "e": 6, "l": 4, "b": 3, "s": 48, "v": 330, "h": 5, "brok": 6}
LARGE = {"d": 2048, "f": 4096, "e": 8, "l": 5, "b": 4, "s": 2048, "v": 32768, "h": 16, "brok": 8}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
breedte, diepte, kenners, lagen, hoofden = (SIZES[n] for n in "dfelh")
deel = SIZES["s"] // 2


def effen(x, maat):
    x = x.astype(jnp.float32)  # is: norm
    x = x * rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)  # is: norm
    return (x * maat).astype(jnp.bfloat16)  # is: norm


def zacht(w):
    return w.astype(jnp.bfloat16)


def draai(x, plek):
    helft = x.shape[-1] // 2
    tempo = jnp.exp(-jnp.arange(helft) * (jnp.log(1e4) / helft))  # is: attention
    hoek = (plek[..., None] * tempo)[:, :, None]  # is: attention
    sin, cos = jnp.sin(hoek).astype(x.dtype), jnp.cos(hoek).astype(x.dtype)  # is: attention
    a, b = x[..., 0 : 2 * helft : 2], x[..., 1 : 2 * helft : 2]  # is: attention
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)  # is: attention


def aandacht(w, x, plek):
    b, t, _ = x.shape
    q, k, v = (x @ zacht(w[n]) for n in ("vraag", "sleutel", "waarde"))  # is: attention
    q, k, v = (y.reshape(b, t, hoofden, -1) for y in (q, k, v))  # is: attention
    q, k = draai(q, plek), draai(k, plek)
    band = jnp.einsum("bihc,bjhc->bhij", q, k).astype(jnp.float32)  # is: attention
    band = band / q.shape[-1] ** 0.5  # is: attention
    mag = plek[:, None, :, None] >= plek[:, None, None, :]  # is: attention
    band = jax.nn.softmax(jnp.where(mag, band, -1e9), -1)  # is: attention
    y = jnp.einsum("bhij,bjhc->bihc", band.astype(v.dtype), v)  # is: attention
    return y.reshape(b, t, -1) @ zacht(w["terug"])  # is: attention


def loting(woord, laag):
    """Het nummer van de kenner: een vaste menging van het woord en de laag."""
    n = woord.astype(jnp.uint32) + jnp.uint32(977 * laag + 13)  # is: router
    n = (n ^ (n >> 16)) * jnp.uint32(0x45D9F3B)  # is: router
    n = (n ^ (n >> 15)) * jnp.uint32(0x2C1B3C6D)  # is: router
    return ((n >> 8) % kenners).astype(jnp.int32)  # is: router


def raad(w, x, woord, laag):
    vorm, x = x.shape, x.reshape(-1, breedte)
    wie = loting(woord.reshape(-1), laag)
    rij = jnp.argsort(wie)  # is: permute
    telling = jnp.zeros(kenners, jnp.int32).at[wie].add(1)  # is: router|permute
    y = x[rij]  # is: permute
    y = ragged_dot(y, zacht(w["omhoog"]), telling)  # is: grouped_gemm
    y = y + zacht(w["drempel"])[wie[rij]]  # is: expert_elementwise
    y = jnp.square(jax.nn.relu(y))  # is: expert_elementwise
    y = ragged_dot(y, zacht(w["omlaag"]), telling)  # is: grouped_gemm
    y = jnp.zeros_like(y).at[rij].set(y, unique_indices=True)  # is: unpermute
    return y.reshape(vorm)


def blok(w, x, woord, plek, laag):
    y = aandacht(w, effen(x, w["maat1"]), plek)
    x = x + y  # is: attention
    y = raad(w, effen(x, w["maat2"]), woord, laag)
    return x + y  # is: unpermute|combine


def spring(w, x, woord, laag):
    """Alleen de beste plaatsen gaan door het blok; de rest blijft zoals hij was."""
    cijfer = x.astype(jnp.float32) @ w["keuze"]  # is: router
    cijfer, plek = top_k(cijfer, deel)  # is: router
    volg = jnp.argsort(plek, axis=-1)  # is: router|permute
    plek = jnp.take_along_axis(plek, volg, -1)  # is: router|permute
    cijfer = jnp.take_along_axis(cijfer, volg, -1)  # is: router|permute
    klein = jnp.take_along_axis(x, plek[..., None], 1)  # is: permute
    woord = jnp.take_along_axis(woord, plek, 1)  # is: permute|router
    y = blok(w, klein, woord, plek, laag)
    y = (y - klein) * jax.nn.sigmoid(cijfer)[..., None].astype(y.dtype)  # is: unpermute|combine
    rij = jnp.arange(x.shape[0])[:, None]  # is: unpermute|combine
    return x.at[rij, plek].add(y)  # is: unpermute|combine


def romp(w, woord):
    x = zacht(w["boek"])[woord]  # is: embedding
    plek = jnp.broadcast_to(jnp.arange(woord.shape[1]), woord.shape)  # is: attention
    for laag, deze in enumerate(w["lagen"]):
        x = spring(deze, x, woord, laag) if laag % 2 else blok(deze, x, woord, plek, laag)
    return effen(x, w["einde"])


def spijt(w, zin):
    x = romp(w, zin[:, :-1])
    stukken = x.reshape(SIZES["brok"], -1, breedte)
    doelen = zin[:, 1:].reshape(SIZES["brok"], -1)
    uit = zacht(w["uit"])  # is: head

    @jax.checkpoint
    def stuk(som, paar):
        y, doel = paar
        y = jnp.dot(y, uit, preferred_element_type=jnp.float32)  # is: head
        fout = jax.nn.logsumexp(y, -1)  # is: loss
        fout = fout - jnp.take_along_axis(y, doel[:, None], -1)[:, 0]  # is: loss
        return som + fout.sum(), None  # is: loss

    som, _ = jax.lax.scan(stuk, jnp.zeros(()), (stukken, doelen))
    return som / doelen.size  # is: loss


def leer(w, traag, ruig, tel, zin):
    fout, helling = jax.value_and_grad(spijt)(w, zin)
    tel = tel + 1  # is: optimizer
    lengte = sum(jnp.vdot(g, g) for g in jax.tree.leaves(helling)) ** 0.5  # is: optimizer
    rem = 1 / jnp.maximum(lengte, 1)  # is: optimizer
    helling = jax.tree.map(lambda g: g * rem, helling)  # is: optimizer
    traag = jax.tree.map(lambda m, g: m + 0.1 * (g - m), traag, helling)  # is: optimizer
    ruig = jax.tree.map(lambda v, g: v + 0.05 * (g * g - v), ruig, helling)  # is: optimizer
    maat = 1e-3 * jnp.sqrt(1 - 0.95**tel) / (1 - 0.9**tel)  # is: optimizer

    def zet(p, m, v):
        return p - maat * m / (v**0.5 + 1e-8)  # is: optimizer

    w = jax.tree.map(zet, w, traag, ruig)
    return w, traag, ruig, tel, fout


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        dobbel = iter(jax.random.split(jax.random.key(1628), 12 * lagen))
        d, f, e = breedte, diepte, kenners

        def los(*maat):
            return jax.random.normal(next(dobbel), maat) / maat[-2] ** 0.5

        def laag(n):
            w = {x: los(d, d) for x in ("vraag", "sleutel", "waarde", "terug")}
            w |= {"omhoog": los(e, d, f), "drempel": jnp.zeros((e, f)), "omlaag": los(e, f, d)}
            w |= {"maat1": jnp.ones(d), "maat2": jnp.ones(d)}
            return w | {"keuze": los(d, 1)[:, 0]} if n % 2 else w

        w = {
            "boek": los(SIZES["v"], d) * SIZES["v"] ** 0.5,
            "lagen": [laag(n) for n in range(lagen)],
        }
        w |= {"einde": jnp.ones(d), "uit": los(d, SIZES["v"])}
        zin = jax.random.randint(next(dobbel), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        traag, ruig = (jax.tree.map(jnp.zeros_like, w) for _ in range(2))
        return w, traag, ruig, jnp.zeros(()), zin

    return jax.jit(leer, donate_argnums=(0, 1, 2)), make, None
