"""Question: which tokens went to which expert, where the run recorded it?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from moeprof.columns.grouping import distinct, grouped, grouped_columns
from moeprof.columns.table import Table, stacked
from moeprof.errors import TableError, TraceError
from moeprof.ingest.sources.beside import RECORD, Beside, named_recording
from moeprof.ingest.xspace.open_space import unreadable
from moeprof.ingest.xspace.space import number_in
from moeprof.tables.routing import PARTS_KEY, RECEIVED, RECORDING_KEY, ROUTING
from moeprof.tables.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_NAMED = 3
_NUMBERED = re.compile(r"p(\d+)\.parquet$")
_SIGNED = ("step", "rank")  # a rank of -1 is one that nobody knows


@dataclass(frozen=True)
class Routing:
    """`ROUTING` and `RECEIVED` of a run: what may be used of the tables beside its profiles.

    ``faults`` say what is left out and why, ``unread`` what cannot be read. ``has_tables`` tells
    whether the folder holds any, ``is_identified`` whether all that are used bear the id of a
    process of the record.
    """

    routing: Table = field(default_factory=ROUTING.table)
    received: Table = field(default_factory=RECEIVED.table)
    faults: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    has_tables: bool = False
    is_identified: bool = False


def routing_of_run(run: Path | None, beside: Beside) -> Routing:
    """The tables of the folder as far as they are of the run; its times do not need them.

    With a table that is not, all of its kind are left out: the others are no whole without it.
    """
    try:
        kinds = _files(run)
        strays = [[why for file in files if (why := _stray(file, beside))] for files in kinds]
        strays[0] += _missing_parts(kinds[0])
        kept = [[] if why else files for files, why in zip(kinds, strays, strict=True)]
        (routing, idle), (received, silent) = (
            _counted(_read(files, schema), name, value)
            for files, schema, name, value in zip(
                kept,
                (ROUTING, RECEIVED),
                ("routing", "rows received"),
                ("tokens", "rows"),
                strict=True,
            )
        )
    except TraceError as error:
        return Routing(unread=(f"no routing is known: {error}",))
    told = (f"{why[0]}: left out" for why in strays if why)
    return Routing(
        routing,
        received,
        faults=(*told, *idle, *silent),
        has_tables=any(kinds),
        is_identified=any(kept)
        and all(_recording(file) in beside.recordings for files in kept for file in files),
    )


def routing_of_runs(besides: Mapping[Path | None, Beside]) -> Routing:
    """The tables of all folders of a run, each with what lies beside its profiles."""
    found = [routing_of_run(run, beside) for run, beside in besides.items()]
    if len(found) == 1:
        return found[0]
    return Routing(
        stacked([one.routing for one in found]),
        stacked([one.received for one in found]),
        faults=tuple(fault for one in found for fault in one.faults),
        unread=tuple(line for one in found for line in one.unread),
        has_tables=any(one.has_tables for one in found),
        is_identified=any(one.has_tables for one in found)
        and all(one.is_identified for one in found if one.has_tables),
    )


def of_recorded_steps(found: Routing, steps: Sequence[int]) -> Routing:
    """Without routing of other steps than these, the profile's by the numbers of the script.

    Where its id says that it is of the run it stays, as it is of the same experts.
    """
    tables = {"routing": found.routing, "rows received": found.received}
    apart = {
        name: named_numbers(table["step"])
        for name, table in tables.items()
        if len(table) and len(steps) and not np.isin(table["step"], steps).any()
    }
    if not apart:
        return found
    end = "" if found.is_identified else ", and no id tells that it is of this run: left out"
    told = (
        f"no {name} of the recorded steps: it is of step(s) {numbers}, they are "
        f"{named_numbers(steps)}{end}"
        for name, numbers in apart.items()
    )
    found = replace(found, faults=(*found.faults, *told))
    if found.is_identified:
        return found
    return replace(
        found,
        routing=ROUTING.table() if "routing" in apart else found.routing,
        received=RECEIVED.table() if "rows received" in apart else found.received,
    )


def named_numbers(numbers: Iterable[int]) -> str:
    """``4``, ``4 to 9``, ``1, 4, 9, … 12``."""
    known = sorted({int(number) for number in numbers})
    if len(known) < 3 or known[-1] - known[0] == len(known) - 1:
        word = " and " if len(known) == 2 and known[1] - known[0] > 1 else " to "
        return word.join(map(str, dict.fromkeys((known[0], known[-1]))))
    first = ", ".join(map(str, known[:_MOST_NAMED]))
    return first if len(known) <= _MOST_NAMED else f"{first}, … {known[-1]}"


def _files(run: Path | None) -> tuple[list[Path], list[Path]]:
    """The tables of routing, and those of rows received.

    Raises:
        TraceError: the folder cannot be read.
    """
    try:
        files = sorted((run / "routing").glob("*.parquet")) if run is not None else []
    except OSError as error:
        raise unreadable(f"{run}/routing", error) from error
    received = [file for file in files if file.name.startswith("received-")]
    return [file for file in files if file not in received], received


def _stray(file: Path, beside: Beside) -> str:
    """Why a table is not of the run; empty where nothing tells that."""
    name = f"routing/{file.name}"
    if beside.is_of_other_run:
        return f"{name} lies beside a {RECORD} of another run"
    own = _recording(file) if beside.has_record else None
    if own is None or own in beside.recordings or (not own and not beside.recordings):
        return ""
    if own and _process(file) in beside.absent:
        return ""
    theirs = sorted(beside.recordings)[:_MOST_NAMED] or [""]
    named = ", ".join(map(named_recording, theirs))
    return f"{name} is of {named_recording(own)}, {RECORD} of {named}"


def _process(file: Path) -> int:
    """The place in the run of the process that wrote a table; -1 where its name tells none."""
    found = _NUMBERED.search(file.name)
    return number_in(found.group(1)) if found else -1


def _recording(file: Path) -> str | None:
    """The id of the recording in a table; empty where it bears none, None where it is damaged."""
    return _told(file, RECORDING_KEY)


def _told(file: Path, key: bytes) -> str | None:
    """What a table says of itself; None where it is damaged."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        told = parquet.read_schema(file).metadata or {}
    except (OSError, ValueError, pa.ArrowException):
        return None
    return bytes(told.get(key, b"")).decode("utf-8", "replace")


