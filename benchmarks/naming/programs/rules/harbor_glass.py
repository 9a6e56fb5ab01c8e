"""Attention beside the mixture on one norm, dense blocks between, a fused loss, bf16 copies."""

import functools
import json
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 96, "f": 40, "wide": 144, "e": 6, "k": 2, "l": 4, "h": 6, "kv": 2, "b": 2, "s": 56}
SIZES |= {"v": 400, "pieces": 4, "window": 20}
LARGE = {
    "d": 2048,
    "f": 1024,
    "wide": 5632,
    "e": 16,
    "l": 6,
    "h": 16,
    "kv": 4,
    "b": 8,
    "s": 2048,
    "v": 32768,
    "pieces": 8,
    "window": 512,
}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"k=4": {"k": 4}}
D, E, K, H, KV = SIZES["d"], SIZES["e"], SIZES["k"], SIZES["h"], SIZES["kv"]
SIZE = D // H


def rms_norm(x, weight):
    f = x.astype(jnp.float32)  # is: norm
    f = f * jax.lax.rsqrt(jnp.mean(f**2, axis=-1, keepdims=True) + 1e-5)  # is: norm
    return (f * weight.astype(jnp.float32)).astype(x.dtype)  # is: norm


def rotary(x):
    half = SIZE // 2
    freq = 150000.0 ** -(jnp.arange(half) / half)
    angle = jnp.arange(x.shape[1])[:, None, None] * freq
    c, s = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    a, b = x[..., :half], x[..., half : 2 * half]
    return jnp.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def attention(p, x, window):
    b, s, _ = x.shape
    qkv = x @ p["qkv"] + p["qkv_bias"]  # is: attention
    qkv = qkv.reshape(b, s, H + 2 * KV, SIZE)  # is: attention
    q, k, v = jnp.split(qkv, [H, H + KV], axis=2)  # is: attention
    q, k = rotary(q).reshape(b, s, KV, H // KV, SIZE), rotary(k)  # is: attention
    logits = jnp.einsum("bqgmn,bkgn->bgmqk", q, k).astype(jnp.float32)  # is: attention
    logits = logits * SIZE**-0.5  # is: attention
    gap = jnp.arange(s)[:, None] - jnp.arange(s)[None]  # is: attention
    logits = jnp.where((gap >= 0) & (gap < window), logits, -1e30)  # is: attention
    sink = p["sink"].reshape(KV, H // KV, 1, 1).astype(jnp.float32)  # is: attention
    top = jnp.maximum(logits.max(-1, keepdims=True), sink)  # is: attention
    top = jax.lax.stop_gradient(top)  # is: attention
    e = jnp.exp(logits - top)  # is: attention
    probs = e / (e.sum(-1, keepdims=True) + jnp.exp(sink - top))  # is: attention
    y = jnp.einsum("bgmqk,bkgn->bqgmn", probs.astype(x.dtype), v)  # is: attention
    return y.reshape(b, s, H * SIZE) @ p["o"]  # is: attention


def clamped(h):
    gate, up = h[..., ::2], h[..., 1::2]
    gate, up = jnp.minimum(gate, 7.0), jnp.clip(up, -7.0, 7.0)
    return gate * jax.nn.sigmoid(1.702 * gate) * (up + 1)


def moe(p, x):
    t = x.reshape(-1, D)
    scores = jnp.dot(t, p["router"], preferred_element_type=jnp.float32)  # is: router
    scores = scores + p["router_bias"]  # is: router
    top, index = jax.lax.top_k(scores, K)  # is: router
    weights = jax.nn.softmax(top, axis=-1).astype(x.dtype)  # is: router
    ids = jax.lax.broadcasted_iota(jnp.int32, (t.shape[0], K), 0).reshape(-1)  # is: permute
    packed = (index.reshape(-1), ids, weights.reshape(-1))
    owner, ids, weights = jax.lax.sort(packed, num_keys=1)  # is: permute
    edges = jnp.searchsorted(owner, jnp.arange(E + 1))  # is: permute|router
    sizes = jnp.diff(edges).astype(jnp.int32)  # is: permute|router
    rows = t[ids]  # is: permute
    h = jax.lax.ragged_dot(rows, p["gate_up"], sizes)  # is: grouped_gemm
    h = h + p["gate_up_bias"][owner]  # is: expert_elementwise
    h = clamped(h)  # is: expert_elementwise
    out = jax.lax.ragged_dot(h, p["down"], sizes)  # is: grouped_gemm
    out = out + p["down_bias"][owner]  # is: expert_elementwise
    out = out * weights[:, None]  # is: unpermute|combine
    y = jnp.zeros_like(t).at[ids].add(out)  # is: unpermute|combine
    h = clamped(t @ p["shared_gate_up"])  # is: shared_expert
    y = y + h @ p["shared_down"]  # is: shared_expert
    return y.reshape(x.shape)


def mlp(p, x):
    h = clamped(x @ p["gate_up"])  # is: dense_mlp
    return h @ p["down"]  # is: dense_mlp


@functools.partial(jax.checkpoint, static_argnums=(2,))
def block(p, x, number):
    z = rms_norm(x, p["norm"])
    window = SIZES["window"] if number % 4 < 2 else SIZES["s"]
    a = attention(p, z, window)
    if number % 2:
        y = moe(p["moe"], z)
        return x + a + y  # is: attention|unpermute|combine|shared_expert
    y = mlp(p["mlp"], z)
    return x + a + y  # is: attention|dense_mlp


@jax.custom_vjp
def fused_loss(x, out, labels):
    return fused_forward(x, out, labels)[0]


def fused_forward(x, out, labels):
    """Piece by piece, so that no more than one piece's logits are there."""

    def piece(_, part):
        rows, label = part
        logits = jnp.dot(rows, out, preferred_element_type=jnp.float32)  # is: head
        total = jax.nn.logsumexp(logits, axis=-1)  # is: loss
        at = jnp.take_along_axis(logits, label[:, None], axis=-1)[:, 0]  # is: loss
        return None, (total, total - at)  # is: loss

    parts = (x.reshape(SIZES["pieces"], -1, D), labels.reshape(SIZES["pieces"], -1))
    _, (total, each) = jax.lax.scan(piece, None, parts)
    return each.mean(), (x, out, labels, total)  # is: loss


def fused_backward(kept, g):
    x, out, labels, total = kept
    scale = g / labels.size  # is: loss

    def piece(grad, part):
        rows, label, z = part
        logits = jnp.dot(rows, out, preferred_element_type=jnp.float32)  # is: head
        p = jnp.exp(logits - z[:, None])  # is: loss
        p = p - (label[:, None] == jnp.arange(p.shape[-1]))  # is: loss
        p = (p * scale).astype(rows.dtype)  # is: loss
        more = jnp.dot(rows.T, p, preferred_element_type=jnp.float32)  # is: head
        return grad + more, p @ out.T  # is: head

    parts = (x.reshape(SIZES["pieces"], -1, D), labels.reshape(SIZES["pieces"], -1), total)
    grad, back = jax.lax.scan(piece, jnp.zeros(out.shape), parts)
    return back.reshape(x.shape), grad.astype(out.dtype), None  # is: head


fused_loss.defvjp(fused_forward, fused_backward)


def forward(p, tokens, labels):
    x = jnp.take(p["embed"], tokens, axis=0, mode="clip")  # is: embedding
    for number, layer in enumerate(p["layers"]):
        x = block(layer, x, number)
    x = rms_norm(x, p["norm"])
    return fused_loss(x.reshape(-1, D), p["out"], labels.reshape(-1))


def build(devices):
    """Step, its arguments, and where they lie."""
    adam = optax.adamw(optax.warmup_cosine_decay_schedule(1e-3, 4e-3, 4, 1000), b2=0.95)
    tx = optax.chain(optax.clip_by_global_norm(1.0), adam)

    def make():
        keys = iter(jax.random.split(jax.random.key(123), 256))
        f, wide, v = SIZES["f"], SIZES["wide"], SIZES["v"]

        def r(*s):
            return jax.random.normal(next(keys), s) * s[-2] ** -0.5

        def layer(number):
            p = {"norm": jnp.ones((D,)), "qkv": r(D, (H + 2 * KV) * SIZE), "o": r(H * SIZE, D)}
            p |= {"qkv_bias": jnp.zeros(((H + 2 * KV) * SIZE,)), "sink": jnp.zeros((H,))}
            if number % 2 == 0:
                return p | {"mlp": {"gate_up": r(D, 2 * wide), "down": r(wide, D)}}
            moe = {"router": r(D, E), "router_bias": jnp.zeros((E,))}
            moe |= {"gate_up": r(E, D, 2 * f), "gate_up_bias": jnp.zeros((E, 2 * f))}
            moe |= {"down": r(E, f, D), "down_bias": jnp.zeros((E, D))}
            moe |= {"shared_gate_up": r(D, 2 * f), "shared_down": r(f, D)}
            return p | {"moe": moe}

        master = {
            "embed": jax.random.normal(next(keys), (v, D)),
            "layers": [layer(number) for number in range(SIZES["l"])],
            "norm": jnp.ones((D,)),
            "out": r(D, v),
        }
        half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), master)
        tokens = jax.random.randint(next(keys), (SIZES["b"], SIZES["s"] + 1), 0, v)
        return master, half, tx.init(master), tokens[:, :-1], tokens[:, 1:]

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(master, half, state, tokens, labels):
        value, grads = jax.value_and_grad(forward)(half, tokens, labels)
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)  # is: optimizer
        updates, state = tx.update(grads, state, master)  # is: optimizer
        master = optax.apply_updates(master, updates)  # is: optimizer
        half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), master)  # is: optimizer
        return master, half, state, value

    return step, make, None
