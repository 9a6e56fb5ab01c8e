"""What is said of a script whose programs need what is given here, of a pool of 100 GiB."""

from __future__ import annotations

import dataclasses
import json
import re
from types import SimpleNamespace

import pytest

from moeprof.projector.any_step.script import ScriptPlan, ScriptProgram
from moeprof.projector.any_step.words import notes_of
from moeprof.specs.hardware import load_hardware

GIB = 2**30
WHY = "not known: the peak where libraries compute all products. Time was up."
BY_ERROR = "of programs before it ended with an error"


class _Plan(SimpleNamespace):
    """As much of a plan as is asked for here."""

    def __str__(self):
        return "its plan"

    def document(self):
        return {}


def _program(name, least, most, is_range_known=True):
    sizes = (0, 0, 0, int(least * GIB), int(least * GIB))
    names = ("arguments", "outputs", "aliased", "temporaries", "peak")
    plan = _Plan(
        **{f"{each}_bytes": size for each, size in zip(names, sizes, strict=True)},
        peak_range=(int(least * GIB), int(most * GIB)),
        is_range_known=is_range_known,
        outside_bytes=0,
        devices=8,
        notes=() if is_range_known else ("first", WHY),
    )
    return ScriptProgram(name, "train.py:1", "train.py:9", 16, plan, 0, (), 0)


def _script(*programs, **changes):
    hardware = dataclasses.replace(load_hardware("h100_sxm"), hbm_bytes=100 * GIB)
    plan = ScriptPlan(
        script="train.py",
        hardware=hardware,
        devices=8,
        mem_fraction=1.0,
        programs=programs,
        light=(),
        reads=(),
        ended="16 calls of step",
        error="",
        unsettled="",
        eager_bytes=0,
        eager_line="",
        ran_s=1.0,
        notes=(),
    )
    json.dumps(plan.document(), allow_nan=False)
    return dataclasses.replace(plan, **changes)


@pytest.mark.parametrize(
    ("ranges", "verdict", "largest"),
    [
        ([(50, 60), (70, 80)], "fits", 1),
        ([(50, 120), (70, 80)], "borderline", 0),
        ([(50, 120), (108, 110)], "oom", 1),
        ([(106, 130), (108, 110)], "oom", 0),
    ],
)
def test_the_worst_of_any_program_decides(ranges, verdict, largest):
    plan = _script(*(_program(f"program{at}", *each) for at, each in enumerate(ranges)))
    assert (plan.verdict, plan.document()["largest"]) == (verdict, largest)
    assert plan.is_sure == (verdict != "borderline")
    assert plan.left_bytes == (100 - ranges[largest][1]) * GIB
    assert f"decided by program{largest}" in str(plan)


@pytest.mark.parametrize(
    ("eager", "verdict", "decides", "is_sure"),
    [
        (79, "fits", "step", True),
        (85, "fits", "outside jax.jit", False),  # what its ops need beside is not known
        (99, "borderline", "outside jax.jit", False),
        (110, "oom", "outside jax.jit", True),
    ],
)
def test_arrays_outside_of_programs_decide_where_they_are_more(eager, verdict, decides, is_sure):
    plan = _script(_program("step", 70, 80), eager_bytes=eager * GIB, eager_line="train.py:7")
    assert (plan.verdict, plan.is_sure) == (verdict, is_sure)
    assert plan.left_bytes == (100 - max(eager, 80)) * GIB
    text = str(plan)
    assert re.search(rf"decided\s+by (what\s+is\s+)?{decides}", text)
    mark = {"fits": "✓", "borderline": "~", "oom": "✗"}[verdict]
    row = re.search(
        r"^ outside jax.jit +([0-9.]+) GiB  (.)\n   without .* meanwhile, once (.*) has", text, re.M
    )
    found = row and (float(row[1]), row[2], row[3])
    assert found == (None if decides == "step" else (eager, mark, "train.py:7"))
    assert plan.document()["outside_jit"]["is_largest"] == (decides != "step")


def test_arrays_that_xla_may_split_otherwise_decide_nothing_surely():
    step = dataclasses.replace(_program("step", 70, 80), taken_bytes=9 * GIB)
    plan = _script(step, eager_bytes=110 * GIB, eager_line="train.py:7")
    assert (plan.verdict, plan.is_sure) == ("oom", False)
    assert "a sum of arrays, 110.0 GiB, if results are split as taken" in str(plan)


def test_an_end_before_the_step_is_said_in_the_head():
    plan = _script(_program("init", 10, 10), error="ValueError: no", unsettled=BY_ERROR)
    assert (plan.verdict, plan.is_sure) == ("fits", False)
    head = str(plan).partition("\n\n")[0]
    assert " ".join(head.split()).count(f"more than 5 % from the limit, {BY_ERROR}") == 1
    assert _script(_program("init", 10, 10)).is_sure


def test_where_one_of_two_plans_failed_the_most_is_not_known():
    programs = _program("step", 60, 60, is_range_known=False), _program("init", 10, 12)
    plan = _script(*programs)
    assert (plan.verdict, plan.is_sure, plan.largest.name) == ("borderline", False, "step")
    assert "60.00 GiB by one choice of kernels for products" in str(plan)
    assert "one of two plans of step, which may need more" in str(plan)
    answer = {"left_out": {}, "flags": ""}
    assert f"step: {WHY}" in list(notes_of(answer, programs, 8, 1.0))
    assert not _script(_program("step", 110, 110, is_range_known=False)).is_sure
