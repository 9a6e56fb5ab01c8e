"""One class with everything: experts that choose their tokens, a mapped expert, muon."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np

SIZES = {"d": 60, "f": 88, "e": 5, "l": 3, "h": 5, "b": 3, "s": 50, "v": 333, "load": 2}
LARGE = {"d": 1536, "f": 3072, "e": 8, "l": 4, "h": 12, "b": 16, "s": 1024, "v": 24000}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"load=1": {"load": 1}}


class Mill:
    """A causal model, its loss and its training step."""

    def __init__(self, d, f, e, l, h, b, s, v, load):  # noqa: E741
        self.d, self.f, self.e, self.depth, self.h = d, f, e, l, h
        self.b, self.s, self.v = b, s, v
        self.room = max(1, load * s // e)
        angle = np.arange(s)[:, None] / 1e4 ** (np.arange(0, d // h, 2) / (d // h))
        self.cos, self.sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))

    def norm(self, scale, x):
        return scale * x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)  # is: norm

    def turn(self, x):
        even, odd = x[..., ::2], x[..., 1::2]  # is: attention
        cos, sin = self.cos[:, None], self.sin[:, None]
        first, second = even * cos - odd * sin, odd * cos + even * sin  # is: attention
        return jnp.concatenate([first, second], axis=-1)  # is: attention

    def attend(self, w, x):
        heads = (*x.shape[:2], self.h, self.d // self.h)
        q = self.turn(self.norm(w["qn"], (x @ w["q"]).reshape(heads)))  # is: attention
        k = self.turn(self.norm(w["kn"], (x @ w["k"]).reshape(heads)))  # is: attention
        v = (x @ w["v"]).reshape(heads)  # is: attention
        scores = jnp.einsum("bqhn,bkhn->bhqk", q, k) * heads[-1] ** -0.5  # is: attention
        scores = 30 * jnp.tanh(scores / 30)  # is: attention
        seen = jax.lax.broadcasted_iota(jnp.int32, (self.s, self.s), 0)  # is: attention
        hidden = seen < jax.lax.broadcasted_iota(jnp.int32, (self.s, self.s), 1)  # is: attention
        probs = jax.nn.softmax(scores - 1e9 * hidden, axis=-1)  # is: attention
        return jnp.einsum("bhqk,bkhn->bqhn", probs, v).reshape(x.shape) @ w["o"]  # is: attention

    def choose(self, w, x):
        """Each expert takes its best tokens: (b, e, c) weights and places."""
        affinity = jax.nn.softmax(x @ w["choose"], axis=-1)  # is: router
        by_expert = jnp.swapaxes(affinity, 1, 2)  # is: router
        return jax.lax.top_k(by_expert, self.room)  # is: router

    def expert(self, w, x):
        left = x @ w["left"]  # is: grouped_gemm
        right = x @ w["right"]  # is: grouped_gemm
        both = jax.nn.gelu(left) * right  # is: expert_elementwise
        return both @ w["back"]  # is: grouped_gemm

    def mixture(self, w, x):
        weight, place = self.choose(w, x)
        taken = jnp.take_along_axis(x[:, None], place[..., None], axis=2)  # is: permute
        made = jax.vmap(self.expert, in_axes=(0, 1), out_axes=1)(w["experts"], taken)
        made = made * weight[..., None]  # is: unpermute|combine
        batch = jnp.arange(x.shape[0])[:, None, None]  # is: unpermute|combine
        return jnp.zeros_like(x).at[batch, place].add(made)  # is: unpermute|combine

    def loss(self, w, tokens):
        x = w["table"].at[tokens[:, :-1]].get() * self.d**0.5  # is: embedding
        for layer in w["layers"]:
            x = x + self.attend(layer, self.norm(layer["n1"], x))  # is: attention
            x = x + self.mixture(layer, self.norm(layer["n2"], x))  # is: unpermute|combine
        x = self.norm(w["n3"], x)
        logits = jnp.einsum("bsd,vd->bsv", x, w["table"])  # is: head
        logits = 15 * jnp.tanh(logits / 15)  # is: head|loss
        target = tokens[:, 1:]
        at = jnp.take_along_axis(logits, target[..., None], axis=-1)  # is: loss
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1, keepdims=True) - at)  # is: loss

    def polar(self, m):
        tall = m.shape[-2] > m.shape[-1]
        x = jnp.matrix_transpose(m) if tall else m  # is: optimizer
        x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-7)  # is: optimizer
        for _ in range(5):
            a = jnp.einsum("...ij,...kj->...ik", x, x)  # is: optimizer
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x  # is: optimizer
        return jnp.matrix_transpose(x) if tall else x  # is: optimizer

    def update(self, path, w, m, g):
        m = 0.9 * m + g  # is: optimizer
        if w.ndim < 2 or "table" in jax.tree_util.keystr(path):
            return w - 1e-3 * jnp.sign(m), m  # is: optimizer
        wide = max(1.0, w.shape[-2] / w.shape[-1]) ** 0.5
        return w * (1 - 1e-4) - 0.02 * wide * self.polar(0.9 * m + g), m  # is: optimizer

    def step(self, w, m, tokens):
        value, g = jax.value_and_grad(self.loss)(w, tokens)
        both = jax.tree_util.tree_map_with_path(self.update, w, m, g)
        w, m = jax.tree.transpose(jax.tree.structure(w), jax.tree.structure((0, 0)), both)
        return w, m, value

    def make(self):
        keys = iter(jax.random.split(jax.random.key(77), 128))
        d, f, e = self.d, self.f, self.e

        def r(*s):
            return jax.random.normal(next(keys), s) * s[-2] ** -0.5

        layers = []
        for _ in range(self.depth):
            layer = {name: r(d, d) for name in "qkvo"}
            layer |= {"n1": jnp.ones((d,)), "n2": jnp.ones((d,)), "choose": r(d, e)}
            layer |= {"qn": jnp.ones((d // self.h,)), "kn": jnp.ones((d // self.h,))}
            layer["experts"] = {"left": r(e, d, f), "right": r(e, d, f), "back": r(e, f, d)}
            layers.append(layer)
        table = jax.random.normal(next(keys), (self.v, d)) * d**-0.5
        w = {"table": table, "layers": layers, "n3": jnp.ones((d,))}
        tokens = jax.random.randint(next(keys), (self.b, self.s + 1), 0, self.v)
        return w, jax.tree.map(jnp.zeros_like, w), tokens


def build(devices):
    """Step, its arguments, and where they lie."""
    mill = Mill(**SIZES)
    return jax.jit(mill.step, donate_argnums=(0, 1)), mill.make, None
