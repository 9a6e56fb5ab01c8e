"""Pictures cut into patches; slots that are mixtures of tokens go to experts; momentum."""

import json
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax, random

SIZES = {"d": 60, "f": 110, "e": 5, "l": 3, "b": 3, "h": 4, "slots": 3, "image": 24, "patch": 4}
SIZES |= {"classes": 37}
LARGE = {"d": 1280, "f": 4096, "e": 32, "l": 5, "b": 64, "h": 16, "slots": 8, "image": 224}
LARGE |= {"patch": 14, "classes": 1000}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
WIDTH, MLP, N_EXPERTS, DEPTH = (SIZES[n] for n in "dfel")
HEADS, SLOTS, CLASSES = SIZES["h"], SIZES["slots"], SIZES["classes"]
IMAGE, PATCH = SIZES["image"], SIZES["patch"]


class Affine(NamedTuple):
    kernel: Array
    bias: Array


class Norm(NamedTuple):
    scale: Array
    bias: Array


class Attention(NamedTuple):
    norm: Norm
    qkv: Affine
    proj: Affine


class Mlp(NamedTuple):
    norm: Norm
    fc1: Affine
    fc2: Affine


class SoftMoe(NamedTuple):
    norm: Norm
    phi: Array
    scale: Array
    fc1: Affine
    fc2: Affine


class Vit(NamedTuple):
    stem: Affine
    pos: Array
    blocks: list
    norm: Norm
    head: Affine


def layernorm(p, x):
    mu = x.mean(-1, keepdims=True)  # is: norm
    sigma2 = jnp.square(x - mu).mean(-1, keepdims=True)  # is: norm
    return (x - mu) * lax.rsqrt(sigma2 + 1e-6) * p.scale + p.bias  # is: norm


def affine(p, x):
    return x @ p.kernel + p.bias


def patchify(stem, images):
    dims = ("NHWC", "HWIO", "NHWC")
    kernel, stride = stem.kernel, (PATCH, PATCH)
    x = lax.conv_general_dilated(images, kernel, stride, "VALID", None, None, dims)  # is: embedding
    x = x + stem.bias  # is: embedding
    return x.reshape(x.shape[0], -1, WIDTH)  # is: embedding


