"""Obstacles, host facts and messages."""

from __future__ import annotations

import gc
import os

import pytest

from moeprof.recording.host_facts import (
    GarbagePauses,
    parse_core_list,
    preflight,
    relevant_environment,
)
from moeprof.recording.launch import child_environment
from moeprof.recording.options import CaptureOptions
from moeprof.recording.progress import Channel, MessageReader


@pytest.fixture
def params(tmp_path):
    path = tmp_path / "params"
    path.write_text("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\nMode: 0\n")
    return path


def test_a_driver_that_lets_only_administrators_profile_is_named(params):
    (obstacle,) = preflight({}, params=params, is_root=False)
    assert obstacle.name == "cupti-permission"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in obstacle.text
    assert preflight({}, params=params, is_root=True) == []


def test_a_driver_that_lets_everyone_profile_or_none_at_all_is_no_obstacle(params, tmp_path):
    params.write_text(params.read_text().replace("Only: 1", "Only: 0"))
    assert preflight({}, params=params, is_root=False) == []
    assert preflight({}, params=tmp_path / "absent", is_root=False) == []


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({"JAX_ENABLE_PGLE": "true"}, ["pgle"]),
        ({"JAX_ENABLE_PGLE": "false"}, []),
        ({"NSYS_PROFILING_SESSION_ID": "1"}, ["nsys"]),
    ],
)
def test_other_users_of_the_profiler_are_named(environment, names, tmp_path):
    found = preflight(environment, params=tmp_path / "absent", is_root=False)
    assert [obstacle.name for obstacle in found] == names


def test_linux_core_lists_are_read():
    assert parse_core_list("0-3,8\n") == {0, 1, 2, 3, 8}
    assert parse_core_list("\n") == set()


def test_the_environment_kept_is_relevant_and_holds_no_secret():
    environment = {"XLA_FLAGS": "--x", "JAX_API_KEY": "s", "HOME": "/root", "OMP_NUM_THREADS": "2"}
    assert relevant_environment(environment) == {"OMP_NUM_THREADS": "2", "XLA_FLAGS": "--x"}


def test_a_garbage_collection_is_timed_while_installed():
    pauses = GarbagePauses()
    pauses.install()
    gc.collect()
    pauses.remove()
    gc.collect()
    full = [pause for pause in pauses.pauses if pause["generation"] == 2]
    assert len(full) == 1
    assert full[0]["duration_ns"] >= 0


def test_messages_arrive_whole_whatever_the_pieces():
    reading, writing = os.pipe()
    Channel(writing).send("compiled", {"programs": 3})
    data = os.read(reading, 1000)
    reader = MessageReader()
    assert reader.feed(data[:5]) == []
    assert reader.feed(data[5:] + b"no json\n[1]\n") == [{"kind": "compiled", "programs": 3}]
    os.close(reading)
    Channel(writing).send("after the reader has gone")
    os.close(writing)


def test_the_child_gets_its_path_back_whether_or_not_there_was_one(tmp_path):
    options = CaptureOptions(tmp_path)
    without = child_environment({}, options, 5)
    assert os.pathsep not in without["PYTHONPATH"]
    assert "MOEPROF_CAPTURE_PYTHONPATH" not in without
    with_one = child_environment({"PYTHONPATH": "/a"}, options, 5)
    assert with_one["PYTHONPATH"].endswith(os.pathsep + "/a")
    assert with_one["MOEPROF_CAPTURE_PYTHONPATH"] == "/a"
