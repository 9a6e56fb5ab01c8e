"""Question: what of a trace's events is kept, as columns of whole numbers?

Complete events (``ph`` X) with a name and both stamps; what names processes and threads; the rest
is counted by kind. Python calls of the host are counted and not kept.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from enum import IntEnum

import numpy as np

from moeprof.ingest.chrome_json.elements import Event
from moeprof.ingest.planes.record import Labels
from moeprof.ingest.xspace.space import Flags, Int64s

_NUMBERS = {
    "correlation": ("correlation_id", "correlation"),
    "run_id": ("run_id",),
    "device": ("device_ordinal", "device"),
    "step_num": ("step_num",),
    "global_id": ("global_device_id",),
    "graph_id": ("cuda_graph_id", "graph id"),
    "graph_node": ("cuda_graph_node_id", "graph node id"),
    "group": ("group_id",),
    "rank": ("rank",),
    "external": ("External id",),
}
_TEXTS = {
    "op": ("hlo_op",),
    "module": ("hlo_module",),
    "op_name": ("name", "long_name", "tf_op"),
    "details": ("kernel_details", "memcpy_details", "Memset_details"),
}
_NO_MODULE = "XlaModule:"
_LABELLED = ("process", "thread", "category", "event", *_TEXTS)
_COLUMNS = ("process", "thread", "category", "event", "start_ns", "end_ns", *_NUMBERS, *_TEXTS)
_PLACE = {name: place for place, name in enumerate(_COLUMNS)}
_ARGUMENTS = {
    key: (_PLACE[column], keys, columns is _TEXTS)
    for columns in (_NUMBERS, _TEXTS)
    for column, keys in columns.items()
    for key in keys
}
"""Of each argument the column that it tells, all that may tell it, and whether it is a text."""
CALL_COLUMNS = ("place", "sequence", "forward_thread", "dims", "types", "values", "collective")
"""Of a host op or kernel of PyTorch: the event; numbers of autograd; labels of texts in JSON."""
_CALLS = frozenset({"cpu_op", "kernel"})
_AUTOGRAD = ("Sequence number", "Fwd thread id")
_INPUTS = ("Input Dims", "Input type", "Concrete Inputs")
_MESSAGE = (
    *("Collective name", "Process Group Name", "Process Group Ranks", "Group size", "dtype"),
    *("In msg nelems", "Out msg nelems", "Global rank start", "Global rank stride"),
)
"""What a collective sends, and to whom."""
_TELLING = frozenset((*_AUTOGRAD, *_INPUTS, *_MESSAGE))
_LAUNCH = "gpu_launch"  # XProf ties launch and kernel by an id of their flow, where it drops theirs
_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?")
NONE = -(2**62)
"""Stands for a number that an event lacks."""
BLANK = [NONE if name in _NUMBERS else 0 for name in _COLUMNS]
"""The row of an event without arguments."""
_LABELLED_PLACES = [_PLACE[name] for name in _LABELLED]
_LABELLED_CALLS = [*range(CALL_COLUMNS.index("dims"), len(CALL_COLUMNS))]
UNUSABLE = "events without a name or a number for a stamp"
NO_PHASE = "events without a phase"
"""Kinds of events that are lost: what they stood for is not known."""
DEVICES = 2**31
"""Ordinals of devices are below it."""


class Role(IntEnum):
    """What a text of the description of the columns stands for; see native/chrome_json/reader.h."""

    NUMBER = 0
    TEXT = 1
    CALL_NUMBER = 2
    CALL_TEXT = 3
    MESSAGE = 4
    CALLS = 5
    LAUNCH = 6
    IGNORED = 7


def description() -> Iterator[tuple[Role, int, str]]:
    """What tells which column, for the native reader: role, place of the column, text.

    Several arguments of one column stand in order of precedence.
    """
    for role, columns in ((Role.NUMBER, _NUMBERS), (Role.TEXT, _TEXTS)):
        for column, keys in columns.items():
            yield from ((role, _PLACE[column], key) for key in keys)
    yield from ((Role.CALL_NUMBER, place, key) for place, key in enumerate(_AUTOGRAD, 1))
    yield from ((Role.CALL_TEXT, place, key) for place, key in enumerate(_INPUTS, 3))
    yield from ((Role.MESSAGE, len(CALL_COLUMNS) - 1, key) for key in _MESSAGE)
    yield from ((Role.CALLS, 0, category) for category in sorted(_CALLS))
    yield Role.LAUNCH, _PLACE["correlation"], _LAUNCH
    yield Role.IGNORED, 0, _NO_MODULE


_LONGEST_NUMBER = 40
_LARGEST = 2**62
PYTHON_CALLS = "Python calls"
OTHERS = "other trace events"
_HALF = re.compile("[\ud800-\udfff]")


def _thread(event: Event) -> tuple[str, str]:
    return _id(event.get("pid")), _id(event.get("tid"))


def _arguments(event: Event) -> dict[str, object]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


class Gathered:
    """Columns of the complete events, and names of processes and threads by their number.

    ``tags`` are the labels that PyTorch gives processes (``GPU 0``); ``renamed`` has processes that
    carry two names, with both.
    """

    def __init__(self, labels: Labels) -> None:
        """Take texts into `labels`."""
        self.labels = labels
        self.names: dict[str, str] = {}
        self.threads: dict[tuple[str, str], str] = {}
        self.tags: dict[str, str] = {}
        self.renamed: dict[str, tuple[str, str]] = {}
        self.dropped: Counter[str] = Counter()
        self.complete = 0
        self._open: dict[tuple[str, str], list[Event]] = {}  # begun on a thread, and not yet ended
        self._codes: dict[str, int] = {}
        self._columns = [array("q") for _ in _COLUMNS]
        self._calls = [array("q") for _ in CALL_COLUMNS]

    def add(self, events: Iterable[Event]) -> None:
        """Take in events."""
        for event in events:
            phase = event.get("ph")
            if phase == "X":
                self._add_complete(event)
            elif phase == "M":
                self._add_name(event)
            elif phase == "B":
                self._open.setdefault(_thread(event), []).append(event)
            elif phase == "E":
                self._add_ended(event)
            elif isinstance(phase, str):
                self.dropped[OTHERS] += 1
            elif event:  # an empty one ends the traces that JAX writes
                self.dropped[NO_PHASE] += 1

    def _add_ended(self, end: Event) -> None:
        """The event that began last on the thread, as a complete one; ends may add arguments."""
        begun = self._open.get(_thread(end))
        if not begun:
            self.dropped["ends without a beginning"] += 1
            return
        begin = begun.pop()
        start_ns, end_ns = nanoseconds(begin.get("ts")), nanoseconds(end.get("ts"))
        known = None if start_ns is None or end_ns is None else end_ns - start_ns
        length = None if known is None else str(Decimal(known) / 1000)  # as a stamp is written
        args = {**_arguments(begin), **_arguments(end)}
        self._add_complete({**begin, "dur": length, "args": args})

    def column(self, name: str) -> Int64s:
        """A column, int64; texts are codes of the labels, numbers that are absent `NONE`.

        It cannot be written to, and no event can be added as long as it is in use.
        """
        return _view(self._columns[_PLACE[name]])

    def calls(self) -> dict[str, Int64s]:
        """`CALL_COLUMNS`, of the events that have any; numbers that are absent `NONE`."""
        return dict(zip(CALL_COLUMNS, map(_view, self._calls), strict=True))

    def part(self, mine: Flags, names: Mapping[str, str]) -> Gathered:
        """These events alone, with labels of their own, and the processes of these names."""
        found = Gathered(Labels())
        found._columns = self._relabelled(found, self._columns, mine, _LABELLED_PLACES)
        is_called = mine[_view(self._calls[0])]
        found._calls = self._relabelled(found, self._calls, is_called, _LABELLED_CALLS)
        found._calls[0] = _array((np.cumsum(mine) - 1)[_view(found._calls[0])])
        found.names = dict(names)
        found.threads = {key: name for key, name in self.threads.items() if key[0] in names}
        found.tags = {process: tag for process, tag in self.tags.items() if process in names}
        found.renamed = {key: both for key, both in self.renamed.items() if key in names}
        found.complete = int(mine.sum())
        return found

    def _relabelled(
        self, other: Gathered, columns: list[array[int]], mine: Flags, labelled: list[int]
    ) -> list[array[int]]:
        """Some rows of columns, with the labels of another."""
        kept, texts = [_view(column)[mine] for column in columns], self.labels.texts
        for place in labelled:
            kept[place] = other.labels.codes(texts, kept[place])
        return [*map(_array, kept)]

    def take(self, rows: Int64s, calls: Int64s, codes: Int64s) -> None:
        """Take in rows of `BLANK`'s columns, and calls whose place counts from the first row.

        Labels stand in them as places in ``codes``.
        """
        before = len(self._columns[0])
        for place, column in enumerate(self._columns):
            values = codes[rows[:, place]] if place in _LABELLED_PLACES else rows[:, place]
            column.frombytes(values.tobytes())
        for place, column in enumerate(self._calls):
            values = codes[calls[:, place]] if place in _LABELLED_CALLS else calls[:, place]
            column.frombytes((values + before if place == 0 else values).tobytes())

    def written(self, how: Written, value: object) -> int:
        """The code of a value that is written so."""
        return self._code(_TEXT_OF[how](value))

    def _code(self, text: str) -> int:
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = self.labels.code(encodable(text))
        return code

    def _add_name(self, event: Event) -> None:
        args = event.get("args")
        name = encodable(str(args.get("name", ""))) if isinstance(args, dict) else ""
        process = _id(event.get("pid"))
        if event.get("name") == "process_name":
            before = self.names.setdefault(process, name)
            if before != name:
                self.renamed.setdefault(process, (before, name))
                self.names[process] = name
        elif event.get("name") == "thread_name":
            self.threads[process, _id(event.get("tid"))] = name
        elif event.get("name") == "process_labels" and isinstance(args, dict):
            self.tags[process] = encodable(str(args.get("labels", "")))

    def _add_complete(self, event: Event) -> None:
        self.complete += 1
        name, given = event.get("name"), event.get("args")
        if isinstance(name, str) and name.startswith("$"):
            self.dropped[PYTHON_CALLS] += 1
            return
        start = nanoseconds(event.get("ts"))
        length = nanoseconds(event.get("dur"))
        if not isinstance(name, str) or start is None or length is None:
            self.dropped[UNUSABLE] += 1
            return
        args = given if isinstance(given, dict) else {}
        code, row = self._code, BLANK.copy()
        row[:6] = (
            code(_id(event.get("pid"))),
            code(_id(event.get("tid"))),
            code(_text(event.get("cat"))),
            code(name),
            start,
            start + length,
        )
        for argument in args:
            slot = _ARGUMENTS.get(argument)
            if slot is not None:
                place, keys, is_text = slot
                row[place] = code(_first_text(args, keys)) if is_text else _first_number(args, keys)
        category = event.get("cat") if isinstance(event.get("cat"), str) else ""
        if category in _CALLS and not _TELLING.isdisjoint(args):
            self._add_call(args)
        if category == _LAUNCH and row[_PLACE["correlation"]] == NONE:
            row[_PLACE["correlation"]] = _first_number(event, ("bind_id",))
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)

    def _add_call(self, args: dict[str, object]) -> None:
        """What the event that comes next tells of itself as a call of PyTorch."""
        place = len(self._columns[0])
        numbers = (_first_number(args, (key,)) for key in _AUTOGRAD)
        texts = (_json(args[key]) if key in args else "" for key in _INPUTS)
        message = {key: args[key] for key in _MESSAGE if key in args}
        told = (*texts, _json(message) if "Collective name" in message else "")
        call = (place, *numbers, *map(self._code, told))
        for column, value in zip(self._calls, call, strict=True):
            column.append(value)


def _view(column: array[int]) -> Int64s:
    values = np.frombuffer(column, np.int64)
    values.flags.writeable = False
    return values


def _array(values: Int64s) -> array[int]:
    return array("q", values.tobytes())


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def encodable(text: str) -> str:
    """The text with halves of surrogate pairs, which JSON can escape and UTF-8 lacks, replaced."""
    return _HALF.sub("\N{REPLACEMENT CHARACTER}", text)


def _id(value: object) -> str:
    """Number of a process or thread as text; ``1.0`` is the same one as ``1``."""
    if type(value) is int:
        return str(value)
    text = _text(value)
    if not _NUMBER.fullmatch(text) or len(text) > _LONGEST_NUMBER:
        return text
    number = Decimal(text)
    is_whole = abs(number) < _LARGEST and number == number.to_integral_value()
    return str(int(number)) if is_whole else text


def _text(value: object) -> str:
    return "" if value is None else encodable(str(value))


def _first_number(args: dict[str, object], keys: tuple[str, ...]) -> int:
    for key in keys:
        value = args.get(key)
        try:
            number = int(value) if isinstance(value, (int, str)) else None
        except ValueError:
            number = None
        if number is not None and abs(number) < 2**62:
            return number
    return NONE


def _first_text(args: dict[str, object], keys: tuple[str, ...]) -> str:
    for key in keys:
        value = args.get(key)
        if isinstance(value, str) and value and value != _NO_MODULE:
            return value
    return ""


class Written(IntEnum):
    """How a value becomes a label; see native/chrome_json/texts.h."""

    ID = 0
    TEXT = 1
    JSON = 2


_TEXT_OF: dict[Written, Callable[[object], str]] = {
    Written.ID: _id,
    Written.TEXT: _text,
    Written.JSON: _json,
}


# How many nanoseconds is a stamp that is written in microseconds?


def nanoseconds(microseconds: object) -> int | None:
    """Rounded down, exactly; None where it is no finite number or beyond 146 years.

    Whole numbers and texts (``"12.345"``) are taken: a binary fraction of microseconds since 1970
    is a quarter of a microsecond wide.
    """
    if isinstance(microseconds, bool):
        return None
    if isinstance(microseconds, int):
        value = microseconds * 1000
    elif isinstance(microseconds, str):
        try:
            exact = Decimal(microseconds)
        except InvalidOperation:
            return None
        if not exact.is_finite() or abs(exact) > _LARGEST:
            return None
        value = int((exact * 1000).to_integral_value(rounding="ROUND_FLOOR"))
    else:
        return None
    return value if abs(value) < _LARGEST else None
