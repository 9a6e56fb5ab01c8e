"""Programs that call in circles, or that are known in part: worked out by hand."""

from builders.programs import parameter, program
from builders.work import hlo

from moeprof.hlo.program import Program


def called(rows: Program) -> dict[str, tuple[str, ...]]:
    return {op.name: op.called for op in rows.ops.values() if op.called}


def names(ops: object) -> list[str]:
    return [op.name for op in ops]


def test_a_computation_that_calls_itself_is_called_from_outside_alone():
    rows = program(
        hlo("again", "fusion", called="f", computation="f"),
        hlo("inner", "negate", computation="f"),
        hlo("outer", "fusion", called="f"),
    )
    assert called(rows) == {"outer": ("f",)}
    assert rows.callers == {"f": "outer"}
    assert names(rows.interior(rows.ops["outer"])) == ["again", "inner"]


def test_of_a_circle_of_calls_the_one_back_to_its_entry_is_left_out():
    """main → f → g → f: what main reaches stays, wherever the circle stands in the table."""
    rows = program(
        hlo("back", "call", called="f", computation="g"),
        hlo("there", "call", called="g", computation="f"),
        hlo("first", "call", called="f"),
    )
    assert called(rows) == {"there": ("g",), "first": ("f",)}
    assert rows.callers == {"g": "there", "f": "first"}


def test_a_circle_that_nothing_calls_is_opened_too():
    rows = program(
        hlo("a", "call", called="g", computation="f"),
        hlo("b", "call", called="f", computation="g"),
    )
    assert called(rows) == {"a": ("g",)}


def test_sound_calls_stay_as_they_are():
    """A computation that two others call, one of which calls the other, is no circle."""
    rows = program(
        hlo("x", "negate", computation="h"),
        hlo("y", "call", called="h", computation="g"),
        hlo("z", "call", called="h g"),
    )
    assert called(rows) == {"y": ("h",), "z": ("h", "g")}
    assert rows.callers == {"h": "z", "g": "z"}


def test_the_inside_of_nested_fusions_comes_outermost_first():
    rows = program(
        hlo("deep", "sine", computation="g"),
        hlo("one", "fusion", called="g", computation="f"),
        hlo("two", "negate", computation="f"),
        hlo("all", "fusion", called="f"),
    )
    assert names(rows.interior(rows.ops["all"])) == ["one", "two", "deep"]
    assert names(rows.interior(rows.ops["two"])) == ["two"]


def test_the_innermost_of_nested_wrappers_is_what_runs():
    rows = program(
        hlo("sent", "all-to-all", computation="g", is_root=True),
        hlo("inner", "call", called="g", computation="f", is_root=True),
        hlo("start", "async-start", called="f"),
        hlo("done", "async-done", "start"),
    )
    assert rows.innermost(rows.ops["done"]).name == "sent"
    assert rows.innermost(rows.ops["done"], stop={"call"}).name == "inner"
    assert rows.innermost(rows.ops["sent"]).name == "sent"


def test_wrappers_that_wait_for_each_other_run_nothing():
    """An async-done of which the started computation results in itself."""
    rows = program(
        hlo("start", "async-start", called="f"),
        hlo("done", "async-done", "start", computation="f", is_root=True),
    )
    assert rows.innermost(rows.ops["done"]).name == "done"


def test_views_of_what_the_program_lacks_have_no_origin():
    rows = program(
        parameter("w", "f32[4]", parameter=0, size_bytes=16),
        hlo("bare", "get-tuple-element", details="index=0"),
        hlo("lost", "get-tuple-element", "gone", details="index=0"),
        hlo("loop", "while"),
        hlo("part", "get-tuple-element", "loop", details="index=0"),
        hlo("shown", "bitcast", "p", computation="f", is_root=True),
        hlo("p", "parameter", parameter=1, computation="f"),
        hlo("view", "fusion", "gone w", called="f"),
    )
    assert [rows.origin(name) for name in ("bare", "lost", "part", "gone")] == [None] * 4
    found = rows.origin("view")  # of its operands the largest that is known
    assert found is not None
    assert found.name == "w"
