"""Processes of one launch, or of one job, write one run folder and record the same steps."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess

import pytest
from builders import processes

from moeprof.errors import TraceError
from moeprof.ingest import open_run

from .running import SCRIPTS, command_line, environment


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return int(server.getsockname()[1])


def launch(run_dir, *options):
    """Both ranks at once; their standard outputs."""
    port = str(free_port())
    commands = [
        command_line("--out", run_dir, *options, "two_processes.py", str(rank), port)
        for rank in range(2)
    ]
    settings = {"cwd": SCRIPTS, "env": environment(MOEPROF_LAUNCH_ID="one launch")}
    with processes.all_started(commands, stdout=subprocess.PIPE, **settings) as ranks:
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return outputs


def test_every_process_leaves_its_profile_in_the_same_session(tmp_path):
    outputs = launch(tmp_path / "run", "--no-report")
    assert outputs[0].startswith("rank 0 of 2\n")
    profiles = sorted((tmp_path / "run" / "plugins" / "profile").glob("*/*.pb"))
    assert [path.name[-len("-p0.xplane.pb") :] for path in profiles] == [
        "-p0.xplane.pb",
        "-p1.xplane.pb",
    ]
    assert len({path.parent for path in profiles}) == 1
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    assert (meta["expected_processes"], meta["status"]) == (2, "complete")
    assert sorted(path.name for path in (tmp_path / "run" / "host").iterdir()) == [
        "p0.json",
        "p1.json",
    ]


def test_only_the_chosen_process_records_and_the_first_one_reports(tmp_path):
    outputs = launch(tmp_path / "run", "--hosts", "1")
    (profile,) = (tmp_path / "run" / "plugins" / "profile").glob("*/*.pb")
    assert profile.name.endswith("-p1.xplane.pb")
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    assert "does not record (--hosts)" in meta["processes"][0]["problems"][0]
    assert meta["status"] == "complete"
    assert "Report" in outputs[0]
    assert outputs[1].splitlines()[-1].startswith("Run  ")
    assert (tmp_path / "run" / "report.html").exists()


def run_job(folder, count, what, *options):
    """Each rank with its own options, in a folder of its own: nothing tells them of each other."""
    port, settings = str(free_port()), {"env": environment(), "stderr": subprocess.PIPE}
    script = SCRIPTS / "one_of_a_job.py"
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(count):
            (own := folder / f"of{rank}").mkdir()
            asked = options[rank] if options else ()
            command = command_line("--no-report", *asked, script, str(rank), str(count), port, what)
            settings |= {"cwd": own, "stdout": subprocess.PIPE}
            ranks.append(stack.enter_context(processes.started(command, **settings)))
        said = [rank.communicate(timeout=120) for rank in ranks]
        return [rank.returncode for rank in ranks], [errors for _, errors in said]


def law(trace, name):
    return next(law for law in trace.trust if law.check == name)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The run folder of two ranks, of which the second compiles more and records a step more."""
    folder = tmp_path_factory.mktemp("job")
    codes, _ = run_job(folder, 2, "compiles_late", ("--steps", "3"), ("--steps", "4"))
    assert codes == [0, 0]
    (run,) = folder.glob("of*/runs/*")  # the other rank gave its own up
    return run


def test_a_job_is_one_run_whose_windows_begin_at_one_step_without_being_told(job):
    meta = json.loads((job / "meta.json").read_text())
    assert (meta["expected_processes"], meta["status"]) == (2, "complete")
    windows = [process["window"] for process in meta["processes"]]
    # the second is ready two steps behind the first, and both begin two steps after that
    assert [(w["first_step"], w["last_step"]) for w in windows] == [(8, 10), (8, 11)]
    assert [(w["common_start"], w["apart"]) for w in windows] == [(8, "")] * 2
    assert len({process["job"] for process in meta["processes"]}) == 1


