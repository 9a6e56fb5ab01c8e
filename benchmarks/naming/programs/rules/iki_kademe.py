"""A region first, then its experts; local sloped attention, fewer keys; capped logits; lion."""

import json
import os

import jax
import jax.numpy as jnp
import optax
from jax import lax

SIZES = {"d": 84, "f": 118, "e": 12, "k": 2, "l": 3, "b": 2, "s": 56, "v": 378, "h": 6, "kv": 2}
SIZES |= {"bolge": 3, "yakin": 20}
LARGE = {"d": 1152, "f": 1280, "e": 12, "l": 3, "b": 4, "s": 768, "v": 14080, "h": 12, "kv": 4}
LARGE |= {"bolge": 3, "yakin": 256}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"e=d": {"e": 36, "d": 36}}
EN, DERIN, KISI, SEC, KAT = (SIZES[n] for n in "dfekl")
KOL, AZ, KOMSU = SIZES["h"], SIZES["kv"], SIZES["e"] // SIZES["bolge"]
YER = -(-SIZES["b"] * SIZES["s"] * SEC * 3 // (2 * KISI))


def duzle(x, olcek):
    boy = jnp.linalg.vector_norm(x, axis=-1, keepdims=True)  # is: norm
    return x * (olcek * EN**0.5) / (boy + 1e-5)  # is: norm


def bak(p, x):
    b, s, _ = x.shape
    soru = jnp.dot(x, p["soru"]).reshape(b, s, AZ, KOL // AZ, -1)  # is: attention
    cevap = jnp.dot(x, p["cevap"]).reshape(b, s, AZ, -1)  # is: attention
    icerik = jnp.dot(x, p["icerik"]).reshape(b, s, AZ, -1)  # is: attention
    benzer = jnp.einsum("bqgrc,bkgc->bgrqk", soru, cevap) * (EN / KOL) ** -0.5  # is: attention
    uzak = jnp.arange(s)[:, None] - jnp.arange(s)[None]  # is: attention
    egim = jnp.exp2(-8.0 * jnp.arange(1, KOL + 1) / KOL)  # is: attention
    benzer = benzer - egim.reshape(AZ, -1, 1, 1) * jnp.abs(uzak)  # is: attention
    yakin = (uzak >= 0) & (uzak < SIZES["yakin"])  # is: attention
    benzer = jax.nn.softmax(jnp.where(yakin, benzer, -1e30), axis=-1)  # is: attention
    x = jnp.einsum("bgrqk,bkgc->bqgrc", benzer, icerik)  # is: attention
    return jnp.dot(x.reshape(b, s, EN), p["cikis"])  # is: attention


def danis(p, x):
    satir = x.reshape(-1, EN)
    adet = satir.shape[0]
    ust = jax.nn.softmax(jnp.dot(satir, p["ust"]), axis=-1)  # is: router
    bolge = jnp.argmax(ust, axis=-1)  # is: router
    guven = jnp.max(ust, axis=-1, keepdims=True)  # is: router
    alt = jnp.einsum("td,gde->tge", satir, p["alt"])  # is: router
    alt = jnp.take_along_axis(alt, bolge[:, None, None], axis=1)[:, 0]  # is: router
    alt, sira = lax.top_k(jax.nn.softmax(alt, axis=-1), SEC)  # is: router
    pay = guven * alt  # is: router

    def kisi(no, evde, a, b, c):
        secili = evde[:, None] & (sira == no)  # is: router|permute
        hangi = jnp.nonzero(secili.any(-1), size=YER, fill_value=adet)[0]  # is: router|permute
        kadar = jnp.sum(jnp.where(secili, pay, 0.0), axis=-1)  # is: router|unpermute|combine
        z = jnp.take(satir, hangi, axis=0, mode="fill", fill_value=0.0)  # is: permute
        u = jnp.dot(z, a)  # is: grouped_gemm
        z = jnp.dot(z, b)  # is: grouped_gemm
        z = jax.nn.gelu(u) * z  # is: expert_elementwise
        z = jnp.dot(z, c)  # is: grouped_gemm
        kadar = jnp.take(kadar, hangi, mode="fill", fill_value=0.0)  # is: unpermute|combine
        return hangi, kadar[:, None] * z  # is: unpermute|combine

    def mahalle(toplam, parca):
        no, a, b, c = parca
        evde = bolge == no  # is: router|permute
        hangi, z = jax.vmap(kisi, (0, None, 0, 0, 0))(jnp.arange(KOMSU), evde, a, b, c)
        return toplam.at[hangi].add(z, mode="drop"), None  # is: unpermute|combine

    toplam = jnp.zeros_like(satir)  # is: unpermute|combine
    parca = (jnp.arange(SIZES["bolge"]), p["a"], p["b"], p["c"])
    toplam, _ = lax.scan(mahalle, toplam, parca)
    return toplam.reshape(x.shape)


def yol(p, soz):
    x = p["soz"][soz] * EN**0.5  # is: embedding
    for kat in p["katlar"]:
        x = x + bak(kat, duzle(x, kat["o1"]))  # is: attention
        x = x + danis(kat, duzle(x, kat["o2"]))  # is: unpermute|combine
    z = jnp.dot(duzle(x, p["o3"]), p["soz"].T)  # is: head
    return 24.0 * jnp.tanh(z / 24.0)  # is: head|loss


def yanlis(p, soz):
    z = yol(p, soz[:, :-1])
    dogru = soz[:, 1:, None] == jnp.arange(SIZES["v"])  # is: loss
    dogru = jnp.sum(jnp.where(dogru, z, 0.0), axis=-1)  # is: loss
    return jnp.mean(jax.nn.logsumexp(z, axis=-1) - dogru)  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    usul = optax.lion(3e-4, b1=0.95, b2=0.98, weight_decay=0.02)

    def make():
        tohum = iter(jax.random.split(jax.random.key(85), 128))

        def at(*bicim):
            return jax.random.normal(next(tohum), bicim) * bicim[-2] ** -0.5

        def kat():
            c, g = EN // KOL, SIZES["bolge"]
            bir = {"soru": at(EN, EN), "cevap": at(EN, AZ * c), "icerik": at(EN, AZ * c)}
            bir |= {"cikis": at(EN, EN), "ust": at(EN, g), "alt": at(g, EN, KOMSU)}
            bir |= {"a": at(g, KOMSU, EN, DERIN), "b": at(g, KOMSU, EN, DERIN)}
            return bir | {"c": at(g, KOMSU, DERIN, EN), "o1": jnp.ones(EN), "o2": jnp.ones(EN)}

        p = {"soz": at(SIZES["v"], EN), "katlar": [kat() for _ in range(KAT)], "o3": jnp.ones(EN)}
        soz = jax.random.randint(next(tohum), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return p, usul.init(p), soz

    @jax.jit
    def ilerle(p, durum, soz):
        deger, yokus = jax.value_and_grad(yanlis)(p, soz)
        yokus, durum = usul.update(yokus, durum, p)  # is: optimizer
        return optax.apply_updates(p, yokus), durum, deger  # is: optimizer

    return ilerle, make, None
