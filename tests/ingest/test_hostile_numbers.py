"""Numbers in texts of a profile that no column can hold: the profile is read without them."""

from pathlib import Path

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, event, host, line, metadata, thunk, xspace

from moeprof.ingest import open_run
from moeprof.ingest.planes.device_planes import IMPOSSIBLE_DEVICE, gpu_ordinal, tpu_ordinal
from moeprof.ingest.xspace.space import number_in
from moeprof.tables.trace import Trace

PROGRAM = hlo_proto(computation("main", op("add", "add", "f32[8]")))
MANY = "9" * 5000
KERNEL = event("k", 10, 5)


def opened(folder: Path, *planes: Plane, name: str = "node0.xplane.pb") -> Trace:
    (folder / name).write_bytes(xspace(*planes))
    return open_run(folder / name)


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("", -1), ("²", -1), ("-3", -1), ("9" * 18, 10**18 - 1), ("9" * 19, -1)],
)
def test_a_number_is_told_where_a_table_can_hold_it(text, number):
    assert number_in(text) == number


@pytest.mark.parametrize("ordinal", ["9999999999", "9" * 20, MANY])
@pytest.mark.parametrize("kind", ["GPU", "TPU"])
def test_a_device_with_an_impossible_ordinal_is_counted_and_not_read(tmp_path, kind, ordinal):
    lines = (line("Stream #1", KERNEL), line("XLA Ops", KERNEL))
    sound = Plane("/device:GPU:0", (line("Stream #1", KERNEL),))
    trace = opened(tmp_path, sound, Plane(f"/device:{kind}:{ordinal}", lines))
    assert trace.devices["device"].tolist() == [0]
    assert trace.dropped.to_dict("records") == [{"what": IMPOSSIBLE_DEVICE, "count": 2}]


def test_the_largest_ordinal_that_is_read(tmp_path):
    trace = opened(tmp_path, Plane("/device:GPU:999999999", (line("Stream #1", KERNEL),)))
    assert trace.devices["device"].tolist() == [999_999_999]


def test_other_planes_are_of_no_device(tmp_path):
    trace = opened(tmp_path, host(line("t", event("x", 1, 2))), Plane("/device:CUSTOM:1"))
    assert trace.devices.empty
    assert [gpu_ordinal(n) or tpu_ordinal(n) for n in ("/device:GPU:3x",)] == [3]


def test_numbers_of_thousands_of_digits_in_names_of_steps_and_programs(tmp_path):
    core = Plane(
        "/device:TPU:0",
        (
            line("Steps", event(MANY, 10, 100)),
            line("XLA Modules", event(f"jit_step({MANY})", 10, 100)),
            line("XLA Ops", event("add", 20, 10)),
        ),
    )
    named = Plane("/host:metadata", name_stats={f"jit_step({MANY})": {"hlo_proto": PROGRAM}})
    trace = opened(tmp_path, core, named)
    assert trace.markers["step"].tolist() == [-1]
    assert trace.events["module"].tolist() == [-1]


def test_a_file_number_of_twenty_digits_is_no_rank(tmp_path):
    work = host(line("pool", thunk("add", 10, 5)))
    trace = opened(tmp_path, metadata(p7=PROGRAM), work, name=f"h-p{'9' * 20}.xplane.pb")
    assert len(trace.events) == 1
    assert trace.devices["rank"].tolist() == [0]


def test_ordinals_of_virtual_devices_of_any_size_are_kept_apart(tmp_path):
    work = [thunk("add", 10 * at, 5, device_ordinal=2**at) for at in (1, 31, 40, 62)]
    trace = opened(tmp_path, metadata(p7=PROGRAM), host(line("pool", *work)))
    assert trace.devices["device"].tolist() == [2, 2**31, 2**40, 2**62]
