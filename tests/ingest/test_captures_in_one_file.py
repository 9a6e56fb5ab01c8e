"""Captures one behind the other have no times; unreadable routing costs the routing alone."""

import pytest
from builders.sessions import profile, write
from builders.xspace import Plane, event, host, line, xspace

from moeprof.analyzers.questions.expert_load import expert_load
from moeprof.ingest import open_run
from moeprof.tables.law import Need


def captured(at):
    kernels = [event("fusion_1", at + 500 * i, 300, correlation_id=i) for i in range(4)]
    return xspace(Plane("/device:GPU:0", (line("Stream #7(Compute)", *kernels),)), host())


def test_two_captures_in_one_file_have_no_times(tmp_path):
    file = tmp_path / "both.xplane.pb"
    file.write_bytes(captured(1000) + captured(9_000_000))
    law = next(law for law in open_run(file).trust if law.check == "one_run")
    assert (law.verdict, law.expected, law.found) == ("fail", 1, 2)
    assert "several captures are in one file" in law.detail
    assert law.breaks == (Need.DEVICE_TIMES,)


def test_a_plane_that_is_written_in_pieces_is_one_capture(tmp_path):
    file = tmp_path / "pieces.xplane.pb"
    file.write_bytes(captured(1000) + xspace(Plane("/device:GPU:0"), host(line("python"))))
    assert all(law.verdict != "fail" for law in open_run(file).trust if law.check == "one_run")


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more"])
def test_routing_that_cannot_be_read_costs_nothing_else(tmp_path, content):
    run = tmp_path / "run"
    write(run / "plugins" / "profile" / "s" / "nodeA.xplane.pb", profile((0, 10**9)))
    write(run / "routing" / "p0.parquet", content)
    trace = open_run(run)
    assert trace.steps["used"].all()
    assert expert_load(trace).table.empty
    truncated = next(law for law in trace.trust if law.check == "truncated")
    assert truncated.verdict == "warn"
    assert "no routing is known" in truncated.detail
