"""Processes of one launch write one run folder."""

from __future__ import annotations

import json
import socket
import subprocess

from builders import processes

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
