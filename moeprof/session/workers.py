"""Question: who reads the hosts of a large run, and when is a run large?

Workers of Dask, here or behind a scheduler, or this process, one host after the other: what is read
is the same. A worker that dies is replaced and its host is read again; a file at which workers die
is left out, as one that cannot be read is.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprof import __version__
from moeprof.errors import MoeprofError, NoProfileError, SpecError, TraceError, one_line
from moeprof.ingest.one_host import Part, Runner, Shared, Task, one_by_one, read_part
from moeprof.ingest.run import located
from moeprof.ingest.sources.locate import Profiles
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
_PACKED = 8
"""How many bytes one of a packed profile stands for."""
_RETRIES = 3
_AHEAD = 2
_ANSWERS_WITHIN_S = 10.0
_WORKERS_WITHIN_S = 30.0
_KEPT_BYTES = 2**25
"""What the allocator of a worker keeps; no array of one host is much larger."""
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

    @property
    def named(self) -> str:
        """The option by which it is asked who reads, empty where none is."""
        workers = "--workers" if self.workers is not None else ""
        return "--scheduler" if self.scheduler else workers


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

    ``here`` has the folders of the run.

    Raises:
        SelectionError: there is no such session or host.
        SpecError: workers are asked for, and Dask is not installed or its scheduler not there.
        TraceError: nothing can be read.
    """
    try:
        found = replace(located(here.places, session, hosts), urls=here.urls)
    except NoProfileError:
        return None  # what else is known of such a run is found where runs are opened
    is_large = sum(map(_bytes_of, found.files)) > MOST_AT_ONCE
    wanted = ways.by_host if ways.by_host is not None else is_large or bool(ways.named)
    trace = None
    if wanted and not any(map(holds_tables, here.places)):
        from moeprof.session.by_host import read_by_host  # which all questions come with

        with _runner(ways, found) as run:
            lost: dict[Path, TraceError] = {}
            run = functools.partial(_noting, run, lost)
            trace = read_by_host(
                found, here.given, only, names, are_chosen=bool(hosts), run=run, tell=tell
            )
        if ways.scheduler and len(lost) == len(found.files):
            raise TraceError(
                f"--scheduler {ways.scheduler}: expected that its workers read {len(lost)} hosts, "
                f"found that they can read none: {next(iter(lost.values()))}"
            )
    return trace


def _bytes_of(file: Path) -> int:
    return file.stat().st_size * (_PACKED if file.suffix == ".gz" else 1)


@contextmanager
def _runner(ways: Ways, found: Profiles) -> Iterator[Runner]:
    """Who reads: workers where they are asked for, or are there and there is work for two."""
    is_asked = bool(ways.scheduler) or bool(ways.workers)
    can_ask = is_asked or (ways.workers is None and find_spec("distributed") is not None)
    is_open = ways.workers is None and can_ask and not ways.scheduler
    count = _count_for(found.files) if is_open else ways.workers or 0
    count = min(count, len(found.files))
    if not can_ask or (count < 2 and not is_asked):
        yield _here
        return
    with ExitStack() as stack:
        client = _client(ways.scheduler, count, stack)
        yield functools.partial(_on_workers, client, {})


def _count_for(files: Sequence[Path]) -> int:
    """How many workers this machine has room for: cores, and memory for a host each.

    Quotas of a container count.
    """
    from dask.system import CPU_COUNT

    largest = max(1, *map(_bytes_of, files))
    return max(min(CPU_COUNT, int(_free_bytes() / (_IN_MEMORY * largest))), 1)


def _free_bytes() -> int:
    import psutil  # type: ignore[import-untyped]
    from distributed.system import MEMORY_LIMIT

    return int(min(psutil.virtual_memory().available, MEMORY_LIMIT))


