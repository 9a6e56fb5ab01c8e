"""Operands of an element type that no table has."""

from __future__ import annotations

import numpy as np

from moeprof.analyzers.laws import laws_of
from moeprof.analyzers.questions.roofline import roofline
from moeprof.ingest import open_run


def test_bytes_with_it_are_not_known(data):
    trace = open_run(data / "cases" / "unknown_type" / "operands.xplane.pb")
    table = roofline(trace).table
    ops = table[table["op"].ne("")].set_index("op")
    assert np.isnan(ops["bytes"][["custom-call.3", "fusion.1"]]).all()
    assert ops["flops"]["custom-call.3"] == 134_217_728
    assert ops["bytes"]["fusion.2"] == 24_576
    assert table["bytes"][table["op"].eq("")].isna().all()
    (law,) = (law for law in laws_of(trace) if law.check == "bytes")
    assert law.verdict == "fail"
    assert "type91" in law.detail
