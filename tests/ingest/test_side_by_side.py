"""Files of several hosts at once: threads change no result."""

from pathlib import Path

import pandas as pd
import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import host, line, metadata, thunk, xspace

from moeprof.ingest import open_run
from moeprof.ingest.assemble import side_by_side
from moeprof.tables.trace import FRAMES

NAMES = ("add", "mul", "sub")


def session(folder: Path, hosts: int = 5) -> Path:
    """Hosts whose texts are met in another order on each, with equal and with own names."""
    for number in range(hosts):
        names = (*NAMES[number % 3 :], *NAMES[: number % 3], f"own.{number}")
        program = hlo_proto(computation("main", *(op(name, "add", "f32[8]") for name in names)))
        work = [
            thunk(name, 1000 * run + 100 * at + 10, 50, run_id=run)
            for run in range(3)
            for at, name in enumerate(names)
        ]
        data = xspace(metadata(p7=program), host(line("pool", *work)))
        (folder / f"h{number}.xplane.pb").write_bytes(data)
    return folder


def test_results_come_in_the_order_of_the_items(monkeypatch):
    monkeypatch.setenv("MOEPROF_THREADS", "4")
    assert side_by_side(lambda item: item * item, range(100)) == [n * n for n in range(100)]
    assert side_by_side(str, ()) == []


def test_the_first_failure_in_order_is_raised(monkeypatch):
    monkeypatch.setenv("MOEPROF_THREADS", "4")
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda item: 1 // item, [1, 2, 0, 3])


def test_a_session_reads_the_same_on_one_thread_and_on_many(tmp_path, monkeypatch):
    session(tmp_path)
    found = []
    for threads in ("1", "4"):
        monkeypatch.setenv("MOEPROF_THREADS", threads)
        found.append(open_run(tmp_path))
    one, many = found
    assert len(one.events) == 5 * 3 * 4
    for name in FRAMES:
        pd.testing.assert_frame_equal(getattr(one, name), getattr(many, name))
    assert one.trust == many.trust
    assert one.meta == many.meta


def test_texts_of_each_host_are_its_own(tmp_path):
    events = open_run(session(tmp_path)).events
    for number in range(5):
        mine = events[events["host"] == f"h{number}"]
        assert set(mine["op"]) == {*NAMES, f"own.{number}"}
        assert (mine["op"] == mine["name"]).all()
