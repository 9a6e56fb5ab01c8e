"""Index tables of capacity slots, take_along_axis both ways, the vocabulary in chunks."""

import json
import os

import jax
import jax.numpy as jnp

SIZES = {"d": 72, "f": 164, "e": 8, "k": 4, "l": 3, "b": 3, "s": 42, "v": 384, "h": 6, "trozos": 6}
LARGE = {"d": 1152, "f": 1280, "e": 16, "l": 3, "b": 4, "s": 640, "v": 16384, "h": 9, "trozos": 8}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
ANCHO, OCULTO, SABIOS, VOCES, CAPAS = (SIZES[n] for n in "dfekl")
CUPO = -(-SIZES["s"] * VOCES * 3 // (2 * SABIOS))


def igualar(x, peso):
    x = x - x.mean(-1, keepdims=True)  # is: norm
    return x / (x.std(-1, keepdims=True) + 1e-5) * peso  # is: norm


def mirar(w, x):
    lote, largo, _ = x.shape
    preguntas = (x @ w["pregunta"]).reshape(lote, largo, SIZES["h"], -1)  # is: attention
    clave, valor = x @ w["clave"], x @ w["valor"]  # is: attention
    parecido = jnp.einsum("blhc,bmc->bhlm", preguntas, clave)  # is: attention
    lejos = jnp.arange(largo)[:, None] - jnp.arange(largo)  # is: attention
    cuesta = 2.0 ** -jnp.arange(1.0, SIZES["h"] + 1)  # is: attention
    parecido = parecido / clave.shape[-1] ** 0.5 - cuesta[:, None, None] * lejos  # is: attention
    parecido = jnp.where(lejos < 0, -jnp.inf, parecido)  # is: attention
    atento = jax.nn.softmax(parecido)  # is: attention
    mezcla = jnp.einsum("bhlm,bmc->blhc", atento, valor)  # is: attention
    return mezcla.reshape(lote, largo, -1) @ w["salida"]  # is: attention


def repartir(notas):
    nota, sabio = jax.lax.top_k(notas, VOCES)  # is: router
    nota = nota / nota.sum(-1, keepdims=True)  # is: router
    sabio = sabio.reshape(sabio.shape[0], -1)  # is: router|permute
    marca = jax.nn.one_hot(sabio, SABIOS, dtype=jnp.int32)  # is: router|permute
    turno = (jnp.cumsum(marca, axis=1) * marca).sum(-1) - 1  # is: router|permute
    silla = jnp.where(turno < CUPO, sabio * CUPO + turno, SABIOS * CUPO)  # is: router|permute
    return nota, silla


def consultar(w, x):
    lote, largo, ancho = x.shape
    notas = jax.nn.softmax(jnp.einsum("bld,de->ble", x, w["puerta"]))  # is: router
    nota, silla = repartir(notas)
    quien = jnp.full((lote, SABIOS * CUPO + 1), largo)  # is: permute|router
    voz = jnp.arange(largo * VOCES) // VOCES  # is: permute|router
    quien = jax.vmap(lambda t, s: t.at[s].set(voz))(quien, silla)  # is: permute|router
    vacio = jnp.pad(x, ((0, 0), (0, 1), (0, 0)))  # is: permute
    mesa = jnp.take_along_axis(vacio, quien[:, :-1, None], axis=1)  # is: permute
    mesa = mesa.reshape(lote, SABIOS, CUPO, ancho)  # is: permute
    idea = jnp.einsum("becd,edf->becf", mesa, w["abre"])  # is: grouped_gemm
    idea = jnp.where(idea > 0, idea, 0.01 * idea)  # is: expert_elementwise
    mesa = jnp.einsum("becf,efd->becd", idea, w["cierra"])  # is: grouped_gemm
    mesa = jnp.pad(mesa.reshape(lote, -1, ancho), ((0, 0), (0, 1), (0, 0)))  # is: unpermute|combine
    dicho = jnp.take_along_axis(mesa, silla[..., None], axis=1)  # is: unpermute|combine
    dicho = dicho.reshape(lote, largo, VOCES, ancho)  # is: unpermute|combine
    return (dicho * nota[..., None]).sum(2)  # is: unpermute|combine


def leer(w, frase):
    x = w["palabras"][frase]  # is: embedding
    for capa in w["capas"]:
        x = x + mirar(capa, igualar(x, capa["uno"]))  # is: attention
        x = x + consultar(capa, igualar(x, capa["dos"]))  # is: unpermute|combine
    return igualar(x, w["fin"])


def fallo(w, frase, sigue):
    x = leer(w, frase)
    x = x.reshape(SIZES["trozos"], -1, ANCHO)
    sigue = sigue.reshape(SIZES["trozos"], -1)

    @jax.checkpoint
    def trozo(suma, par):
        logit = par[0] @ w["boca"]  # is: head
        cierto = jnp.take_along_axis(logit, par[1][:, None], 1)[:, 0]  # is: loss
        return suma + jnp.sum(jax.nn.logsumexp(logit, 1) - cierto), None  # is: loss

    suma, _ = jax.lax.scan(trozo, 0.0, (x, sigue))
    return suma / sigue.size  # is: loss


def mejorar(w, m, v, paso, frase, sigue):
    valor, g = jax.value_and_grad(fallo)(w, frase, sigue)
    paso = paso + 1  # is: optimizer
    m = jax.tree.map(lambda m, g: m + 0.1 * (g - m), m, g)  # is: optimizer
    v = jax.tree.map(lambda v, g: v + 0.05 * (g * g - v), v, g)  # is: optimizer
    ritmo = 2e-3 * jnp.minimum(1.0, paso / 10)  # is: optimizer
    cambio = jax.tree.map(lambda m, v: ritmo * m * jax.lax.rsqrt(v + 1e-12), m, v)  # is: optimizer
    w = jax.tree.map(jnp.subtract, w, cambio)  # is: optimizer
    return w, m, v, paso, valor


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        llaves = iter(jax.random.split(jax.random.key(29), 64))

        def azar(*forma):
            return jax.random.normal(next(llaves), forma) * forma[-2] ** -0.5

        def capa():
            fina = ANCHO // SIZES["h"]
            return {
                "uno": jnp.ones(ANCHO),
                "dos": jnp.ones(ANCHO),
                "pregunta": azar(ANCHO, ANCHO),
                "clave": azar(ANCHO, fina),
                "valor": azar(ANCHO, fina),
                "salida": azar(ANCHO, ANCHO),
                "puerta": azar(ANCHO, SABIOS),
                "abre": azar(SABIOS, ANCHO, OCULTO),
                "cierra": azar(SABIOS, OCULTO, ANCHO),
            }

        w = {"palabras": azar(SIZES["v"], ANCHO), "capas": [capa() for _ in range(CAPAS)]}
        w |= {"fin": jnp.ones(ANCHO), "boca": azar(ANCHO, SIZES["v"])}
        cero = jax.tree.map(jnp.zeros_like, w)
        t = jax.random.randint(next(llaves), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        otro = jax.tree.map(jnp.copy, cero)
        return w, cero, otro, jnp.zeros((), jnp.int32), t[:, :-1], t[:, 1:]

    return jax.jit(mejorar, donate_argnums=(0, 1, 2)), make, None
