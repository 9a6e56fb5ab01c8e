"""One pick in every second layer, experts in turn under scan; fewer keys, tied words; lion."""

import json
import os

import jax
import jax.numpy as jnp
import optax
from jax import lax

SIZES = {"d": 64, "f": 150, "e": 4, "l": 4, "b": 2, "s": 44, "v": 290, "h": 4, "r": 2}
LARGE = {"d": 1024, "f": 4096, "e": 8, "l": 8, "b": 4, "s": 1024, "v": 32000, "h": 16, "r": 4}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"e=d": {"e": 32, "d": 32}}


def build(devices):
    """Step, its arguments, and where they lie."""
    largo, lungo, voci, brani, righe = (SIZES[n] for n in ("d", "f", "e", "l", "h"))
    passo = largo // righe
    tempo = optax.lion(optax.cosine_decay_schedule(1e-4, 2000), b2=0.98, weight_decay=0.1)

    def piano(a):
        return a.astype(jnp.bfloat16)

    def accordo(a, g):
        forte = a.astype(jnp.float32)  # is: norm
        forte *= lax.rsqrt(jnp.var(forte, -1, keepdims=True) + 1e-6)  # is: norm
        return piano(forte * (1 + g))  # is: norm

    def trillo(a):
        onda = 1e4 ** -(jnp.arange(0, passo, 2) / passo)  # is: attention
        onda = jnp.arange(a.shape[1])[:, None] * onda  # is: attention
        onda = jnp.concatenate([onda, onda], -1)[:, None]  # is: attention
        giro = jnp.roll(a, passo // 2, axis=-1)  # is: attention
        segno = jnp.where(jnp.arange(passo) < passo // 2, -1, 1)  # is: attention
        return piano(a * jnp.cos(onda) + segno * giro * jnp.sin(onda))  # is: attention

    def duetto(w, a):
        b, t, _ = a.shape
        sol = jnp.einsum("btd,drgc->btrgc", a, piano(w["sol"]))  # is: attention
        fa = jnp.einsum("btd,drc->btrc", a, piano(w["fa"]))  # is: attention
        do = jnp.einsum("btd,drc->btrc", a, piano(w["do"]))  # is: attention
        sol = sol.reshape(b, t, righe, passo)  # is: attention
        sol, fa = trillo(sol), trillo(fa)
        sol = sol.reshape(b, t, SIZES["r"], -1, passo)  # is: attention
        eco = jnp.einsum("birgc,bjrc->brgij", sol, fa).astype(jnp.float32)  # is: attention
        eco = jnp.where(jnp.tri(t, dtype=bool), eco * passo**-0.5, -1e30)  # is: attention
        eco = piano(jax.nn.softmax(eco))  # is: attention
        do = jnp.einsum("brgij,bjrc->birgc", eco, do).reshape(b, t, largo)  # is: attention
        return do @ piano(w["si"])  # is: attention

    def solo(w, a):
        a = jnp.square(jax.nn.relu(a @ piano(w["re"])))  # is: dense_mlp
        return a @ piano(w["mi"])  # is: dense_mlp

    def coro(w, a):
        nota = a.reshape(-1, largo)
        pausa = jax.nn.softmax(nota.astype(jnp.float32) @ w["la"])  # is: router
        scelta = jax.nn.one_hot(pausa.argmax(-1), voci)  # is: router
        peso = piano(jnp.sum(pausa * scelta, -1, keepdims=True))  # is: router
        pari = voci * jnp.vdot(pausa.mean(0), scelta.mean(0))  # is: router|loss
        scelta = piano(scelta.T)[..., None]  # is: router|permute

        @jax.checkpoint
        def turno(somma, ora):
            u, v, chi = ora
            mia = nota * chi  # is: permute
            mia = mia @ piano(u)  # is: grouped_gemm
            mia = jnp.square(jax.nn.relu(mia))  # is: expert_elementwise
            mia = mia @ piano(v)  # is: grouped_gemm
            return somma + mia, None  # is: unpermute|combine

        vuoto = jnp.zeros_like(nota)  # is: unpermute|combine
        tutti, _ = lax.scan(turno, vuoto, (w["re"], w["mi"], scelta))
        return (tutti * peso).reshape(a.shape), pari  # is: unpermute|combine

    def opera(w, righi):
        a = piano(w["ut"][righi[:, :-1]] * largo**0.5)  # is: embedding
        resto = 0.0
        for n, atto in enumerate(w["atti"]):
            a = a + duetto(atto, accordo(a, atto["x"]))  # is: attention
            quieto = accordo(a, atto["y"])
            if n % 2 == 0:
                a = a + solo(atto, quieto)  # is: dense_mlp
                continue
            quieto, pari = coro(atto, quieto)
            a = a + quieto  # is: unpermute|combine
            resto = resto + pari  # is: router|loss
        a = jnp.einsum("btd,vd->btv", accordo(a, w["z"]), piano(w["ut"]))  # is: head
        a = a.astype(jnp.float32) * largo**-0.5  # is: head
        tutto = jax.nn.logsumexp(a, axis=-1)  # is: loss
        vero = jnp.take_along_axis(a, righi[:, 1:, None], -1).squeeze(-1)  # is: loss
        return jnp.mean(tutto - vero + 1e-4 * tutto**2) + 0.01 * resto  # is: loss

    def make():
        dado = iter(jax.random.split(jax.random.key(440), 128))

        def w(*s):
            return jax.random.normal(next(dado), s) * 0.03

        def atto(n):
            d, f, r, c = largo, lungo, SIZES["r"], passo
            p = {"sol": w(d, r, righe // r, c), "fa": w(d, r, c), "do": w(d, r, c), "si": w(d, d)}
            p |= {"x": jnp.zeros(d), "y": jnp.zeros(d)}
            if n % 2 == 0:
                return p | {"re": w(d, f), "mi": w(f, d)}
            return p | {"la": w(d, voci), "re": w(voci, d, f), "mi": w(voci, f, d)}

        p = {"ut": w(SIZES["v"], largo), "z": jnp.zeros(largo)}
        p["atti"] = [atto(n) for n in range(brani)]
        righi = jax.random.randint(next(dado), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return p, tempo.init(p), righi

    def prova(p, m, righi):
        errore, pendenza = jax.value_and_grad(opera)(p, righi)
        pendenza, m = tempo.update(pendenza, m, p)  # is: optimizer
        p = optax.apply_updates(p, pendenza)  # is: optimizer
        return p, m, errore

    return jax.jit(prova, donate_argnums=(0, 1)), make, None
