"""Question: what is known about an out-of-memory failure, as one strict JSON document?

`moeprof memory explain-oom --json` prints it, the text is drawn from it alone. Its schema only
grows: keys are added, never renamed or removed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TypedDict

import pandas as pd

from moeprof.projector.oom import (
    HBM,
    HOST_RAM,
    PINNED,
    SHARED,
    TENSOR,
    Explanation,
    Message,
    ProgramText,
)
from moeprof.projector.oom.capacity import Capacity
from moeprof.projector.oom.changes import Change, changes
from moeprof.projector.oom.contents import Group, groups_of, scope_of
from moeprof.projector.oom.explain import explain
from moeprof.projector.oom.sources import Told

SCHEMA = "moeprof.oom/1"
_MEMORIES = {
    HBM: "device memory (HBM)",
    PINNED: "pinned host memory",
    HOST_RAM: "host memory",
    SHARED: "shared memory (LDS on AMD)",
    TENSOR: "tensor memory",
}
"""Names of memories; those of TPU's on-chip memories are written as they are, in capitals."""

Value = bool | int | float | str | None
Row = dict[str, Value]


class MessageInfo(TypedDict):
    """One message: what failed, why, what fills the memory, what to change (most first).

    ``memory`` is the memory that ran out; ``state`` is how its pool was: full, fragmented or
    could_not_grow, empty where no pool failed so or nothing tells.
    """

    verdict: str
    sentence: str
    inside_pool: bool | None
    request: Row
    pool: Row
    program: Row
    listed_bytes: int
    not_listed_bytes: int | None
    groups: list[Row]
    buffers: list[Row]
    changes: list[Row]
    not_told: list[str]
    said_by: Row
    ranks: list[str]
    devices: list[str]
    memory: str
    state: str


class OomDocument(TypedDict):
    """All messages of a text, in its order."""

    schema: str
    path: str
    messages: list[MessageInfo]
    notes: list[str]


def build_oom(path: str, told: Sequence[Told], capacity: Capacity | None = None) -> OomDocument:
    """The document of what `read_oom` found."""
    return {
        "schema": SCHEMA,
        "path": path,
        "messages": [_message(one.message, one.buffers, capacity) for one in told],
        "notes": list(dict.fromkeys(note for one in told for note in one.notes)),
    }


def oom_json(document: OomDocument) -> str:
    """The document as strict JSON."""
    return json.dumps(document, allow_nan=False)


def _message(message: Message, buffers: pd.DataFrame, capacity: Capacity | None) -> MessageInfo:
    found = explain(message, capacity)
    failure = message.failure
    return {
        "verdict": found.verdict,
        "sentence": found.sentence,
        "inside_pool": found.is_inside,
        "request": {
            "size_bytes": failure.request_bytes,
            "is_arena": found.is_arena,
            "excess_bytes": found.excess_bytes,
        },
        "pool": _pool(message, found),
        "program": _program(message, found),
        "listed_bytes": int(buffers["size_bytes"].sum()),
        "not_listed_bytes": _not_listed(message, buffers),
        "groups": [_group(group) for group in groups_of(buffers)],
        "buffers": [
            {str(name): _plain(value) for name, value in row.items()}
            for row in buffers.to_dict("records")
        ],
        "changes": [_change(change, found) for change in changes(found, buffers, capacity)],
        "not_told": list(found.not_told),
        "said_by": {
            "who": failure.who,
            "line": failure.line,
            "text": failure.text,
            "repeats": message.repeats,
        },
        "ranks": list(message.ranks),
        "devices": list(message.devices),
        "memory": _MEMORIES.get(failure.space, failure.space.upper()),
        "state": found.state,
    }


def _pool(message: Message, found: Explanation) -> Row:
    pool = message.pool
    free = pool.free_bytes if pool.free_bytes is not None else message.failure.free_bytes
    return {
        "limit_bytes": found.limit_bytes,
        "in_use_bytes": pool.in_use_bytes,
        "free_bytes": free,
        "largest_free_bytes": pool.largest_free_bytes or message.failure.piece_bytes,
        "taken_bytes": pool.taken_bytes,
        "held_by_others_bytes": found.held_bytes,
        "source": pool.source or ("the message" if pool.in_use_bytes is not None else ""),
    }


def _program(message: Message, found: Explanation) -> Row:
    told = asdict(message.program)
    del told["buffers"]
    return {**told, "needed_bytes": found.needed_bytes, "new_output_bytes": _new(message.program)}


def _new(told: ProgramText) -> int | None:
    """Results that reuse no argument."""
    if told.output_bytes is not None and told.alias_bytes is not None:
        return told.output_bytes - told.alias_bytes
    if told.total_bytes and told.argument_bytes is not None and told.temp_bytes is not None:
        rest = told.total_bytes - told.argument_bytes - told.temp_bytes
        return max(rest - (told.constant_bytes or 0), 0)
    return told.output_bytes


def _not_listed(message: Message, buffers: pd.DataFrame) -> int | None:
    """Temporaries that the message sums up but does not list; None where it gives no sum."""
    temp = message.program.temp_bytes
    if temp is None:
        return None
    listed = buffers["size_bytes"][~buffers["content"].eq("arguments")].sum()
    return max(temp - int(listed), 0)


def _group(group: Group) -> Row:
    layer = None if group.layer == -1 else group.layer
    return {**group._asdict(), "layer": layer, "scope": scope_of(group.op_name)}


def _change(change: Change, found: Explanation) -> Row:
    saves, excess = change.saves_bytes, found.excess_bytes
    is_enough = saves >= excess if saves is not None and excess else None
    if is_enough and change.is_upper_bound:
        is_enough = None  # it may be
    return {**asdict(change), "is_enough": is_enough}


def _plain(value: object) -> Value:
    return value if isinstance(value, bool | int | float | str) else str(value)
