"""Pesos num dicionario plano; filas de tamanho fixo, quem sobra fica fora; um so passo de sinal."""

import json
import os

import jax
import jax.numpy as jnp
from jax import nn, vmap

SIZES = {"d": 80, "f": 150, "e": 7, "k": 2, "l": 2, "b": 4, "s": 42, "v": 366, "h": 5}
LARGE = {"d": 1536, "f": 4096, "e": 16, "l": 4, "b": 12, "s": 1024, "v": 24000, "h": 12}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"k=1": {"k": 1}, "e=d": {"e": 25, "d": 25}}

LARGURA = SIZES["d"]
MEIO = SIZES["f"]
PERITOS = SIZES["e"]
ESCOLHAS = SIZES["k"]
CAMADAS = SIZES["l"]
CABECAS = SIZES["h"]
FICHAS = SIZES["b"] * SIZES["s"]
VAGAS = int(1.25 * FICHAS * ESCOLHAS / PERITOS) + 1


class Gaveta:
    """O que uma camada ve do dicionario: os nomes com o seu prefixo."""

    def __init__(self, pesos, prefixo):
        self.pesos, self.prefixo = pesos, prefixo

    def __getitem__(self, nome):
        return self.pesos[f"{self.prefixo}/{nome}"]

    def abre(self, nome):
        return Gaveta(self.pesos, f"{self.prefixo}/{nome}")


def nivelar(g, x):
    media = x.mean(-1, keepdims=True)  # is: norm
    desvio = x - media  # is: norm
    variancia = (desvio * desvio).mean(-1, keepdims=True)  # is: norm
    return desvio / jnp.sqrt(variancia + 1e-5) * g["ganho"] + g["vies"]  # is: norm


def olhar(g, x):
    lote, tempo, _ = x.shape
    tres = x @ g["qkv"] + g["qkv_vies"]  # is: attention
    tres = tres.reshape(lote, tempo, 3, CABECAS, -1)  # is: attention
    q, k, v = tres[:, :, 0], tres[:, :, 1], tres[:, :, 2]  # is: attention
    y = nn.dot_product_attention(q, k, v, is_causal=True)  # is: attention
    return y.reshape(lote, tempo, LARGURA) @ g["saida"] + g["saida_vies"]  # is: attention


def perito(sobe, sobe_vies, desce, desce_vies, fila):
    h = fila @ sobe  # is: grouped_gemm
    h = nn.gelu(h + sobe_vies)  # is: expert_elementwise
    h = h @ desce  # is: grouped_gemm
    return h + desce_vies  # is: expert_elementwise


def repartir(g, x):
    """De quem e cada ficha, em que lugar da fila, e com que peso."""
    nota = x @ g["porta"]  # is: router
    chance = nn.softmax(nota)  # is: router
    peso, dono = jax.lax.top_k(chance, ESCOLHAS)  # is: router
    marca = nn.one_hot(dono, PERITOS, dtype=jnp.int32)  # is: router|permute
    cheio = marca.mean((0, 1), dtype=jnp.float32)  # is: router|loss
    justica = PERITOS * jnp.vdot(cheio, chance.mean(0))  # is: router|loss
    dono = dono.T.reshape(-1)  # is: router|permute
    marca = marca.swapaxes(0, 1).reshape(-1, PERITOS)  # is: router|permute
    lugar = jnp.cumsum(marca, axis=0) * marca  # is: router|permute
    lugar = lugar.sum(1) - 1  # is: router|permute
    peso = peso.T.reshape(-1, 1)  # is: router|unpermute|combine
    return dono, lugar, peso, justica


def conselho(g, x):
    dono, lugar, peso, justica = repartir(g, x)
    copias = jnp.tile(x, (ESCOLHAS, 1))  # is: permute
    filas = jnp.zeros((PERITOS, VAGAS, LARGURA), x.dtype)  # is: permute
    filas = filas.at[dono, lugar].set(copias, mode="drop")  # is: permute
    filas = vmap(perito)(g["sobe"], g["sobe_vies"], g["desce"], g["desce_vies"], filas)
    volta = filas.at[dono, lugar].get(mode="fill", fill_value=0.0)  # is: unpermute
    volta = peso * volta  # is: unpermute|combine
    volta = volta.reshape(ESCOLHAS, -1, LARGURA)  # is: unpermute|combine
    return volta.sum(0), justica  # is: unpermute|combine


