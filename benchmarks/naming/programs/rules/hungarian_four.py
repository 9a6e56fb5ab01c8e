"""Four devices, bf16 on fp32 weights: one-hot products into slots, sent round; loss in pieces."""

import json
import os
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

DEVICES = 4
SIZES = {"d": 96, "f": 148, "e": 8, "k": 2, "l": 3, "b": 8, "s": 48, "v": 320, "h": 4, "c": 4}
LARGE = {"d": 1280, "f": 1536, "e": 16, "l": 3, "b": 8, "s": 768, "v": 15104, "h": 10, "c": 6}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"e=d": {"e": 40, "d": 40}}
nDim, nInner, nUnits, nPick, nDepth = (SIZES[n] for n in "dfekl")
nRoom = -(-SIZES["b"] // DEVICES * SIZES["s"] * nPick * 5 // (4 * nUnits))


def bfCast(arr):
    return arr.astype(jnp.bfloat16)


def arrEven(arrX, arrG):
    flX = arrX.astype(jnp.float32)  # is: norm
    flS = jax.lax.rsqrt(jnp.mean(flX * flX, axis=-1, keepdims=True) + 1e-6)  # is: norm
    return bfCast(flX * flS * arrG)  # is: norm


def arrSee(dctW, arrX):
    nB, nT, _ = arrX.shape
    arrQ = (arrX @ bfCast(dctW["wQ"])).reshape(nB, nT, SIZES["h"], -1)  # is: attention
    arrK = (arrX @ bfCast(dctW["wK"])).reshape(nB, nT, SIZES["h"], -1)  # is: attention
    arrV = (arrX @ bfCast(dctW["wV"])).reshape(nB, nT, SIZES["h"], -1)  # is: attention
    flA = jnp.einsum("bqhc,bkhc->bhqk", arrQ, arrK).astype(jnp.float32)  # is: attention
    boolA = jnp.tril(jnp.ones((nT, nT), jnp.bool_))  # is: attention
    flA = jnp.where(boolA, flA / (nDim / SIZES["h"]) ** 0.5, -1e9)  # is: attention
    arrA = bfCast(jax.nn.softmax(flA, axis=-1))  # is: attention
    arrY = jnp.einsum("bhqk,bkhc->bqhc", arrA, arrV)  # is: attention
    return arrY.reshape(nB, nT, nDim) @ bfCast(dctW["wO"])  # is: attention


def arrAsk(dctW, arrX):
    arrT = arrX.reshape(-1, nDim)
    flP = jax.nn.softmax(arrT.astype(jnp.float32) @ dctW["wR"], axis=-1)  # is: router
    flTop, iTop = jax.lax.top_k(flP, nPick)  # is: router
    flTop = flTop / jnp.sum(flTop, axis=-1, keepdims=True)  # is: router
    iHot = jax.nn.one_hot(iTop.T, nUnits, dtype=jnp.int32)  # is: router|permute
    iPos = jnp.cumsum(iHot.reshape(-1, nUnits), axis=0)  # is: router|permute
    iPos = jnp.sum((iPos.reshape(iHot.shape) - 1) * iHot, axis=-1)  # is: router|permute
    arrSlot = jax.nn.one_hot(iPos, nRoom, dtype=jnp.bfloat16)  # is: router|permute
    iHot, flTop = bfCast(iHot), bfCast(flTop)  # is: router|permute
    arrGo = jnp.einsum("kte,ktc->tec", iHot, arrSlot)  # is: router|permute
    arrMul = jnp.einsum("tk,kte,ktc->tec", flTop, iHot, arrSlot)  # is: router|permute
    arrE = jnp.einsum("tec,td->ecd", arrGo, arrT)  # is: permute|dispatch
    arrE = jax.lax.all_to_all(arrE, "axN", 0, 1, tiled=True)  # is: dispatch
    arrU = jnp.einsum("ecd,edf->ecf", arrE, bfCast(dctW["wU"]))  # is: grouped_gemm
    arrL = jnp.einsum("ecd,edf->ecf", arrE, bfCast(dctW["wL"]))  # is: grouped_gemm
    arrU = jax.nn.silu(arrU) * arrL  # is: expert_elementwise
    arrE = jnp.einsum("ecf,efd->ecd", arrU, bfCast(dctW["wD"]))  # is: grouped_gemm
    arrE = jax.lax.all_to_all(arrE, "axN", 1, 0, tiled=True)  # is: combine
    return jnp.einsum("tec,ecd->td", arrMul, arrE).reshape(arrX.shape)  # is: unpermute|combine


@partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
def tplLayer(arrX, dctW):
    arrX = arrX + arrSee(dctW, arrEven(arrX, dctW["gA"]))  # is: attention
    arrX = arrX + arrAsk(dctW, arrEven(arrX, dctW["gB"]))  # is: unpermute|combine
    return arrX, None


def flCost(dctW, iIn, iOut):
    arrX = bfCast(dctW["wIn"][iIn]) + bfCast(dctW["wPos"])  # is: embedding
    arrX, _ = jax.lax.scan(tplLayer, arrX, dctW["dctLayers"])
    arrX = arrEven(arrX, dctW["gC"])
    wOut = bfCast(dctW["wOut"])  # is: head

    @jax.checkpoint
    def flPiece(tplPiece):
        arrC, iC = tplPiece
        flZ = jnp.dot(arrC, wOut, preferred_element_type=jnp.float32)  # is: head
        flHit = jnp.take_along_axis(flZ, iC[..., None], axis=-1)[..., 0]  # is: loss
        return jnp.sum(jax.nn.logsumexp(flZ, axis=-1) - flHit)  # is: loss

    arrX = jnp.stack(jnp.split(arrX, SIZES["c"], axis=1))  # is: head|loss
    iOut = jnp.stack(jnp.split(iOut, SIZES["c"], axis=1))  # is: loss
    flSums = jax.lax.map(flPiece, (arrX, iOut))
    return jnp.sum(flSums) / (iOut.size * DEVICES)  # is: loss


def tplStep(dctW, dctS, iIn, iOut):
    flC, dctG = jax.value_and_grad(flCost)(dctW, iIn, iOut)
    dctOwn = {strK: dctG["dctLayers"].pop(strK) for strK in ("wU", "wL", "wD")}
    dctG = jax.tree.map(lambda g: jax.lax.psum(g, "axN"), dctG)  # is: gradient_reduce
    dctG["dctLayers"] |= dctOwn
    dctS = jax.tree.map(lambda s, g: s + g * g, dctS, dctG)  # is: optimizer
    dctG = jax.tree.map(lambda g, s: g * jax.lax.rsqrt(s + 1e-7), dctG, dctS)  # is: optimizer
    dctW = jax.tree.map(lambda w, g: w - 0.01 * g - 1e-5 * w, dctW, dctG)  # is: optimizer
    return dctW, dctS, jax.lax.psum(flC, "axN")  # is: collectives|loss


def build(devices):
    """Step, its arguments, and where they lie."""
    mesh = Mesh(devices, ("axN",))
    dctL = {strK: P() for strK in ("gA", "gB", "wQ", "wK", "wV", "wO", "wR")}
    dctL |= {strK: P(None, "axN") for strK in ("wU", "wL", "wD")}
    dctP = {"wIn": P(), "wPos": P(), "dctLayers": dctL, "gC": P(), "wOut": P()}
    tplP = (dctP, dctP, P("axN"), P("axN"))

    def make():
        itKey = iter(jax.random.split(jax.random.key(107), 32))

        def arrNew(*tplS):
            return jax.random.normal(next(itKey), tplS) * tplS[-2] ** -0.5

        n, d, f, e = nDepth, nDim, nInner, nUnits
        dctL = {strK: arrNew(n, d, d) for strK in ("wQ", "wK", "wV", "wO")}
        dctL |= {"gA": jnp.ones((n, d)), "gB": jnp.ones((n, d)), "wR": arrNew(n, d, e)}
        dctL |= {"wU": arrNew(n, e, d, f), "wL": arrNew(n, e, d, f), "wD": arrNew(n, e, f, d)}
        dctW = {"wIn": arrNew(SIZES["v"], d), "wPos": arrNew(SIZES["s"], d), "dctLayers": dctL}
        dctW |= {"gC": jnp.ones(d), "wOut": arrNew(d, SIZES["v"])}
        iAll = jax.random.randint(next(itKey), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return dctW, jax.tree.map(jnp.zeros_like, dctW), iAll[:, :-1], iAll[:, 1:]

    fnStep = jax.shard_map(
        tplStep, mesh=mesh, in_specs=tplP, out_specs=(dctP, dctP, P()), check_vma=False
    )
    tplAt = jax.tree.map(lambda p: NamedSharding(mesh, p), tplP, is_leaf=lambda p: isinstance(p, P))
    return jax.jit(fnStep, donate_argnums=(0, 1)), make, tplAt
