"""Made captures of several hosts whose right values are written beside them."""

import pytest

from moeprof.analyzers import analyze
from moeprof.analyzers.laws import laws_of
from moeprof.ingest import open_run


@pytest.fixture
def case(data):
    return lambda name: open_run(data / "cases" / name)


def law(trace, name):
    return next(law for law in laws_of(trace) if law.check == name)


def found(trace):
    """Straggler, waits by rank in ms, transfer by op in ms, length of steps in ms."""
    answers = analyze(trace, ["stragglers", "collectives"])
    table, calls = answers["stragglers"].table, answers["collectives"].table
    waits = dict(zip(table["rank"], table["waits_ns"] / 1e6, strict=True))
    transfers = dict(zip(calls["op"], calls["transfer_ns"] / 1e6, strict=True))
    used = trace.steps[trace.steps["used"]]
    verdict = {metric.metric: metric.value for metric in answers["stragglers"].headline}
    return verdict["straggler"], waits, transfers, (used["duration_ns"] / 1e6).tolist()


def test_numbered_hosts(case):
    trace = case("ranks_by_id/numbered")
    straggler, waits, transfers, steps = found(trace)
    assert straggler == "rank 13"
    waiting = {8, 9, 10, 11, 12, 14, 15}
    assert waits == {rank: 6.0 if rank in waiting else 0.0 for rank in range(24)}
    assert transfers == {"all-gather.1": 14.0, "all-reduce.1": 14.0}
    assert steps == [50.0] * 6
    assert {clock.offset_ns for clock in trace.meta.clocks} == {0}
    late = trace.devices[trace.devices["rank"] == 13].iloc[0]
    assert (late["host"], late["device"]) == ("nid15", 1)


def test_named_hosts(case):
    trace = case("ranks_by_id/named")
    straggler, waits, transfers, steps = found(trace)
    assert straggler == "rank 9"
    assert waits == {rank: 4.5 if rank in (8, 10, 11) else 0.0 for rank in range(12)}
    assert transfers == {"all-gather.1": 3.0, "all-reduce.1": 3.0}
    assert steps == [26.5] * 7
    ahead = {clock.host: clock.offset_ns / 1e6 for clock in trace.meta.clocks}
    assert len(ahead) == 12
    assert {h: ms for h, ms in ahead.items() if ms} == {"heron": 1.2, "curlew": -0.8}
    assert trace.devices.set_index("rank").at[9, "host"] == "fulmar"


def test_an_absent_host(case):
    trace = case("missing_hosts/absent")
    straggler, waits, transfers, _ = found(trace)
    assert straggler == "rank 9"
    unknown = {rank for rank, wait in waits.items() if wait != wait}
    assert unknown == {0, 1}
    known = {rank: wait for rank, wait in waits.items() if rank not in unknown}
    assert known == {rank: 4.0 if rank in (8, 10, 11) else 0.0 for rank in range(4, 12)}
    assert transfers["all-gather.1"] == 9.0
    missing = law(trace, "processes")
    assert (missing.expected, missing.found, missing.unit) == (12, 10, "devices")
    told = "devices 2 and 3 are missing (process 1 of 6, between rack2-n1 and rack2-n3)"
    assert told in missing.detail


def test_a_stopped_host(case):
    trace = case("missing_hosts/stopped")
    _, waits, _, steps = found(trace)
    assert set(waits.values()) == {0.0}
    assert steps == [22.0] * 9
    early = law(trace, "hosts_end_together")
    assert (early.verdict, early.found) == ("warn", 1_470_000_000)
    assert "node3" in early.detail
    assert "the others stand 1.400 s in all-reduce.1 of step 9, which lacks rank 3" in early.detail


def test_a_cut_host(case):
    trace = case("missing_hosts/cut")
    straggler, waits, transfers, steps = found(trace)
    assert straggler == "rank 4"
    assert waits == {rank: 0.0 if rank == 4 else 5.0 for rank in range(6)}
    assert transfers == {"all-gather.1": 3.0, "all-reduce.1": 3.0}
    assert len(steps) == 8
    assert "node1" in law(trace, "truncated").detail
