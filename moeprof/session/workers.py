"""Question: who reads the hosts of a large run, and when is a run large?

Workers of Dask, here or behind a scheduler, or this process: what is read is the same. A worker
that dies is replaced and its hosts are read again; a file at which workers die is left out.
"""

from __future__ import annotations

import functools
import os
import platform
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprof import __version__
from moeprof.errors import MoeprofError, NoProfileError, SpecError, TraceError, one_line
from moeprof.ingest.by_host import HERE, Readers
from moeprof.ingest.one_host import Batch, Part, Read, Runner, Shared, read_batch
from moeprof.ingest.run import located
from moeprof.ingest.sources.locate import Profiles, unpacked_bytes
from moeprof.ingest.sources.store import Here
from moeprof.tables.store import holds_tables
from moeprof.tell import Tell, unheard

if TYPE_CHECKING:
    from moeprof.tables.name_rule import NameRules
    from moeprof.tables.trace import Trace

MOST_AT_ONCE = 10**9
"""Bytes of profiles that are read at once."""
_IN_MEMORY = 2.6
"""How many bytes are in memory for one of a profile that is read."""
_RETRIES = 3
_AHEAD = 2
_ANSWERS_WITHIN_S = 10.0
_WORKERS_WITHIN_S = 30.0
_KEPT_BYTES = 2**23
"""What the allocator of a worker keeps; few arrays of hosts that are read together are larger."""
_VERSION = "__import__('moeprof').__version__"
_INSTALL = "pip install 'moeprof[cluster]' brings it"


@dataclass(frozen=True)
class Ways:
    """How a run is to be read. ``by_host`` is None where its size decides.

    ``scheduler`` is the address of a Dask scheduler, empty for workers of this machine; ``workers``
    is how many of these there are, 0 for this process alone, None for one per core.
    """

    by_host: bool | None = None
    scheduler: str = ""
    workers: int | None = None


def trace_by_host(
    here: Here,
    only: Sequence[str] = (),
    session: str | None = None,
    hosts: Sequence[str] = (),
    names: NameRules | None = None,
    ways: Ways = Ways(),
    *,
    tell: Tell = unheard,
) -> Trace | None:
    """The trace of a run that is read host by host, which answers `only`; None if it is not to be.

    Raises:
        SelectionError: there is no such session or host.
        SpecError: workers are asked for, and Dask is not installed or its scheduler not there.
        TraceError: nothing can be read.
    """
    try:
        found = replace(located(here.places, session, hosts), urls=here.urls)
    except NoProfileError:
        return None  # what else is known of such a run is found where runs are opened
    is_large = sum(map(unpacked_bytes, found.files)) > MOST_AT_ONCE
    is_asked = bool(ways.scheduler) or ways.workers is not None
    wanted = ways.by_host if ways.by_host is not None else is_large or is_asked
    trace = None
    if wanted and not any(map(holds_tables, here.places)):
        from moeprof.session.by_host import read_by_host  # which all questions come with

        lost: dict[Path, TraceError] = {}
        readers = _readers(ways, found, lost)
        trace = read_by_host(
            found, here.given, only, names, are_chosen=bool(hosts), readers=readers, tell=tell
        )
        if ways.scheduler and len(lost) == len(found.files):
            raise TraceError(
                f"--scheduler {ways.scheduler}: expected that its workers read {len(lost)} hosts, "
                f"found that they can read none: {next(iter(lost.values()))}"
            )
    return trace


