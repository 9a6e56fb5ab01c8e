"""Question: which instructions does a compiled program consist of, and where do they come from?

Field numbers are those of HloModuleProto, HloComputationProto and HloScheduleProto in
xla/service/hlo.proto.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from moeprof.hlo.instruction import Instruction
from moeprof.ingest.hlo.async_pairs import async_links
from moeprof.ingest.hlo.instruction import NO_CONFIG, InstructionReader, Raw
from moeprof.ingest.hlo.loops import LoopReader, written_trip_count
from moeprof.ingest.hlo.messages import Message, Stretch, read_message, whole_numbers
from moeprof.ingest.hlo.stack_frames import StackFrames, parse_stack_frames
from moeprof.ingest.xspace.wire import WireError, signed, text

_NAME, _ENTRY, _COMPUTATIONS, _SCHEDULE, _FRAMES, _PAYLOADS = 1, 2, 3, 7, 17, 22
_INSTRUCTIONS, _ID, _ROOT = 2, 5, 6
_MOST_NAMES = 32  # times the size of the program, for the names that operands stand for


@dataclass(frozen=True)
class HloModule:
    """A compiled program: instructions of all computations, in the order of the proto.

    ``configs`` has the place in the proto of each instruction's backend config, by name.
    """

    name: str
    entry: str
    instructions: tuple[Instruction, ...]
    configs: dict[str, Stretch] = field(default_factory=dict, compare=False, repr=False)


class _Computation(NamedTuple):
    name: str
    id: int
    root_id: int
    instructions: list[Raw]


def parse_module(data: bytes, start: int, end: int) -> HloModule:
    """Read an HloModuleProto.

    Raises:
        WireError: the bytes are damaged.
    """
    module = read_message(data, start, end, (_COMPUTATIONS, _PAYLOADS))
    reader = InstructionReader(data, _payloads(data, module))
    parts = [_computation(data, reader, *part) for part in _stretches(module, _COMPUTATIONS)]
    raws = [raw for part in parts for raw in part.instructions]
    _check_names(start, end, parts)
    schedule = _schedule(data, module.stretches.get(_SCHEDULE))
    frames = module.stretches.get(_FRAMES)
    index = parse_stack_frames(data, *frames) if frames else StackFrames()
    named = _named(parts, index, schedule, reader)
    configs = {raw.name: raw.more.config for raw in raws if raw.more.config != NO_CONFIG}
    return HloModule(
        name=_text(data, module, _NAME),
        entry=_text(data, module, _ENTRY),
        instructions=_completed(data, named, configs),
        configs=configs,
    )


def _computation(data: bytes, reader: InstructionReader, start: int, end: int) -> _Computation:
    message = read_message(data, start, end, (_INSTRUCTIONS,))
    read = reader.read
    instructions = [read(*part) for part in _stretches(message, _INSTRUCTIONS)]
    numbers = message.numbers
    return _Computation(
        _text(data, message, _NAME),
        signed(numbers.get(_ID, 0)),
        signed(numbers.get(_ROOT, 0)),
        instructions,
    )


def _named(
    parts: list[_Computation],
    frames: StackFrames,
    schedule: dict[int, int],
    reader: InstructionReader,
) -> list[Instruction]:
    called_names = {part.id: part.name for part in parts}
    names = {raw.id: raw.name for part in parts for raw in part.instructions}
    return [
        Instruction(
            raw.name,
            raw.opcode,
            raw.shape,
            tuple([names[i] for i in raw.operand_ids if i in names]),
            tuple([called_names[i] for i in raw.called_ids if i in called_names]),
            raw.more.attributes,
            part.name,
            raw.id == part.root_id,
            raw.shape.size_bytes,
            raw.op_name,
            frames.chain(raw.frame_id) or raw.source,
            raw.more.target,
            reader.config_text(raw.more.config) if raw.more.config != NO_CONFIG else "",
            raw.more.groups,
            raw.more.parameter,
            id=raw.id,
            schedule=schedule.get(raw.id, -1),
            channel_id=raw.more.channel_id,
            uses_global_ids=raw.more.uses_global_ids,
            pairs=raw.more.pairs,
            api_version=raw.more.api_version,
        )
        for part in parts
        for raw in part.instructions
    ]


def _completed(
    data: bytes, instructions: list[Instruction], configs: dict[str, Stretch]
) -> tuple[Instruction, ...]:
    """The instructions with what only the whole program tells: async pairs and trip counts."""
    loops = LoopReader.of(instructions)
    links = async_links(instructions, loops.ops)
    changed = {
        name: loops.ops[name]._replace(async_pair=pair, async_opcode=work)
        for name, (pair, work) in links.items()
    }
    for item in instructions:
        if item.opcode == "while":
            start, end = configs.get(item.name, NO_CONFIG)
            count = written_trip_count(data[start:end])
            count = count if count >= 0 else loops.trip_count(item)
            changed[item.name] = item._replace(trip_count=count)
    return tuple([changed.get(item.name, item) for item in instructions])


def _check_names(start: int, end: int, parts: list[_Computation]) -> None:
    """Refuse what grows without end: a few bytes of operands that stand for long names."""
    raws = [raw for part in parts for raw in part.instructions]
    lengths = {raw.id: len(raw.name) for raw in raws}
    called = {part.id: len(part.name) for part in parts}
    links = sum(len(raw.operand_ids) + len(raw.called_ids) for raw in raws)
    if links * max([*lengths.values(), *called.values()], default=0) <= _MOST_NAMES * (end - start):
        return  # as in any program: no need to add them up
    total = sum(lengths.get(i, 0) for raw in raws for i in raw.operand_ids)
    total += sum(called.get(i, 0) for raw in raws for i in raw.called_ids)
    if total > _MOST_NAMES * (end - start):
        raise WireError(start, f"operands whose names take {total:,} letters")


def _schedule(data: bytes, where: Stretch | None) -> dict[int, int]:
    """Place of each instruction in the sequence of its computation, by id."""
    if where is None:
        return {}
    places: dict[int, int] = {}
    for entry in read_message(data, *where, (1,)).lists.get(1, []):
        sequence = read_message(data, *entry).stretches.get(2) if entry[1] >= 0 else None
        if sequence is not None:
            ids = whole_numbers(data, read_message(data, *sequence, (1,)).lists.get(1))
            places.update(zip(ids, range(len(ids)), strict=True))
    return places


def _payloads(data: bytes, module: Message) -> dict[int, Stretch]:
    """Payloads that instructions refer to, by place in the module's list."""
    return dict(enumerate(_stretches(module, _PAYLOADS)))


def _stretches(message: Message, number: int) -> list[Stretch]:
    return [part for part in message.lists.get(number, []) if part[1] >= 0]


def _text(data: bytes, message: Message, number: int) -> str:
    where = message.stretches.get(number)
    return text(data, *where) if where else ""