def test_ranks_that_are_told_one_folder_share_it_though_each_is_a_capture_at_first(tmp_path):
    shared = ("--steps", "2", "--out", str(tmp_path / "run"))
    codes, _ = run_job(tmp_path, 2, "compiles_late", shared, shared)
    assert codes == [0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["of0", "of1", "run"]
    assert len(list((tmp_path / "run").rglob("*.xplane.pb"))) == 2
    assert not os.path.lexists(tmp_path / "run" / ".claim")


def test_processes_of_one_machine_have_one_clock(job):
    trace = open_run(job)
    found = law(trace, "clocks")
    assert found.verdict == "ok"
    assert found.detail.endswith(
        "is a process of " + trace.meta.hosts[0] + "'s machine and has its clock"
    )
    first, second = (json.loads((job / "meta.json").read_text())["processes"][k] for k in (0, 1))
    apart_ns = first["window"]["started_epoch_ns"] - second["window"]["started_epoch_ns"]
    assert trace.meta.clocks[1].offset_ns == pytest.approx(apart_ns, abs=200_000_000)


def test_steps_that_one_rank_alone_recorded_are_not_compared_and_that_is_said(job):
    trace = open_run(job)
    steps = trace.steps.set_index("step")
    assert steps.index.tolist() == [8, 9, 10, 11]
    assert not steps.at[11, "used"]
    told = "step 11: not on all hosts, which are compared in common steps alone"
    assert told in trace.meta.notes


def parted(job, folder):
    """The same run as two machines without a common disk leave it: each has its own record."""
    meta = json.loads((job / "meta.json").read_text())
    parts = []
    for k, process in enumerate(meta["processes"]):
        part = folder / f"machine{k}" / job.name
        shutil.copytree(job, part)
        (part / "meta.json").write_text(json.dumps({**meta, "processes": [process]}))
        for file in part.rglob(f"*p{1 - k}.*"):
            file.unlink()
        parts.append(part)
    return parts


def test_folders_of_one_run_are_read_as_the_run(job, tmp_path):
    parts = parted(job, tmp_path)
    whole, joined = open_run(job), open_run(parts)
    assert joined.meta.hosts == whole.meta.hosts
    assert joined.steps.equals(whole.steps)
    assert joined.devices.equals(whole.devices)
    assert len(joined.host_facts)
    assert joined.host_facts.equals(whole.host_facts)
    for name in ("processes", "clocks", "run_record", "ranks"):
        assert law(joined, name) == law(whole, name)


def test_a_folder_alone_names_the_process_that_it_lacks(job, tmp_path):
    part, _ = parted(job, tmp_path)
    detail = law(open_run(part), "processes").detail
    assert detail.startswith("expected 2 processes, found 1")
    assert detail.endswith("no profile of process 1")


def test_folders_of_two_runs_are_refused_in_a_line(job, tmp_path):
    first, second = parted(job, tmp_path)
    meta = json.loads((second / "meta.json").read_text())
    meta["processes"][0]["job"] = "of another job"
    (second / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(TraceError, match="found two runs: their records are of two jobs"):
        open_run([first, second])
    with pytest.raises(TraceError, match="found two runs: each has process 0"):
        open_run([job, first])


def test_a_folder_without_a_profile_tells_what_became_of_its_process(job, tmp_path):
    first, second = parted(job, tmp_path)
    shutil.rmtree(second / "plugins")
    meta = json.loads((second / "meta.json").read_text())
    meta["processes"][0] |= {"files": [], "windows": [], "problems": ["it was killed"]}
    (second / "meta.json").write_text(json.dumps(meta))
    trace = open_run([first, second])
    assert any("no profile in it: it was killed" in note for note in trace.meta.notes)
    assert "no profile of process 1 (" in law(trace, "processes").detail


def test_a_rank_that_is_killed_in_the_window_leaves_the_others_what_they_recorded(tmp_path):
    """The last of four, in the second step of three: the others fail in its sum, or stand there."""
    codes, _ = run_job(tmp_path, 4, "dies")
    assert codes[3] == 137
    assert 0 not in codes
    (run,) = tmp_path.glob("of*/runs/*")
    meta = json.loads((run / "meta.json").read_text())
    rows = meta["processes"]
    assert [bool(row["files"]) for row in rows] == [True, True, True, False]
    assert [row["window"]["first_step"] for row in rows[:3]] == [6, 6, 6]
    assert "inside the window by SIGKILL" in rows[3]["problems"][0]
    found = law(open_run(run), "processes")
    assert found.detail.startswith("expected 4 processes, found 3")
    assert f"no profile of process 3 ({rows[3]['host']})" in found.detail
