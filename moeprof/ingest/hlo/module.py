"""Question: which instructions does a compiled program consist of, paired how, from which lines?

Field numbers are those of HloModuleProto, HloComputationProto and HloScheduleProto in
xla/service/hlo.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from moeprof.hlo.instruction import Frame, Frames, Instruction
from moeprof.ingest.hlo.instruction import NO_CONFIG, InstructionReader, Raw
from moeprof.ingest.hlo.loops import LoopReader, written_trip_count
from moeprof.ingest.hlo.replica_groups import parse_splits
from moeprof.ingest.xspace.wire import (
    Message,
    Stretch,
    WireError,
    read_message,
    signed,
    text,
    whole_numbers,
)

_NAME, _ENTRY, _COMPUTATIONS, _SCHEDULE, _SPLITS, _FRAMES, _PAYLOADS = 1, 2, 3, 7, 14, 17, 22
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
    module = read_message(data, start, end, (_COMPUTATIONS, _SPLITS, _PAYLOADS))
    reader = InstructionReader(data, _payloads(data, module))
    parts = [_computation(data, reader, *part) for part in _stretches(module, _COMPUTATIONS)]
    raws = [raw for part in parts for raw in part.instructions]
    _check_names(start, end, parts)
    schedule = _schedule(data, module.stretches.get(_SCHEDULE))
    frames = module.stretches.get(_FRAMES)
    index = parse_stack_frames(data, *frames) if frames else StackFrames()
    named = _named(parts, index, schedule, reader)
    configs = {raw.name: raw.more.config for raw in raws if raw.more.config != NO_CONFIG}
    entry = _text(data, module, _ENTRY)
    return HloModule(
        name=_text(data, module, _NAME),
        entry=entry,
        instructions=_completed(data, _split(data, module, entry, named), configs),
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


def _split(
    data: bytes, module: Message, entry: str, instructions: list[Instruction]
) -> list[Instruction]:
    """The instructions, of which the program's arguments say how they are split over devices.

    Not where the module lists more or fewer shardings than it has arguments.
    """
    shardings = _stretches(module, _SPLITS)
    arguments = [
        at
        for at, item in enumerate(instructions)
        if item.opcode == "parameter" and item.computation == entry
    ]
    if len(shardings) != len(arguments):
        return instructions
    found = list(instructions)
    for at in arguments:
        item = instructions[at]
        where = shardings[item.parameter] if 0 <= item.parameter < len(shardings) else None
        splits = (
            parse_splits(data, *where, len(item.dims)) if where and item.result.is_array else ()
        )
        if splits:
            found[at] = item._replace(attributes=replace(item.attributes, splits=splits))
    return found


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


# Which instruction ends what another one started, and what is done in between?
#
# XLA splits an operation ``x`` into ``x-start`` and ``x-done``, or wraps a computation into
# ``async-start``, any number of ``async-update`` and ``async-done``; ``send`` and ``recv`` end in
# ``send-done`` and ``recv-done``. The later one takes the earlier one as its first operand.

_COLLECTIVES = frozenset(
    {"all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute"}
    | {"ragged-all-to-all", "recv", "reduce-scatter", "send"}
)
_MESSAGES = ("send", "recv")
_VIEWS = ("tuple", "bitcast", "get-tuple-element", "copy")


def async_links(
    instructions: Sequence[Instruction], ops: Mapping[str, Instruction]
) -> dict[str, tuple[str, str]]:
    """(partner, opcode of the work) of every instruction that starts or ends work.

    The partner of a start is its end and the other way round, that of an update the start; it is
    empty where the end is not to be seen (a ``recv`` that a later round of a loop ends).
    """
    opcodes = {item.opcode for item in instructions}
    starting = {opcode for opcode in opcodes if _starts(opcode)}
    ending = {opcode for opcode in opcodes if opcode.endswith(("-done", "-update"))}
    starts = [item for item in instructions if item.opcode in starting]
    inner: dict[str, list[Instruction]] = {i.called[0]: [] for i in starts if _is_wrapper(i)}
    for item in instructions:
        if item.computation in inner:
            inner[item.computation].append(item)
    found = {item.name: ("", _work(item, inner)) for item in starts}
    for item in instructions:
        start = _start_of(item, ops) if item.opcode in ending else None
        if start is not None:
            work = found[start.name][1]
            found[item.name] = (start.name, work)
            if item.opcode.endswith("-done"):
                found[start.name] = (item.name, work)
    return found


def _is_wrapper(item: Instruction) -> bool:
    return item.opcode == "async-start" and bool(item.called)


def _starts(opcode: str) -> bool:
    return opcode.endswith("-start") or opcode in _MESSAGES


def _work(item: Instruction, inner: Mapping[str, list[Instruction]]) -> str:
    """``all-gather`` of an ``all-gather-start``; of a wrapped computation what it communicates."""
    if not _is_wrapper(item):
        return item.opcode.removesuffix("-start")
    body = inner.get(item.called[0], [])
    communicates = next((op.opcode for op in body if op.opcode in _COLLECTIVES), "")
    return communicates or _root_opcode(body)


def _root_opcode(body: Iterable[Instruction]) -> str:
    members = {op.name: op for op in body}
    root = next((op for op in members.values() if op.is_root), None)
    for _ in range(len(members)):
        if root is None or root.opcode not in _VIEWS or not root.operands:
            break
        behind = members.get(root.operands[0])
        if behind is None or behind.opcode == "parameter":
            break
        root = behind
    return root.opcode if root is not None else ""


def _start_of(item: Instruction, ops: Mapping[str, Instruction]) -> Instruction | None:
    """The start behind an end or update, through any updates in between."""
    seen = {item.name}
    while item.operands:
        behind = ops.get(item.operands[0])
        if behind is None or behind.name in seen:
            return None
        if _starts(behind.opcode):
            return behind
        if not behind.opcode.endswith("-update"):
            return None
        seen.add(behind.name)
        item = behind
    return None


# Which lines of the user's program does an instruction come from?
#
# Reads HloModuleProto.StackFrameIndexProto. All its ids count from 1; 0 means none.

_DEEPEST = 256  # JAX keeps far fewer; a longer chain is a loop in damaged bytes
_FILES, _FUNCTIONS, _LOCATIONS, _CHAINED = 1, 2, 3, 4
_TABLES = frozenset({_FILES, _FUNCTIONS, _LOCATIONS, _CHAINED})


@dataclass(frozen=True)
class StackFrames:
    """The tables of a module's stack frame index, and the chains looked up so far."""

    files: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    locations: tuple[tuple[int, int, int], ...] = ()  # (file id, function id, line)
    frames: tuple[tuple[int, int], ...] = ()  # (location id, parent frame id)
    _chains: dict[int, Frames] = field(default_factory=dict, compare=False, repr=False)
    _lines: dict[int, Frame] = field(default_factory=dict, compare=False, repr=False)

    def chain(self, frame_id: int) -> Frames:
        """The lines that lead to a frame, innermost first; none for frame 0 or unknown ids."""
        if frame_id not in self._chains:
            self._chains[frame_id] = tuple(self._walk(frame_id))
        return self._chains[frame_id]

    def _walk(self, frame_id: int) -> Iterator[Frame]:
        for _ in range(_DEEPEST):
            if not 0 < frame_id <= len(self.frames):
                break
            location, frame_id = self.frames[frame_id - 1]
            if 0 < location <= len(self.locations):
                yield self._line(location)

    def _line(self, location: int) -> Frame:
        if location not in self._lines:
            file, function, line = self.locations[location - 1]
            names = _entry(self.files, file), _entry(self.functions, function)
            self._lines[location] = Frame(names[0], line, names[1])
        return self._lines[location]


def parse_stack_frames(data: bytes, start: int, end: int) -> StackFrames:
    """Read a StackFrameIndexProto.

    Raises:
        WireError: the bytes are damaged.
    """
    lists = read_message(data, start, end, _TABLES).lists
    texts = {n: [text(data, *s) for s in lists.get(n, []) if s[1] >= 0] for n in (1, 2)}
    locations, frames = (
        [read_message(data, *stretch).numbers for stretch in lists.get(n, []) if stretch[1] >= 0]
        for n in (_LOCATIONS, _CHAINED)
    )
    return StackFrames(
        tuple(texts[_FILES]),
        tuple(texts[_FUNCTIONS]),
        tuple((n.get(1, 0), n.get(2, 0), n.get(3, 0)) for n in locations),
        tuple((n.get(1, 0), n.get(2, 0)) for n in frames),
    )


def _entry(table: tuple[str, ...], identity: int) -> str:
    return table[identity - 1] if 0 < identity <= len(table) else ""
