"""A run opened in Python: what is chosen of it, and what it gives is what the commands give."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from builders.ended import write_record
from builders.sessions import two_hosts
from session.conftest import DEEPEP, GMM

import moeprof
from moeprof.errors import SelectionError, SpecError, TraceError

RULES = "- component: router\n  op: all-reduce\\.6\n"


def test_to_json_is_what_analyze_prints(deepep, analyzed):
    assert deepep.to_json() == analyzed


def test_a_path_may_be_a_text_or_a_path():
    assert moeprof.load(str(DEEPEP)).path == moeprof.load(DEEPEP).path == str(DEEPEP)


def test_every_question_is_a_method_and_an_attribute_that_completes(deepep):
    for name in deepep.questions:
        assert getattr(deepep, name)() is deepep.ask(name)
        assert name in dir(deepep)


@pytest.mark.parametrize("name", ["breakdwn", "__len__", "_repr_png_"])
def test_what_is_no_question_is_an_attribute_error_that_knows_the_run(deepep, name):
    with pytest.raises(AttributeError, match=f"'Run' object has no attribute '{name}'") as error:
        getattr(deepep, name)
    if not name.startswith("_"):
        assert (error.value.name, error.value.obj) == (name, deepep)  # "Did you mean" needs both


def test_an_unknown_question_lists_those_there_are(deepep):
    with pytest.raises(SelectionError, match=r"no question is named 'x'; there are: step_time, "):
        deepep.ask("x")


def test_steps_say_which_are_used(deepep):
    steps = deepep.steps
    assert list(steps["step"]) == [3, 4]
    assert list(steps["reason"]) == ["", ""]
    assert steps["used"].all()
    assert steps["interval_ns"].dtype == "float64"
    assert np.isnan(steps["interval_ns"].iloc[-1])


@pytest.mark.parametrize("steps", [3, [3], range(3, 4), {3}, np.int64(3), np.array([3])])
def test_steps_are_chosen_by_number(steps):
    run = moeprof.load(DEEPEP, steps=steps)
    assert list(run.steps["used"]) == [True, False]
    assert list(run.steps["reason"]) == ["", "not asked for"]
    assert run.step_time().headline["step_time_median"] == 10_146_901


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (9, "no step has the number 9; there are: 3, 4"),
        ([3, 7, 9], "no step has the number 7, 9; there are: 3, 4"),
        ([], "steps: expected numbers of steps, found none"),
        ("3", "steps: expected numbers of steps, found '3'"),
        (3.0, "steps: expected numbers of steps, found 3.0"),
        ([True], "steps: expected numbers of steps, found True"),
    ],
)
def test_steps_that_there_are_none_of_are_one_line(steps, said):
    with pytest.raises(SelectionError) as error:
        moeprof.load(DEEPEP, steps=steps)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("hosts", ["hostB", ["hostB"], ("hostB",)])
def test_hosts_are_chosen_by_name(tmp_path, hosts):
    run = moeprof.load(two_hosts(tmp_path), hosts=hosts)
    assert run.trace.meta.hosts == ("hostB",)


def test_a_session_is_chosen_by_name(tmp_path):
    assert moeprof.load(two_hosts(tmp_path), session="S_old").trace.meta.hosts == ("hostA",)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"hosts": "x"}, "no host is named 'x'; there are: node0-p0"),
        ({"session": "x"}, "no session is named 'x'; there are: run"),
        ({"hardware": "x"}, "no hardware is named 'x'; there are: mi250x, "),
    ],
)
def test_what_there_is_none_of_is_one_line(asked, said):
    with pytest.raises(SelectionError) as error:
        moeprof.load(DEEPEP, **asked)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_several_paths_are_one_run(tmp_path):
    sessions = two_hosts(tmp_path) / "plugins" / "profile"
    run = moeprof.load([sessions / "S_36", str(sessions / "S_38")])
    assert run.trace.meta.hosts == ("hostA", "hostB")


def test_hosts_whose_files_have_one_name_are_told_apart():
    run = moeprof.load([DEEPEP, GMM])
    first, second = run.trace.meta.hosts
    assert str(DEEPEP) in first
    assert str(GMM) in second
    assert "one_run" in {law["check"] for law in run.trust.troubles}


def test_hardware_is_taken_from_its_key():
    run = moeprof.load(DEEPEP, hardware="h100_sxm")
    assert run.roofline().headline["hardware"] == "h100_sxm"


def test_names_are_rules_of_the_user(tmp_path, deepep):
    rules = tmp_path / "names.yml"
    rules.write_text(RULES)
    ops = {run: run.ops().table.set_index("op")["component"] for run in
           (deepep, moeprof.load(DEEPEP, names=rules))}  # fmt: skip
    assert [each["all-reduce.6"] for each in ops.values()] == ["collectives", "router"]


@pytest.mark.parametrize("text", [None, "", "- scope: x\n"])
def test_rules_that_cannot_be_used_are_one_line(tmp_path, text):
    rules = tmp_path / "names.yml"
    if text is not None:
        rules.write_text(text)
    with pytest.raises(SpecError) as error:
        moeprof.load(DEEPEP, names=rules)
    assert str(error.value).startswith(f"{rules}: ")
    assert "\n" not in str(error.value)


def test_the_report_is_the_page_of_the_command(deepep, printed, tmp_path):
    page = deepep.report(tmp_path / "python.html")
    assert page == tmp_path / "python.html"
    printed("report", DEEPEP, "-o", tmp_path / "command.html")
    assert page.read_bytes() == (tmp_path / "command.html").read_bytes()


def test_a_place_that_cannot_be_written_is_one_line(deepep, tmp_path):
    with pytest.raises(moeprof.MoeprofError) as error:
        deepep.report(tmp_path / "nowhere" / "page.html")
    assert "expected a place that can be written" in str(error.value)
    assert "Give another one with path=" in str(error.value)


def test_trust_is_the_record_of_the_document(deepep, whole):
    laws = whole["trust"]
    assert deepep.trust.verdict == "ok"
    assert [dict(law) for law in deepep.trust.laws] == laws
    assert deepep.trust.troubles == ()
    table = deepep.trust.table
    assert list(table["check"]) == [law["check"] for law in laws]
    unchecked = "3 could not be checked (routing record, profiling cost, device state)"
    assert str(deepep.trust) == f"good: 35 of 35 checks passed, {unchecked}"


def test_its_text_is_the_first_screen_with_methods_in_the_place_of_options(deepep, printed):
    screen = printed("analyze", DEEPEP).partition("\n\nStep time\n")[0]
    assert "--only step_time" in screen
    told = screen.replace("--only step_time", ".step_time()")
    told = told.replace("--only stragglers", ".stragglers()")
    assert str(deepep) == told.replace("--only expert_load", ".expert_load()")
    assert repr(deepep) == f"<moeprof run {str(DEEPEP)!r}: 2 × gpu>"


@pytest.fixture
def unrecorded(tmp_path):
    return moeprof.load(write_record(tmp_path / "r", problems=[["it died"]], codes=[9], seconds=3))


def test_a_run_without_a_profile_says_so(unrecorded):
    assert unrecorded.trust.verdict == "fail"
    assert unrecorded.trust.troubles[0]["check"] == "profile"
    assert "nothing recorded" in str(unrecorded)
    assert "it died" in str(unrecorded)
    assert unrecorded.steps.empty
    for name in unrecorded.questions:
        answer = unrecorded.ask(name)
        assert answer.status == "withheld", name
        assert answer.table.empty
        assert set(answer.headline.values()) <= {None}
        assert "No profile was recorded" in answer._repr_html_()
    json.loads(unrecorded.to_json())


def test_there_is_nothing_to_compare_in_it(unrecorded, deepep):
    for runs in ((unrecorded, deepep), (deepep, unrecorded)):
        with pytest.raises(TraceError, match="found only what a run left that recorded none"):
            moeprof.compare(*runs)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gone", None, "no such file or folder"),
        ("empty.xplane.pb", b"", "empty.xplane.pb"),
        ("x.xplane.pb", b"<!DOCTYPE html><html>404</html>", "x.xplane.pb"),
        ("x.xplane.pb.gz", b"\x1f\x8bno gzip", "x.xplane.pb.gz"),
        ("x.trace.json", b"{", "x.trace.json"),
    ],
)
def test_a_path_that_holds_no_profile_is_one_line(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(moeprof.MoeprofError) as error:
        moeprof.load(tmp_path / name)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_no_path_is_one_line():
    with pytest.raises(moeprof.MoeprofError, match="or several, found none"):
        moeprof.load([])


def test_the_profile_itself_is_at_hand(deepep):
    assert isinstance(deepep.trace.events, pd.DataFrame)
    assert set(deepep.trace.events["step"]) >= {3, 4}
