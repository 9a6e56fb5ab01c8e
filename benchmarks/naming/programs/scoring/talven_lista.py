"""Weights in one list, taken in turn; latents and a turned key; a bias steers; orthogonal steps."""

import json
import os

import jax
import jax.numpy as jnp

SIZES = {"d": 72, "f": 40, "e": 10, "k": 3, "l": 3, "b": 2, "s": 52, "v": 330, "h": 4}
LARGE = {"d": 2048, "f": 768, "e": 32, "k": 6, "l": 5, "b": 4, "s": 1024, "v": 20480, "h": 16}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
leveys, syvyys, joukko, monta, kerrat, haarat = (SIZES[n] for n in "dfeklh")
tila = min(-(-SIZES["b"] * SIZES["s"] * monta * 3 // (2 * joukko)), SIZES["b"] * SIZES["s"])
lumi, kuura, routa, pakkanen = leveys // 4, leveys // haarat, 8 * (leveys // haarat // 16), 4


def tasaa(x, paino):
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * paino  # is: norm


def kierto(x):
    kulma = jnp.arange(x.shape[1])[:, None] / 1e4 ** jnp.linspace(0, 1, routa // 2)  # is: attention
    kulma = kulma.reshape(1, -1, *[1] * (x.ndim - 3), routa // 2)  # is: attention
    eka, toka = x[..., ::2], x[..., 1::2]  # is: attention
    uusi = eka * jnp.cos(kulma) - toka * jnp.sin(kulma)  # is: attention
    vanha = toka * jnp.cos(kulma) + eka * jnp.sin(kulma)  # is: attention
    return jnp.stack([uusi, vanha], -1).reshape(x.shape)  # is: attention


def katse(x, ota):
    b, t, _ = x.shape
    q = (x @ ota()).reshape(b, t, haarat, kuura + routa)  # is: attention
    pieni = x @ ota()  # is: attention
    avain = kierto(pieni[..., lumi:])
    pieni = pieni[..., :lumi]  # is: attention
    pieni = pieni * jax.lax.rsqrt((pieni**2).mean(-1, keepdims=True) + 1e-6)  # is: attention|norm
    kv = (pieni @ ota()).reshape(b, t, haarat, 2 * kuura)  # is: attention
    ero = jnp.einsum("bihc,bjhc->bhij", q[..., :kuura], kv[..., :kuura])  # is: attention
    ero = ero + jnp.einsum("bihr,bjr->bhij", kierto(q[..., kuura:]), avain)  # is: attention
    ennen = jnp.arange(t)[:, None] >= jnp.arange(t)  # is: attention
    ero = jnp.where(ennen, ero / (kuura + routa) ** 0.5, -jnp.inf)  # is: attention
    y = jnp.einsum("bhij,bjhc->bihc", jax.nn.softmax(ero), kv[..., kuura:])  # is: attention
    return y.reshape(b, t, -1) @ ota()  # is: attention


def portti(x, a, b, c):
    return (jax.nn.silu(x @ a) * (x @ b)) @ c


def oma(x, a, b, c):
    u = x @ a  # is: grouped_gemm
    v = x @ b  # is: grouped_gemm
    u = jax.nn.silu(u) * v  # is: expert_elementwise
    return u @ c  # is: grouped_gemm


def jako(x, ota, vino):
    p = jax.nn.sigmoid(x @ ota())  # is: router
    _, i = jax.lax.top_k(jax.lax.stop_gradient(p) + vino, monta)  # is: router
    on = jax.nn.one_hot(i, joukko).sum(1)  # is: router
    p = on * p  # is: router
    p = 2.5 * p / p.sum(-1, keepdims=True)  # is: router
    luku = on.sum(0)  # is: router
    sija = jnp.argsort(jnp.where(on > 0, -p, jnp.inf), axis=0)[:tila].T  # is: permute|router
    rivit = x[sija]  # is: permute
    y = jax.vmap(oma)(rivit, ota(), ota(), ota())
    osuus = jnp.take_along_axis(p.T, sija, axis=1)  # is: router|unpermute|combine
    y = (y * osuus[..., None]).reshape(-1, leveys)  # is: unpermute|combine
    y = jax.ops.segment_sum(y, sija.ravel(), x.shape[0])  # is: unpermute|combine
    kaikki = portti(x, ota(), ota(), ota())  # is: shared_expert
    return y + kaikki, luku  # is: shared_expert|unpermute|combine


def hinta(lista, vinot, sanat):
    ota = iter(lista).__next__
    x = ota()[sanat[:, :-1]]  # is: embedding
    luvut = []
    for n in range(kerrat):
        x = x + katse(tasaa(x, ota()), ota)  # is: attention
        y = tasaa(x, ota())
        if n == 0:
            x = x + portti(y, ota(), ota(), ota())  # is: dense_mlp
            continue
        y, luku = jako(y.reshape(-1, leveys), ota, vinot[n - 1])
        x = x + y.reshape(x.shape)  # is: unpermute|combine
        luvut.append(luku)
    z = tasaa(x, ota()) @ ota()  # is: head
    oikea = jnp.take_along_axis(z, sanat[:, 1:, None], -1)[..., 0]  # is: loss
    luvut = jnp.stack(luvut)  # is: router
    return (jax.nn.logsumexp(z, -1) - oikea).mean(), luvut  # is: loss


def suora(g):
    pitka = g.shape[-2] > g.shape[-1]
    g = g.mT if pitka else g  # is: optimizer
    g = g / (jnp.linalg.norm(g, axis=(-2, -1), keepdims=True) + 1e-7)  # is: optimizer
    for _ in range(5):
        a = g @ g.mT  # is: optimizer
        g = 3.4445 * g + (2.0315 * a @ a - 4.775 * a) @ g  # is: optimizer
    return g.mT if pitka else g  # is: optimizer


def askel(lista, eka, toka, vinot, kerta, sanat):
    (virhe, luvut), g = jax.value_and_grad(hinta, has_aux=True)(lista, vinot, sanat)
    kerta = kerta + 1  # is: optimizer
    for n, (w, d) in enumerate(zip(lista, g, strict=True)):
        if not toka[n].shape:
            eka[n] = 0.95 * eka[n] + d  # is: optimizer
            koko = 0.2 * max(w.shape[-2:]) ** 0.5
            lista[n] = w - 1e-3 * (koko * suora(d + 0.95 * eka[n]) + 0.1 * w)  # is: optimizer
            continue
        eka[n] = 0.9 * eka[n] + 0.1 * d  # is: optimizer
        toka[n] = 0.95 * toka[n] + 0.05 * d * d  # is: optimizer
        d = eka[n] / (1 - 0.9**kerta)  # is: optimizer
        lista[n] = w - 1e-3 * d / (jnp.sqrt(toka[n] / (1 - 0.95**kerta)) + 1e-8)  # is: optimizer
    vinot = vinot + 1e-3 * jnp.sign(luvut.mean(1, keepdims=True) - luvut)  # is: router|optimizer
    return lista, eka, toka, vinot, kerta, virhe


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        sade = iter(jax.random.split(jax.random.key(61), 200))

        def w(*s):
            return jax.random.normal(next(sade), s) * s[-2] ** -0.5

        d, f, e, c = leveys, syvyys, joukko, kuura
        lista = [w(SIZES["v"], d)]
        for n in range(kerrat):
            lista += [jnp.ones(d), w(d, haarat * (c + routa)), w(d, lumi + routa)]
            lista += [w(lumi, haarat * 2 * c), w(haarat * c, d), jnp.ones(d)]
            if n == 0:
                lista += [w(d, pakkanen * f), w(d, pakkanen * f), w(pakkanen * f, d)]
            else:
                lista += [w(d, e), w(e, d, f), w(e, d, f), w(e, f, d)]
                lista += [w(d, f), w(d, f), w(f, d)]
        lista += [jnp.ones(d), w(d, SIZES["v"])]
        eka = [jnp.zeros_like(x) for x in lista]
        toka = [jnp.zeros(x.shape if x.ndim < 2 or SIZES["v"] in x.shape else ()) for x in lista]
        sanat = jax.random.randint(next(sade), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return lista, eka, toka, jnp.zeros((kerrat - 1, e)), jnp.zeros(()), sanat

    return jax.jit(askel, donate_argnums=range(5)), make, None
