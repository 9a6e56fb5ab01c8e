"""Groups and then experts, and a table read by products of keys; local attention; adafactor."""

import json
import os

import jax
import jax.numpy as jnp

SIZES = {"d": 64, "f": 72, "g": 3, "e": 4, "k": 2, "l": 2, "b": 4, "s": 48, "v": 370, "h": 4}
SIZES |= {"window": 12, "keys": 9, "near": 3, "readers": 2}
LARGE = {
    "d": 1024,
    "f": 2816,
    "g": 4,
    "e": 8,
    "l": 4,
    "b": 8,
    "s": 2048,
    "v": 32768,
    "h": 8,
    "window": 256,
    "keys": 256,
    "near": 8,
}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"k=1": {"k": 1}}
D, H, G, E, K = (SIZES[name] for name in "dhgek")
WINDOW, KEYS, NEAR, READERS = (SIZES[name] for name in ("window", "keys", "near", "readers"))
TOKENS = SIZES["b"] * SIZES["s"]
OUTER = -(-TOKENS * 3 // (2 * G))
INNER = -(-OUTER * K * 5 // (4 * E))


def norm(x, g):
    mean = jnp.mean(x, axis=-1, keepdims=True)  # is: norm
    x = x - mean  # is: norm
    return x * g / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)  # is: norm


def nearby(w, x):
    """Each block of queries sees itself and the block before."""
    b, s, _ = x.shape
    blocks = (b, s // WINDOW, WINDOW, H, D // H)
    q, k, v = (jnp.dot(x, w[name]).reshape(blocks) for name in ("q", "k", "v"))  # is: attention

    def with_last(a):
        last = jnp.pad(a, ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))[:, :-1]  # is: attention
        return jnp.concatenate([last, a], axis=2)  # is: attention

    scores = jnp.einsum("bwqhn,bwkhn->bwhqk", q, with_last(k))  # is: attention
    scores = scores * (D // H) ** -0.5  # is: attention
    back = WINDOW + jnp.arange(WINDOW)[:, None] - jnp.arange(2 * WINDOW)  # is: attention
    scores = scores + w["relative"][:, jnp.clip(back, 0, WINDOW)]  # is: attention
    open_ = (back >= 0) & (back <= WINDOW)  # is: attention
    inside = jnp.arange(s // WINDOW)[:, None] * WINDOW + jnp.arange(2 * WINDOW)  # is: attention
    open_ = open_ & (inside >= WINDOW)[:, None, None]  # is: attention
    probs = jax.nn.softmax(jnp.where(open_, scores, -1e30))  # is: attention
    y = jnp.einsum("bwhqk,bwkhn->bwqhn", probs, with_last(v))  # is: attention
    return jnp.dot(y.reshape(b, s, D), w["o"])  # is: attention


def seats(choice, kinds):
    """How many before each one chose the same."""
    chosen = jax.nn.one_hot(choice, kinds, dtype=jnp.int32)
    return jnp.sum((jnp.cumsum(chosen, axis=0) - chosen) * chosen, axis=-1)


def within(w, x):
    """One group: its own router, places and experts; ``x`` is (OUTER, d)."""
    odds = jax.nn.softmax(x @ w["inner"])  # is: router
    share, who = jax.lax.top_k(odds, K)  # is: router
    share = share / share.sum(-1, keepdims=True)  # is: router
    who = who.reshape(-1)
    seat = seats(who, E)  # is: permute|router
    seat = jnp.where(seat < INNER, seat, INNER)  # is: permute
    copies = jnp.repeat(x, K, axis=0)  # is: permute
    held = jnp.zeros((E, INNER, D)).at[who, seat].set(copies, mode="drop")  # is: permute
    deep = jnp.einsum("ecd,edf->ecf", held, w["up"])  # is: grouped_gemm
    deep = jax.nn.silu(deep)  # is: expert_elementwise
    held = jnp.einsum("ecf,efd->ecd", deep, w["down"])  # is: grouped_gemm
    back = held.at[who, seat].get(mode="fill", fill_value=0)  # is: unpermute
    back = back.reshape(-1, K, D) * share[..., None]  # is: unpermute|combine
    return back.sum(1)  # is: unpermute|combine


def two_levels(w, x):
    flat = x.reshape(-1, D)
    odds = jax.nn.softmax(flat @ w["outer"])  # is: router
    group = odds.argmax(-1)  # is: router
    worth = jnp.take_along_axis(odds, group[:, None], axis=-1)  # is: router
    part = jnp.mean(group[:, None] == jnp.arange(G), axis=0)  # is: router|loss
    even = G * jnp.sum(part * odds.mean(0))  # is: router|loss
    seat = seats(group, G)  # is: permute|router
    seat = jnp.where(seat < OUTER, seat, OUTER)  # is: permute
    sent = jnp.zeros((G, OUTER, D)).at[group, seat].set(flat, mode="drop")  # is: permute
    done = jax.vmap(within)(w["groups"], sent)
    back = done.at[group, seat].get(mode="fill", fill_value=0)  # is: unpermute
    return (back * worth).reshape(x.shape), even  # is: unpermute|combine


def recall(w, x):
    """Rows of a table, found by the best sums of two half keys."""
    flat = x.reshape(-1, D)
    q = jnp.einsum("td,dran->tran", flat, w["query"])  # is: router
    half = jnp.einsum("tran,rakn->trak", q, w["halves"])  # is: router
    score, at = jax.lax.top_k(half, NEAR)  # is: router
    pairs = score[:, :, 0, :, None] + score[:, :, 1, None, :]  # is: router
    names = at[:, :, 0, :, None] * KEYS + at[:, :, 1, None, :]  # is: router
    best, pick = jax.lax.top_k(pairs.reshape(*pairs.shape[:2], -1), NEAR)  # is: router
    row = jnp.take_along_axis(names.reshape(*names.shape[:2], -1), pick, axis=-1)  # is: router
    share = jax.nn.softmax(best)  # is: router
    found = jnp.take(w["rows"], row, axis=0)  # is: embedding|permute
    y = jnp.einsum("trj,trjd->td", share, found)  # is: unpermute|combine
    return y.reshape(x.shape)


def pair(x, w):
    x = x + nearby(w["a1"], norm(x, w["n1"]))  # is: attention
    y, even = two_levels(w["moe"], norm(x, w["n2"]))
    x = x + y  # is: unpermute|combine
    z = norm(x, w["n3"])
    a = nearby(w["a2"], z)
    y = recall(w["memory"], z)
    return x + a + y, even  # is: attention|unpermute|combine


def cost(w, inputs, targets):
    x = jnp.take(w["in"], inputs, axis=0)  # is: embedding
    x, even = jax.lax.scan(pair, x, w["pairs"])
    x = norm(x, w["n"])
    logits = jnp.matmul(x, w["out"])  # is: head
    entry = jax.nn.one_hot(targets, SIZES["v"])  # is: loss
    value = -jnp.sum(jax.nn.log_softmax(logits) * entry, axis=-1)  # is: loss
    return value.mean() + 0.01 * even.sum()  # is: loss


def empty(p):
    if p.ndim < 2:
        return (jnp.zeros(p.shape),)
    return jnp.zeros(p.shape[:-1]), jnp.zeros((*p.shape[:-2], p.shape[-1]))


def factored(w, g, state, count):
    count = count + 1  # is: optimizer
    keep = 1.0 - count**-0.8  # is: optimizer

    def one(p, g, state):
        square = g * g + 1e-30  # is: optimizer
        if len(state) == 1:
            full = keep * state[0] + (1 - keep) * square  # is: optimizer
            u, state = g * jax.lax.rsqrt(full), (full,)  # is: optimizer
        else:
            row = keep * state[0] + (1 - keep) * square.mean(-1)  # is: optimizer
            col = keep * state[1] + (1 - keep) * square.mean(-2)  # is: optimizer
            lean = row / row.mean(-1, keepdims=True)  # is: optimizer
            u = g * jax.lax.rsqrt(lean)[..., None]  # is: optimizer
            u = u * jax.lax.rsqrt(col)[..., None, :]  # is: optimizer
            state = (row, col)
        u = u / jnp.maximum(1.0, jnp.sqrt(jnp.mean(u * u)))  # is: optimizer
        size = jnp.maximum(1e-3, jnp.sqrt(jnp.mean(p * p)))  # is: optimizer
        return p - 0.02 * size * u, state  # is: optimizer

    leaves, tree = jax.tree.flatten(w)
    done = [one(*each) for each in zip(leaves, jax.tree.leaves(g), state, strict=True)]
    return tree.unflatten([p for p, _ in done]), [s for _, s in done], count


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        source = iter(jax.random.split(jax.random.key(8), 64))
        n, f, v, half = SIZES["l"], SIZES["f"], SIZES["v"], D // 4

        def r(*s, scale=None):
            return jax.random.normal(next(source), s) * (scale or s[-2] ** -0.5)

        def local():
            w = {name: r(n, D, D) for name in ("q", "k", "v", "o")}
            return w | {"relative": jnp.zeros((n, H, WINDOW + 1))}

        groups = {"inner": r(n, G, D, E), "up": r(n, G, E, D, f), "down": r(n, G, E, f, D)}
        memory = {
            "query": r(n, D, READERS, 2, half, scale=D**-0.5),
            "halves": r(n, READERS, 2, KEYS, half, scale=half**-0.5),
            "rows": r(n, KEYS**2, D, scale=0.3),
        }
        pairs = {"a1": local(), "a2": local(), "memory": memory}
        pairs |= {"moe": {"outer": r(n, D, G), "groups": groups}}
        pairs |= {name: jnp.ones((n, D)) for name in ("n1", "n2", "n3")}
        w = {"in": r(v, D, scale=1.0), "pairs": pairs, "n": jnp.ones((D,)), "out": r(D, v)}
        tokens = jax.random.randint(next(source), (SIZES["b"], SIZES["s"] + 1), 0, v)
        state = [empty(p) for p in jax.tree.leaves(w)]
        return w, state, jnp.zeros((), jnp.float32), tokens[:, :-1], tokens[:, 1:]

    @jax.jit
    def train(w, state, count, inputs, targets):
        (value, g) = jax.value_and_grad(cost)(w, inputs, targets)
        return *factored(w, g, state, count), value

    return train, make, None
