"""Workers read the hosts of a run: how many they are, and whether one dies, changes no figure."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from builders.gpu_hosts import write_hosts
from click.testing import CliRunner

from moeprof.cli.main import group
from moeprof.errors import SelectionError, SpecError, TraceError
from moeprof.ingest import one_host
from moeprof.ingest.sources.store import brought
from moeprof.session import workers as reading
from moeprof.session.workers import Ways, trace_by_host
from moeprof.tables.trace import Trace

GROUPS = [[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]]
HOSTS = {f"h{n}": [2 * n, 2 * n + 1] for n in range(8)}
ASKED = ("--only", "breakdown", "--only", "stragglers", "--json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hosts(tmp_path_factory.mktemp("hosts") / "run", HOSTS, GROUPS, {3: 40})


def said(folder: Path, *options: str) -> str:
    found = CliRunner().invoke(group, ["analyze", str(folder), *ASKED, *options])
    assert found.exit_code in (0, 3), found.output
    return found.stdout


@pytest.fixture(scope="module")
def whole(folder: Path) -> str:
    return said(folder, "--at-once")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("workers", ["0", "1", "2", "4"])
def test_any_number_of_workers_says_the_same(folder, whole, workers):
    assert said(folder, "--by-host", "--workers", workers) == whole


@pytest.mark.filterwarnings("default")
def test_a_worker_that_is_killed_in_the_middle_changes_nothing(folder, whole, monkeypatch):
    killed = []
    on_workers = reading._on_workers

    def killing(client, sent, batches):
        if len(batches) > 1 and not killed:
            killed.append(next(iter(client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)
        yield from on_workers(client, sent, batches)

    monkeypatch.setattr(reading, "_on_workers", killing)
    assert said(folder, "--by-host", "--workers", "2") == whole
    assert killed


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """A scheduler with one worker, both threads of this process."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.filterwarnings("default")
def test_workers_behind_a_scheduler_say_the_same(folder, whole, scheduler):
    assert said(folder, "--scheduler", scheduler) == whole


def asked(folder: Path, **ways) -> Trace | None:
    return trace_by_host(brought([str(folder)]), ways=Ways(**ways))


def fail(error: Exception) -> NoReturn:
    raise error


@pytest.mark.filterwarnings("default")
def test_a_worker_that_fails_is_one_line(folder, scheduler, monkeypatch):
    monkeypatch.setattr(one_host, "read_file", lambda *of: fail(MemoryError("no room")))
    told = r"h0.xplane.pb: expected to read this host, found MemoryError: no room; each that reads "
    with pytest.raises(TraceError, match=told):
        asked(folder, by_host=True, workers=0)
    with pytest.raises(TraceError, match=told):
        asked(folder, scheduler=scheduler)
    monkeypatch.setattr(one_host, "read_file", lambda *of: fail(ImportError("no such module")))
    with pytest.raises(TraceError, match=r"ImportError: no such module; workers and scheduler nee"):
        asked(folder, scheduler=scheduler)


@pytest.mark.filterwarnings("default")
def test_hosts_for_which_together_there_is_no_room_are_read_one_by_one(
    folder, whole, scheduler, monkeypatch
):
    sizes = []
    read_batch = reading.read_batch

    def small(batch):
        sizes.append(len(batch.tasks))
        return read_batch(batch) if sizes[-1] == 1 else fail(MemoryError("no room"))

    monkeypatch.setattr(reading, "read_batch", small)
    for way in (("--by-host", "--workers", "0"), ("--scheduler", scheduler)):
        sizes.clear()
        assert said(folder, *way) == whole
        assert max(sizes) > 1


@pytest.mark.filterwarnings("default")
def test_of_hosts_read_together_the_one_at_which_workers_die_is_left_out(
    folder, scheduler, monkeypatch
):
    from distributed import KilledWorker

    read = reading._read

    def dying(batch, shared):
        if any(file.name == "h5.xplane.pb" for file in batch.files):
            raise KilledWorker("read", SimpleNamespace(address="tcp://a:1"), 4)
        return read(batch, shared)

    monkeypatch.setattr(reading, "_read", dying)
    trace = asked(folder, scheduler=scheduler)
    assert trace is not None
    assert trace.meta.hosts == tuple(name for name in HOSTS if name != "h5")
    assert "h5.xplane.pb: each worker that read it died" in str(trace.trust)


@pytest.mark.filterwarnings("default")
def test_workers_find_a_run_by_a_path_from_here(folder, whole, scheduler, monkeypatch):
    seen = []
    read_batch = reading.read_batch
    monkeypatch.setattr(reading, "read_batch", lambda of: seen.extend(of.files) or read_batch(of))
    monkeypatch.chdir(folder.parent)
    assert asked(Path(folder.name), scheduler=scheduler) is not None
    assert all(file.is_absolute() for file in seen)


@pytest.mark.filterwarnings("default")
def test_workers_that_see_no_file_are_one_line(folder, scheduler, monkeypatch):
    read = reading._read

    def elsewhere(batch, shared):
        moved = [each._replace(file=Path("/elsewhere", each.file.name)) for each in batch.tasks]
        return read(batch._replace(tasks=tuple(moved)), shared)

    monkeypatch.setattr(reading, "_read", elsewhere)
    with pytest.raises(TraceError, match=r"/elsewhere/h0.xplane.pb: expected a file that workers"):
        asked(folder, scheduler=scheduler)


