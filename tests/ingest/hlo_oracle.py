"""What a program says, told by protobuf's own reader: the slow and plain twin of the HLO reader."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from descriptors import message_class
from google.protobuf.message import Message

UNBOUNDED = -(1 << 63)


def hlo_proto(data: bytes) -> Message:
    return message_class("xla.HloProto").FromString(data)


def programs(data: bytes) -> Iterator[tuple[int, Message, bytes]]:
    """(program id, HloProto, its bytes) of every program of an XSpace."""
    for plane in message_class("tensorflow.profiler.XSpace").FromString(data).planes:
        names = {key: value.name for key, value in plane.stat_metadata.items()}
        for metadata in plane.event_metadata.values():
            protos = [stat.bytes_value for stat in metadata.stats if stat.bytes_value]
            ids = [
                stat.int64_value or stat.uint64_value
                for stat in metadata.stats
                if names[stat.metadata_id] == "program_id"
            ]
            if protos:
                in_name = re.search(r"\((\d+)\)$", metadata.name)
                yield (
                    (ids or [int(in_name[1]) if in_name else metadata.id])[0],
                    hlo_proto(protos[0]),
                    protos[0],
                )


def instructions(module: Message) -> list[dict[str, object]]:
    """Fields of every instruction, as `Instruction` names them, but for the derived ones."""
    names = {i.id: i.name for c in module.computations for i in c.instructions}
    computations = {c.id: c.name for c in module.computations}
    places = {
        identity: place
        for sequence in module.schedule.sequences.values()
        for place, identity in enumerate(sequence.instruction_ids)
    }
    return [
        {
            "name": i.name,
            "id": i.id,
            "computation": c.name,
            "is_root": i.id == c.root_id,
            "opcode": i.opcode,
            "shape": shape_text(i.shape),
            "size_bytes": shape_bytes(i.shape),
            "op_name": i.metadata.op_name,
            "frames": frames(module.stack_frame_index, i.metadata.stack_frame_id),
            "custom_call_target": i.custom_call_target,
            "operands": tuple(names[operand] for operand in i.operand_ids),
            "called": tuple(computations[called] for called in i.called_computation_ids),
            "groups": groups(i),
            "parameter": i.parameter_number if i.opcode == "parameter" else -1,
            "details": details(i),
            "fusion_kind": i.fusion_kind,
            "tuple_index": i.tuple_index if i.opcode == "get-tuple-element" else -1,
            "direction": i.comparison_direction,
            "channel_id": i.channel_id or -1,
            "uses_global_ids": i.use_global_device_ids,
            "source_target_pairs": tuple((p.source, p.target) for p in i.source_target_pairs),
            "api_version": api_version(i) if i.custom_call_target else "",
            "backend_config": i.backend_config.decode(),
            "schedule": places.get(i.id, -1),
        }
        for c in module.computations
        for i in c.instructions
    ]


def type_name(shape: Message) -> str:
    values = shape.DESCRIPTOR.fields_by_name["element_type"].enum_type.values_by_number
    if shape.element_type not in values or shape.element_type == 0:
        return f"type{shape.element_type}"
    return values[shape.element_type].name.lower().removesuffix("_type")


def shape_text(shape: Message) -> str:
    name = type_name(shape)
    if name in ("tuple", "buffer"):
        parts = ", ".join(map(shape_text, shape.tuple_shapes))
        return f"({parts})" if name == "tuple" else f"b({parts})"
    dynamic = [*shape.is_dynamic_dimension, *[False] * len(shape.dimensions)]
    dims = [
        "?" if dim == UNBOUNDED else f"<={dim}" if is_dynamic else str(dim)
        for dim, is_dynamic in zip(shape.dimensions, dynamic, strict=False)
    ]
    return f"{name}[{','.join(dims)}]"


def shape_bytes(shape: Message) -> int:
    name = type_name(shape)
    if name in ("tuple", "buffer"):
        parts = [shape_bytes(part) for part in shape.tuple_shapes]
        return -1 if -1 in parts else sum(parts)
    if name.startswith("type") or UNBOUNDED in shape.dimensions:
        return -1
    if name in ("token", "opaque"):
        return 0
    width = 8 if name == "pred" else int(re.search(r"\d+", name)[0])
    bits = shape.layout.element_size_in_bits or -(-width // 8) * 8
    for dim in shape.dimensions:
        bits *= dim
    return -(-bits // 8)


def frames(index: Message, frame_id: int) -> str:
    lines = []
    while frame_id:
        frame = index.stack_frames[frame_id - 1]
        place = index.file_locations[frame.file_location_id - 1]
        file = index.file_names[place.file_name_id - 1] if place.file_name_id else ""
        function = index.function_names[place.function_name_id - 1]
        lines.append(f"{file}:{place.line}:{function if place.function_name_id else ''}")
        frame_id = frame.parent_frame_id
    return "\n".join(lines)


def groups(instruction: Message) -> tuple[tuple[int, ...], ...]:
    if instruction.HasField("iota_collective_device_list"):
        iota = instruction.iota_collective_device_list
        devices = iota.num_replica_groups * iota.num_devices_per_group
        ids = transposed(devices, iota.iota_reshape_dims, iota.iota_transpose_perm)
        return tuple(_rows(ids, iota.num_devices_per_group))
    if instruction.HasField("mesh_axes_replica_group_list"):
        return mesh_groups(instruction.mesh_axes_replica_group_list)
    explicit = instruction.collective_device_list.replica_groups or instruction.replica_groups
    return tuple(tuple(group.replica_ids) for group in explicit)


def transposed(devices: int, dims: list[int], order: list[int]) -> list[int]:
    """The numbers 0 to `devices` laid out over `dims` and read with the axes in `order`."""
    dims = list(dims) or [devices]
    order = list(order) or list(range(len(dims)))
    found = []
    for place in itertools.product(*(range(dims[axis]) for axis in order)):
        at = dict(zip(order, place, strict=True))
        number = 0
        for axis, size in enumerate(dims):
            number = number * size + at[axis]
        found.append(number)
    return found


def mesh_groups(listed: Message) -> tuple[tuple[int, ...], ...]:
    """Groups along whole axes: devices at equal places of all the other axes belong together."""
    sizes = [axis.size for axis in listed.mesh.axes]
    places = list(itertools.product(*map(range, sizes)))
    transform = listed.mesh.iota_transform
    ids = list(listed.mesh.device_ids) or transposed(
        len(places), transform.reshape_dims, transform.transpose_perm
    )
    along = sorted(axis.mesh_axis_index for axis in listed.axes)
    assert not any(axis.HasField("sub_axis_info") for axis in listed.axes)
    found: dict[tuple[int, ...], list[int]] = {}
    for place, device in zip(places, ids, strict=True):
        key = tuple(at for axis, at in enumerate(place) if axis not in along)
        found.setdefault(key, []).append(device)
    return tuple(tuple(group) for group in found.values())


def details(i: Message) -> str:
    parts = [f"kind={i.fusion_kind}"] if i.fusion_kind else []
    if i.opcode == "get-tuple-element":
        parts.append(f"index={i.tuple_index}")
    if i.opcode == "constant" and (value := scalar(i)) is not None:
        parts.append(f"value={value}")
    lists = [("dimensions", i.dimensions)]
    dots = [i.dot_dimension_numbers, i.ragged_dot_dimension_numbers.dot_dimension_numbers]
    after = [
        (name, getattr(dot, f"{name}_dimensions"))
        for dot in dots
        for name in ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
    ]
    ragged = i.ragged_dot_dimension_numbers
    after += [("lhs_ragged", ragged.lhs_ragged_dimensions)]
    after += [("rhs_group", ragged.rhs_group_dimensions)]
    parts += [f"{name}={','.join(map(str, values))}" for name, values in lists if values]
    parts += [f"direction={i.comparison_direction}"] if i.comparison_direction else []
    parts += [f"{name}={','.join(map(str, values))}" for name, values in after if values]
    return " ".join(parts)


def scalar(i: Message) -> int | None:
    name = type_name(i.shape)
    if i.shape.dimensions or not re.fullmatch(r"pred|[su](8|16|32|64)", name):
        return None
    values = getattr(i.literal, f"{name}s")
    if isinstance(values, bytes):
        return int.from_bytes(values, "little", signed=name[0] == "s") if values else None
    return int(values[0]) if len(values) == 1 else None


def api_version(i: Message) -> str:
    values = i.DESCRIPTOR.fields_by_name["custom_call_api_version"].enum_type.values_by_number
    return str(values[i.custom_call_api_version].name)


def buffers(proto: Message) -> list[tuple[object, ...]]:
    """(id, op, shape index, size, allocation, offset, color, trace, born, freed) per buffer."""
    names = {i.id: i.name for c in proto.hlo_module.computations for i in c.instructions}
    assignment = proto.buffer_assignment
    painted = {
        part.logical_buffer_id: allocation.color
        for allocation in assignment.buffer_allocations
        for part in allocation.assigned
    }
    homes = {
        part.logical_buffer_id: (allocation.index, part.offset)
        for allocation in assignment.buffer_allocations
        for part in allocation.assigned
    }
    lives: dict[int, tuple[int, int, int]] = {}
    for number, trace in enumerate(assignment.heap_simulator_traces):
        frees = {e.buffer_id: at for at, e in enumerate(trace.events) if e.kind == 1}
        for at, e in enumerate(trace.events):
            if e.kind != 1 and e.buffer_id not in lives:
                lives[e.buffer_id] = (number, at, frees.get(e.buffer_id, len(trace.events)))
    return [
        (
            b.id,
            names.get(b.defined_at.instruction_id, b.defined_at.instruction_name),
            ".".join(map(str, b.defined_at.shape_index)),
            b.size,
            *homes.get(b.id, (-1, -1)),
            painted.get(b.id, 0) or b.color,
            *lives.get(b.id, (-1, -1, -1)),
        )
        for b in assignment.logical_buffers
    ]


def _rows(ids: list[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(ids[at : at + size]) for at in range(0, len(ids), size)]
