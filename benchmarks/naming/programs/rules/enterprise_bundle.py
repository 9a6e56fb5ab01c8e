"""Tokens in order of their expert, a fixed room cut out per expert under lax.map; radam."""

import json
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

SIZES = {"d": 88, "f": 156, "e": 6, "k": 2, "l": 2, "b": 2, "s": 60, "v": 318, "h": 4, "part": 12}
LARGE = {"d": 1024, "f": 1536, "e": 8, "l": 3, "b": 4, "s": 768, "v": 15360, "h": 8, "part": 128}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
ITEM_WIDTH, INNER_WIDTH, PARTY_COUNT, PICK_COUNT = (SIZES[n] for n in "dfek")
LANE_COUNT, LANE_WIDTH = SIZES["h"], SIZES["d"] // SIZES["h"]
ROOM = -(-SIZES["b"] * SIZES["s"] * PICK_COUNT * 3 // (2 * PARTY_COUNT))


class StageBundle(NamedTuple):
    first_matrix: jax.Array
    second_matrix: jax.Array
    third_matrix: jax.Array
    fourth_matrix: jax.Array
    fifth_matrix: jax.Array


def prepare_data(data):
    magnitude = jnp.sqrt(jnp.mean(jnp.square(data), axis=-1, keepdims=True) + 1e-6)  # is: norm
    return data / magnitude  # is: norm


def process_first_part(bundle, data):
    batch_count, item_count, _ = data.shape
    three_parts = jnp.matmul(data, bundle.first_matrix)  # is: attention
    three_parts = three_parts.reshape(batch_count, item_count, 3, LANE_COUNT, -1)  # is: attention
    part_a, part_b, part_c = jnp.moveaxis(three_parts, 2, 0)  # is: attention

    def handle_slice(slice_start):
        current = lax.dynamic_slice_in_dim(part_a, slice_start, SIZES["part"], 1)  # is: attention
        table = jnp.einsum("bqhc,bkhc->bhqk", current, part_b) / LANE_WIDTH**0.5  # is: attention
        position = slice_start + jnp.arange(SIZES["part"])  # is: attention
        permitted = position[:, None] >= jnp.arange(item_count)[None, :]  # is: attention
        table = jax.nn.softmax(jnp.where(permitted, table, -1e9), axis=-1)  # is: attention
        return jnp.einsum("bhqk,bkhc->bqhc", table, part_c)  # is: attention

    pieces = lax.map(handle_slice, jnp.arange(0, item_count, SIZES["part"]))  # is: attention
    pieces = jnp.moveaxis(pieces, 0, 1).reshape(data.shape)  # is: attention
    return jnp.matmul(pieces, bundle.second_matrix)  # is: attention


def process_second_part(bundle, data):
    item_list = data.reshape(-1, ITEM_WIDTH)
    value_list = jnp.matmul(item_list, bundle.third_matrix)  # is: router
    value_list, party_list = lax.top_k(jax.nn.softmax(value_list), PICK_COUNT)  # is: router
    party_list = party_list.ravel()  # is: router|permute
    sequence = jnp.argsort(party_list, stable=True)  # is: permute
    quantity = jnp.bincount(party_list, length=PARTY_COUNT)  # is: permute|router
    beginning = jnp.cumsum(quantity) - quantity  # is: permute|router
    long_list = jnp.take(item_list, sequence // PICK_COUNT, axis=0)  # is: permute
    long_list = jnp.pad(long_list, ((0, ROOM), (0, 0)))  # is: permute

    def handle_party(details):
        start, amount, matrix_in, matrix_out = details
        portion = lax.dynamic_slice(long_list, (start, 0), (ROOM, ITEM_WIDTH))  # is: permute
        valid = jnp.arange(ROOM)[:, None] < amount  # is: permute
        portion = jnp.where(valid, portion, 0)  # is: permute
        portion = jnp.matmul(portion, matrix_in)  # is: grouped_gemm
        portion = jax.nn.softplus(portion)  # is: expert_elementwise
        return jnp.matmul(portion, matrix_out)  # is: grouped_gemm

    details = (beginning, quantity, bundle.fourth_matrix, bundle.fifth_matrix)
    portions = lax.map(handle_party, details)

    def write_portion(number, target):
        portion = portions[number]  # is: unpermute|combine
        place = (beginning[number], 0)  # is: unpermute|combine
        return lax.dynamic_update_slice(target, portion, place)  # is: unpermute|combine

    target = jnp.zeros_like(long_list)  # is: unpermute|combine
    target = lax.fori_loop(0, PARTY_COUNT, write_portion, target)  # is: unpermute|combine
    target = target[:-ROOM] * value_list.reshape(-1, 1)[sequence]  # is: unpermute|combine
    sequence = sequence // PICK_COUNT  # is: unpermute|combine|permute
    outcome = jax.ops.segment_sum(target, sequence, len(item_list))  # is: unpermute|combine
    return outcome.reshape(data.shape)


def process_stage(data, bundle):
    data = data + process_first_part(bundle, prepare_data(data))  # is: attention
    data = data + process_second_part(bundle, prepare_data(data))  # is: unpermute|combine
    return data, None


def evaluate(bundle, numbers):
    data = bundle["opening"][numbers[:, :-1]]  # is: embedding
    speed = 1e4 ** -jnp.linspace(0, 1, ITEM_WIDTH // 2)  # is: embedding
    angle = jnp.outer(jnp.arange(data.shape[1]), speed)  # is: embedding
    data = data + jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)  # is: embedding
    data, _ = lax.scan(process_stage, data, bundle["stages"])
    outcome = jnp.matmul(prepare_data(data), bundle["closing"])  # is: head
    expected = jax.nn.one_hot(numbers[:, 1:], SIZES["v"])  # is: loss
    return optax.softmax_cross_entropy(outcome, expected).mean()  # is: loss


def build(devices):
    """Step, its arguments, and where they lie."""
    method = optax.radam(1e-3)

    def make():
        keys = iter(jax.random.split(jax.random.key(63), 16))

        def fill(*form):
            return jax.random.uniform(next(keys), form, minval=-1.0) * form[-2] ** -0.5

        n, d, f, e = SIZES["l"], ITEM_WIDTH, INNER_WIDTH, PARTY_COUNT
        inner = (fill(n, d, 3 * d), fill(n, d, d), fill(n, d, e))
        stages = StageBundle(*inner, fill(n, e, d, f), fill(n, e, f, d))
        bundle = {"opening": fill(SIZES["v"], d), "stages": stages, "closing": fill(d, SIZES["v"])}
        numbers = jax.random.randint(next(keys), (SIZES["b"], SIZES["s"] + 1), 0, SIZES["v"])
        return bundle, method.init(bundle), numbers

    @jax.jit
    def execute(bundle, memory, numbers):
        amount, slopes = jax.value_and_grad(evaluate)(bundle, numbers)
        slopes, memory = method.update(slopes, memory, bundle)  # is: optimizer
        return optax.apply_updates(bundle, slopes), memory, amount  # is: optimizer

    return execute, make, None
