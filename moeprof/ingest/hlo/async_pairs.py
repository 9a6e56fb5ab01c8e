"""Question: which instruction ends what another one started, and what is done in between?

XLA splits an operation ``x`` into ``x-start`` and ``x-done``, or wraps a computation into
``async-start``, any number of ``async-update`` and ``async-done``; ``send`` and ``recv`` end in
``send-done`` and ``recv-done``. The later one takes the earlier one as its first operand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from moeprof.hlo.instruction import Instruction

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
