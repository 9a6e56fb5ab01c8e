"""What a law breaks withholds exactly the questions that need it, and no list has to be kept."""

import ast
import dis
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from moeprof.analyzers.laws import LAWS, laws_over, with_questions
from moeprof.analyzers.registry import all_names, all_questions, questions_that_need
from moeprof.ingest.run import unrecorded
from moeprof.ingest.trust import CHECKS
from moeprof.ingest.trust.whole_input import merged
from moeprof.tables.law import REGISTRY, Law, Need, Scope

ROOT = Path(__file__).parents[2]
BELOW = [
    file
    for folder in ("ingest", "hlo", "tables", "recording", "answers")
    for file in (ROOT / "moeprof" / folder).rglob("*.py")
]
LAW_FILES = sorted((ROOT / "analyzers" / "laws").glob("*.py"))
JUDGES = (*CHECKS, *LAWS, merged)
NAMED_OTHERWISE = {"dropped_events": "dropped", "bytes_known": "bytes"}

TIMED = {
    *("step_time", "breakdown", "ops", "timeline", "collectives", "stragglers", "pipeline"),
    *("grouped_gemm", "dispatch_combine", "sync_gaps", "roofline", "launch", "hints"),
}
FALLS = {
    Need.DEVICE_TIMES: TIMED,
    Need.PIECE_TIMES: TIMED - {"step_time"},
    Need.DEVICE_CLOCKS: {"step_time", "timeline", "stragglers", "pipeline", "hints"},
    Need.EVERY_DEVICE: {"stragglers"},
    Need.HOST_RECORD: {"launch", "sync_gaps"},
    Need.WHOLE_STEPS: {"step_time", "breakdown"},
    Need.INTERVALS: {"step_time"},
    Need.COMPONENTS: {"breakdown", "ops"},
    Need.NESTING: {"breakdown", "ops", "timeline", "collectives", "sync_gaps", "roofline"},
    Need.PROGRAMS: {"receive_buffers", "memory"},
    Need.PROGRAMS_THAT_RAN: {"receive_buffers"},
    Need.ROUTING: {"expert_load"},
    Need.RECEIVED: {"receive_buffers", "grouped_gemm", "dispatch_combine"},
}
"""What falls with each need, written down by hand."""


@pytest.mark.parametrize("need", Need, ids=lambda need: need.name)
def test_a_broken_need_withholds_these_questions_and_no_other(need):
    found = with_questions(Law("x", "fail", "why", (need,))).withholds
    assert set(found) == FALLS[need]
    assert list(found) == [name for name in all_names() if name in FALLS[need]]


def test_several_broken_needs_name_each_question_once_and_in_order():
    law = Law("x", "fail", "why", (Need.PROGRAMS, Need.DEVICE_TIMES, Need.PROGRAMS_THAT_RAN))
    fallen = {*TIMED, "receive_buffers", "memory"}
    assert list(with_questions(law).withholds) == [n for n in all_names() if n in fallen]


def test_a_run_without_a_profile_has_no_answer_at_all(tmp_path):
    (tmp_path / "oom.txt").write_text("out of memory")
    trace = unrecorded(tmp_path)
    assert trace.trust[0].breaks == tuple(Need)
    profile = next(law for law in laws_over(trace, {}) if law.check == "profile")
    assert list(profile.withholds) == all_names()


def test_questions_that_a_stored_law_names_stay_behind_those_that_need_it():
    law = Law("x", "fail", "why", (Need.COMPONENTS,), withholds=("load_map", "ops"))
    assert with_questions(law).withholds == ("breakdown", "ops", "load_map")
    old = Law("x", "fail", "why", withholds=("expert_load", "load_map"))
    assert with_questions(old) is old


def test_a_scope_of_a_need_becomes_one_of_each_question():
    law = Law("x", "warn", "cut", scopes=(Scope("ops", ("share",)), _of_host("b")))
    assert with_questions(law).scopes == (
        Scope("ops", ("share",)),
        Scope("sync_gaps", host="b"),
        Scope("launch", host="b"),
    )
    assert not with_questions(law).withholds


def _of_host(name: str) -> Scope:
    return Scope(need=Need.HOST_RECORD, host=name)


