"""A projection beside a run: what differs, what may be stored, and how it is applied."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from moeprof.errors import SpecError, TraceError
from moeprof.ingest import open_run
from moeprof.projector.breakdown import total
from moeprof.projector.calibrate import Measured, Part, calibrate, measured
from moeprof.projector.correction import corrected, read_corrections, store, timed_run
from moeprof.projector.memory import project
from moeprof.projector.setting import Setting
from moeprof.projector.step_time import estimate
from moeprof.reports.memory.calibration import build_calibration, calibration_json, calibration_text
from moeprof.specs.hardware import load_hardware
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.strategy import parse_strategy

DATA = Path(__file__).parents[1] / "data"
SETTING = Setting(
    load_preset("mixtral-8x7b"),
    ParallelPlan(fsdp=8, expert=8),
    parse_strategy("sparse-gmm"),
    load_hardware("h100_sxm"),
    sequence=4096,
    pdbs=1,
)
PROJECTED = project(SETTING)


def run(**changes: object) -> Measured:
    """A run that took 1.25 times the projected arena and exactly the projected arguments."""
    assert PROJECTED.args_bytes is not None
    assert PROJECTED.temp_bytes is not None
    temp = PROJECTED.temp_bytes * 5 // 4
    known: dict[str, object] = {
        "path": "runs/one",
        "program": "jit_train_step",
        "platform": "gpu",
        "hardware": "h100_sxm",
        "device_model": "NVIDIA H100 80GB HBM3",
        "jax_version": "0.11.2",
        "date": "2026-03-01",
        "args_bytes": PROJECTED.args_bytes,
        "temp_bytes": temp,
        "results_bytes": 0,
        "allocator_peak_bytes": None,
        "peak_op_component": "dispatch",
        "parts": (
            Part("args", "params", "weights", PROJECTED.args_bytes),
            Part("temp", "temporaries", "receive buffers, dispatch", temp),
        ),
        "strategies": frozenset({"sparse-gmm"}),
    }
    return Measured(**(known | changes))  # type: ignore[arg-type]


def test_totals_and_kinds_stand_side_by_side_and_add_up():
    found = calibrate(PROJECTED, run())
    args, temp, outside = found.totals
    assert args.difference_bytes == 0
    assert temp.measured_bytes == run().temp_bytes
    assert outside.measured_bytes is None
    for pool, whole in (("args", args), ("temp", temp)):
        rows = [row for row in found.rows if row.pool == pool]
        assert sum(row.projected_bytes or 0 for row in rows) == whole.projected_bytes
        assert sum(row.measured_bytes or 0 for row in rows) == whole.measured_bytes
    assert found.factor == pytest.approx(1.25)
    assert found.refusal is None


def test_kinds_that_the_run_does_not_tell_are_not_zero():
    """As from a compilation cache: how large temp is is known, of its contents nothing."""
    told = run()
    found = calibrate(PROJECTED, run(is_untold=True, parts=told.parts[:1]))
    of_temp = [row for row in found.rows if row.pool == "temp"]
    assert of_temp
    assert {(row.measured_bytes, row.difference_bytes) for row in of_temp} == {(None, None)}
    assert [row.measured_bytes for row in found.rows if row.kind == "params"] == [told.args_bytes]
    assert found.totals == calibrate(PROJECTED, told).totals
    assert found.factor == pytest.approx(1.25)
    assert any("JAX_ENABLE_COMPILATION_CACHE=false" in note for note in found.notes)


def test_seconds_of_a_step_are_stored_beside_their_estimate(tmp_path):
    file = tmp_path / "corrections.json"
    found = calibrate(PROJECTED, run(step_s=2.5, steps=12))
    store(file, found)
    (one,) = read_corrections(file)
    assert one.time is not None
    assert one.time == timed_run(found)
    assert (one.time.measured_s, one.time.steps, one.time.run) == (2.5, 12, "runs/one")
    assert one.time.estimated_s == estimate(SETTING).seconds
    assert one.time.factor == 2.5 / estimate(SETTING).seconds
    assert one.time.split == ("fsdp", "expert")
    text = " ".join(calibration_text(build_calibration(found)).plain.split())
    assert f"A step took 2.500 s, {one.time.factor:.2f} times the" in text
    store(file, calibrate(PROJECTED, run()))  # a dump of the compiler has no steps
    assert read_corrections(file)[0].time is None
    written = json.loads(file.read_text())
    written["corrections"][0]["time"] = {"measured_s": 0, "estimated_s": 1}
    file.write_text(json.dumps(written))
    with pytest.raises(SpecError, match="measured_s above 0 was expected, found 0"):
        read_corrections(file)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hardware": "", "device_model": "cpu", "platform": "cpu"}, "the run's device is cpu"),
        ({"hardware": "mi300x", "device_model": "MI300X"}, "the run's device is MI300X"),
        ({"args_bytes": 10**9}, "another model, plan, optimizer or number format"),
        ({"strategies": frozenset({"dense"})}, "the run's program is of dense"),
    ],
)
def test_a_run_of_something_else_stores_nothing(tmp_path, changes, says):
    found = calibrate(PROJECTED, run(**changes))
    assert found.refusal is not None
    assert says in found.refusal
    file = tmp_path / "corrections.json"
    with pytest.raises(SpecError, match="nothing to store") as raised:
        store(file, found)
    assert "\n" not in str(raised.value)
    assert not file.exists()
    assert says in calibration_text(build_calibration(found)).plain.replace("\n", " ")


def test_a_program_that_does_not_tell_its_strategy_is_taken_and_said():
    found = calibrate(PROJECTED, run(strategies=frozenset()))
    assert found.refusal is None
    assert any("strategy" in note for note in found.notes)


def test_a_correction_is_a_row_of_each_peak_and_rows_still_sum(tmp_path):
    file = tmp_path / "corrections.json"
    store(file, calibrate(PROJECTED, run()))
    found = corrected(PROJECTED, read_corrections(file))
    assert PROJECTED.temp_bytes is not None
    assert found.temp_bytes == pytest.approx(PROJECTED.temp_bytes * 1.25, rel=1e-9)
    assert found.args_bytes == PROJECTED.args_bytes
    assert total(found.rows) == found.total_bytes
    assert all(any("correction" in row.name for row in peak.rows) for peak in found.worst.peaks)
    assert "1.250" in found.notes[-1]


def test_a_correction_of_another_account_is_not_applied_and_said(tmp_path):
    file = tmp_path / "corrections.json"
    store(file, calibrate(PROJECTED, run()))
    other = project(dataclasses.replace(SETTING, strategy=parse_strategy("dense-cf2")))
    found = corrected(other, read_corrections(file))
    assert found.temp_bytes == other.temp_bytes
    assert "No correction is of maxtext/dense-cf2/full/h100_sxm" in found.notes[-1]


def test_a_second_run_of_an_account_takes_the_place_of_the_first(tmp_path):
    file = tmp_path / "corrections.json"
    store(file, calibrate(PROJECTED, run()))
    other = project(dataclasses.replace(SETTING, strategy=parse_strategy("dense-cf2")))
    dense = run(strategies=frozenset({"dense"}), temp_bytes=other.temp_bytes)
    store(file, calibrate(other, dense))
    again = store(file, calibrate(PROJECTED, run(temp_bytes=PROJECTED.temp_bytes)))
    assert again.factor == 1.0
    assert sorted(one.factor for one in read_corrections(file)) == [1.0, 1.0]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "other/1"}', '{"schema": "moeprof.memory_correction/1"}']
)
def test_a_file_of_something_else_is_said_in_one_line(tmp_path, text):
    file = tmp_path / "corrections.json"
    file.write_text(text)
    with pytest.raises(SpecError, match="expected corrections that") as raised:
        read_corrections(file)
    assert "\n" not in str(raised.value)


def test_a_factor_that_cannot_be_is_refused(tmp_path):
    file = tmp_path / "corrections.json"
    store(file, calibrate(PROJECTED, run()))
    document = json.loads(file.read_text())
    document["corrections"][0]["factor"] = -1
    file.write_text(json.dumps(document))
    with pytest.raises(SpecError, match="a factor above 0"):
        read_corrections(file)


def test_the_text_is_80_columns_wide_and_the_json_strict():
    document = build_calibration(calibrate(PROJECTED, run()))
    text = calibration_text(document).plain
    assert max(map(len, text.splitlines())) <= 80
    assert "1.250 times the projected arena" in text
    assert json.loads(calibration_json(document))["schema"] == "moeprof.calibration/1"


def test_what_has_no_program_is_said_in_one_line(tmp_path):
    with pytest.raises(TraceError):
        measured(tmp_path)


def test_a_profile_without_lives_gives_no_kind_of_its_temporaries(monkeypatch):
    """A real capture, as its profile is where the executable came from a compilation cache."""
    path = DATA / "gpu" / "sparse-ragged-dot"
    told, trace = measured(path), open_run(path)
    buffers = trace.buffers.assign(live_from=-1, live_to=-1, trace=-1)
    cached = dataclasses.replace(trace, buffers=buffers)
    monkeypatch.setattr("moeprof.projector.calibrate.open_run", lambda _path: cached)
    found = measured(path)
    assert found.is_untold
    assert not told.is_untold
    assert {part.pool for part in told.parts} == {"args", "temp"}
    results = "results that reuse no argument"
    assert {part.kind for part in found.parts if part.pool == "temp"} == {results}
    assert [p for p in found.parts if p.pool == "args"] == [
        p for p in told.parts if p.pool == "args"
    ]
    assert (found.args_bytes, found.temp_bytes) == (told.args_bytes, told.temp_bytes)
    # By hand, of one host: from the first start to the last, over the steps between.
    starts_ns = trace.steps["start_ns"][trace.steps["used"]]
    between_s = (starts_ns.max() - starts_ns.min()) / (len(starts_ns) - 1) / 1e9
    assert told.steps == len(starts_ns)
    assert told.step_s == pytest.approx(between_s, rel=0.02)


def test_the_allocators_peak_is_that_of_the_fullest_device_as_capture_sampled_it(tmp_path):
    """Two H200; the profile tells no allocation. The figures stand in memory/p0.json."""
    run = tmp_path / "run"
    shutil.copytree(DATA / "gpu" / "sparse-ragged-dot", run)
    assert measured(run).allocator_peak_bytes == 285_922_304  # of device 0; 1 had 285,921,024
    (run / "memory" / "p0.json").write_text('{"windows": [{"after": {"devices": 7}}, 3]}')
    assert measured(run).allocator_peak_bytes is None
