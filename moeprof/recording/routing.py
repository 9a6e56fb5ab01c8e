"""Question: which experts did each step's tokens go to? Kept on the device until someone asks.

`record` only keeps references to the step's arrays: no copy, no wait. `flush`, which also runs at
exit, waits for them and writes the tables of `moeprof.tables.routing` into the run folder that
``MOEPROF_RUN_DIR`` named when the step was recorded. Without that variable `record` does nothing.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from moeprof.errors import CaptureError
from moeprof.recording.options import RECORDING_VARIABLE, RUN_DIR_VARIABLE

if TYPE_CHECKING:
    import pyarrow

KEPT_STEPS = 512

# The columns of `moeprof.tables.routing`, which needs pandas and so cannot be imported at exit.
Columns = tuple[str, ...]
ROUTING_COLUMNS: Columns = ("step", "layer", "expert", "rank", "tokens")
RECEIVED_COLUMNS: Columns = ("step", "layer", "group", "rank", "rows")
RECORDING_KEY = b"moeprof.recording"
PARTS_KEY = b"moeprof.parts"


class DeviceArray(Protocol):
    """What `record` needs of an array; JAX and NumPy arrays have it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each dimension."""


@dataclass(frozen=True)
class _Entry:
    """One step. ``parts`` is how many processes counted a part each; 0 is the global batch."""

    step: int
    first_layer: int
    expert_ranks: int
    tokens_per_expert: DeviceArray
    received_rows: DeviceArray | None
    parts: int = 0


@dataclass
class _Log:
    """One run folder's steps: those still on the device, and the tables of earlier flushes.

    ``recording`` is the id of the capture, which the files bear; empty where nobody gave one.
    ``parts`` is how many processes count a part each, 0 where one counts the global batch.
    """

    recording: str = ""
    parts: int = 0
    pending: deque[_Entry] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    written: dict[str, np.ndarray] = field(default_factory=dict)


_LOGS: dict[Path, _Log] = {}


def record(
    step: int,
    tokens_per_expert: DeviceArray,
    *,
    received_rows: DeviceArray | None = None,
    expert_ranks: int | None = None,
    first_layer: int = 0,
) -> None:
    """Keep one step's routing for the run folder. Costs no host synchronisation.

    At most `KEPT_STEPS` steps wait at once; older ones are dropped unless `flush` wrote them.

    Args:
        step: number of the step, as the trace shows it.
        tokens_per_expert: integers [layers, experts], counted over the global batch.
        received_rows: integers [layers, groups, ranks], rows received by each expert rank of each
            exchange group.
        expert_ranks: ranks that share the experts in equal consecutive runs. Default: the last
            dimension of ``received_rows``, or 1.
        first_layer: decoder layer of the first row, where leading layers are dense.

    Raises:
        CaptureError: the shapes do not fit each other. Only checked while recording.
    """
    run_dir = os.environ.get(RUN_DIR_VARIABLE)
    if not run_dir:
        return
    _check_shapes(tokens_per_expert, received_rows, expert_ranks)
    ranks = expert_ranks or (received_rows.shape[-1] if received_rows is not None else 1)
    _keep(run_dir, _Entry(int(step), first_layer, ranks, tokens_per_expert, received_rows))


def record_part(
    step: int, tokens_per_expert: DeviceArray, *, expert_ranks: int, parts: int
) -> None:
    """Keep what this process counted of one step's routing, as each of so many does."""
    run_dir = os.environ.get(RUN_DIR_VARIABLE)
    if run_dir:
        _keep(run_dir, _Entry(step, 0, expert_ranks, tokens_per_expert, None, parts))


def has_records() -> bool:
    """Whether the script has recorded steps itself."""
    log = _LOGS.get(Path(os.environ.get(RUN_DIR_VARIABLE, "")))
    return log is not None and any(not entry.parts for entry in log.pending)


def drop_parts() -> None:
    """Forget the steps of which this process counted a part: it could not count all of them."""
    for log in _LOGS.values():
        kept = [entry for entry in log.pending if not entry.parts]
        log.pending.clear()
        log.pending.extend(kept)