def attention(p, x):
    b, n, _ = x.shape
    qkv = affine(p.qkv, layernorm(p.norm, x))  # is: attention
    qkv = qkv.reshape(b, n, 3, HEADS, WIDTH // HEADS)  # is: attention
    q, k, v = jnp.moveaxis(qkv, 2, 0)  # is: attention
    scores = jnp.einsum("bnhc,bmhc->bhnm", q, k)  # is: attention
    scores = jax.nn.softmax(scores / (WIDTH // HEADS) ** 0.5)  # is: attention
    out = jnp.einsum("bhnm,bmhc->bnhc", scores, v)  # is: attention
    return x + affine(p.proj, out.reshape(x.shape))  # is: attention


def mlp(p, x):
    y = affine(p.fc1, layernorm(p.norm, x))  # is: dense_mlp
    y = jax.nn.gelu(y)  # is: dense_mlp
    return x + affine(p.fc2, y)  # is: dense_mlp


def unit(x, axis):
    return x * lax.rsqrt(jnp.square(x).sum(axis=axis, keepdims=True) + 1e-6)


def soft_moe(p, x):
    t = layernorm(p.norm, x)
    phi = p.scale * unit(p.phi, 0)  # is: router
    logits = jnp.einsum("bnd,des->bnes", unit(t, -1), phi)  # is: router
    dispatch = jax.nn.softmax(logits, axis=1)  # is: router
    combine = jax.nn.softmax(logits.reshape(*t.shape[:2], -1), axis=-1)  # is: router
    combine = combine.reshape(logits.shape)  # is: router
    slots = jnp.einsum("bnd,bnes->ebsd", t, dispatch)  # is: permute
    hidden = jnp.einsum("ebsd,edf->ebsf", slots, p.fc1.kernel)  # is: grouped_gemm
    hidden = hidden + p.fc1.bias[:, None, None]  # is: expert_elementwise
    hidden = jax.nn.gelu(hidden)  # is: expert_elementwise
    slots = jnp.einsum("ebsf,efd->ebsd", hidden, p.fc2.kernel)  # is: grouped_gemm
    slots = slots + p.fc2.bias[:, None, None]  # is: expert_elementwise
    return x + jnp.einsum("ebsd,bnes->bnd", slots, combine)  # is: unpermute|combine


def vit(params, images):
    x = patchify(params.stem, images)
    x = x + params.pos  # is: embedding
    for attn, ffn in params.blocks:
        x = attention(attn, x)
        x = soft_moe(ffn, x) if isinstance(ffn, SoftMoe) else mlp(ffn, x)
    x = layernorm(params.norm, x)
    x = jnp.mean(x, axis=1)  # is: head
    return affine(params.head, x)  # is: head


def criterion(params, images, labels):
    logits = vit(params, images)
    target = optax.smooth_labels(jax.nn.one_hot(labels, CLASSES), 0.1)  # is: loss
    loss = optax.softmax_cross_entropy(logits, target)  # is: loss
    hits = jnp.argmax(logits, axis=-1) == labels  # is: loss
    return loss.mean(), hits.mean()  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    sgd = optax.sgd(optax.linear_schedule(0.02, 0.01, 100), momentum=0.9, nesterov=True)
    solver = optax.chain(optax.clip_by_global_norm(1.0), optax.add_decayed_weights(1e-4), sgd)

    def make():
        keys = iter(random.split(random.key(224), 8 * DEPTH + 8))

        def dense(*shape, fan):
            kernel = random.normal(next(keys), shape) * fan**-0.5
            return Affine(kernel, jnp.zeros((*shape[:-2], shape[-1])))

        def norm():
            return Norm(jnp.ones(WIDTH), jnp.zeros(WIDTH))

        def block(index):
            qkv = dense(WIDTH, 3 * WIDTH, fan=WIDTH)
            attn = Attention(norm(), qkv, dense(WIDTH, WIDTH, fan=WIDTH))
            if index < DEPTH // 2:
                fc1 = dense(WIDTH, MLP, fan=WIDTH)
                return attn, Mlp(norm(), fc1, dense(MLP, WIDTH, fan=MLP))
            phi = random.normal(next(keys), (WIDTH, N_EXPERTS, SLOTS)) * WIDTH**-0.5
            fc1 = dense(N_EXPERTS, WIDTH, MLP, fan=WIDTH)
            fc2 = dense(N_EXPERTS, MLP, WIDTH, fan=MLP)
            return attn, SoftMoe(norm(), phi, jnp.ones(()), fc1, fc2)

        tokens = (IMAGE // PATCH) ** 2
        fan = PATCH * PATCH * 3
        kernel = random.normal(next(keys), (PATCH, PATCH, 3, WIDTH)) * fan**-0.5
        params = Vit(
            stem=Affine(kernel, jnp.zeros(WIDTH)),
            pos=0.02 * random.normal(next(keys), (1, tokens, WIDTH)),
            blocks=[block(index) for index in range(DEPTH)],
            norm=norm(),
            head=dense(WIDTH, CLASSES, fan=WIDTH),
        )
        images = random.normal(next(keys), (SIZES["b"], IMAGE, IMAGE, 3))
        labels = random.randint(next(keys), (SIZES["b"],), 0, CLASSES)
        return params, solver.init(params), images, labels

    @jax.jit
    def step(params, state, images, labels):
        grad_fn = jax.value_and_grad(criterion, has_aux=True)
        (loss, accuracy), grads = grad_fn(params, images, labels)
        updates, state = solver.update(grads, state, params)  # is: optimizer
        params = optax.apply_updates(params, updates)  # is: optimizer
        return params, state, {"loss": loss, "accuracy": accuracy}

    return step, make, None