@pytest.mark.filterwarnings("default")
def test_workers_that_can_read_no_host_are_one_line(folder, scheduler, monkeypatch):
    monkeypatch.setattr(one_host, "read_file", lambda *of: fail(TraceError("no credentials")))
    with pytest.raises(TraceError, match=r"that they can read none: no credentials"):
        asked(folder, scheduler=scheduler)


@pytest.mark.filterwarnings("default")
def test_a_scheduler_without_workers_is_one_line(folder, monkeypatch):
    from distributed import LocalCluster

    monkeypatch.setattr(reading, "_WORKERS_WITHIN_S", 0.2, raising=False)
    told = "expected workers, found none within 0 s; start some"
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster,
        pytest.raises(SpecError, match=told),
    ):
        asked(folder, scheduler=cluster.scheduler_address)


@pytest.mark.filterwarnings("default")
def test_a_scheduler_that_is_lost_is_one_line(folder, scheduler, monkeypatch):
    monkeypatch.setattr(reading, "_sent", lambda *of: fail(OSError("connection closed")))
    with pytest.raises(TraceError, match="expected workers that read hosts, found OSError: connec"):
        asked(folder, scheduler=scheduler)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("there", ["'0.0.1'", "__import__('no_such_module')"])
def test_another_moeprof_at_the_workers_is_one_line(folder, scheduler, monkeypatch, there):
    monkeypatch.setattr(reading, "_VERSION", there)
    with pytest.raises(SpecError, match=r"scheduler \S+: expected moeprof \S+, as here, found "):
        asked(folder, scheduler=scheduler)


@pytest.mark.filterwarnings("default")
def test_a_scheduler_that_is_not_there_is_one_line(folder, monkeypatch):
    monkeypatch.setattr(reading, "_ANSWERS_WITHIN_S", 0.5)
    ways = Ways(scheduler="tcp://127.0.0.1:9")
    with pytest.raises(SpecError, match="expected a Dask scheduler, found none"):
        trace_by_host(brought([str(folder)]), ways=ways)


@pytest.mark.filterwarnings("default")
def test_dasks_own_port_may_be_taken(folder, whole, recwarn):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # somebody else has it already
            taken.bind(("", 8787))
            taken.listen()
        assert said(folder, "--workers", "1") == whole
    assert [warning for warning in recwarn if "8787" in str(warning.message)] == []


def test_without_dask_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(SpecError, match=r"moeprof\[cluster\]"):
        trace_by_host(brought([str(folder)]), ways=Ways(workers=2))
    with pytest.raises(SpecError, match=r"moeprof\[cluster\]"):
        trace_by_host(brought([str(folder)]), ways=Ways(scheduler="tcp://a:1"))


def test_size_decides_who_is_read_by_host(folder, monkeypatch):
    assert trace_by_host(brought([str(folder)])) is None
    monkeypatch.setattr(reading, "MOST_AT_ONCE", 1000)
    monkeypatch.setattr(reading, "find_spec", lambda name: None)  # then this process reads them
    assert trace_by_host(brought([str(folder)])) is not None


@pytest.mark.parametrize(("name", "shape"), [("launch", "--csv"), ("one_step", "--json")])
def test_a_question_that_hosts_cannot_answer_ends_with_3(folder, name, shape):
    command = ["analyze", str(folder), "--by-host", "--workers", "0", "--only", name, shape]
    found = CliRunner().invoke(group, command)
    assert found.exit_code == 3
    told = f"moeprof: {folder}: {name}: withheld: this needs all 'events' of all hosts at once"
    assert found.stderr.startswith(told) == (shape == "--csv")


def test_a_wrong_question_is_told_before_a_host_is_read(folder, monkeypatch):
    monkeypatch.setattr(reading, "trace_by_host", lambda *of, **also: fail(AssertionError("read")))
    found = CliRunner().invoke(group, ["analyze", str(folder), "--by-host", "--only", "opps"])
    assert isinstance(found.exception, SelectionError)
    assert "opps" in str(found.exception)


@pytest.mark.parametrize(
    "ways",
    [
        ["--at-once", "--workers", "4"],
        ["--at-once", "--scheduler", "tcp://a:1"],
        ["--scheduler", "tcp://a:1", "--workers", "0"],
    ],
)
def test_ways_that_do_not_go_together_are_a_wrong_usage(folder, ways):
    found = CliRunner().invoke(group, ["analyze", str(folder), *ways])
    assert found.exit_code == 2
    assert "expected one of --at-once, --scheduler and --workers" in " ".join(found.stderr.split())


def test_one_host_asked_for_by_host_is_read_at_once_and_said_so(folder):
    command = ["analyze", str(folder / "h0.xplane.pb"), "--only", "ops", "--csv"]
    found = CliRunner().invoke(group, [*command, "--workers", "0"])
    told = "h0.xplane.pb: read at once: --workers expected several hosts that left an .xplane.pb"
    assert told in found.stderr
    assert "read at once" not in CliRunner().invoke(group, [*command, "--at-once"]).stderr


def test_workers_are_no_more_than_memory_holds_hosts(folder, monkeypatch):
    import dask.system

    files = sorted(folder.iterdir())
    largest = max(file.stat().st_size for file in files)
    monkeypatch.setattr(dask.system, "CPU_COUNT", 5)
    counts = []
    for hosts in (100, 3.5, 0.1):
        free = int(2.6 * largest * hosts)
        monkeypatch.setattr(reading, "_free_bytes", lambda free=free: free)
        counts.append(reading._count_for(files))
    assert counts == [5, 3, 1]
