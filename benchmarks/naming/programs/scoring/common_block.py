"""Groups of rows, two picks, the second by chance; norms with bias come last; adafactor."""

import json
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 60, "f": 140, "e": 5, "l": 2, "b": 4, "s": 40, "v": 300, "h": 3, "g": 5}
LARGE = {"d": 1280, "f": 5120, "e": 16, "l": 4, "b": 8, "s": 768, "v": 20000, "h": 10, "g": 24}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"e=d": {"e": 30, "d": 30}}
ND, NF, NE, NL, NG = (SIZES[n] for n in "dfelg")
NS = SIZES["b"] * SIZES["s"] // NG
NC = max(4, -(-NS * 5 // (NE * 2)))


def QA(X, G, B):
    XM = jnp.mean(X, axis=-1, keepdims=True)  # is: norm
    XV = jnp.mean((X - XM) ** 2, axis=-1, keepdims=True)  # is: norm
    return (X - XM) / jnp.sqrt(XV + 1e-5) * G + B  # is: norm


def QB(W, X):
    NT = X.shape[1]
    Y = jnp.einsum("btd,dphc->pbhtc", X, W["A1"]) + W["A2"][:, None, :, None]  # is: attention
    S = jnp.einsum("bhic,bhjc->bhij", Y[0], Y[1]) * (ND // SIZES["h"]) ** -0.5  # is: attention
    M = jax.lax.broadcasted_iota(jnp.int32, (NT, NT), 1)  # is: attention
    M = jnp.greater(M, jnp.arange(NT)[:, None])  # is: attention
    S = jnp.exp(jax.nn.log_softmax(jnp.where(M, -1e10, S), axis=-1))  # is: attention
    Y = jnp.einsum("bhij,bhjc->bihc", S, Y[2])  # is: attention
    return jnp.einsum("bihc,hcd->bid", Y, W["A3"]) + W["A4"]  # is: attention


def QC(W, X, KY):
    Y = X.reshape(NG, NS, ND)
    P = jax.nn.softmax(jnp.einsum("gsd,de->gse", Y, W["B1"]), axis=-1)  # is: router
    H1 = jax.nn.one_hot(jnp.argmax(P, axis=-1), NE)  # is: router
    H2 = jax.nn.one_hot(jnp.argmax(P * (1 - H1), axis=-1), NE)  # is: router
    P1 = jnp.sum(P * H1, axis=-1)  # is: router
    P2 = jnp.sum(P * H2, axis=-1)  # is: router
    AX = jnp.mean(jnp.mean(P, axis=1) * jnp.mean(H1, axis=1)) * NE**2  # is: router|loss
    PS = P1 + P2 + 1e-9  # is: router
    P1, P2 = P1 / PS, P2 / PS  # is: router
    H2 = H2 * (jax.random.uniform(KY, P2.shape) < 2 * P2)[..., None]  # is: router
    L1 = jnp.cumsum(H1, axis=1) - H1  # is: router|permute
    L2 = jnp.cumsum(H2, axis=1) - H2 + jnp.sum(H1, axis=1, keepdims=True)  # is: router|permute
    L1 = jnp.sum(L1 * H1, axis=-1).astype(jnp.int32)  # is: router|permute
    L2 = jnp.sum(L2 * H2, axis=-1).astype(jnp.int32)  # is: router|permute
    C1 = jax.nn.one_hot(L1, NC)  # is: router|permute
    C2 = jax.nn.one_hot(L2, NC)  # is: router|permute
    T = jnp.einsum("gs,gse,gsc->gsec", P1, H1, C1)  # is: router|permute
    T = T + jnp.einsum("gs,gse,gsc->gsec", P2, H2, C2)  # is: router|permute
    U = (T > 0).astype(Y.dtype)  # is: router|permute
    Z = jnp.einsum("gsec,gsd->egcd", U, Y)  # is: permute
    Z = jnp.einsum("egcd,edf->egcf", Z, W["B2"])  # is: grouped_gemm
    Z = jax.nn.relu(Z + W["B3"][:, None, None])  # is: expert_elementwise
    Z = jnp.einsum("egcf,efd->egcd", Z, W["B4"])  # is: grouped_gemm
    Z = Z + W["B5"][:, None, None]  # is: expert_elementwise
    Z = jnp.einsum("gsec,egcd->gsd", T, Z)  # is: unpermute|combine
    return Z.reshape(X.shape), AX


def QD(W, IX, KY):
    X = W["C1"][IX]  # is: embedding
    X = X + W["C2"]  # is: embedding

    def QE(X, WK):
        W, KY = WK
        X = QA(X + QB(W, X), W["A5"], W["A6"])  # is: attention
        Z, AX = QC(W, X, KY)
        return QA(X + Z, W["B6"], W["B7"]), AX  # is: unpermute|combine

    KS = jax.random.split(KY, NL)  # is: router
    X, AX = jax.lax.scan(QE, X, (W["LL"], KS))
    AX = jnp.sum(AX)  # is: router|loss
    return X @ W["C3"] + W["C4"], AX  # is: head


def QF(W, IX, KY):
    Y, AX = QD(W, IX[:, :-1], KY)
    Y = Y - jax.nn.logsumexp(Y, axis=-1, keepdims=True)  # is: loss
    T = IX[:, 1:]  # is: loss
    Y = jnp.take_along_axis(Y, T[..., None], axis=-1)  # is: loss
    return 0.01 * AX - jnp.mean(Y)  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    OP = optax.adafactor(1e-3, min_dim_size_to_factor=16, momentum=None)

    def make():
        KS = iter(jax.random.split(jax.random.key(1957), 24))

        def R(*N):
            return 0.05 * jax.random.truncated_normal(next(KS), -2, 2, N)

        NH = SIZES["h"]
        LL = {"A1": R(NL, ND, 3, NH, ND // NH), "A2": R(NL, 3, NH, ND // NH)}
        LL |= {"A3": R(NL, NH, ND // NH, ND), "A4": R(NL, ND), "B1": R(NL, ND, NE)}
        LL |= {"A5": jnp.ones((NL, ND)), "A6": R(NL, ND), "B6": jnp.ones((NL, ND))}
        LL |= {"B2": R(NL, NE, ND, NF), "B3": R(NL, NE, NF), "B4": R(NL, NE, NF, ND)}
        LL |= {"B5": R(NL, NE, ND), "B7": R(NL, ND)}
        W = {"C1": R(SIZES["v"], ND), "C2": R(SIZES["s"], ND), "LL": LL}
        W |= {"C3": R(ND, SIZES["v"]), "C4": R(SIZES["v"])}
        IX = jax.random.randint(next(KS), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return W, OP.init(W), jax.random.key(7), IX

    @jax.jit
    def QG(W, S, KY, IX):
        KY, K2 = jax.random.split(KY)  # is: router
        C, G = jax.value_and_grad(QF)(W, IX, K2)
        G, S = OP.update(G, S, W)  # is: optimizer
        return optax.apply_updates(W, G), S, KY, C  # is: optimizer

    return QG, make, None
