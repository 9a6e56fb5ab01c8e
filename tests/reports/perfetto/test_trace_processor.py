"""Perfetto's own trace processor reads what is written for it."""

from __future__ import annotations

import pytest
from builders.work import kernel, traced

from moeprof.reports.perfetto import write_perfetto


def test_a_written_trace_is_read_whole(tmp_path, engine):
    trace = traced([kernel("a", 100, 50), kernel("b", 150, 7), kernel("c", 160, 0)])
    write_perfetto(trace, tmp_path / "x.pftrace")
    engine.load(tmp_path / "x.pftrace")
    assert engine.errors() == []
    track = "select id from process_track where name = '1'"
    work = f"select name, ts, dur from slice where track_id in ({track}) order by ts"
    assert engine.rows(work) == [("a", 100, 50), ("b", 150, 7), ("c", 160, 0)]


def test_what_is_no_trace_is_refused(tmp_path, engine):
    (tmp_path / "x.pftrace").write_bytes(b"no trace at all, but some text")
    with pytest.raises(AssertionError, match="Unknown trace type"):
        engine.load(tmp_path / "x.pftrace")
