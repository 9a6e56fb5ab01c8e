"""The HLO reader beside protobuf itself: programs that XLA compiles here, and random ones."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders.protobuf import message
from descriptors import message_class
from hlo_comparison import assert_read_as_the_oracle_does
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, PartitionSpec

LAYERS, DEVICES = 5, 8
DTYPES = ["float8_e4m3fn", "float8_e5m2", "bfloat16", "int4", "uint8", "complex64", "bool"]


def compiled(function: Callable[..., object], *arguments: object) -> bytes:
    """HloProto of the optimised program, with its buffer assignment."""
    program = jax.jit(function).lower(*arguments).compile()
    (module,) = program.runtime_executable().hlo_modules()
    assignment = program.memory_analysis().serialized_buffer_assignment_proto
    return message((1, module.as_serialized_hlo_module_proto()), (3, assignment))


def scanned(weights: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        with jax.named_scope("moe"):
            return jnp.tanh(x @ w), None

    def loss(weights: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.scan(jax.checkpoint(layer), x, weights)[0] ** 2)

    return jax.grad(loss)(weights)


def exchanged(x: jax.Array) -> list[jax.Array]:
    ring = [(n, (n + 1) % 4) for n in range(4)]
    return [
        jax.lax.psum(x, "expert"),
        jax.lax.all_to_all(x, "expert", 0, 0, tiled=True),
        jax.lax.all_gather(x, "data"),
        jax.lax.ppermute(x, "expert", ring),
        jax.lax.psum_scatter(x, "expert", tiled=True),
    ]


def converted(x: jax.Array) -> list[jax.Array]:
    return [x.astype(dtype) for dtype in DTYPES] + [jnp.sort(x, axis=0)]


def counted(x: jax.Array) -> jax.Array:
    def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return state[0] + 3, state[1] * 2

    return jax.lax.while_loop(lambda state: state[0] < 20, step, (jnp.int32(2), x))[1]


def test_a_differentiated_scan_is_read_as_protobuf_reads_it():
    weights, x = jnp.ones((LAYERS, 16, 16)), jnp.ones((4, 16))
    assert assert_read_as_the_oracle_does(compiled(scanned, weights, x)) > 20


def test_collectives_of_a_mesh_are_read_as_protobuf_reads_them():
    devices = np.array(jax.devices()[:DEVICES]).reshape(2, 4)
    spec = PartitionSpec(("data", "expert"))
    sharded = jax.shard_map(
        exchanged,
        mesh=Mesh(devices, ("data", "expert")),
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    assert assert_read_as_the_oracle_does(compiled(sharded, jnp.ones((64, 4)))) > 5


@pytest.mark.parametrize("function", [converted, counted])
def test_types_and_loops_are_read_as_protobuf_reads_them(function):
    assert assert_read_as_the_oracle_does(compiled(function, jnp.ones((3, 5)))) > 1


OPCODES = [
    "add",
    "parameter",
    "get-tuple-element",
    "constant",
    "all-reduce",
    "while",
    "custom-call",
]


class RandomProgram:
    """An HloProto whose fields are drawn at random, most of them left out."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.proto = message_class("xla.HloProto")()
        module = self.proto.hlo_module
        module.name, module.entry_computation_name = "m" * self.random.randrange(200), "c0"
        self.ids: list[int] = []
        for number in range(self.random.randint(1, 4)):
            self._computation(module.computations.add(), number)
        self._frames(module.stack_frame_index)
        self._schedule(module)
        self._buffers(self.proto.buffer_assignment)

    def number(self, least: int = 0) -> int:
        bits = self.random.choice([1, 3, 7, 8, 14, 21, 35, 62])
        return max(least, self.random.getrandbits(bits))

    def maybe(self) -> bool:
        return self.random.random() < 0.3

    def dims(self, most: int = 4) -> list[int]:
        return [
            self.random.choice([0, 1, 2, 7, 128, 300]) for _ in range(self.random.randint(0, most))
        ]

    def _computation(self, computation, number: int) -> None:
        computation.name, computation.id = f"c{number}", number << 32 | 1
        first = len(self.ids)
        for _ in range(self.random.randint(0, 12)):
            self._instruction(computation.instructions.add(), number)
        mine = self.ids[first:]
        computation.root_id = self.random.choice(mine) if mine else -1

    def _instruction(self, item, computation: int) -> None:
        random = self.random
        item.name, item.opcode = f"op.{len(self.ids)}", random.choice(OPCODES)
        item.id = computation << 32 | len(self.ids)
        item.operand_ids.extend(
            random.choices(self.ids, k=random.randint(0, 5)) if self.ids else []
        )
        if random.random() < 0.3:
            item.called_computation_ids.append(random.randint(0, computation) << 32 | 1)
        self.ids.append(item.id)
        self._shape(item.shape)
        item.metadata.op_name = random.choice(["", "jit(f)/moe/mul", "jit(f)/(a:b)", "é→"])
        item.metadata.stack_frame_id = random.randint(0, 3)
        for name in ("parameter_number", "tuple_index", "channel_id"):
            if self.maybe():
                setattr(item, name, self.number())
        if self.maybe():
            item.fusion_kind, item.comparison_direction = "kLoop", "LT"
        if self.maybe():
            item.dimensions.extend(self.dims())
        if self.maybe():  # no instruction is a product of both kinds
            item.dot_dimension_numbers.lhs_contracting_dimensions.extend(self.dims(2))
        elif self.maybe():
            ragged = item.ragged_dot_dimension_numbers
            ragged.rhs_group_dimensions.extend(self.dims(2))
            ragged.dot_dimension_numbers.rhs_batch_dimensions.extend(self.dims(2))
        if self.maybe():
            item.backend_config = b'{"text":"%d"}' % self.number()
            item.custom_call_target, item.custom_call_api_version = "target", random.randint(0, 4)
        if self.maybe():
            pair = item.source_target_pairs.add()
            pair.source, pair.target = self.number(), self.number()
        item.use_global_device_ids = self.maybe()
        random.choice([self._explicit, self._listed, self._iota, self._mesh, id])(item)
        if item.opcode == "constant" and self.maybe():
            item.shape.Clear()
            item.shape.element_type = 5
            item.literal.s64s.append(random.choice([0, -1, 5, 1 << 40]))

    def _shape(self, shape, depth: int = 0) -> None:
        known = shape.DESCRIPTOR.fields_by_name["element_type"].enum_type.values_by_number
        shape.element_type = self.random.choice([n for n in known if n not in (0, 34)])
        if shape.element_type == 13:
            for _ in range(self.random.randint(0, 3) if depth < 3 else 0):
                self._shape(shape.tuple_shapes.add(), depth + 1)
            return
        shape.dimensions.extend(self.dims())
        shape.is_dynamic_dimension.extend(self.maybe() for _ in shape.dimensions)
        shape.layout.minor_to_major.extend(range(len(shape.dimensions)))
        if self.maybe():
            shape.layout.element_size_in_bits = self.random.choice([1, 2, 4, 8])

    def _explicit(self, item) -> None:
        for _ in range(self.random.randint(0, 3)):
            item.replica_groups.add().replica_ids.extend([self.number(), self.number()])

    def _listed(self, item) -> None:
        for _ in range(self.random.randint(0, 3)):
            item.collective_device_list.replica_groups.add().replica_ids.extend([self.number()])

    def _iota(self, item) -> None:
        dims = [self.random.randint(1, 4) for _ in range(self.random.randint(1, 4))]
        listed = item.iota_collective_device_list
        listed.num_replica_groups = dims[0]
        listed.num_devices_per_group = int(np.prod(dims[1:]))
        listed.iota_reshape_dims.extend(dims)
        listed.iota_transpose_perm.extend(self.random.sample(range(len(dims)), len(dims)))

    def _mesh(self, item) -> None:
        sizes = [self.random.randint(1, 4) for _ in range(self.random.randint(1, 4))]
        listed = item.mesh_axes_replica_group_list
        for number, size in enumerate(sizes):
            axis = listed.mesh.axes.add()
            axis.name, axis.size = f"axis_{number}", size
        for place in self.random.sample(range(len(sizes)), self.random.randint(1, len(sizes))):
            listed.axes.add().mesh_axis_index = place
        devices = int(np.prod(sizes))
        if self.maybe():
            listed.mesh.device_ids.extend(self.random.sample(range(devices), devices))

    def _frames(self, index) -> None:
        index.file_names.extend(["a.py", "b.py"])
        index.function_names.extend(["f", "g"])
        for number in range(3):
            place = index.file_locations.add()
            place.file_name_id, place.function_name_id, place.line = 1 + number % 2, 1, number
            frame = index.stack_frames.add()
            frame.file_location_id, frame.parent_frame_id = number + 1, number

    def _schedule(self, module) -> None:
        if self.maybe():
            for computation in module.computations:
                order = [item.id for item in computation.instructions]
                self.random.shuffle(order)
                module.schedule.sequences[computation.id].instruction_ids.extend(order)

    def _buffers(self, assignment) -> None:
        for number in range(self.random.randint(0, 9)):
            buffer = assignment.logical_buffers.add()
            buffer.id, buffer.size, buffer.color = number, self.number(), self.random.randint(0, 5)
            buffer.defined_at.instruction_id = self.random.choice([*self.ids, 0])
            buffer.defined_at.shape_index.extend(self.dims(2))
            if self.maybe():
                allocation = assignment.buffer_allocations.add()
                allocation.index, allocation.size = number, buffer.size % (1 << 40)
                assigned = allocation.assigned.add()
                assigned.logical_buffer_id, assigned.offset = buffer.id, self.number()
        for _ in range(self.random.randint(0, 2)):
            trace = assignment.heap_simulator_traces.add()
            for _ in range(self.random.randint(0, 9)):
                event = trace.events.add()
                event.kind, event.buffer_id = self.random.randint(0, 2), self.random.randint(0, 9)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 62))
def test_random_programs_are_read_as_protobuf_reads_them(seed):
    assert_read_as_the_oracle_does(RandomProgram(seed).proto.SerializeToString())