def _keep(run_dir: str, entry: _Entry) -> None:
    _prepare_exit()
    log = _LOGS.setdefault(Path(run_dir), _Log(os.environ.get(RECORDING_VARIABLE, "")))
    log.parts = entry.parts
    log.pending.append(entry)


def flush() -> list[Path]:
    """Wait for the recorded steps and write them; a step recorded twice keeps its last values.

    Returns:
        The files written: RUN/routing/p<k>.parquet (by process 0, which knows the global counts)
        and RUN/routing/received-p<k>.parquet (each process what its devices received).

    Raises:
        CaptureError: a run folder cannot be written.
    """
    return [path for run_dir, log in _LOGS.items() for path in _flush_log(run_dir, log)]


def finish(run_dir: Path) -> None:
    """Write what was computed for one run folder, and forget that folder.

    Raises:
        CaptureError: it cannot be written.
    """
    log = _LOGS.pop(run_dir, None)
    if log is not None:
        _say_lost(_drop_unreadable(log))
        _flush_log(run_dir, log)


@functools.cache
def _prepare_exit() -> None:
    """Flush at exit; what that needs is imported now, while modules may still start threads."""
    import pyarrow.parquet  # noqa: F401

    atexit.register(_flush_at_exit)


def _flush_at_exit() -> None:
    """Write what the devices computed; the steps of a program that failed have nothing to read."""
    _say_lost([step for log in _LOGS.values() for step in _drop_unreadable(log)])
    try:
        flush()
    except CaptureError as error:  # the training is over, and well
        print(f"moeprof: {error}", file=sys.stderr)


def _say_lost(steps: Iterable[int]) -> None:
    if lost := sorted(set(steps)):
        numbers = ", ".join(map(str, lost))
        print(f"moeprof: no routing of step(s) {numbers}, which failed", file=sys.stderr)


def _drop_unreadable(log: _Log) -> list[int]:
    """Drop the steps whose arrays were never computed, and return their numbers."""
    readable = [entry for entry in log.pending if _is_computed(entry)]
    kept = {id(entry) for entry in readable}
    lost = [entry.step for entry in log.pending if id(entry) not in kept]
    log.pending.clear()
    log.pending.extend(readable)
    return lost


def _is_computed(entry: _Entry) -> bool:
    """Waits for the devices; JAX raises what the program failed with."""
    try:
        for array in (entry.tokens_per_expert, entry.received_rows):
            getattr(array, "block_until_ready", lambda: None)()
    except RuntimeError:
        return False
    return True


def _flush_log(run_dir: Path, log: _Log) -> list[Path]:
    entries = list(log.pending)
    process = _process_index()
    paths = []
    rows = [_routing_rows(entry) for entry in entries if process == 0 or entry.parts]
    paths += _write(run_dir, f"p{process}.parquet", ROUTING_COLUMNS, rows, log)
    with_rows = [entry for entry in entries if entry.received_rows is not None]
    rows = [_received_rows(entry) for entry in with_rows]
    paths += _write(run_dir, f"received-p{process}.parquet", RECEIVED_COLUMNS, rows, log)
    log.pending.clear()  # only now: what could not be written stays for the next flush
    return paths


def _routing_rows(entry: _Entry) -> np.ndarray:
    """[layers · experts, 5]: the columns of `ROUTING_COLUMNS`."""
    tokens = np.asarray(entry.tokens_per_expert).astype(np.int64)  # bfloat16 joins no integers
    layer, expert = np.indices(tokens.shape).reshape(2, -1)
    experts_per_rank = tokens.shape[1] // entry.expert_ranks
    return np.stack(
        [
            np.full(tokens.size, entry.step),
            layer + entry.first_layer,
            expert,
            expert // experts_per_rank,
            tokens.reshape(-1),
        ],
        axis=1,
    )


def _received_rows(entry: _Entry) -> np.ndarray:
    """[rows, 5]: the columns of `RECEIVED_COLUMNS`, for the parts that this process holds."""
    none = np.empty((0, len(RECEIVED_COLUMNS)), np.int64)  # a process may hold replicas alone
    return np.concatenate(
        [
            none,
            *(
                _received_part(entry, np.asarray(part), start)
                for part, start in _local_parts(entry.received_rows)
            ),
        ]
    )


