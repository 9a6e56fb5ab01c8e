"""Programs as HLO text: every instruction says what it says in the proto."""

import jax
import jax.numpy as jnp
import pytest
from builders.protobuf import message
from jax import lax

from moeprof.hlo.attributes import GatherDims
from moeprof.ingest.dump.instruction_text import parse_instruction, parse_module_text
from moeprof.ingest.hlo.programs import parse_program

# What only the proto holds, or only the program as a whole tells.
ELSEWHERE = {"id", "schedule", "size_bytes", "async_pair", "async_opcode"}


def every_kind(w, x, sizes, i):
    """Of each instruction that says more than its operands at least one."""
    y = jax.nn.silu(lax.ragged_dot(x, w, sizes))
    y = jnp.pad(jnp.sort(y, axis=1), ((0, 1), (2, 3)))[1:30:2, :9]
    y = y + jnp.take(x, i, axis=0)[:15, :9]
    y = y.at[i[:15]].add(2.5)
    y = lax.reduce_window(y, -jnp.inf, lax.max, (2, 2), (1, 1), "SAME")
    images, kernel = y[None, :, :, None], jnp.ones((3, 3, 1, 4))
    z = lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    n, s = lax.while_loop(lambda c: c[0] < sizes[0], lambda c: (c[0] + 1, c[1] * 2), (0, y))
    chosen = lax.cond(n > 3, lambda: jnp.sin(z).sum(), lambda: jnp.cos(z).sum())
    product = jnp.einsum("ij,kj->ik", y, y, precision="highest").sum()
    return jnp.cumsum(s) + lax.reduce_precision(z.sum(), 8, 7) + chosen + product


@pytest.fixture(scope="module", params=["as written", "as compiled"])
def module(request):
    i, sizes = jnp.arange(32), jnp.full(4, 8)
    lowered = jax.jit(every_kind).lower(jnp.ones((4, 16, 32)), jnp.ones((32, 16)), sizes, i)
    if request.param == "as written":
        return lowered.compiler_ir("hlo").get_hlo_module()
    (compiled,) = lowered.compile().runtime_executable().hlo_modules()
    return compiled


def test_a_text_says_what_the_proto_says(module):
    program = parse_program(message((1, module.as_serialized_hlo_module_proto())))
    expected = {item.name: item for item in program.module.instructions}
    found = {item.name: item for item in parse_module_text(module.to_string())}
    assert found.keys() == expected.keys()
    assert {"while", "scatter", "gather"} <= {item.opcode for item in found.values()}
    for name, item in expected.items():
        assert comparable(found[name]) == comparable(item)


def comparable(item):
    fields = {name: value for name, value in item._asdict().items() if name not in ELSEWHERE}
    if item.attributes.comparison != "TOTALORDER":  # any other follows from the operands
        said = {**vars(item.attributes), "comparison": ""}
        fields["attributes"] = {k: said[k] for k in type(item.attributes).__dataclass_fields__}
    return fields


def test_a_collective_names_its_groups_and_channel():
    item = parse_instruction(
        "%ar = f32[8]{0} all-reduce(%x), channel_id=3, replica_groups=[2,2]<=[4], "
        'use_global_device_ids=true, to_apply=%add, metadata={op_name="a={7} channel_id=9"}'
    )
    assert (item.groups, item.channel_id, item.uses_global_ids) == (((0, 1), (2, 3)), 3, True)
    explicit = parse_instruction("%g = f32[8] all-gather(%x), replica_groups={{0,2},{1,3}}")
    assert explicit.groups == ((0, 2), (1, 3))
    moved = parse_instruction(
        "%p = f32[8] collective-permute(%x), source_target_pairs={{0,1},{1,0}}"
    )
    assert moved.pairs == ((0, 1), (1, 0))


def test_a_gather_says_its_dimensions():
    item = parse_instruction(
        "%g = f32[3,128] gather(%x, %i), offset_dims={1}, collapsed_slice_dims={0}, "
        "start_index_map={0}, index_vector_dim=1, slice_sizes={1,128}, indices_are_sorted=true"
    )
    assert item.attributes.gather == GatherDims((1,), (0,), (0,), (), (), 1, (1, 128))
    assert item.attributes.is_sorted


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ('backend_config={"a":{"b":"}"}}, x={1}', '{"a":{"b":"}"}}'),
        (r'backend_config="{\"a\":1}"', '{"a":1}'),
        ("backend_config={", ""),
        ("", ""),
    ],
)
def test_the_configuration_of_the_backend_is_read_whole(text, config):
    assert parse_instruction(f"%c = f32[2] custom-call(%x), {text}").config == config


@pytest.mark.parametrize(
    "text",
    [
        f"%x = f32[2] slice(%a), slice={{[0:{'9' * 5000}]}}, index={'9' * 5000}",
        f"%x = s32[] constant({'9' * 5000})",
        f'%x = s32[] parameter({"9" * 5000}), backend_config={{"known_trip_count":{{"n":'
        f'"{"9" * 5000}"}}}}',
        "%x = f32[] constant(1.2.3e)",
        "%x = f32[2] pad(%a, %b), padding=_x__x1_2_3_4",
        "%x = f32[2] reduce-window(%a), window={size=x pad=1_1x}",
    ],
)
def test_hostile_numbers_are_passed_over(text):
    assert parse_instruction(text) is not None
