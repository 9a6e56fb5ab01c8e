"""Where a run goes, who may share it, and what meta.json says."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from moeprof.errors import CaptureError
from moeprof.recording.run_folder import (
    Launch,
    claim,
    claim_free,
    default_run_dir,
    launcher_rank,
    run_status,
    write_meta,
)
from moeprof.recordings import newest_recording

NOON = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)
SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("script", "stem"),
    [
        ("jobs/train.py", "train"),
        ("maxtext.trainers.pre_train.train", "train"),
        ("package.__main__", "package"),
        ("jobs/v1.2/run", "run"),
    ],
)
def test_a_run_is_named_after_script_and_time(script, stem):
    assert default_run_dir(script, NOON) == Path(f"runs/{stem}-2026-12-01T12-00-00")


def test_processes_of_one_launch_share_a_folder_and_others_do_not(tmp_path):
    run = tmp_path / "a b" / "rún:1"
    claim(run, SLURM)
    (run / "host").mkdir()
    claim(run, SLURM)
    with pytest.raises(CaptureError, match="found files"):
        claim(run, {**SLURM, "SLURM_STEP_ID": "1"})
    with pytest.raises(CaptureError, match="found files"):
        claim(run, {})


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(CaptureError, match="expected none or an empty one"):
        claim(tmp_path / "run", {})
    lines = []
    assert claim_free(tmp_path / "run", {}, lines.append) == tmp_path / "run-2"
    assert lines == [
        f"moeprof: {tmp_path / 'run'} is a file: this run goes to {tmp_path / 'run-2'}"
    ]


def test_a_job_that_is_started_again_gets_a_folder_beside_the_first(tmp_path):
    wanted, lines = tmp_path / "run", []
    for number in range(3):
        run_dir = claim_free(wanted, {}, lines.append)
        (run_dir / "meta.json").write_text(str(number))
    assert run_dir == tmp_path / "run-3"
    assert (wanted / "meta.json").read_text() == "0"
    assert lines == [
        f"moeprof: {wanted} has files in it: this run goes to {wanted}-{number}"
        for number in (2, 3)
    ]


@pytest.mark.parametrize("again", [{}, {"SLURM_RESTART_COUNT": "1"}])
def test_ranks_that_are_started_again_share_a_new_folder(tmp_path, again):
    def claimed(**environment: str) -> list[Path]:
        ranks = ({**SLURM, **environment, "SLURM_PROCID": str(rank)} for rank in range(3))
        return [claim_free(tmp_path / "run", rank, lambda line: None) for rank in ranks]

    assert claimed() == [tmp_path / "run"] * 3
    assert claimed(**again) == [tmp_path / "run-2"] * 3


def test_the_newest_recording_is_the_last_one_with_a_profile(tmp_path):
    wanted = tmp_path / "run"
    assert newest_recording(wanted) == wanted
    for _ in range(4):
        run_dir = claim_free(wanted, {}, lambda line: None)
        (run_dir / "meta.json").write_text("")
    profile = tmp_path / "run-3" / "plugins" / "profile" / "run-3" / "node-p0.xplane.pb"
    profile.parent.mkdir(parents=True)
    profile.touch()
    assert newest_recording(wanted) == tmp_path / "run-3"
    assert newest_recording(tmp_path / "run-3") == tmp_path / "run-3"


def test_a_folder_of_another_run_with_such_a_name_is_no_recording_of_it(tmp_path):
    profile = tmp_path / "run-2" / "plugins" / "x.xplane.pb"
    profile.parent.mkdir(parents=True)
    profile.touch()
    assert newest_recording(tmp_path / "run") == tmp_path / "run"


def test_the_rank_is_the_launchers():
    assert launcher_rank({"SLURM_PROCID": "3"}) == 3
    assert launcher_rank({}) == 0


def window(**facts: object) -> dict[str, object]:
    return {"closed_because": "complete", "first_step": 4, "last_step": 6, **facts}


@pytest.mark.parametrize(
    ("files", "windows", "status"),
    [
        ([], [], "empty"),
        (["a.pb"], [window()], "complete"),
        (["a.pb"], [window(), window(closed_because="the script ended")], "partial"),
        (["a.pb"], [window(), window(export_error="OSError: full")], "partial"),
        (["a.pb"], [window(export_given_up_after_s=5.0)], "partial"),
        (["own.pb"], [], "complete"),
    ],
)
def test_a_run_is_complete_only_if_every_window_is(files, windows, status):
    assert run_status({"files": files, "windows": windows}) == status


def write(run: Path, index: int, exit_code: int, late_s: float = 0.0) -> dict[str, object]:
    started = NOON + timedelta(seconds=late_s)
    argv = ["/usr/bin/python3", "train.py", *(["late"] if late_s else [])]
    launch = Launch(argv, started, started + timedelta(seconds=90), exit_code)
    first = {**window(), "counted_by": "calls of step"}
    process = {"process_index": index, "process_count": 2, "files": ["x"], "windows": [first]}
    return write_meta(
        run, launch, {**process, "window": first}, versions={"jax": "0.10.2"}, environment={}
    )


def test_processes_add_themselves_to_one_meta_in_order(tmp_path):
    write(tmp_path, 1, 0)
    meta = write(tmp_path, 0, 3)
    assert json.loads((tmp_path / "meta.json").read_text()) == meta
    assert [one["process_index"] for one in meta["processes"]] == [0, 1]
    assert meta["expected_processes"] == 2
    assert meta["command"] == "python train.py"
    assert meta["duration_s"] == 90.0
    assert meta["window"] == "steps 4 to 6, counted by calls of step"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta.json"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_exit_code_and_times_do_not_depend_on_who_ends_last(tmp_path, order):
    codes, late_s = (0, 3, 7), (0.0, 5.0, 1.0)
    for index in order:
        meta = write(tmp_path, index, codes[index], late_s[index])
    assert meta["exit_code"] == 3
    assert meta["command"] == "python train.py"
    assert meta["duration_s"] == 95.0  # from the start of 0 to the end of 1
    assert [one["exit_code"] for one in meta["processes"]] == [0, 3, 7]
