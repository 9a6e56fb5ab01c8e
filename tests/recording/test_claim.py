"""A run folder is taken from the moment a capture begins, though nothing is written in it yet."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime

import pytest

from moeprof.errors import CaptureError
from moeprof.recording import claim
from moeprof.recording.run_folder import Launch, claim_free, leave, tried_before, write_meta

from .running import SCRIPTS, command_line, environment

NOON = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)
BEGUN = Launch(["python", "t.py"], NOON)
ENDED = Launch(["python", "t.py"], NOON, NOON, 0)
ELSEWHERE = "another-machine 1 1 "


def claimed(wanted, say=lambda line: None, **launch):
    return claim_free(wanted, launch, say)


def written(run_dir, launch, **process):
    return write_meta(run_dir, launch, process, versions={}, environment={})


def a_process_claims_and_dies(wanted):
    code = (
        "import os, pathlib, sys; from moeprof.recording.run_folder import claim\n"
        "claim(pathlib.Path(sys.argv[1]), {}); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, wanted], env=environment())
    assert done.returncode == 9
    assert os.path.lexists(wanted / claim.NAME)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_of_a_capture_that_runs_is_not_free_and_that_is_said(tmp_path):
    wanted, lines = tmp_path / "run", []
    folders = [claimed(wanted, lines.append) for _ in range(3)]
    assert folders == [wanted, tmp_path / "run-2", tmp_path / "run-3"]
    assert lines == [
        f"moeprof: {wanted} is that of a capture that runs: this run goes to {wanted}-{number}"
        for number in (2, 3)
    ]
    assert tried_before(folders[2]) == folders[:2]
    assert tried_before(wanted) == []


def test_a_claim_goes_as_meta_json_comes_which_takes_the_folder_too(tmp_path):
    written(claimed(tmp_path / "run"), BEGUN)
    assert names(tmp_path / "run") == ["meta.json"]
    assert claimed(tmp_path / "run") == tmp_path / "run-2"


def test_a_claim_goes_with_a_run_whose_meta_json_cannot_be_written(tmp_path):
    run = claimed(tmp_path / "run")
    (run / "meta.json.partial").mkdir()
    with pytest.raises(OSError, match="directory"):
        written(run, BEGUN)
    assert os.path.lexists(run / claim.NAME)
    with pytest.raises(OSError, match="directory"):
        written(run, ENDED)
    assert not os.path.lexists(run / claim.NAME)


def test_a_job_that_died_before_it_wrote_anything_does_not_stand_in_the_way(tmp_path):
    a_process_claims_and_dies(tmp_path / "run")
    lines = []
    assert claimed(tmp_path / "run", lines.append) == tmp_path / "run"
    written(tmp_path / "run", ENDED)
    assert names(tmp_path / "run") == ["meta.json"]
    assert not lines


def test_a_number_that_another_process_has_by_now_is_no_life(tmp_path):
    own = claim.own_claim()
    (tmp_path / claim.NAME).symlink_to(f"{own.machine} {own.pid} 1 ")
    assert claimed(tmp_path) == tmp_path
    assert claim.read_claim(tmp_path) == own


def test_what_a_dead_process_wrote_stays_and_its_claim_goes(tmp_path):
    a_process_claims_and_dies(tmp_path / "run")
    (tmp_path / "run" / "host").mkdir()
    assert claimed(tmp_path / "run") == tmp_path / "run-2"
    assert names(tmp_path / "run") == ["host"]


@pytest.mark.parametrize("text", [ELSEWHERE, "no claim of ours"])
def test_what_cannot_be_seen_may_run(tmp_path, text):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / claim.NAME).symlink_to(text)
    assert claimed(tmp_path / "run") == tmp_path / "run-2"
    assert os.readlink(tmp_path / "run" / claim.NAME) == text


def test_many_at_once_get_a_folder_each(tmp_path):
    a_process_claims_and_dies(tmp_path / "run")
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(claimed(tmp_path / "run").name))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(["run", *(f"run-{number}" for number in range(2, 13))])


def test_ranks_of_a_launch_share_a_claim_that_has_no_marker_beside_it_yet(tmp_path):
    rank = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / claim.NAME).symlink_to(f"{ELSEWHERE}.launch-7.0")
    assert claimed(tmp_path / "run", **rank, SLURM_PROCID="1") == tmp_path / "run"
    assert claimed(tmp_path / "run", **rank | {"SLURM_JOB_ID": "8"}) == tmp_path / "run-2"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EPERM, errno.EOPNOTSUPP])
def test_a_disk_that_takes_no_claim_is_recorded_on_all_the_same(tmp_path, monkeypatch, number):
    monkeypatch.setattr(os, "symlink", fails_with(number))
    assert claimed(tmp_path / "run") == tmp_path / "run"


def test_a_folder_that_nobody_may_write_to_is_refused_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "symlink", fails_with(errno.EROFS))
    with pytest.raises(CaptureError, match=r"run folder .*/run cannot be made: .*Read-only"):
        claimed(tmp_path / "run")


def fails_with(number):
    def symlink(*_):
        raise OSError(number, os.strerror(number))

    return symlink


def test_a_folder_that_is_left_is_gone_unless_another_process_has_it(tmp_path):
    leave(claimed(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / claim.NAME).symlink_to(ELSEWHERE)
    leave(tmp_path / "run")
    assert names(tmp_path / "run") == [claim.NAME]


def test_two_commands_with_one_folder_leave_two_whole_runs(tmp_path):
    command = command_line("--no-report", "--steps", "2", "--out", tmp_path / "run")
    both = [
        subprocess.Popen(
            [*command, "plain_loop.py", "9"],
            cwd=SCRIPTS,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [one.communicate(timeout=120)[1] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    goes = "run is that of a capture that runs: this run goes to "
    assert sum(goes in text for text in said) == 1
    for folder in ("run", "run-2"):
        assert len(list((tmp_path / folder).rglob("*.xplane.pb"))) == 1
        assert (tmp_path / folder / "meta.json").exists()
        assert not os.path.lexists(tmp_path / folder / claim.NAME)
