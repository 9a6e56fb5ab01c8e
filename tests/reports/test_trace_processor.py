"""Perfetto's own trace processor reads what is written for it."""

from __future__ import annotations

import pytest
from builders.work import kernel, traced
from trace_processor import loaded

from moeprof.reports.perfetto import write_perfetto


def test_a_written_trace_is_read_whole(tmp_path):
    trace = traced([kernel("a", 100, 50), kernel("b", 150, 7), kernel("c", 160, 0)])
    write_perfetto(trace, tmp_path / "x.pftrace")
    with loaded(tmp_path / "x.pftrace") as engine:
        assert engine.errors() == []
        work = engine.rows("select name, ts, dur from slice where name != 'step 0' order by ts")
        assert work == [("a", 100, 50), ("b", 150, 7), ("c", 160, 0)]


def test_what_is_no_trace_is_refused(tmp_path):
    (tmp_path / "x.pftrace").write_bytes(b"no trace at all, but some text")
    with pytest.raises(AssertionError, match="Unknown trace type"), loaded(tmp_path / "x.pftrace"):
        pass
