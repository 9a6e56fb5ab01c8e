"""Question: what does one HLO instruction say?

Field numbers are those of HloInstructionProto (xla/service/hlo.proto) and OpMetadata
(xla/xla_data.proto).
"""

from __future__ import annotations

from typing import NamedTuple

from moeprof.ingest.hlo_details import SCALAR_DETAILS, details_text
from moeprof.ingest.hlo_literal import scalar_value
from moeprof.ingest.hlo_shape import Shape, parse_shape
from moeprof.ingest.hlo_wire import Message, Stretch, read_message, whole_numbers
from moeprof.ingest.replica_groups import (
    DEVICE_LIST,
    GROUPS,
    IOTA_LIST,
    MESH_LIST,
    Groups,
    collective_groups,
)
from moeprof.ingest.wire import WireError, signed, text

_NAME, _OPCODE, _SHAPE, _METADATA, _LITERAL, _PARAMETER, _FUSION_KIND = 1, 2, 3, 7, 8, 9, 11
_TUPLE_INDEX, _CHANNEL, _TARGET, _ID, _OPERANDS, _CALLED, _CONFIG = 13, 26, 28, 35, 36, 38, 43
_PAIRS, _DIRECTION, _GLOBAL_IDS, _API, _PAYLOAD = 52, 63, 71, 77, 99
_DIMENSIONS = 14
_REPEATED = frozenset({_DIMENSIONS, _OPERANDS, _CALLED, GROUPS, _PAIRS})
_OP_NAME, _SOURCE_FILE, _SOURCE_LINE, _FRAME = 2, 3, 4, 15

_MOST_CONFIG = 4096
_MOST_GROUPED = 1 << 22  # devices in all distinct groups of a program; far beyond any real one
_NO_FIELD: Stretch = (0, 0)
_APIS = {
    **{0: "API_VERSION_UNSPECIFIED", 1: "API_VERSION_ORIGINAL"},
    **{2: "API_VERSION_STATUS_RETURNING", 3: "API_VERSION_STATUS_RETURNING_UNIFIED"},
    4: "API_VERSION_TYPED_FFI",
}


class Instruction(NamedTuple):
    """One HLO instruction; operands and called computations are named.

    A tuple, since a program has tens of thousands: made at once, and columns by one `zip`.
    Numbers that an instruction lacks are -1, texts empty; ``groups`` is empty where all devices
    take part; ``constant`` is the value of a scalar of whole numbers.
    """

    name: str
    id: int
    computation: str
    is_root: bool
    opcode: str
    shape: Shape
    op_name: str
    frames: str
    custom_call_target: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    groups: Groups
    parameter: int
    details: str
    fusion_kind: str
    tuple_index: int
    direction: str
    constant: int | None
    channel_id: int
    uses_global_ids: bool
    source_target_pairs: Groups
    api_version: str
    backend_config: str
    schedule: int
    async_pair: str = ""
    async_opcode: str = ""
    trip_count: int = -1


class Raw(NamedTuple):
    """An instruction whose ids are not yet names; ``config`` is where its backend config is."""

    name: str
    id: int
    opcode: str
    shape: Shape
    op_name: str
    frame_id: int
    source: str
    target: str
    operand_ids: tuple[int, ...]
    called_ids: tuple[int, ...]
    groups: Groups
    parameter: int
    details: str
    fusion_kind: str
    tuple_index: int
    direction: str
    constant: int | None
    channel_id: int
    uses_global_ids: bool
    pairs: Groups
    api_version: str
    config: Stretch