@contextmanager
def _readers(ways: Ways, found: Profiles, lost: dict[Path, TraceError]) -> Iterator[Readers]:
    """Who reads, and notes in `lost` why which hosts cannot be.

    Workers read where they are asked for, or are there and there is work for two.
    """
    is_asked = bool(ways.scheduler or ways.workers)
    can_ask = is_asked or (ways.workers is None and find_spec("distributed") is not None)
    is_open = ways.workers is None and can_ask and not ways.scheduler
    count = _count_for(found.files) if is_open else ways.workers or 0
    count = min(count, len(found.files))
    if not can_ask or (count < 2 and not is_asked):
        yield Readers(functools.partial(_noting, _here, lost))
        return
    with ExitStack() as stack:
        client = _client(ways.scheduler, count, stack)
        run = functools.partial(_noting, functools.partial(_on_workers, client, {}), lost)
        if ways.scheduler:  # its workers have memory of their own
            yield Readers(run, _workers_of(client))
        else:
            yield Readers(run, count, HERE.most_bytes // count)


def _workers_of(client: Any) -> int:
    return max(len(client.scheduler_info(n_workers=-1)["workers"]), 1)


def _count_for(files: Sequence[Path]) -> int:
    """How many workers this machine has room for: cores, and memory for a host each.

    Quotas of a container count.
    """
    from dask.system import CPU_COUNT

    largest = max(1, *map(unpacked_bytes, files))
    return max(min(CPU_COUNT, int(_free_bytes() / (_IN_MEMORY * largest))), 1)


def _free_bytes() -> int:
    import psutil  # type: ignore[import-untyped]
    from distributed.system import MEMORY_LIMIT

    return int(min(psutil.virtual_memory().available, MEMORY_LIMIT))


def _client(scheduler: str, count: int, stack: ExitStack) -> Any:
    try:
        from logging import CRITICAL

        from distributed import Client, LocalCluster
    except ImportError as error:
        raise SpecError(f"reading by workers needs Dask ({error.name}); {_INSTALL}") from error
    if scheduler:
        try:
            client = stack.enter_context(Client(scheduler, timeout=_ANSWERS_WITHIN_S))
        except (OSError, ValueError) as error:
            raise SpecError(
                f"--scheduler {scheduler}: expected a Dask scheduler, found none: "
                f"{one_line(error)}; start "
                "one by `dask scheduler` and give the address that it prints"
            ) from error
        _await_workers(client, scheduler)
        _check_versions(client, scheduler)
        return client
    _ready_for_workers(stack)
    cluster = LocalCluster(
        n_workers=count,
        threads_per_worker=1,
        memory_limit=0,
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # its own, 8787, may be taken
        silence_logs=CRITICAL,
    )
    return stack.enter_context(Client(stack.enter_context(cluster)))


def _await_workers(client: Any, scheduler: str) -> None:
    """Nothing, where the scheduler has a worker, or soon gets one.

    Raises:
        SpecError: it gets none.
    """
    try:
        client.wait_for_workers(1, timeout=_WORKERS_WITHIN_S)
    except Exception as error:  # which one depends on the version of Dask
        raise SpecError(
            f"--scheduler {scheduler}: expected workers, found none within "
            f"{_WORKERS_WITHIN_S:.0f} s; start some by `dask worker {scheduler}`"
        ) from error


def _check_versions(client: Any, scheduler: str) -> None:
    """Nothing, where the scheduler and its workers have this moeprof.

    Raises:
        SpecError: one has another, or none.
    """
    try:  # by a name of Python's own: a function of moeprof could not be sent where it is not
        found = {f"scheduler {scheduler}": client.run_on_scheduler(eval, _VERSION)}
        for worker, version in client.run(eval, _VERSION, on_error="return").items():
            found[f"worker {worker}"] = (
                _told(version) if isinstance(version, Exception) else version
            )
    except Exception as error:
        found = {f"scheduler {scheduler}": _told(error)}
    for who, version in found.items():
        if version != __version__:
            raise SpecError(
                f"{who}: expected moeprof {__version__}, as here, found {version}; install that "
                "where the scheduler and its workers run"
            )


def _ready_for_workers(stack: ExitStack) -> None:
    """Have workers of this machine start as copies of one process that has imported all they need.

    What it imported is in memory once. Dask's own settings cost a worker a third more time: a
    profiler, and an allocator that fetches each array anew; Arrow's own keeps 10 MB more.
    """
    import multiprocessing

    import dask
    from distributed.utils import get_mp_context

    settings: dict[str, Any] = {
        "distributed.worker.profile.enabled": False,
        "distributed.nanny.pre-spawn-environ": {
            **dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), _KEPT_BYTES),
            "ARROW_DEFAULT_MEMORY_POOL": "system",
        },
    }
    if can_copy := "forkserver" in multiprocessing.get_all_start_methods():
        settings["distributed.worker.multiprocessing-method"] = "forkserver"
    stack.enter_context(dask.config.set(settings))
    if can_copy:
        get_mp_context().set_forkserver_preload(["distributed", "moeprof.session.worker_process"])


def _noting(
    run: Runner, lost: dict[Path, TraceError], batches: Sequence[Batch]
) -> Iterator[tuple[Batch, Read]]:
    """Read hosts, and note why which of them cannot be."""
    for batch, read in run(batches):
        found = zip(batch.files, read.parts, strict=True)
        lost.update((file, part.error) for file, part in found if part.error is not None)
        yield batch, read


def _here(batches: Sequence[Batch]) -> Iterator[tuple[Batch, Read]]:
    """Read hosts in this process, one batch after the other.

    Raises:
        TraceError: one does not fit into memory.
    """
    for batch in batches:
        read = None
        try:
            read = read_batch(batch)
        except MemoryError as error:
            if len(batch.tasks) == 1:
                raise _not_read(batch, error) from error
        # beyond the error, which holds what was read by then
        yield from [(batch, read)] if read is not None else _here(batch.singly())


