"""Question: is a piece of device work compute, communication, a copy, or mere waiting?

The HLO op decides first, as kernels of one collective may have any name (XLA's one-shot kernels,
peer copies); names decide where no op is known, or it is a guess.
"""

from __future__ import annotations

import re
from collections.abc import Set

import numpy as np
import pandas as pd

from moeprof.analyzers.attribution import is_collective, sure_rows
from moeprof.analyzers.classify.components import COPIES, LOOPS
from moeprof.analyzers.classify.targets import exchange_of
from moeprof.tables.trace import Trace, once
from moeprof.tables.waits import is_work
from moeprof.vocabulary import COMMUNICATION as KERNELS_OF_COMMUNICATION
from moeprof.vocabulary import is_driver_copy, kind_of_kernel

COMPUTE, COMMUNICATION, COPY, NEITHER = range(4)

_IN_FLIGHT = r"Async XLA Ops$"
"""Line of a TPU core on which transfers lie from their start to their end."""

_COLLECTIVE_OP = (
    r"^(?:(?:ragged-)?all-to-all|all-gather|all-reduce|reduce-scatter"
    r"|collective-(?:permute|broadcast)|send|recv)(?:-start|-done)?(?:\.\d+)*$"
)
_COPY_OP = r"^copy(?:-start|-done)?(?:\.\d+)*$"
"""XLA names an instruction by its opcode and a number, unless a user or a pass renames it."""


@once
def classes_of_events(trace: Trace) -> np.ndarray:
    """`work_classes` of all events."""
    return work_classes(trace, trace.events)


def work_classes(trace: Trace, events: pd.DataFrame) -> np.ndarray:
    """One of the four classes for each of `events` (rows of `EVENTS`), as int8.

    Communication: the op is a collective, or a custom call that sends or brings back tokens, or
    the kernel is a communication library's. Copies: copies and memory sets, as neither computes.
    Neither: waits for streams and events, and loops whose body was recorded: the body counts.
    An op whose program is missing goes by its name, and is a loop if others lie in it. What a TPU
    has in flight beside its core is communication or else a copy: the core computes.
    """
    classes = np.full(len(events), COMPUTE, dtype="int8")
    opcodes, rows = trace.hlo_ops["opcode"], sure_rows(events)
    is_kind_of_copy = events["kind"].isin(["copy", "memset"]).to_numpy()
    is_copied = is_kind_of_copy | _is_driver_copy(events)
    classes[is_copied | _is_one_of(opcodes, COPIES, rows)] = COPY
    is_unknown = _is_unknown_op(events)
    has_body = (events["self_ns"] < events["duration_ns"]).to_numpy()
    classes[has_body & is_unknown] = NEITHER
    classes[is_unknown & _is_named(events["op"], _COPY_OP)] = COPY
    classes[_is_named(events["line"], _IN_FLIGHT)] = COPY
    classes[_is_communication(trace, events)] = COMMUNICATION
    classes[has_body & _is_one_of(opcodes, LOOPS, rows)] = NEITHER
    classes[~is_work(events)] = NEITHER
    return classes


def _is_driver_copy(events: pd.DataFrame) -> np.ndarray:
    """Whether a piece is a copy or memory set of the driver: in a GPU graph a kernel of its own."""
    names = events["name"].cat
    hits = np.array([is_driver_copy(name) for name in names.categories], dtype=bool)
    return hits.take(names.codes.to_numpy()) if len(events) else hits[:0]


def _is_communication(trace: Trace, events: pd.DataFrame) -> np.ndarray:
    targets = trace.hlo_ops["custom_call_target"]
    sends = {target for target in targets.unique() if exchange_of(target)}
    is_sent = _is_one_of(targets, sends, sure_rows(events))
    is_like_one = _is_unknown_op(events) & _is_named(events["op"], _COLLECTIVE_OP)
    names = events["name"].cat
    hits = np.array([kind_of_kernel(n) in KERNELS_OF_COMMUNICATION for n in names.categories], bool)
    is_kernel = hits.take(names.codes.to_numpy()) if len(events) else hits[:0]
    found: np.ndarray = is_collective(trace, events) | is_sent | is_kernel | is_like_one
    return found


def _is_unknown_op(events: pd.DataFrame) -> np.ndarray:
    """Whether a piece is an op whose program is missing; a guessed op is none to go by."""
    is_unknown: np.ndarray = (events["instruction"] < 0).to_numpy() & events["kind"].eq(
        "op"
    ).to_numpy()
    return is_unknown


def _is_named(names: pd.Series, pattern: str) -> np.ndarray:
    hits = [re.search(pattern, name) is not None for name in names.cat.categories]
    found = np.array(hits, dtype=bool)
    return found.take(names.cat.codes.to_numpy())


def _is_one_of(texts: pd.Series, wanted: Set[str], rows: np.ndarray) -> np.ndarray:
    """Whether the op in each row of `HLO_OPS` has one of these texts; row -1 has none."""
    return np.append(texts.isin(wanted).to_numpy(), False).take(rows)