class InstructionReader:
    """Reads the instructions of one program; what many of them repeat it reads once."""

    def __init__(self, data: bytes, payloads: dict[int, Stretch]) -> None:
        """`payloads` are the module's shared payloads by id."""
        self._data = data
        self._payloads = payloads
        self._shapes: dict[bytes, Shape] = {}
        self._metadata: dict[bytes, tuple[str, int, str]] = {}
        self._groups: dict[bytes, Groups] = {}
        self._grouped = 0
        self._opcodes: dict[bytes, str] = {}

    def read(self, start: int, end: int) -> Raw:
        """Read an HloInstructionProto.

        Raises:
            WireError: the bytes are damaged.
        """
        data = self._data
        message = read_message(data, start, end, _REPEATED)
        numbers, stretches, lists = message
        opcode = self._opcode(*stretches.get(_OPCODE, _NO_FIELD))
        shape = self._shape(*stretches.get(_SHAPE, _NO_FIELD))
        op_name, frame_id, source = self._origin(*stretches.get(_METADATA, _NO_FIELD))
        literal = stretches.get(_LITERAL) if opcode == "constant" else None
        constant = scalar_value(data, literal, shape) if literal else None
        tuple_index = -1
        if opcode == "get-tuple-element":
            tuple_index = signed(numbers.get(_TUPLE_INDEX, 0))
        name, direction = stretches.get(_NAME, _NO_FIELD), stretches.get(_DIRECTION)
        target, kind = stretches.get(_TARGET), stretches.get(_FUSION_KIND)
        says_more = _DIMENSIONS in lists or not SCALAR_DETAILS.isdisjoint(stretches)
        collective = _CHANNEL in numbers or _is_grouped(message)
        return Raw(
            text(data, *name),
            signed(numbers.get(_ID, 0)),
            opcode,
            shape,
            op_name,
            frame_id,
            source,
            text(data, *target) if target else "",
            whole_numbers(data, lists.get(_OPERANDS)),
            whole_numbers(data, lists.get(_CALLED)),
            self._groups_of(message, start) if collective else (),
            signed(numbers.get(_PARAMETER, 0)) if opcode == "parameter" else -1,
            details_text(data, message, tuple_index, constant)
            if says_more or tuple_index >= 0 or constant is not None
            else "",
            text(data, *kind) if kind else "",
            tuple_index,
            text(data, *direction) if direction else "",
            constant,
            signed(numbers.get(_CHANNEL, 0)) or -1,
            bool(numbers.get(_GLOBAL_IDS)),
            self._pairs(lists.get(_PAIRS)) if _PAIRS in lists else (),
            _api(numbers.get(_API, 0)) if target else "",
            self._config(stretches),
        )

    def config_text(self, where: Stretch, most: int = _MOST_CONFIG) -> str:
        """A backend config: JSON or text as it is, other bytes in hexadecimal, cut to `most`."""
        start, end = where
        return config_text(self._data[start:end], most)

    def _opcode(self, start: int, end: int) -> str:
        key = self._data[start:end]
        if (known := self._opcodes.get(key)) is None:
            known = self._opcodes[key] = key.decode("utf-8", "replace")
        return known

    def _shape(self, start: int, end: int) -> Shape:
        key = self._data[start:end]
        if (known := self._shapes.get(key)) is None:
            known = self._shapes[key] = parse_shape(self._data, start, end)
        return known

    def _origin(self, start: int, end: int) -> tuple[str, int, str]:
        """(op_name, stack frame id, source as ``file:line:`` of writers that keep no frames)."""
        key = self._data[start:end]
        if (known := self._metadata.get(key)) is None:
            numbers, stretches, _ = read_message(self._data, start, end)
            op_name, file = stretches.get(_OP_NAME), stretches.get(_SOURCE_FILE)
            known = self._metadata[key] = (
                text(self._data, *op_name) if op_name else "",
                numbers.get(_FRAME, 0),
                f"{text(self._data, *file)}:{numbers.get(_SOURCE_LINE, 0)}:" if file else "",
            )
        return known

    def _groups_of(self, message: Message, start: int) -> Groups:
        """The groups, read once for all collectives that say the same."""
        where = [
            message.stretches[n]
            for n in (DEVICE_LIST, IOTA_LIST, MESH_LIST)
            if n in message.stretches
        ]
        where += message.lists.get(GROUPS, [])
        key = b"|".join(self._data[a:b] for a, b in where)
        if (known := self._groups.get(key)) is None:
            known = self._groups[key] = collective_groups(self._data, message)
            self._grouped += sum(map(len, known))
            if self._grouped > _MOST_GROUPED:
                raise WireError(start, f"replica groups of {self._grouped:,} devices in all")
        return known

    def _pairs(self, entries: list[Stretch] | None) -> Groups:
        found = []
        for entry in entries or ():
            numbers = read_message(self._data, *entry).numbers if entry[1] >= 0 else {}
            found.append((signed(numbers.get(1, 0)), signed(numbers.get(2, 0))))
        return tuple(found)

    def _config(self, stretches: dict[int, Stretch]) -> Stretch:
        """Where the backend config is: in place, as a payload, or among the module's payloads."""
        if _CONFIG in stretches:
            return stretches[_CONFIG]
        if _PAYLOAD in stretches:
            numbers, own, _ = read_message(self._data, *stretches[_PAYLOAD])
            return own.get(1) or self._payloads.get(numbers.get(2, -1), _NO_FIELD)
        return _NO_FIELD


def config_text(content: bytes, most: int | None) -> str:
    """JSON or text as it is, other bytes in hexadecimal; cut with ``…`` beyond `most`."""
    try:
        found = content.decode("utf-8")
        is_text = found.isprintable() or "\n" in found or "\t" in found
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        found = "0x" + content.hex()
    return found if most is None or len(found) <= most else found[:most] + "…"


def _is_grouped(message: Message) -> bool:
    stretches = message.stretches
    return (
        GROUPS in message.lists
        or MESH_LIST in stretches
        or DEVICE_LIST in stretches
        or IOTA_LIST in stretches
    )


def _api(number: int) -> str:
    return _APIS.get(number, f"API_VERSION_{number}")
