"""What did the host do beside its devices: launches, waits, transfers, the input pipeline?"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from moeprof.ingest.chrome_json.device_work import DeviceWork
from moeprof.ingest.chrome_json.gathered import NONE, Gathered
from moeprof.ingest.chrome_json.steps import KINETO_STEP, JsonSteps
from moeprof.ingest.chrome_json.torch.contexts import ANNOTATION as ANNOTATIONS
from moeprof.ingest.chrome_json.torch.contexts import CPU_OP
from moeprof.ingest.planes.record import Calls
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

Sides = tuple[pd.DataFrame, pd.DataFrame]
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


def _launches(gathered: Gathered, found: DeviceWork, is_host: Flags) -> pd.DataFrame:
    """Calls whose id is that of device work."""
    ids = gathered.column("correlation")
    work = ids[found.places]
    known, first = np.unique(work[work != NONE], return_index=True)
    devices = found.work["device"].to_numpy()[work != NONE][first]
    places = np.flatnonzero(is_host & np.isin(ids, known))
    places = places[np.argsort(gathered.column("start_ns")[places], kind="stable")]
    return LAUNCHES.frame(
        {
            **_spans(gathered, places),
            "correlation_id": ids[places],
            "device": devices[np.searchsorted(known, ids[places])].astype(np.int64),
        }
    )


def _events(gathered: Gathered, steps: JsonSteps, is_host: Flags) -> pd.DataFrame:
    """Calls of a known kind, and what the user annotated."""
    texts, code = gathered.labels.texts, gathered.labels.code
    category, named = gathered.column("category"), gathered.column("event")
    labels = np.unique(named[is_host])
    kinds = np.array([_kind_of(texts[label]) for label in labels.tolist()], object)
    kind = np.full(len(named), "", object)
    kind[is_host] = kinds[np.searchsorted(labels, named[is_host])] if len(labels) else ""
    is_told = np.array(
        [not texts[label].startswith(KINETO_STEP) for label in labels.tolist()], bool
    )
    is_annotation = is_host & (category == code(ANNOTATIONS)) & (kind == "")
    is_annotation[is_host] &= is_told[np.searchsorted(labels, named[is_host])]
    kind[is_annotation] = ANNOTATION
    kind[(category == code(CPU_OP)) & (kind != INPUT)] = ""
    places = np.flatnonzero(is_host & (kind != ""))
    places = places[np.argsort(gathered.column("start_ns")[places], kind="stable")]
    return HOST_EVENTS.frame(
        {
            **_spans(gathered, places),
            "kind": pd.Categorical(kind[places].astype(str)),
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
    thread = gathered.column("thread")[places]
    return {
        "host": pd.Categorical([""] * len(places)),
        "line": pd.Categorical([f"thread {texts[code]}" for code in thread.tolist()]),
        "name": pd.Categorical([texts[c] for c in gathered.column("event")[places].tolist()]),
        "start_ns": start,
        "duration_ns": end - start,
    }


def _steps(steps: JsonSteps, at_ns: Int64s) -> Int64s:
    """Number of the step annotation that is open at each point, -1 for none."""
    starts = np.array([marker.start_ns for marker in steps.markers], np.int64)
    ends = np.array([marker.end_ns for marker in steps.markers], np.int64)
    numbers = np.array([marker.step for marker in steps.markers], np.int64)
    none = np.zeros(1, np.int64)
    at = last_begun(none.repeat(len(starts)), starts, none.repeat(len(at_ns)), at_ns)
    is_in = (at >= 0) & (at_ns < np.append(ends, 0)[at])
    return np.where(is_in, np.append(numbers, -1)[at], -1)
