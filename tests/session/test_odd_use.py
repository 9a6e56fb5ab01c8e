"""What people do with a run and its answers beside reading them."""

from __future__ import annotations

import copy
import functools
import json
import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner

import moeprof
from moeprof.cli.main import group
from moeprof.errors import SelectionError

RUN = Path(__file__).parents[1] / "data" / "gpu" / "sparse-gmm"


@pytest.fixture(scope="module")
def run():
    return moeprof.load(RUN)


def test_a_table_is_the_callers_own(run):
    table, steps = run.breakdown().table, run.steps
    whole = table["per_step_ns"].sum()
    table["per_step_ns"] = 0
    steps["used"] = False
    assert run.breakdown().table["per_step_ns"].sum() == whole
    assert run.steps["used"].all()


@pytest.mark.parametrize("again", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_an_answer_and_a_run_can_be_copied_and_kept(run, again):
    answer = again(run.breakdown())
    assert answer.headline == run.breakdown().headline
    assert again(run).ask("step_time").headline == run.step_time().headline


def test_a_question_that_is_not_called_says_what_to_do(run):
    assert repr(run.memory) == "<moeprof question memory: ask it by .memory()>"
    assert run.memory.__doc__ == run.memory().question


@pytest.mark.parametrize("path", [None, 3, "", b"x", [], [None]])
def test_what_is_no_path_is_one_line(run, path):
    with pytest.raises(SelectionError, match="path: expected the path of a run, or several, found"):
        moeprof.load(path)


@functools.cache
def printed(*words: object) -> str:
    return CliRunner().invoke(group, list(map(str, words)), env={"COLUMNS": "80"}).stdout


@pytest.mark.parametrize("most", [1, 3])
def test_rows_that_are_cut_change_no_figure(most):
    """Sentences, the first screen and JSON's headlines are of all rows."""
    whole = printed("analyze", RUN).partition("\n\nWhat to do")[0]
    cut = printed("analyze", RUN, "--rows", most)
    assert cut.startswith(whole)
    assert "Largest part: dispatch, 31.5 % (2.474 ms) of 7.856 ms op time" in " ".join(cut.split())
    assert "more: --only hints" in cut
    document = json.loads(printed("analyze", RUN, "--rows", most, "--json"))
    for name, finding in document["analyses"].items():
        answer = moeprof.load(RUN).ask(name) if name == "breakdown" else None
        assert len(finding["rows"]) <= most
        if answer is not None:
            assert {m["metric"]: m["value"] for m in finding["headline"]} == answer.headline
            assert finding["rows_left_out"] == len(answer.table) - most
    for drawing in document["drawings"].values():
        for data in drawing["data"].values():
            assert len(data["codes"] if isinstance(data, dict) else data) <= most
            assert not isinstance(data, dict) or len(data["names"]) <= most
