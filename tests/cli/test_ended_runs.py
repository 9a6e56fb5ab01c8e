"""Runs that left no profile: what is known of them is said, and every figure is withheld."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from builders.ended import GIB, write_message, write_record

from moeprof.analyzers.registry import all_names
from moeprof.cli import main as command_line
from moeprof.ingest.run import unrecorded

PROFILE = Path(__file__).parents[1] / "data" / "gpu" / "dense-cf1.25"


@pytest.fixture
def ran(monkeypatch, capsys):
    """Run a command as a shell would: exit code, stdout and stderr, with single spaces."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["moeprof", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), " ".join(out.split()), " ".join(err.split())

    return call


@pytest.fixture
def killed(tmp_path):
    """Three processes: two raised the same, the last was killed."""
    raised = "the script raised ValueError after 2 steps (step), before recording began"
    died = "the script died (exit code 137) before anything was recorded"
    return write_record(
        tmp_path / "killed", problems=[[raised], [raised], [died]], codes=[1, 1, 137], seconds=48.4
    )


@pytest.fixture
def full(tmp_path):
    """11 GiB asked where 70 of 76 are in use: 6 free, 5 too much."""
    run = write_record(
        tmp_path / "full",
        problems=[["out of memory: `moeprof memory explain-oom RUN` reads oom.txt"]],
        codes=[1],
        seconds=7.25,
    )
    return write_message(run, asked=11, in_use=70, limit=76, device=3)


def test_a_run_that_was_killed_says_who_died_and_how(ran, killed):
    code, out, _ = ran("analyze", killed)
    assert code == 3
    assert "12 × AMD Instinct MI300X · 3 hosts · jax 0.11.2 · nothing recorded" in out
    assert (
        "processes 0 (c0), 1 (c1): the script raised ValueError after 2 steps (step), before "
        "recording began" in out
    )
    assert "process 2 (c2): the script died (exit code 137) before anything was recorded" in out
    assert "the command ran 48 s" in out
    assert "no profile of any of 3 processes was recorded" in out
    assert "Next moeprof memory explain-oom LOG" in out


def test_a_run_that_ran_out_of_memory_says_so_and_leads_on(ran, full):
    code, out, _ = ran("analyze", full)
    assert code == 3
    assert (
        "out of memory: 11.0 GiB asked for, 70.0 GiB of a pool of 76.0 GiB in use, 6.0 GiB free, "
        "5.0 GiB too much (device memory (HBM) of device 3)" in out
    )
    assert out.endswith(f"Next moeprof memory explain-oom {full}")
    assert "the command ran 7.2 s" in out


def test_a_message_alone_is_enough(ran, tmp_path):
    run = write_message(tmp_path / "alone", asked=2, in_use=30, limit=31, device=0)
    code, out, _ = ran("analyze", run, "--only", "breakdown")
    assert code == 3
    assert "2.0 GiB asked for, 30.0 GiB of a pool of 31.0 GiB in use, 1.0 GiB free" in out
    assert "× unknown" not in out


def test_the_document_is_valid_and_every_figure_is_withheld(ran, killed, full):
    code, out, _ = ran("analyze", killed, "--json")
    assert code == 3
    document = json.loads(out)
    assert document["schema"] == "moeprof.analysis/1"
    law, *others = document["trust"]
    assert {other["verdict"] for other in others} <= {"ok", "unchecked"}
    assert (law["check"], law["verdict"], law["expected"], law["found"]) == (
        "profile",
        "fail",
        3,
        0,
    )
    assert sorted(law["withholds"]) == sorted(all_names())
    assert sorted(document["analyses"]) == sorted(all_names())
    for finding in document["analyses"].values():
        assert finding["rows"] == []
        assert all(metric["value"] is None for metric in finding["headline"])
    assert document["steps"] == []
    record = document["run"]["record"]
    assert [row["exit_code"] for row in record["processes"]] == [1, 1, 137]
    assert record["duration_s"] == 48.4
    (memory,) = json.loads(ran("analyze", full, "--json")[1])["run"]["out_of_memory"]
    assert memory["request_bytes"] == 11 * GIB
    assert (memory["in_use_bytes"], memory["limit_bytes"]) == (70 * GIB, 76 * GIB)
    assert (memory["free_bytes"], memory["excess_bytes"]) == (6 * GIB, 5 * GIB)
    assert memory["devices"] == ["3"]


def test_the_page_says_it(ran, full, tmp_path):
    page = tmp_path / "full.html"
    code, out, err = ran("report", full, "-o", page)
    assert (code, out) == (3, str(page))
    assert "no profile was recorded; out of memory: 11.0 GiB asked for" in err
    text = page.read_text()
    assert "70.0 GiB of a pool of 76.0 GiB in use" in text
    assert f"Nothing was recorded. Next: moeprof memory explain-oom {full}." in text


def test_a_page_of_several_runs_may_have_one_that_died(ran, killed, tmp_path):
    page = tmp_path / "both.html"
    assert ran("report", PROFILE, killed, "-o", page)[0] == 3
    assert "the script died (exit code 137)" in page.read_text()


@pytest.mark.parametrize("place", [0, 1])
def test_there_is_nothing_to_compare(ran, full, place):
    runs = [PROFILE, PROFILE]
    runs[place] = full
    code, out, err = ran("compare", *runs)
    assert (code, out) == (1, "")
    assert err.startswith(f"moeprof: {full}: expected a profile (*.xplane.pb), found only what")
    assert err.endswith(f"oom.txt has an out-of-memory message: `moeprof memory explain-oom {full}`"
                        " explains it")  # fmt: skip


def test_there_is_nothing_to_export(ran, killed, tmp_path):
    code, out, err = ran("export", killed, "--tables", tmp_path / "tables")
    assert (code, out) == (1, "")
    assert "process 2 (c2): the script died (exit code 137) before anything was recorded" in err
    assert "`python pretrain.py --layers=4` ran 48 s" in err
    assert not (tmp_path / "tables").exists()


def test_processes_that_left_nothing_are_counted(tmp_path, ran):
    run = write_record(tmp_path / "r", problems=[["lost"]], codes=[0], seconds=60, expected=4)
    assert "1 of 4 processes left a record" in ran("export", run, "--tables", tmp_path / "t")[2]
    assert unrecorded(run).trust[0].expected == 4


def test_a_folder_that_knows_nothing_stays_an_error(ran, tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    code, _, err = ran("analyze", tmp_path)
    assert code == 1
    assert "found none; give the folder that was passed to the profiler" in err


def test_a_record_that_is_damaged_knows_nothing(ran, tmp_path):
    (tmp_path / "meta.json").write_text('{"schema": "moeprof.run/1", ')
    assert ran("analyze", tmp_path)[0] == 1


def test_a_run_that_died_after_its_window_keeps_its_figures_and_leads_on(ran, tmp_path):
    run = tmp_path / "later"
    shutil.copytree(PROFILE, run)
    write_message(run, asked=11, in_use=70, limit=76, device=3)
    code, out, _ = ran("analyze", run)
    assert code == ran("analyze", PROFILE)[0]
    assert "5.0 GiB too much (device memory (HBM) of device 3)" in out
    lead = f"moeprof memory explain-oom {run} explains it"  # wrapped at hyphens, where it is long
    assert "".join(lead.split()) in "".join(out.split())
    assert "Where the step goes" in out
