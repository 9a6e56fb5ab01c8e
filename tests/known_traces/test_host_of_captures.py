"""Gaps and launches of two H100.

Counts, the longest gap and its launch were checked once against protobuf's own reading.
"""

from __future__ import annotations

import pytest

from moeprof.analyzers.activity.gaps import gaps_of
from moeprof.analyzers.questions.launch import launch
from moeprof.analyzers.questions.sync_gaps import sync_gaps
from moeprof.analyzers.questions.timeline import timeline

RAGGED = "h100x2_moe_ragged.xplane.pb"
BUFFERS = "maxtext_h100x2_ds_ep2_cf125.xplane.pb.gz"
NO_BUFFERS = "maxtext_h100x2_ds_ep2_cf125_nocmdbuf.xplane.pb.gz"


def figures(analysis):
    return {metric.metric: metric.value for metric in analysis.headline}


@pytest.mark.parametrize("name", [RAGGED, BUFFERS, NO_BUFFERS])
def test_gaps_add_up_to_the_idle_time(opened, name):
    gaps = gaps_of(opened(name)).pandas()
    lengths = (gaps["end_ns"] - gaps["start_ns"]).groupby([gaps["rank"], gaps["step"]]).sum()
    idle = timeline(opened(name)).table.set_index(["rank", "step"])["idle_ns"]
    assert lengths.to_dict() == idle.to_dict()


@pytest.mark.parametrize(
    ("name", "launches", "allocations"), [(RAGGED, 2046, 48), (BUFFERS, 2838, 302)]
)
def test_every_piece_of_device_work_has_its_launch(opened, name, launches, allocations):
    trace = opened(name)
    assert len(trace.launches) == launches
    assert len(trace.allocations) == allocations
    assert trace.events["correlation_id"].isin(trace.launches["correlation_id"]).all()


def test_the_longest_gap_waits_for_the_first_build_of_a_command_buffer(opened):
    worst = sync_gaps(opened(BUFFERS)).table.iloc[0]
    assert (worst["cause"], worst["before"]) == ("host launch late", "copy.3")
    assert (worst["step"], worst["longest_ns"]) == (4, 3_720_302)
    assert worst["late_ns"] == (3_679_979 + 3_667_519) / 2  # the longest one of each device
    assert figures(sync_gaps(opened(BUFFERS)))["sync_free_level"] == 3


def test_without_command_buffers_the_host_launches_twice_as_often_and_is_late(opened):
    with_them, without = (figures(launch(opened(name))) for name in (BUFFERS, NO_BUFFERS))
    assert without["command_buffer_share"] == 0
    assert without["launch_calls_per_step"] > 2 * with_them["launch_calls_per_step"]
    late = [figures(sync_gaps(opened(name)))["host_late_time"] for name in (BUFFERS, NO_BUFFERS)]
    assert late == [3_127_003.25, 7_036_203.25]


def test_kernels_of_the_ragged_step(opened):
    found = figures(launch(opened(RAGGED)))
    assert found["kernels_per_step"] == 1005
    assert found["launch_calls_per_step"] == 341