def _on_workers(
    client: Any, sent: dict[tuple[object, ...], Any], batches: Sequence[Batch]
) -> Iterator[tuple[Batch, Read]]:
    """Read hosts on workers, no more ahead than they need: answers wait in their memory.

    Raises:
        TraceError: workers or their scheduler are lost, or fail otherwise than by what they read.
    """
    try:
        yield from _in_turn(client, sent, batches)
    except MoeprofError:
        raise
    except Exception as error:  # each way to lose a scheduler has an error of its own
        raise TraceError(
            f"{client.scheduler.address if client.scheduler else 'Dask'}: expected workers that "
            f"read hosts, found {_told(error)}; start them again, or read by --workers N"
        ) from error


def _in_turn(
    client: Any, sent: dict[tuple[object, ...], Any], batches: Sequence[Batch]
) -> Iterator[tuple[Batch, Read]]:
    from distributed import as_completed

    waiting = deque(batches)
    reading: dict[str, Batch] = {}

    def submitted() -> Iterator[Any]:
        while waiting and len(reading) < ahead:
            batch = waiting.popleft()
            shared = _sent(client, sent, batch.shared)
            lean = _seen_by_workers(batch)._replace(shared=Shared())
            future = client.submit(_read, lean, shared, pure=False, retries=_RETRIES)
            reading[future.key] = batch
            yield future

    ahead = _AHEAD * _workers_of(client)
    done = as_completed(list(submitted()))
    for future in done:
        batch = reading.pop(future.key)
        read = _read_of(batch, future)
        future.release()
        if read is None:  # one of its hosts, which is told when they are read one by one
            waiting.extendleft(batch.singly())
        else:
            yield batch, read
        done.update(list(submitted()))


def _seen_by_workers(batch: Batch) -> Batch:
    """A batch with the paths of its files in full: workers may stand in another folder."""
    whole = [task._replace(file=Path(os.path.abspath(task.file))) for task in batch.tasks]
    return batch._replace(tasks=tuple(whole))


def _read_of(batch: Batch, future: Any) -> Read | None:
    """What a worker says of a batch; None where it could not be read, and its hosts may be.

    Raises:
        TraceError: it failed otherwise than by what it read.
    """
    from distributed import KilledWorker

    is_one = len(batch.tasks) == 1
    task = batch.tasks[0]
    try:
        read: Read = future.result()
    except KilledWorker:
        error = TraceError(f"{task.url or task.file}: each worker that read it died")
        return Read((Part((task.own, batch.shared.key), error),)) if is_one else None
    except MoeprofError:
        if all(file.exists() for file in batch.files):
            raise
        return read_batch(batch)  # which says that it is not here either
    except Exception as error:
        if isinstance(error, MemoryError) and not is_one:
            return None
        raise _not_read(batch, error) from error
    return replace(read, parts=tuple(map(_as_given, batch.files, read.parts)))


def _as_given(file: Path, part: Part) -> Part:
    """What is kept of a host, its file named as it was given."""
    if part.error is None:
        return part
    told = str(part.error).replace(os.path.abspath(file), str(file))
    return replace(part, error=TraceError(told))


def _not_read(batch: Batch, error: Exception) -> TraceError:
    advice = (
        "each that reads needs memory for one: use fewer workers or a larger machine"
        if isinstance(error, MemoryError)
        else f"workers and scheduler need moeprof {__version__}, as here"
    )
    return TraceError(
        f"{batch.tasks[0].url or batch.files[0]}: expected to read this host, found "
        f"{_told(error)}; {advice}"
    )


def _told(error: Exception) -> str:
    return ": ".join(filter(None, [type(error).__name__, one_line(error)]))


def _sent(client: Any, sent: dict[tuple[object, ...], Any], shared: Shared) -> Any:
    """What hosts share, as a task of its own: a worker that dies takes no only copy with it."""
    key = (shared.key, shared.ops is None)
    if key not in sent:
        sent.clear()
        sent[key] = client.submit(_given, shared, pure=False)
    return sent[key]


def _given(shared: Shared) -> Shared:
    return shared


def _read(batch: Batch, shared: Shared) -> Read:
    """Read hosts where a worker is.

    Raises:
        TraceError: the file of one is not there.
    """
    for task in batch.tasks:
        if not task.url and not task.file.exists():
            raise TraceError(
                f"{task.file}: expected a file that workers see by this path, found none on "
                f"{platform.node()}; put the run where all see it, or read by --workers N"
            )
    return read_batch(batch._replace(shared=shared))


__all__ = ["MOST_AT_ONCE", "Ways", "trace_by_host"]
