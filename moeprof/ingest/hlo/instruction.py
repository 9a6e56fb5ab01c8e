"""Reads one HLO instruction.

Field numbers are those of HloInstructionProto (xla/service/hlo.proto) and OpMetadata
(xla/xla_data.proto).
"""

from __future__ import annotations

from typing import NamedTuple

from moeprof.hlo.attributes import NO_ATTRIBUTES, Attributes
from moeprof.hlo.instruction import Frame, Frames, Groups
from moeprof.hlo.shape import Shape
from moeprof.ingest.hlo import attributes
from moeprof.ingest.hlo.attributes import AttributeReader, read_shape
from moeprof.ingest.hlo.replica_groups import (
    DEVICE_LIST,
    GROUPS,
    IOTA_LIST,
    MESH_LIST,
    collective_groups,
)
from moeprof.ingest.xspace.wire import (
    Message,
    Stretch,
    WireError,
    read_message,
    signed,
    text,
    whole_numbers,
)

_NAME, _OPCODE, _SHAPE, _METADATA, _PARAMETER, _CHANNEL, _TARGET = 1, 2, 3, 7, 9, 26, 28
_ID, _OPERANDS, _CALLED, _CONFIG, _PAIRS, _GLOBAL_IDS, _API, _PAYLOAD = (
    35,
    36,
    38,
    43,
    52,
    71,
    77,
    99,
)
_REPEATED = frozenset({_OPERANDS, _CALLED, GROUPS, _PAIRS}) | attributes.REPEATED
_OP_NAME, _SOURCE_FILE, _SOURCE_LINE, _FRAME = 2, 3, 4, 15

_MOST_CONFIG = 4096
_MOST_GROUPED = 1 << 22  # devices in all distinct groups of a program; far beyond any real one
_NO_FIELD: Stretch = (0, 0)
_MORE = attributes.FIELDS | frozenset(
    {_CHANNEL, _TARGET, _CONFIG, _PAIRS, _GLOBAL_IDS, _PAYLOAD}
    | {GROUPS, DEVICE_LIST, IOTA_LIST, MESH_LIST}
)
_NUMBERED = ("parameter", "get-tuple-element")  # of which number 0 goes without saying
NO_CONFIG = _NO_FIELD
_APIS = {
    **{0: "API_VERSION_UNSPECIFIED", 1: "API_VERSION_ORIGINAL"},
    **{2: "API_VERSION_STATUS_RETURNING", 3: "API_VERSION_STATUS_RETURNING_UNIFIED"},
    4: "API_VERSION_TYPED_FFI",
}


class More(NamedTuple):
    """What few instructions say; ``config`` is where the backend config is."""

    attributes: Attributes = NO_ATTRIBUTES
    target: str = ""
    groups: Groups = ()
    parameter: int = -1
    channel_id: int = -1
    uses_global_ids: bool = False
    pairs: Groups = ()
    api_version: str = ""
    config: Stretch = NO_CONFIG


_NO_MORE = More()


class Raw(NamedTuple):
    """An instruction whose ids are not yet names."""

    name: str
    id: int
    opcode: str
    shape: Shape
    op_name: str
    frame_id: int
    source: Frames
    operand_ids: tuple[int, ...]
    called_ids: tuple[int, ...]
    more: More


class InstructionReader:
    """Reads the instructions of one program; what many of them repeat it reads once."""

    def __init__(self, data: bytes, payloads: dict[int, Stretch]) -> None:
        """`payloads` are the module's shared payloads by id."""
        self._data = data
        self._payloads = payloads
        self._shapes: dict[bytes, Shape] = {}
        self._groups: dict[bytes, Groups] = {}
        self._grouped = 0
        self._opcodes: dict[bytes, str] = {}
        self._attributes = AttributeReader()

    def read(self, start: int, end: int) -> Raw:
        """Read an HloInstructionProto.

        Raises:
            WireError: the bytes are damaged.
        """
        data = self._data
        message = read_message(data, start, end, _REPEATED)
        numbers, stretches, lists = message
        opcode = self._opcode(*stretches.get(_OPCODE, _NO_FIELD))
        name, operands, called = stretches.get(_NAME), lists.get(_OPERANDS), lists.get(_CALLED)
        shape = self._shape(*stretches.get(_SHAPE, _NO_FIELD))
        is_plain = _MORE.isdisjoint(stretches) and _MORE.isdisjoint(numbers)
        is_plain = is_plain and _MORE.isdisjoint(lists) and opcode not in _NUMBERED
        return Raw(
            text(data, *name) if name else "",
            signed(numbers.get(_ID, 0)),
            opcode,
            shape,
            *self._origin(stretches.get(_METADATA)),
            whole_numbers(data, operands) if operands else (),
            whole_numbers(data, called) if called else (),
            _NO_MORE if is_plain else self._more(message, opcode, shape),
        )

    def _more(self, message: Message, opcode: str, shape: Shape) -> More:
        data = self._data
        numbers, stretches, lists = message
        target = stretches.get(_TARGET)
        return More(
            attributes=self._attributes.read(data, message, opcode, shape),
            target=text(data, *target) if target else "",
            groups=self._groups_of(message),
            parameter=signed(numbers.get(_PARAMETER, 0)) if opcode == "parameter" else -1,
            channel_id=signed(numbers.get(_CHANNEL, 0)) or -1,
            uses_global_ids=bool(numbers.get(_GLOBAL_IDS)),
            pairs=self._pairs(lists.get(_PAIRS)),
            api_version=_api(numbers.get(_API, 0)) if target else "",
            config=self._config(stretches),
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
            known = self._shapes[key] = read_shape(self._data, start, end)
        return known

    def _origin(self, where: Stretch | None) -> tuple[str, int, Frames]:
        """(op_name, stack frame id, the one line of the source of writers that keep no frames)."""
        if where is None:
            return "", 0, ()
        data = self._data
        numbers, stretches, _ = read_message(data, *where)
        op_name, file = stretches.get(_OP_NAME), stretches.get(_SOURCE_FILE)
        return (
            text(data, *op_name) if op_name else "",
            numbers.get(_FRAME, 0),
            (Frame(text(data, *file), numbers.get(_SOURCE_LINE, 0), ""),) if file else (),
        )

    def _groups_of(self, message: Message) -> Groups:
        """The groups, read once for all collectives that say the same."""
        stretches = message.stretches
        where = [stretches[n] for n in (DEVICE_LIST, IOTA_LIST, MESH_LIST) if n in stretches]
        where += message.lists.get(GROUPS, [])
        if not where:
            return ()
        key = b"|".join([self._data[start:end] for start, end in where])
        if (known := self._groups.get(key)) is None:
            known = self._groups[key] = collective_groups(self._data, message)
            self._grouped += sum(map(len, known))
            if self._grouped > _MOST_GROUPED:
                raise WireError(where[0][0], f"groups of {self._grouped:,} devices in all")
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


def _api(number: int) -> str:
    return _APIS.get(number, f"API_VERSION_{number}")