def _parts(file: Path) -> int:
    """How many processes counted a part of each batch; 0 where one counted all of it."""
    told = _told(file, PARTS_KEY) or ""
    return int(told) if told.isdecimal() else 0


def _missing_parts(files: list[Path]) -> list[str]:
    """Why tables are no whole: each process counted the tokens of its devices alone."""
    wanted = max(map(_parts, files), default=0)
    if not wanted or [_parts(file) for file in files] == [wanted] * wanted:
        return []
    return [
        f"{wanted} processes counted a part of the routing each, {len(files)} table(s) are here"
    ]


def _counted(table: Table, name: str, value: str) -> tuple[Table, tuple[str, ...]]:
    """Without layers and steps in which nothing was counted, and which these are.

    A router sends every token somewhere: zeros alone were written before anything was counted.
    """
    pairs = grouped(table, "step", "layer")
    sums = pairs.sum(table[value])
    if (sums != 0).all():
        return table, ()
    step, layer = table["step"][pairs.first], table["layer"][pairs.first]
    of_layer = grouped_columns([layer])
    layers = layer[of_layer.first][of_layer.max(sums) == 0]
    steps = distinct(step[(sums == 0) & ~np.isin(layer, layers)])
    told = []
    if len(layers):
        told.append(f"{name}: zeros alone in layer(s) {named_numbers(layers)} of every step")
    if len(steps):
        told.append(f"{name}: zeros alone in a layer of step(s) {named_numbers(steps)}")
    kept = table[~np.isin(table["layer"], layers) & ~np.isin(table["step"], steps)]
    return kept, tuple(f"{each}, so nothing was counted there: left out" for each in told)


def _read(files: list[Path], schema: Schema) -> Table:
    if not files:
        return schema.table()
    rows = stacked([_one(file, schema) for file in files])
    return _summed(rows, len(files)) if _parts(files[0]) else rows


def _summed(rows: Table, parts: int) -> Table:
    """Parts of the same batches added up; steps that not every process counted are left out."""
    *keys, counts = rows
    batches = grouped(rows, *keys)
    found = rows[batches.first].assign(**{counts: batches.sum(rows[counts])})
    steps = grouped(found, "step")
    is_whole = steps.min(batches.size) == parts
    kept: Table = found[is_whole[steps.of]]
    return kept


def _one(file: Path, schema: Schema) -> Table:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        found = parquet.ParquetFile(file).read()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise TraceError(f"{file}: expected a Parquet table, found {error}; remove it") from error
    try:
        columns = {name: _as_int64(found.column(name)) for name in found.column_names}
        counts = schema.checked(Table(columns))
    except TableError as error:
        raise TraceError(f"{file}: {error}; remove it") from error
    negative = [name for name in schema.names if name not in _SIGNED and (counts[name] < 0).any()]
    if negative:
        raise TraceError(
            f"{file}: expected numbers from 0 in column '{negative[0]}', found "
            f"{counts[negative[0]].min()}; remove it"
        )
    return counts


def _as_int64(column: pa.ChunkedArray) -> np.ndarray:
    """Counts of any width and sign, and floats that are whole, as int64; others as they are."""
    import pyarrow as pa

    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if column.null_count or not is_number:
        return np.array(column.to_pylist())
    values: np.ndarray = np.from_dlpack(column.combine_chunks())  # its own way imports pandas
    is_whole = (np.abs(values) < 2.0**63) & (values == np.round(values))
    return values.astype(np.int64) if values.ndim == 1 and is_whole.all() else values


def routing_notes(run: Path | None) -> tuple[str, ...]:
    """What lies in ``RUN/routing`` and is no table: a file whose writer was stopped, say."""
    try:
        cut = sorted((run / "routing").glob("*.partial")) if run is not None else []
    except OSError:
        return ()
    return tuple(
        f"{file}: the recorded routing was not written to its end, so it is left out"
        for file in cut
    )
