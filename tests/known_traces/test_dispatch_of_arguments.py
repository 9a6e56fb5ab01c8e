"""A benchmark of one layer, whose dispatch reads an argument of the program."""

from __future__ import annotations

from moeprof.analyzers.questions.dispatch_combine import dispatch_combine
from moeprof.ingest import open_run


def test_its_exchange_is_a_dispatch(data):
    trace = open_run(data / "cases" / "dispatch_of_arguments" / "layer_benchmark.xplane.pb")
    found = {metric.metric: metric.value for metric in dispatch_combine(trace).headline}
    assert found["dispatch_time"] == 1_200_000
    assert found["combine_time"] == 900_000
    assert found["exchange_time"] == 2_100_000