def _received_part(entry: _Entry, rows: np.ndarray, start: list[int]) -> np.ndarray:
    rows = rows.astype(np.int64)
    layer, group, rank = np.indices(rows.shape).reshape(3, -1)
    step = np.full(rows.size, entry.step)
    layer = layer + start[0] + entry.first_layer
    return np.stack([step, layer, group + start[1], rank + start[2], rows.reshape(-1)], axis=1)


def _local_parts(array: Any) -> list[tuple[Any, list[int]]]:
    """Distinct parts of an array that this process holds, each with the index it starts at."""
    shards = getattr(array, "addressable_shards", None)
    if shards is None:
        return [(array, [0] * array.ndim)]
    return [
        (shard.data, [piece.start or 0 for piece in shard.index])
        for shard in shards
        if shard.replica_id == 0
    ]


def _write(
    run_dir: Path, name: str, columns: Columns, rows: list[np.ndarray], log: _Log
) -> list[Path]:
    """Add rows to a table and write it whole, through a temporary file."""
    import pyarrow.parquet

    if not rows:
        return []
    earlier = [log.written[name]] if name in log.written else []
    table = _last_of_each_key(np.concatenate([*earlier, *rows]).astype(np.int64))
    log.written[name] = table
    path = run_dir / "routing" / name
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(_arrow_table(columns, table, log), partial)
        partial.replace(path)
    except OSError as error:
        raise CaptureError(f"routing table {path} cannot be written: {error}") from error
    return [path]


def _arrow_table(columns: Columns, table: np.ndarray, log: _Log) -> pyarrow.Table:
    """Built from buffers, since pyarrow reads NumPy arrays with the help of pandas."""
    import pyarrow

    arrays = [
        pyarrow.Array.from_buffers(
            pyarrow.int64(), len(table), [None, pyarrow.py_buffer(np.ascontiguousarray(column))]
        )
        for column in table.T
    ]
    metadata = {RECORDING_KEY: log.recording.encode()} if log.recording else {}
    if log.parts > 1:
        metadata[PARTS_KEY] = str(log.parts).encode()
    return pyarrow.table(arrays, names=columns, metadata=metadata or None)


def _last_of_each_key(table: np.ndarray) -> np.ndarray:
    """Rows sorted by all columns but the last (the key); of equal keys the last one stays."""
    if not len(table):
        return table
    keys = table[:, :-1]
    order = np.lexsort(keys.T[::-1])  # stable, so equal keys keep their order
    keys = keys[order]
    is_last = np.append(np.any(keys[1:] != keys[:-1], axis=1), True)
    kept: np.ndarray = table[order[is_last]]
    return kept


def _check_shapes(
    tokens_per_expert: DeviceArray, received_rows: DeviceArray | None, expert_ranks: int | None
) -> None:
    shape = tuple(tokens_per_expert.shape)
    if len(shape) != 2:
        raise CaptureError(
            f"routing record: expected tokens_per_expert [layers, experts], found shape {shape}."
        )
    received = None if received_rows is None else tuple(received_rows.shape)
    if received is not None and (len(received) != 3 or received[0] != shape[0]):
        raise CaptureError(
            f"routing record: expected received_rows [{shape[0]} layers, groups, ranks], "
            f"found shape {received}."
        )
    if received is not None and expert_ranks and expert_ranks != received[2]:
        raise CaptureError(
            f"routing record: expert_ranks is {expert_ranks}, but received_rows has "
            f"{received[2]} ranks (shape {received}). Leave expert_ranks out or correct it."
        )
    ranks = expert_ranks or (received[2] if received is not None else 1)
    if shape[1] % ranks:
        raise CaptureError(
            f"routing record: {shape[1]} experts cannot lie evenly on {ranks} expert ranks."
        )


def _process_index() -> int:
    """This process's number among those that train together; 0 where JAX is not in use."""
    jax = sys.modules.get("jax")
    return int(jax.process_index()) if jax is not None else 0
