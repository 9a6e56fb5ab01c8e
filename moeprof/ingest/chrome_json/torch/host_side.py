"""What did the host do beside its devices: launches, waits, transfers, the input pipeline?"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from moeprof.columns.coded import Coded, code_type
from moeprof.columns.table import Table
from moeprof.ingest.chrome_json.device_work import DeviceWork
from moeprof.ingest.chrome_json.gathered import NONE, Gathered
from moeprof.ingest.chrome_json.steps import KINETO_STEP, JsonSteps
from moeprof.ingest.chrome_json.torch.contexts import ANNOTATION as ANNOTATIONS
from moeprof.ingest.chrome_json.torch.contexts import CPU_OP
from moeprof.ingest.planes.record import Calls, distinct
from moeprof.ingest.xspace.space import Flags, Int64s
from moeprof.tables.host_side import (
    ANNOTATION,
    HOST_EVENTS,
    INPUT,
    LAUNCHES,
    TRANSFER,
    WAIT,
)
from moeprof.tables.intervals import last_begun

_KINDS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (WAIT, r"(cuda|hip)(Device|Stream|Event)Synchronize|cu(Ctx|Stream|Event)Synchronize"),
        (TRANSFER, r"(cuda|hip)Memcpy(?!\w*Async)\w*"),
        (INPUT, r"enumerate\(DataLoader\)#.*|DataLoader\w*\.__next__"),
    )
)
"""Calls of CUDA's and HIP's runtime, and what `torch.utils.data` annotates."""

Sides = tuple[Table, Table]
"""`LAUNCHES` and `HOST_EVENTS` of one host."""


def host_side(gathered: Gathered, found: DeviceWork, steps: JsonSteps, keep: Flags) -> Sides:
    """The tables of a host's own doings, by start, without a name of the host."""
    is_host = keep & ~found.is_among(len(keep))
    return _launches(gathered, found, is_host), _events(gathered, steps, is_host)


def launch_calls(gathered: Gathered, found: DeviceWork, keep: Flags) -> Calls:
    """The first call of each id that device work bears."""
    ids = gathered.column("correlation")
    is_host = keep & ~found.is_among(len(keep))
    places = np.flatnonzero(is_host & (ids > 0) & np.isin(ids, ids[found.places]))
    start = gathered.column("start_ns")[places]
    order = np.lexsort((start, ids[places]))
    order = order[np.append(True, np.diff(ids[places][order]) > 0)[: len(order)]]
    line = gathered.column("thread")[places]
    return Calls(ids[places][order], start[order], line[order])


def _launches(gathered: Gathered, found: DeviceWork, is_host: Flags) -> Table:
    """Calls whose id is that of device work."""
    ids = gathered.column("correlation")
    work = ids[found.places]
    known, first = np.unique(work[work != NONE], return_index=True)
    devices = found.work["device"][work != NONE][first]
    places = np.flatnonzero(is_host & np.isin(ids, known))
    places = places[np.argsort(gathered.column("start_ns")[places], kind="stable")]
    return LAUNCHES.table(
        {
            **_spans(gathered, places),
            "correlation_id": ids[places],
            "device": devices[np.searchsorted(known, ids[places])],
        }
    )


def _events(gathered: Gathered, steps: JsonSteps, is_host: Flags) -> Table:
    """Calls of a known kind, and what the user annotated."""
    texts, code = gathered.labels.texts, gathered.labels.code
    category, named = gathered.column("category"), gathered.column("event")
    labels, of = distinct(named[is_host])
    names = [texts[label] for label in labels.tolist()]
    kinds = ["", ANNOTATION, *(kind for kind, _ in _KINDS)]
    kind = np.zeros(len(named), np.int64)  # places in `kinds`
    kind[is_host] = np.array([kinds.index(_kind_of(name)) for name in names], np.int64)[of]
    is_annotation = is_host & (category == code(ANNOTATIONS)) & (kind == 0)
    is_annotation[is_host] &= ~np.array([n.startswith(KINETO_STEP) for n in names], bool)[of]
    kind[is_annotation] = kinds.index(ANNOTATION)
    kind[(category == code(CPU_OP)) & (kind != kinds.index(INPUT))] = 0
    places = np.flatnonzero(is_host & (kind != 0))
    places = places[np.argsort(gathered.column("start_ns")[places], kind="stable")]
    return HOST_EVENTS.table(
        {
            **_spans(gathered, places),
            "kind": _labels(kinds, kind[places]),
            "step": _steps(steps, gathered.column("start_ns")[places]),
            "size_bytes": np.full(len(places), -1, np.int64),
        }
    )


def _kind_of(name: str) -> str:
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(name)), "")


def _spans(gathered: Gathered, places: Int64s) -> dict[str, object]:
    """Host, thread, name, start and length of events."""
    texts = gathered.labels.texts
    start, end = (gathered.column(name)[places] for name in ("start_ns", "end_ns"))
    return {
        "host": Coded.same("", len(places)),
        "line": _labels(texts, gathered.column("thread")[places], "thread "),
        "name": _labels(texts, gathered.column("event")[places]),
        "start_ns": start,
        "duration_ns": end - start,
    }


def _labels(texts: Sequence[str], places: Int64s, before: str = "") -> Coded:
    """Texts by place, with what stands before each; those used are coded by the alphabet."""
    used, inverse = distinct(places)
    names = [before + texts[place] for place in used.tolist()]
    order = sorted(range(len(names)), key=names.__getitem__)
    codes = np.empty(len(order), code_type(len(order)))
    codes[order] = np.arange(len(order))
    return Coded(codes[inverse], [names[place] for place in order])


def _steps(steps: JsonSteps, at_ns: Int64s) -> Int64s:
    """Number of the step annotation that is open at each point, -1 for none."""
    starts = np.array([marker.start_ns for marker in steps.markers], np.int64)
    ends = np.array([marker.end_ns for marker in steps.markers], np.int64)
    numbers = np.array([marker.step for marker in steps.markers], np.int64)
    none = np.zeros(1, np.int64)
    at = last_begun(none.repeat(len(starts)), starts, none.repeat(len(at_ns)), at_ns)
    is_in = (at >= 0) & (at_ns < np.append(ends, 0)[at])
    return np.where(is_in, np.append(numbers, -1)[at], -1)
