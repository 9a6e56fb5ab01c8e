"""Question: which events does a JSON trace hold? The fast reader: the C++ library makes the rows.

Complete events as profilers write them become rows there; all that is beside the list of events,
and each event that the library leaves, is read as by `elements.JsonTrace`, the twin.
"""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Iterator
from enum import IntEnum

import numpy as np

from moeprof.errors import TraceError
from moeprof.ingest.chrome_json.elements import CHUNK, Event, JsonTrace, Readable
from moeprof.ingest.chrome_json.gathered import (
    BLANK,
    CALL_COLUMNS,
    NONE,
    OTHERS,
    PYTHON_CALLS,
    Gathered,
    Written,
    description,
)
from moeprof.ingest.xspace.native_library import load
from moeprof.ingest.xspace.open_space import native_is_due

_ROWS = 4096
"""Rows that the library makes before they are taken over."""
_MOST_TURNS = 100
"""Each costs a chunk that becomes text and bytes again: a file of more is read as text alone."""

_INT64 = ctypes.c_int64


class _Stop(IntEnum):
    """Why the library stopped; see native/chrome_json/reader.h."""

    MORE = 1
    FULL = 2
    WHOLE = 3
    OTHER = 4


class _Room(ctypes.Structure):
    _fields_ = (
        ("rows", _INT64),
        ("columns", _INT64),
        ("call_columns", _INT64),
        ("blank", ctypes.c_void_p),
        ("absent", _INT64),
        ("row", ctypes.c_void_p),
        ("call", ctypes.c_void_p),
    )


class _Report(ctypes.Structure):
    _fields_ = tuple(
        (name, _INT64)
        for name in ("at", "end", "rows", "calls", "texts", "complete", "python_calls", "others")
    )


def opened_trace(stream: Readable, gathered: Gathered) -> JsonTrace:
    """A trace whose events `gathered` is to take in, as far as they are not rows in it already.

    Raises:
        NativeError: ``MOEPROF_READER`` asks for the native reader, and it is not here.
        SpecError: ``MOEPROF_READER`` says something that cannot be.
    """
    return NativeTrace(stream, gathered) if native_is_due() else JsonTrace(stream)


class NativeTrace(JsonTrace):
    """A trace that hands out only events that the library leaves; all others become rows.

    What it hands out must be taken in before the next one is asked for.
    """

    def __init__(self, stream: Readable, gathered: Gathered) -> None:
        """Read into `gathered`."""
        super().__init__(stream)
        self._gathered = gathered
        self._library = load()
        self._rows = np.empty((_ROWS, len(BLANK)), np.int64)
        self._calls = np.empty((_ROWS, len(CALL_COLUMNS)), np.int64)
        self._blank = np.array(BLANK, np.int64)
        room = _Room(
            rows=_ROWS,
            columns=len(BLANK),
            call_columns=len(CALL_COLUMNS),
            blank=self._blank.ctypes.data,
            absent=NONE,
            row=self._rows.ctypes.data,
            call=self._calls.ctypes.data,
        )
        self._reader = _checked(self._library.MoeprofChromeOpen(ctypes.byref(room)))
        weakref.finalize(self, self._library.MoeprofChromeClose, self._reader)
        for role, place, text in description():
            self._describe(role, place, text)
        self._codes = array("q", [0])  # labels by the library's code of a text
        self._report = _Report()
        self._report_at = ctypes.byref(self._report)
        self._turns = 0

    def _describe(self, role: int, place: int, text: str) -> None:
        if not self._library.MoeprofChromeDescribe(self._reader, role, place, text.encode()):
            raise ValueError(f"{text}: the native reader takes no more arguments")

    def _ahead(self) -> Iterator[Event]:
        """Take in what the library reads, up to what is no event or no JSON."""
        if self._turns == _MOST_TURNS:
            return
        self._turns += 1
        data, at = self._text[self._at :].encode() + self._open_bytes(), 0
        self._text, self._at = "", 0
        while (stop := self._run(data, at)) != _Stop.OTHER:
            at = self._report.at
            if stop == _Stop.WHOLE:
                event, at = data[at : self._report.end], self._report.end
                yield self._json.decode(self._text_of(event))
            elif stop == _Stop.MORE:
                if self._is_end or len(data) - at > CHUNK:
                    break
                data, at = data[at:] + self._read(len(data) - at), 0
        self._text = self._decoded(data[self._report.at :])

    def _text_of(self, event: bytes) -> str:
        try:
            return event.decode()
        except UnicodeDecodeError:
            return self._decoded(event)

    def _run(self, data: bytes, at: int) -> int:
        """Why the library stopped."""
        report, gathered = self._report, self._gathered
        stop: int = _checked(
            self._library.MoeprofChromeRead(self._reader, data, at, len(data), self._report_at)
        )
        if report.complete or report.others:
            gathered.complete += report.complete
            for kind, count in ((PYTHON_CALLS, report.python_calls), (OTHERS, report.others)):
                if count:
                    gathered.dropped[kind] += count
        if report.texts >= len(self._codes):
            self._label()
        if report.rows:
            rows, calls = self._rows[: report.rows], self._calls[: report.calls]
            gathered.take(rows, calls, np.frombuffer(self._codes, np.int64))
        return stop

    def _label(self) -> None:
        """Label the texts that are new to the library."""
        table, content = ctypes.POINTER(_INT64)(), ctypes.c_void_p()
        self._library.MoeprofChromeTexts(self._reader, ctypes.byref(table), ctypes.byref(content))
        known = len(self._codes) - 1
        rows = np.ctypeslib.as_array(table, (self._report.texts, 3))[known:].tolist()
        start = rows[0][1]
        written = ctypes.string_at(content.value + start, rows[-1][2] - start)
        for how, begin, end in rows:
            text = written[begin - start : end - start].decode()
            is_plain = how == Written.TEXT and text[0] == '"' and "\\" not in text
            value = text[1:-1] if is_plain else self._json.decode(text)
            self._codes.append(self._gathered.written(how, value))


def _checked(answer: int | None) -> int:
    """What is not 0 or None; the library gives these where memory ran out."""
    if not answer:
        raise TraceError("trace: it does not fit into memory; read it on a larger machine")
    return answer
