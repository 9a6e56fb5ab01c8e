"""One sequence under vmap: every expert in dense einsums, sigmoid weights; adamw and an EMA."""

import json
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 68, "f": 94, "e": 7, "k": 3, "l": 3, "b": 2, "s": 46, "v": 366, "h": 4}
LARGE = {"d": 1024, "f": 960, "e": 8, "l": 3, "b": 4, "s": 640, "v": 13312, "h": 8}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"e=d": {"e": 20, "d": 20}}
N1, N2, N3, N4, N5 = (SIZES[n] for n in "dfekl")
N6 = N1 // SIZES["h"]


def f1(x1, w1):
    x2 = jnp.sum(x1**2, axis=-1) / N1  # is: norm
    return jnp.einsum("td,t,d->td", x1, jax.lax.rsqrt(x2 + 1e-6), 1 + w1)  # is: norm


def f2(x1):
    x2 = jnp.exp(-jnp.log(1e4) * jnp.arange(N6 // 2) * 2 / N6)  # is: attention
    x2 = jnp.outer(jnp.arange(x1.shape[0]), x2)  # is: attention
    x2 = jnp.exp(1j * x2)[:, None]  # is: attention
    x3 = jax.lax.complex(x1[..., : N6 // 2], x1[..., N6 // 2 : N6 // 2 * 2])  # is: attention
    x3 = x3 * x2  # is: attention
    x4 = x1[..., N6 // 2 * 2 :]  # is: attention
    return jnp.concatenate([x3.real, x3.imag, x4], axis=-1)  # is: attention


def f3(x1, w1):
    x2, x3, x4 = jnp.einsum("td,jdhc->jthc", x1, w1["p1"])  # is: attention
    x2, x3 = f2(x2), f2(x3)
    x5 = jnp.einsum("thc,uhc->htu", x2, x3) / jnp.sqrt(N6)  # is: attention
    x6 = jnp.tril(jnp.ones(x5.shape[1:], bool))  # is: attention
    x5 = jax.nn.softmax(x5, axis=-1, where=x6)  # is: attention
    x5 = jnp.einsum("htu,uhc->thc", x5, x4)  # is: attention
    return jnp.einsum("thc,hcd->td", x5, w1["p2"])  # is: attention


def f4(x1, w1):
    x2 = jnp.einsum("td,de->te", x1, w1["p3"])  # is: router
    x2 = jax.nn.sigmoid(x2)  # is: router
    x3, x4 = jax.lax.top_k(x2, N4)  # is: router
    x3 = x3 / (jnp.sum(x3, axis=-1, keepdims=True) + 1e-9)  # is: router
    x4 = jax.nn.one_hot(x4, N3)  # is: router
    x4 = jnp.einsum("tk,tke->te", x3, x4)  # is: router
    x5 = jnp.einsum("td,edf->tef", x1, w1["p4"])  # is: grouped_gemm
    x6, x7 = x5[..., :N2], x5[..., N2:]  # is: expert_elementwise
    x6 = jax.nn.silu(x6) * x7  # is: expert_elementwise
    x6 = jnp.einsum("tef,efd->ted", x6, w1["p5"])  # is: grouped_gemm
    return jnp.einsum("ted,te->td", x6, x4)  # is: unpermute|combine


def f5(w1, x1):
    x2 = w1["q1"][x1[:-1]]  # is: embedding
    for w2 in w1["q2"]:
        x2 = x2 + f3(f1(x2, w2["p6"]), w2)  # is: attention
        x2 = x2 + f4(f1(x2, w2["p7"]), w2)  # is: unpermute|combine
    x2 = jnp.einsum("td,vd->tv", f1(x2, w1["q3"]), w1["q4"])  # is: head
    return optax.softmax_cross_entropy_with_integer_labels(x2, x1[1:])  # is: loss


def f6(w1, x1):
    x2 = jax.vmap(f5, in_axes=(None, 0))(w1, x1)
    return jnp.sum(x2) / x2.size  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    t1 = optax.adamw(optax.cosine_decay_schedule(1e-3, 1000), b2=0.98)

    def make():
        s1 = iter(jax.random.split(jax.random.key(52), 64))

        def g1(*s2):
            return 0.04 * jax.random.normal(next(s1), s2)

        def g2():
            w1 = {"p1": g1(3, N1, SIZES["h"], N6), "p2": g1(SIZES["h"], N6, N1)}
            w1 |= {"p3": g1(N1, N3), "p4": g1(N3, N1, 2 * N2), "p5": g1(N3, N2, N1)}
            return w1 | {"p6": jnp.zeros(N1), "p7": jnp.zeros(N1)}

        w1 = {"q1": g1(SIZES["v"], N1), "q2": [g2() for _ in range(N5)]}
        w1 |= {"q3": jnp.zeros(N1), "q4": g1(SIZES["v"], N1)}
        x1 = jax.random.randint(next(s1), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return w1, t1.init(w1), jax.tree.map(jnp.copy, w1), x1

    def f7(w1, w2, w3, x1):
        x2, x3 = jax.value_and_grad(f6)(w1, x1)
        x3, w2 = t1.update(x3, w2, w1)  # is: optimizer
        w1 = optax.apply_updates(w1, x3)  # is: optimizer
        w3 = jax.tree.map(lambda x4, x5: 0.999 * x4 + 0.001 * x5, w3, w1)  # is: optimizer
        return w1, w2, w3, x2

    return jax.jit(f7), make, None
