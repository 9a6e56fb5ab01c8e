"""Question: which op of a trace is meant, how long is one call of it there, how long replayed?"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from moeprof.analyzers.attribution import classes_of, sure_rows
from moeprof.analyzers.window import window
from moeprof.answers.values import printable
from moeprof.errors import ReplayError, SelectionError
from moeprof.tables.trace import Trace

_LISTED = 10
_CUT = "…"
"""Where a name is cut on a terminal: `moeprof.answers.values.shortened`."""


@dataclass(frozen=True)
class Target:
    """An op, the time of one call on one device, and where that was measured.

    ``median_ns`` is None where its calls cannot be told apart; ``notes`` say why, and how it was
    chosen.
    """

    module: int
    op: str
    op_name: str
    median_ns: int | None
    calls: int
    platform: str
    device: str
    jax_version: str
    notes: tuple[str, ...]


def target_of(trace: Trace, wanted: str) -> Target:
    """The op named `wanted`, else the costliest of a component or scope of that name.

    Raises:
        SelectionError: there is none, or the name is a part of those of several ops.
        ReplayError: the trace has no programs.
    """
    if trace.hlo_ops.empty:
        raise ReplayError(f"{trace.meta.path} has no programs: an .xplane.pb of the run has them")
    events = window(trace).events.pandas()
    events = events.assign(row=sure_rows(events))
    spent = events[events["row"] >= 0].groupby("row")["self_ns"].sum()
    ran = (
        trace.hlo_ops.loc[spent.index]
        .assign(spent_ns=spent)
        .sort_values("spent_ns", ascending=False, kind="stable")
    )
    row, note = _chosen(trace, ran, wanted)
    calls = events[events["row"] == row]
    return _measured(trace, row, calls, (note,) if note else ())


def _chosen(trace: Trace, ran: pd.DataFrame, wanted: str) -> tuple[int, str]:
    """Row of `HLO_OPS`, and how it was chosen where the name alone does not say it."""
    exact = ran[ran["op"] == wanted]
    if len(exact):
        more = f"of {len(exact)} programs that have it, the one where it costs most"
        return int(exact.index[0]), more if len(exact) > 1 else ""
    if _CUT in wanted:
        uncut = _uncut(ran, wanted)
        if uncut is not None:
            return uncut
    classes = classes_of(trace).pandas()
    named = classes[classes["component"] == wanted][["module", "op"]]
    is_part = pd.MultiIndex.from_frame(ran[["module", "op"]]).isin(pd.MultiIndex.from_frame(named))
    for found in (ran[is_part], ran[ran["op_name"].str.contains(wanted, regex=False)]):
        if len(found):
            return int(found.index[0]), f"the costliest of {len(found)} ops of '{wanted}'"
    found = ran[ran["op"].str.contains(wanted, regex=False)]
    if len(found) == 1:
        return int(found.index[0]), ""
    listed = ", ".join((found if len(found) else ran)["op"].head(_LISTED))
    if len(found):
        raise SelectionError(f"{len(found)} ops have '{wanted}' in their name, such as: {listed}")
    raise SelectionError(f"no op that ran is called '{wanted}'; the costliest are: {listed}")


def _uncut(ran: pd.DataFrame, cut: str) -> tuple[int, str] | None:
    """The op, else the scope, that a table on a terminal shortened to `cut`; None where none is.

    Raises:
        SelectionError: several fit it.
    """
    pattern = ".*".join(re.escape(part) for part in cut.split(_CUT))
    for column, what in (("op", "op"), ("op_name", "scope")):
        found = ran[ran[column].map(printable).str.fullmatch(pattern, flags=re.DOTALL)]
        names = found[column].drop_duplicates()
        if len(names) > 1:
            listed = ", ".join(map(printable, names.head(_LISTED)))
            raise SelectionError(
                f"'{cut}' is cut, and {len(names)} {what}s fit it, such as: {listed}"
            )
        if len(names) == 1:
            several = f"the costliest of {len(found)} ops that are called '{names.iloc[0]}'"
            return int(found.index[0]), several if len(found) > 1 else ""
    return None


def _measured(trace: Trace, row: int, calls: pd.DataFrame, notes: tuple[str, ...]) -> Target:
    """A call may be several kernels: each runs once per call where all ran equally often.

    Devices are told apart: a library may choose another kernel on each.
    """
    op = trace.hlo_ops.loc[row].to_dict()
    place = ["host", "device"]
    kernels = calls.groupby([*place, "name"], observed=True)["self_ns"].agg(["median", "size"])
    devices = kernels.groupby(place, observed=True)
    is_told = bool(devices["size"].nunique().eq(1).all())
    if not is_told:
        notes = (*notes, "its kernels did not run equally often: the time of a call is not known")
    models = trace.devices["model"]
    return Target(
        module=int(op["module"]),
        op=str(op["op"]),
        op_name=str(op["op_name"]),
        median_ns=round(float(devices["median"].sum().median())) if is_told else None,
        calls=int(devices["size"].min().sum()) if is_told else len(calls),
        platform=trace.meta.platform,
        device=str(models.iloc[0]) if len(models) else "",
        jax_version=trace.meta.jax_version,
        notes=notes,
    )


# How long does a replay take on this machine?

_TIMEOUT_S = 600.0
_ERROR = re.compile(r"[\w.]+(Error|Exception|Exit)\b")


@dataclass(frozen=True)
class Replayed:
    """What a script reports: ``median_ns`` of a call and its ``ratio`` to the trace.

    ``empty_call_ns`` is a call that computes one number: a time of less than twice that is mostly
    launching and has no ratio, as one of other devices has none; ``remark`` says so.
    """

    median_ns: int
    calls: int
    platform: str
    device: str
    jax: str
    ratio: float | None
    empty_call_ns: int
    remark: str


def replayed(script: Path, timeout_s: float = _TIMEOUT_S) -> Replayed | str:
    """Run a script in a process of its own, with this interpreter.

    A text says why there is no result.
    """
    try:
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {timeout_s:.0f} s"
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if _ERROR.match(line)]
        return f"it ended with exit code {done.returncode}: {' '.join(said[-1:])[:300]}"
    return Replayed(**json.loads(done.stdout.splitlines()[-1]))
