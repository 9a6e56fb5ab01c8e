"""An export may fail or hang; whoever waits for it goes on."""

from __future__ import annotations

import signal
import threading

import pytest

from moeprof.recording.export import Export
from moeprof.recording.signals import GaveUpError, interrupt_waits


class Finished:
    def stop_into(self, path):
        path.write_bytes(b"1234")
        return 4


class Failing:
    def stop_into(self, path):
        raise ValueError("expected one file, found 3\nand more")


class Hanging:
    def __init__(self):
        self.released = threading.Event()

    def stop_into(self, path):
        self.released.wait()
        return 0


def test_an_export_tells_its_size_and_time(tmp_path):
    done = []
    export = Export(Finished(), done.append)
    export.begin(tmp_path / "x.pb")
    assert export.wait(None)
    assert done == [export]
    assert (export.size_bytes, export.error) == (4, None)
    assert export.duration_s >= 0


def test_a_failing_export_raises_nothing_and_keeps_one_line(tmp_path):
    export = Export(Failing(), lambda export: None)
    export.begin(tmp_path / "x.pb")
    assert export.wait(None)
    assert export.error == "ValueError: expected one file, found 3"


def test_waiting_ends_at_the_limit_and_the_export_may_still_finish(tmp_path):
    session, done = Hanging(), []
    export = Export(session, done.append)
    export.begin(tmp_path / "x.pb")
    assert not export.wait(0.01)
    assert done == []
    session.released.set()
    assert export.wait(None)
    assert done == [export]


def test_the_first_interrupt_waits_for_the_block_and_is_delivered_after_it():
    happened = []

    def export_interrupted_once():
        with interrupt_waits(lambda: happened.append("held")):
            signal.raise_signal(signal.SIGINT)
            happened.append("end of the block")

    with pytest.raises(KeyboardInterrupt):
        export_interrupted_once()
    assert happened == ["held", "end of the block"]


def test_the_second_interrupt_gives_up():
    happened = []

    def export_interrupted_twice():
        with interrupt_waits(lambda: happened.append("held")):
            signal.raise_signal(signal.SIGINT)
            try:
                signal.raise_signal(signal.SIGINT)
            except GaveUpError:
                happened.append("gave up")

    with pytest.raises(KeyboardInterrupt):
        export_interrupted_twice()
    assert happened == ["held", "gave up"]
