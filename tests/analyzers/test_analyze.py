import gc
import weakref

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.trace import trace_of
from builders.xspace import thunk

from moeprof.analyzers import analyze
from moeprof.analyzers.registry import all_drawings, all_names, is_question
from moeprof.errors import SelectionError

PROGRAM = hlo_proto(computation("main", op("neg", "negate", "f32[8]", op_name="jit(s)/norm/neg")))


@pytest.fixture
def trace(tmp_path):
    return trace_of(tmp_path, PROGRAM, *(thunk("neg", 10 * i + 1, 5, run_id=i) for i in range(3)))


def test_all_questions_are_answered_in_order(trace):
    found = analyze(trace)
    assert list(found) == all_names()
    assert all_names()[:4] == ["step_time", "breakdown", "timeline", "ops"]
    assert all_names()[-1] == "hints"
    assert all(name == analysis.name for name, analysis in found.items())


def test_only_the_asked_ones_run(trace):
    assert list(analyze(trace, ["breakdown"])) == ["breakdown"]


def test_an_unknown_name_is_answered_with_the_valid_ones(trace):
    with pytest.raises(SelectionError, match="named 'roofliine'; there are: step_time, breakdown"):
        analyze(trace, ["roofliine"])


def test_every_table_keeps_its_schema(trace):
    for analysis in analyze(trace).values():
        assert analysis.schema.check(analysis.table) is not None
        assert analysis.question.endswith("?")


def test_a_trace_without_device_work_gives_no_figure(tmp_path):
    for analysis in analyze(trace_of(tmp_path, PROGRAM)).values():
        assert analysis.table.empty
        assert all(m.value in (None, 0) for m in analysis.headline if m.metric != "basis")


def test_steps_are_listed_with_their_time(trace):
    found = analyze(trace)["step_time"]
    assert found.table["duration_ns"].tolist() == [5, 5, 5]
    assert found.table["interval_ns"].tolist()[:2] == [10.0, 10.0]
    assert found.table["busy_share"].tolist() == [1.0, 1.0, 1.0]
    headline = {m.metric: m.value for m in found.headline}
    assert headline["step_time_median"] == 5
    assert headline["steps_used"] == 3


def test_drawings_are_made_where_they_are_asked_for(trace):
    assert list(analyze(trace, is_drawn=True)) == all_names(is_drawn=True)
    for each in all_drawings():
        assert is_question(each.beside)
        assert list(analyze(trace, [each.name])) == [each.name]


def test_what_questions_compute_is_freed_with_the_trace(tmp_path):
    trace = trace_of(tmp_path, PROGRAM, *(thunk("neg", 10 * i + 1, 5, run_id=i) for i in range(3)))
    analyze(trace, is_drawn=True)
    is_alive = weakref.ref(trace)
    gc.disable()  # it must not take a collection of cycles
    try:
        del trace
        assert is_alive() is None
    finally:
        gc.enable()
