"""The HLO reader beside the oracle, field by field."""

from __future__ import annotations

import json

import hlo_oracle

from moeprof.hlo.instruction import frames_text
from moeprof.ingest.hlo.programs import parse_program


def assert_read_as_the_oracle_does(data: bytes) -> int:
    """Compare every instruction and buffer of an HloProto; return how many instructions."""
    proto = hlo_oracle.hlo_proto(data)
    program = parse_program(data)
    expected = hlo_oracle.instructions(proto.hlo_module)
    assert program.head.instructions == len(expected)
    assert program.head.name == program.module.name == proto.hlo_module.name
    assert program.module.entry == proto.hlo_module.entry_computation_name
    assert program.head.is_scheduled == proto.hlo_module.HasField("schedule")
    for item, fields in zip(program.module.instructions, expected, strict=True):
        found = said(item)
        wanted = dict(fields)
        assert program.backend_config(item.name) == wanted["backend_config"]
        if found["backend_config"].endswith("…"):
            found["backend_config"] = wanted["backend_config"]
        assert {name: found[name] for name in wanted} == wanted
    assert_derived(proto, program)
    buffers = [(*b[:6], b.color, b.trace, b.live_from, b.live_to) for b in program.buffers]
    assert buffers == hlo_oracle.buffers(proto)
    assert program.damage == []
    return len(expected)


def said(item) -> dict[str, object]:
    """An instruction's fields as the oracle names them."""
    names = {"target": "custom_call_target", "pairs": "source_target_pairs"}
    names |= {"config": "backend_config"}
    fields = {names.get(name, name): value for name, value in item._asdict().items()}
    attributes = item.attributes
    return fields | {
        "shape": item.shape,
        "frames": frames_text(item.frames),
        "details": attributes.details_text,
        "fusion_kind": attributes.fusion_kind,
        "tuple_index": attributes.tuple_index,
        "direction": attributes.direction,
    }


def assert_derived(proto, program) -> None:
    """Trip counts as the config says, and every end of asynchronous work with its start."""
    ops = {item.name: item for item in program.module.instructions}
    for computation in proto.hlo_module.computations:
        for i in computation.instructions:
            if i.opcode == "while" and b"known_trip_count" in i.backend_config:
                count = json.loads(i.backend_config)["known_trip_count"].get("n", -1)
                assert ops[i.name].trip_count == int(count)
            if i.opcode.endswith("-done"):
                start = ops[ops[i.name].operands[0]]
                assert ops[i.name].async_pair == start.name
                assert start.async_pair == i.name
                assert ops[i.name].async_opcode == start.async_opcode != ""
