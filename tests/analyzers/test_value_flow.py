"""Makers and readers of values, through tuples, loops, branches, calls and wrappers, by hand."""

from builders.programs import parameter, program
from builders.work import hlo

from moeprof.analyzers.classify.values import Flow
from moeprof.hlo.program import Program


def makers(rows: Program, op: str) -> list[str]:
    return Flow(rows).makers(rows.ops[op])


def root(op: str, opcode: str, operands: str = "", **more: object):
    return hlo(op, opcode, operands, is_root=True, **more)


def test_a_part_of_a_tuple_is_what_was_put_there():
    rows = program(
        hlo("a", "add"),
        hlo("b", "multiply"),
        hlo("pair", "tuple", "a b"),
        hlo("second", "get-tuple-element", "pair", details="index=1"),
        hlo("reader", "negate", "second"),
        hlo("whole", "custom-call", "pair"),
    )
    assert makers(rows, "reader") == ["b"]
    assert sorted(makers(rows, "whole")) == ["a", "b"]
    assert Flow(rows).readers == {"a": ["whole"], "b": ["reader", "whole"]}


def test_views_hand_on_and_parameters_of_the_program_have_no_maker():
    rows = program(
        parameter("x", "f32[4]", parameter=0),
        hlo("a", "add", "x x"),
        hlo("seen", "bitcast", "a"),
        hlo("held", "optimization-barrier", "seen"),
        hlo("reader", "negate", "held"),
    )
    assert makers(rows, "a") == []
    assert makers(rows, "reader") == ["a"]


LOOP = (
    hlo("first", "add", shape="f32[4]"),
    hlo("zero", "constant", shape="s32[]"),
    hlo("state", "tuple", "zero first", shape="(s32[], f32[4])"),
    hlo("p", "parameter", computation="body", parameter=0, shape="(s32[], f32[4])"),
    hlo("i", "get-tuple-element", "p", details="index=0", computation="body"),
    hlo("v", "get-tuple-element", "p", details="index=1", computation="body"),
    hlo("next_i", "add", "i i", computation="body"),
    hlo("next_v", "multiply", "v v", computation="body"),
    root("out", "tuple", "next_i next_v", computation="body", shape="(s32[], f32[4])"),
    hlo("q", "parameter", computation="cond", parameter=0, shape="(s32[], f32[4])"),
    hlo("j", "get-tuple-element", "q", details="index=0", computation="cond"),
    root("less", "compare", "j j", computation="cond", shape="pred[]"),
    hlo("loop", "while", "state", called="body cond", shape="(s32[], f32[4])"),
    hlo("last", "get-tuple-element", "loop", details="index=1"),
    hlo("reader", "negate", "last"),
)


def test_a_round_reads_what_was_there_before_and_what_the_last_round_made():
    rows = program(*LOOP)
    assert sorted(set(makers(rows, "next_v"))) == ["first", "next_v"]
    assert sorted(set(makers(rows, "less"))) == ["next_i", "zero"]


def test_what_reads_a_loop_reads_its_last_round_and_no_condition():
    assert makers(program(*LOOP), "reader") == ["next_v"]


def test_a_loop_over_a_single_array_hands_on_its_body():
    """`jax.lax.while_loop` over one value: no tuple is made of it."""
    rows = program(
        hlo("first", "add", shape="f32[4]"),
        hlo("p", "parameter", computation="body", parameter=0, shape="f32[4]"),
        root("next", "multiply", "p p", computation="body", shape="f32[4]"),
        hlo("q", "parameter", computation="cond", parameter=0, shape="f32[4]"),
        root("less", "compare", "q q", computation="cond", shape="pred[]"),
        hlo("loop", "while", "first", called="body cond", shape="f32[4]"),
        hlo("reader", "negate", "loop", shape="f32[4]"),
    )
    assert makers(rows, "reader") == ["next"]
    assert sorted(set(makers(rows, "next"))) == ["first", "next"]


BRANCHES = (
    hlo("which", "compare", shape="s32[]"),
    hlo("a", "add", shape="f32[4]"),
    hlo("b", "multiply", shape="f32[8]"),
    hlo("pa", "parameter", computation="one", parameter=0, shape="f32[4]"),
    root("from_a", "negate", "pa", computation="one", shape="f32[2]"),
    hlo("pb", "parameter", computation="two", parameter=0, shape="f32[8]"),
    root("from_b", "sine", "pb", computation="two", shape="f32[2]"),
    hlo("choice", "conditional", "which a b", called="one two", shape="f32[2]"),
    hlo("reader", "exponential", "choice", shape="f32[2]"),
)


def test_each_branch_is_given_its_own_operand_and_not_the_choice():
    rows = program(*BRANCHES)
    assert makers(rows, "from_a") == ["a"]
    assert makers(rows, "from_b") == ["b"]


def test_a_weight_is_traced_into_the_branch_that_is_given_it():
    weights = (
        parameter("u", "f32[4]", parameter=0),
        parameter("w", "f32[8]", parameter=1),
        hlo("which", "compare", shape="s32[]"),
        hlo("choice", "conditional", "which u w", called="one two", shape="f32[2]"),
    )
    rows = program(*weights, *(row for row in BRANCHES if row["computation"] in ("one", "two")))
    origins = [rows.origin(name) for name in ("pa", "pb")]
    assert [origin.name if origin else None for origin in origins] == ["u", "w"]


def test_calls_and_asynchronous_wrappers_hand_on_what_they_run():
    rows = program(
        hlo("a", "add"),
        hlo("p", "parameter", computation="wrapped", parameter=0),
        root("sent", "all-to-all", "p", computation="wrapped"),
        hlo("start", "async-start", "a", called="wrapped"),
        hlo("done", "async-done", "start"),
        hlo("reader", "negate", "done"),
    )
    assert makers(rows, "sent") == ["a"]
    assert makers(rows, "reader") == ["sent"]
    assert Flow(rows).readers == {"a": ["sent"], "sent": ["reader"]}


def test_what_is_inside_a_fusion_reads_nothing_itself():
    rows = program(
        hlo("a", "add"),
        hlo("p", "parameter", computation="fused", parameter=0),
        root("inner", "negate", "p", computation="fused"),
        hlo("fusion", "fusion", "a", called="fused"),
    )
    assert Flow(rows).readers == {"a": ["fusion"]}