def test_a_law_means_the_same_before_its_questions_are_named():
    broken = Law("x", "fail", "why", (Need.COMPONENTS,))
    for law in (broken, with_questions(broken)):
        assert law.withholds_any
        assert law.withholds_figures("ops")
        assert law.withholds_figures("breakdown", ("moe_share",))
    assert not with_questions(broken).withholds_figures("memory")
    whole = Law("x", "warn", "cut", scopes=(Scope(need=Need.HOST_RECORD),))
    for law in (whole, with_questions(whole)):
        assert law.withholds_any
        assert law.withholds_figures("launch")
    rows = Law("x", "warn", "cut", scopes=(_of_host("b"),))
    for law in (rows, with_questions(rows)):
        assert law.withholds_any
        assert not law.withholds_figures("launch")
    fine = Law("x", "ok", "holds")
    assert not fine.withholds_any
    assert not fine.withholds_figures("ops")


def test_every_question_needs_something_and_every_need_has_a_question():
    assert all(each.needs for each in all_questions())
    assert set(FALLS) == set(Need)
    assert all(questions_that_need([need]) for need in Need)


def test_every_need_is_broken_by_some_law_beside_a_missing_profile():
    told = [set(law.breaks) for law in REGISTRY if law.name != "profile"]
    assert set().union(*told) == set(Need)


@pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: judge.__name__)
def test_the_registry_of_laws_says_what_each_law_can_break(judge):
    name = NAMED_OTHERWISE.get(judge.__name__, judge.__name__)
    (info,) = (law for law in REGISTRY if law.name == name)
    assert set(_needs_in(judge)) == set(info.breaks)


def _needs_in(judge: Callable[..., object]) -> Iterator[Need]:
    """Needs that a function names, or another one of its module that it calls."""
    assert isinstance(judge, FunctionType)
    codes: list[CodeType] = [judge.__code__]
    for code in codes:
        near = [each for each in code.co_consts if isinstance(each, CodeType)]
        for step in dis.get_instructions(code):
            if step.opname == "LOAD_ATTR" and step.argval in Need.__members__:
                yield Need[step.argval]
            called = judge.__globals__.get(step.argval) if step.opname == "LOAD_GLOBAL" else None
            if isinstance(called, FunctionType) and called.__module__ == judge.__module__:
                near.append(called.__code__)
        codes += [each for each in near if each not in codes]


@pytest.mark.parametrize("file", [*BELOW, *LAW_FILES], ids=lambda f: str(f.relative_to(ROOT)))
def test_no_law_names_a_question_but_in_a_scope(file):
    """A law that listed questions would have to learn of each new one."""
    named = list(_names_in_laws(ast.parse(file.read_text())))
    assert named == []


def _names_in_laws(node: ast.AST) -> Iterator[str]:
    """Names of questions among the values of laws: in their calls, and in what is made for them."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.keyword) and inner.arg in ("withholds", "breaks"):
            yield from _strings(inner.value)
        elif isinstance(inner, ast.Call) and _called(inner) in ("Law", "LawInfo"):
            place = 3 if _called(inner) == "Law" else 2  # behind the detail
            yield from (s for value in inner.args[place:] for s in _strings(value))
        elif isinstance(inner, ast.Tuple | ast.List | ast.Set):
            named = [each.value for each in inner.elts if isinstance(each, ast.Constant)]
            is_list = len(named) == len(inner.elts) > 1 and set(named) <= set(all_names())
            yield from map(str, named if is_list else ())


def _strings(node: ast.AST) -> Iterator[str]:
    """Names of questions in an expression, those in calls of `Scope` aside."""
    if isinstance(node, ast.Call) and _called(node) == "Scope":
        return
    if isinstance(node, ast.Constant) and node.value in all_names():
        yield str(node.value)
    for inner in ast.iter_child_nodes(node):
        yield from _strings(inner)


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def test_the_search_for_names_finds_them():
    seen = [
        'Law(check, "fail", detail, ("stragglers",))',
        'replace(law, withholds=("ops",))',
        'TIMED = ("step_time", "ops")',
    ]
    assert all(list(_names_in_laws(ast.parse(text))) for text in seen)
    fine = 'Law(check, "fail", "memory", (Need.ROUTING,), 1, 2, "ns", (Scope("launch", ("ops",)),))'
    assert not list(_names_in_laws(ast.parse(fine)))
