"""Someone else's trainer: capacity einsums, scan, remat, optax, sharding left to the compiler."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

VOCAB, WIDTH, FFN, EXPERTS, CHOSEN, DEPTH, HEADS, BATCH, LENGTH = 256, 64, 128, 8, 2, 2, 4, 8, 32


def rms(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def gate(x, weight, capacity):
    weights, chosen = jax.lax.top_k(jax.nn.softmax(x @ weight, -1), CHOSEN)
    weights = weights / weights.sum(-1, keepdims=True)
    picks = jax.nn.one_hot(chosen, EXPERTS)
    place = jnp.cumsum(picks.reshape(x.shape[0], -1, EXPERTS), 1).reshape(picks.shape) * picks - 1
    slot = jnp.where(place < capacity, place, -1).astype(jnp.int32)
    masks = jax.nn.one_hot(slot, capacity) * picks[..., None]
    return (masks * weights[..., None, None]).sum(2), masks.sum(2)


def moe_ffn(x, p):
    combine, dispatch = gate(x, p["wg"], int(1.25 * CHOSEN * x.shape[1] / EXPERTS))
    sent = jnp.einsum("bsec,bsd->ebcd", dispatch, x)
    hidden = jax.nn.gelu(jnp.einsum("ebcd,edf->ebcf", sent, p["w_in"]))
    done = jnp.einsum("ebcf,efd->ebcd", hidden, p["w_out"])
    return jnp.einsum("bsec,ebcd->bsd", combine, done)


def causal_attn(x, p):
    b, s, _ = x.shape
    q, k, v = ((x @ p[name]).reshape(b, s, HEADS, -1) for name in ("wq", "wk", "wv"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(WIDTH // HEADS)
    scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)
    return mixed.reshape(b, s, -1) @ p["wo"]


def block(x, p):
    x = x + causal_attn(rms(x, p["g1"]), p)
    return x + moe_ffn(rms(x, p["g2"]), p)


def forward(params, tokens):
    x = params["emb"][tokens]
    x, _ = jax.lax.scan(lambda x, p: (jax.checkpoint(block)(x, p), None), x, params["layers"])
    return rms(x, params["g"]) @ params["emb"].T


def loss_fn(params, tokens):
    logits = forward(params, tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


@jax.jit
def train_step(params, state, tokens):
    gradients = jax.grad(loss_fn)(params, tokens)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state


def setup():
    rng = np.random.default_rng(0)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) * 0.05, jnp.float32)

    layers = {name: normal(DEPTH, WIDTH, WIDTH) for name in ("wq", "wk", "wv", "wo")} | {
        "wg": normal(DEPTH, WIDTH, EXPERTS),
        "w_in": normal(DEPTH, EXPERTS, WIDTH, FFN),
        "w_out": normal(DEPTH, EXPERTS, FFN, WIDTH),
        "g1": jnp.ones((DEPTH, WIDTH)),
        "g2": jnp.ones((DEPTH, WIDTH)),
    }
    params = {"emb": normal(VOCAB, WIDTH), "g": jnp.ones(WIDTH), "layers": layers}
    shards = jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec()), params)
    by_expert = NamedSharding(mesh, PartitionSpec(None, "model"))
    shards["layers"] |= {"w_in": by_expert, "w_out": by_expert}
    params = jax.device_put(params, shards)
    tokens = rng.integers(0, VOCAB, (BATCH, LENGTH + 1))
    tokens = jax.device_put(tokens, NamedSharding(mesh, PartitionSpec("data")))
    return params, OPTIMIZER.init(params), tokens


def train(state, steps):
    params, optimizer, tokens = state
    for _ in range(steps):
        params, optimizer = train_step(params, optimizer, tokens)
    return params, optimizer, tokens