def _client(scheduler: str, count: int, stack: ExitStack) -> Any:
    try:
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
        # a free port for what it serves by HTTP all the same: it warns where 8787 is taken
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
        silence_logs=logging.CRITICAL,
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

    What it imported is in memory once. Dask's own settings cost a worker a third more time: its
    profiler, and an allocator that gives each array back to the system and fetches the next anew.
    """
    import dask
    from distributed.utils import get_mp_context

    settings: dict[str, Any] = {
        "distributed.worker.profile.enabled": False,
        "distributed.nanny.pre-spawn-environ": {
            "MALLOC_TRIM_THRESHOLD_": _KEPT_BYTES,
            "MALLOC_MMAP_THRESHOLD_": _KEPT_BYTES,
        },
    }
    can_copy = "forkserver" in multiprocessing.get_all_start_methods()
    if can_copy:
        settings["distributed.worker.multiprocessing-method"] = "forkserver"
    stack.enter_context(dask.config.set(settings))
    if can_copy:
        get_mp_context().set_forkserver_preload(["distributed", "moeprof.session.worker_process"])


def _noting(
    run: Runner, lost: dict[Path, TraceError], tasks: Sequence[Task]
) -> Iterator[tuple[Task, Part]]:
    """Read hosts, and note why which of them cannot be."""
    for task, part in run(tasks):
        if part.error is not None:
            lost[task.file] = part.error
        yield task, part


def _here(tasks: Sequence[Task]) -> Iterator[tuple[Task, Part]]:
    """Read hosts in this process, one after the other.

    Raises:
        TraceError: one does not fit into memory.
    """
    for task in tasks:
        try:
            yield from one_by_one([task])
        except MemoryError as error:
            raise _not_read(task, error) from error


def _on_workers(
    client: Any, sent: dict[tuple[object, ...], Any], tasks: Sequence[Task]
) -> Iterator[tuple[Task, Part]]:
    """Read hosts on workers, no more ahead than they need: answers wait in their memory.

    Raises:
        TraceError: workers or their scheduler are lost, or fail otherwise than by what they read.
    """
    waiting = iter(tasks)
    try:
        yield from _in_turn(client, sent, waiting)
    except MoeprofError:
        raise
    except Exception as error:  # each way to lose a scheduler has an error of its own
        raise TraceError(
            f"{client.scheduler.address if client.scheduler else 'Dask'}: expected workers that "
            f"read hosts, found {_told(error)}; start them again, or read by --workers N"
        ) from error


def _in_turn(
    client: Any, sent: dict[tuple[object, ...], Any], waiting: Iterator[Task]
) -> Iterator[tuple[Task, Part]]:
    from distributed import as_completed

    open_tasks: dict[str, Task] = {}

    def submitted(task: Task) -> Any:
        shared = _sent(client, sent, task.shared)
        place = Path(os.path.abspath(task.file))  # workers may stand in another folder
        lean = task._replace(file=place, shared=Shared())
        future = client.submit(_read, lean, shared, pure=False, retries=_RETRIES)
        open_tasks[future.key] = task
        return future

    ahead = _AHEAD * max(len(client.scheduler_info(n_workers=-1)["workers"]), 1)
    first = [submitted(task) for _, task in zip(range(ahead), waiting, strict=False)]
    done = as_completed(first)
    for future in done:
        task = open_tasks.pop(future.key)
        part = _part(task, future)
        future.release()
        yield task, part
        for more in waiting:
            done.add(submitted(more))
            break


def _part(task: Task, future: Any) -> Part:
    """What a worker says of a host.

    Raises:
        TraceError: it failed otherwise than by what it read.
    """
    from distributed import KilledWorker

    try:
        part: Part = future.result()
    except KilledWorker:
        error = TraceError(f"{task.url or task.file}: each worker that read it died")
        return Part((task.own, task.shared.key), error)
    except MoeprofError:
        if task.file.exists():
            raise
        return read_part(task)  # which says that it is not here either
    except Exception as error:
        raise _not_read(task, error) from error
    if part.error is None:
        return part
    told = str(part.error).replace(os.path.abspath(task.file), str(task.file))
    return replace(part, error=TraceError(told))


def _not_read(task: Task, error: Exception) -> TraceError:
    advice = (
        "each that reads needs memory for one: use fewer workers or a larger machine"
        if isinstance(error, MemoryError)
        else f"workers and scheduler need moeprof {__version__}, as here"
    )
    return TraceError(
        f"{task.url or task.file}: expected to read this host, found {_told(error)}; {advice}"
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


def _read(task: Task, shared: Shared) -> Part:
    """Read a host where a worker is.

    Raises:
        TraceError: its file is not there.
    """
    if not task.url and not task.file.exists():
        raise TraceError(
            f"{task.file}: expected a file that workers see by this path, found none on "
            f"{platform.node()}; put the run where all see it, or read by --workers N"
        )
    return read_part(task._replace(shared=shared))


__all__ = ["MOST_AT_ONCE", "Ways", "trace_by_host"]
