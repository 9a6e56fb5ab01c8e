"""One-hot dispatch into capacity slots by einsum, unrolled layers, tied head, adafactor."""

import json
import os

import jax
import jax.numpy as jnp
import optax

SIZES = {"d": 72, "f": 200, "e": 6, "k": 2, "l": 2, "groups": 3, "s": 56, "v": 520, "heads": 4}
LARGE = {"d": 1280, "f": 2304, "e": 12, "groups": 6, "s": 768, "v": 18000, "heads": 10}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
SLOTS = -(-SIZES["s"] * SIZES["k"] * 5 // (SIZES["e"] * 4))


def standardize(inputs, scale, bias):
    centred = inputs - inputs.mean(-1, keepdims=True)  # is: norm
    spread = jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)  # is: norm
    return centred / spread * scale + bias  # is: norm


def contextualize(inputs, p):
    head = SIZES["d"] // SIZES["heads"]
    triple = jnp.einsum("btd,dzhc->zbthc", inputs, p["in"])  # is: attention
    q, k, v = triple * jnp.array([head**-0.5, 1, 1])[:, None, None, None, None]  # is: attention
    logits = jnp.einsum("bthc,bshc->bhts", q, k)  # is: attention
    visible = jnp.tri(SIZES["s"])  # is: attention
    logits = logits - 1e9 * (1 - visible)  # is: attention
    weights = jnp.exp(logits - logits.max(-1, keepdims=True))  # is: attention
    weights = weights / weights.sum(-1, keepdims=True)  # is: attention
    return jnp.einsum("bhts,bshc,hcd->btd", weights, v, p["out"])  # is: attention


def choose(inputs, gate):
    scores = jax.nn.softmax(jnp.einsum("btd,de->bte", inputs, gate))  # is: router
    importance = scores.mean(1)  # is: router|loss
    rest, taken = scores, jnp.zeros((scores.shape[0], SIZES["e"]))
    dispatch = combine = 0.0
    for turn in range(SIZES["k"]):
        pick = jax.nn.one_hot(rest.argmax(-1), SIZES["e"])  # is: router
        if turn == 0:
            balance = (importance * pick.mean(1)).sum(-1).mean()  # is: router|loss
        place = (jnp.cumsum(pick, 1) - 1 + taken[:, None]) * pick  # is: router|permute
        taken = taken + pick.sum(1)  # is: router|permute
        slot = jax.nn.one_hot(place, SLOTS) * pick[..., None]  # is: router|permute
        dispatch = dispatch + slot  # is: router|permute
        combine = combine + slot * (scores * pick).sum(-1)[..., None, None]  # is: router|permute
        rest = rest * (1 - pick)  # is: router
    return dispatch, combine, balance * SIZES["e"]  # is: router|loss


def specialists(inputs, p):
    dispatch, combine, balance = choose(inputs, p["gate"])
    packed = jnp.einsum("btec,btd->ebcd", dispatch, inputs)  # is: permute|dispatch
    hidden = jnp.einsum("ebcd,edf->ebcf", packed, p["wide"])  # is: grouped_gemm
    hidden = jnp.maximum(hidden, 0) ** 2  # is: expert_elementwise
    packed = jnp.einsum("ebcf,efd->ebcd", hidden, p["narrow"])  # is: grouped_gemm
    return jnp.einsum("btec,ebcd->btd", combine, packed), balance  # is: unpermute|combine


def forward(p, tokens):
    table = p["table"]
    x = table[tokens] * SIZES["d"] ** 0.5 + p["position"]  # is: embedding
    extra = 0.0
    for q in p["stack"]:
        x = x + contextualize(standardize(x, *q["first"]), q)  # is: attention
        y, balance = specialists(standardize(x, *q["second"]), q)
        x = x + y  # is: unpermute|combine
        extra = extra + balance  # is: router|loss
    return jnp.einsum("btd,vd->btv", standardize(x, *p["last"]), table), extra  # is: head


def penalty(p, tokens, targets):
    logits, extra = forward(p, tokens)
    right = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]  # is: loss
    return (jax.nn.logsumexp(logits, -1) - right).mean() + 0.01 * extra  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    rule = optax.adafactor(1e-3, min_dim_size_to_factor=16)

    def make():
        d, f, e, n = SIZES["d"], SIZES["f"], SIZES["e"], SIZES["heads"]
        seeds = iter(jax.random.split(jax.random.key(1), 99))

        def draw(*shape):
            return 0.05 * jax.random.normal(next(seeds), shape)

        def pair():
            return jnp.ones(d), jnp.zeros(d)

        stack = [
            {
                "first": pair(),
                "second": pair(),
                "in": draw(d, 3, n, d // n),
                "out": draw(n, d // n, d),
                "gate": draw(d, e),
                "wide": draw(e, d, f),
                "narrow": draw(e, f, d),
            }
            for _ in range(SIZES["l"])
        ]
        table, position = draw(SIZES["v"], d), draw(SIZES["s"], d)
        p = {"table": table, "position": position, "stack": stack, "last": pair()}
        batch = jax.random.randint(next(seeds), (2, SIZES["groups"], SIZES["s"]), 0, SIZES["v"])
        return p, rule.init(p), batch

    def train(p, memory, batch):
        value, slope = jax.value_and_grad(penalty)(p, *batch)
        change, memory = rule.update(slope, memory, p)  # is: optimizer
        p = optax.apply_updates(p, change)  # is: optimizer
        return p, memory, value

    return jax.jit(train, donate_argnums=(0, 1)), make, None