def camada(g, x):
    x = x + olhar(g.abre("olhar"), nivelar(g.abre("n1"), x))  # is: attention
    y = nivelar(g.abre("n2"), x)
    y, justica = conselho(g.abre("conselho"), y.reshape(-1, LARGURA))
    return x + y.reshape(x.shape), justica  # is: unpermute|combine


def rede(pesos, texto):
    x = pesos["fichas"][texto]  # is: embedding
    x = x + pesos["lugares"][: texto.shape[1]]  # is: embedding
    justicas = 0.0
    for n in range(CAMADAS):
        x, justica = camada(Gaveta(pesos, f"camada{n}"), x)
        justicas += justica  # is: router|loss
    x = nivelar(Gaveta(pesos, "fim"), x)
    return x @ pesos["fichas"].T, justicas  # is: head


def custo(pesos, texto):
    nota, justicas = rede(pesos, texto[:, :-1])
    certo = nn.one_hot(texto[:, 1:], SIZES["v"])  # is: loss
    certo = 0.95 * certo + 0.05 / SIZES["v"]  # is: loss
    perda = -(certo * nn.log_softmax(nota)).sum(-1)  # is: loss
    return perda.mean() + 0.02 * justicas  # is: loss


def passo(pesos, inercia, texto):
    valor, declive = jax.value_and_grad(custo)(pesos, texto)
    forca = jnp.sqrt(sum((d**2).sum() for d in declive.values()))  # is: optimizer
    freio = jnp.minimum(1.0, 1.0 / (forca + 1e-9))  # is: optimizer
    novos, novas = {}, {}
    for nome, peso in pesos.items():
        d = freio * declive[nome]  # is: optimizer
        rumo = jnp.sign(0.9 * inercia[nome] + 0.1 * d)  # is: optimizer
        if peso.ndim > 1:
            rumo = rumo + 0.1 * peso  # is: optimizer
        novos[nome] = peso - 2e-4 * rumo  # is: optimizer
        novas[nome] = 0.99 * inercia[nome] + 0.01 * d  # is: optimizer
    return novos, novas, valor


def formas():
    d, f, e = LARGURA, MEIO, PERITOS
    todas = {"fichas": (SIZES["v"], d), "lugares": (SIZES["s"], d)}
    todas |= {"fim/ganho": (d,), "fim/vies": (d,)}
    for n in range(CAMADAS):
        c = {"n1/ganho": (d,), "n1/vies": (d,), "n2/ganho": (d,), "n2/vies": (d,)}
        c |= {"olhar/qkv": (d, 3 * d), "olhar/qkv_vies": (3 * d,)}
        c |= {"olhar/saida": (d, d), "olhar/saida_vies": (d,), "conselho/porta": (d, e)}
        c |= {"conselho/sobe": (e, d, f), "conselho/sobe_vies": (e, f)}
        c |= {"conselho/desce": (e, f, d), "conselho/desce_vies": (e, d)}
        todas |= {f"camada{n}/{nome}": forma for nome, forma in c.items()}
    return todas


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        sorte = jax.random.key(1500)
        pesos = {}
        for nome, forma in formas().items():
            sorte, uma = jax.random.split(sorte)
            if nome.endswith("ganho"):
                pesos[nome] = jnp.ones(forma)
            elif nome.endswith("vies"):
                pesos[nome] = jnp.zeros(forma)
            else:
                pesos[nome] = 0.03 * jax.random.normal(uma, forma)
        texto = jax.random.randint(sorte, (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return pesos, {nome: jnp.zeros_like(p) for nome, p in pesos.items()}, texto

    return jax.jit(passo, donate_argnums=(0, 1)), make, None
