"""Rules of the user: that they stand, and what is told of their change."""

from dataclasses import replace

import pytest
from builders.hlo import computation, dot, hlo_proto, op
from builders.trace import trace_of
from builders.xspace import thunk

from moeprof.analyzers.attribution import classes_of
from moeprof.analyzers.comparison.compare import compare
from moeprof.analyzers.laws import laws_of
from moeprof.analyzers.questions.breakdown import breakdown
from moeprof.analyzers.questions.ops import ops
from moeprof.errors import SpecError
from moeprof.tables.name_rule import NameRule, NameRules
from moeprof.tables.store import read_tables, write_tables
from moeprof.tables.trace import with_names


def at(line: int, function: str):
    return {"frames": [("net.py", line, function), ("train.py", 90, "main")]}


PROGRAM = hlo_proto(
    computation(
        "main",
        op("x", "parameter", "f32[8,4]", op_name="gate_input"),
        op("w", "parameter", "f32[4,4]", parameter=1),
        op("mix", "tanh", "f32[8,4]", "x", op_name="jit(s)/jvp()/blend/tanh", **at(11, "mix")),
        op("cast", "convert", "bf16[8,4]", "mix"),
        dot("gate", "f32[8,4]", "x", "w", op_name="jit(s)/jvp()/attention/dot_general"),
        op("turn", "negate", "f32[8,4]", "gate", op_name="jit(s)/jvp()/attention/neg"),
        op("send", "all-to-all", "f32[8,4]", "turn", op_name="jit(s)/jvp()/moe/dispatch/a"),
        op("lost", "rng", "f32[8,4]"),
    )
)
TIMES = {"mix": 300, "cast": 50, "gate": 250, "turn": 150, "send": 200, "lost": 50}  # 1000


@pytest.fixture
def trace(tmp_path):
    """Three steps of one device."""
    work = []
    for run in range(3):
        at_ns = 4000 * run + 1
        for name, length in TIMES.items():
            work.append(thunk(name, at_ns, length, run_id=run))
            at_ns += length
    return trace_of(tmp_path / "run", PROGRAM, *work)


def named(trace, *rules: NameRule):
    return with_names(trace, NameRules("rules/names.yml", rules))


def shares(trace):
    return breakdown(trace).table.groupby("component")["share"].sum().round(6).to_dict()


def metrics(trace):
    return {metric.metric: metric.value for metric in breakdown(trace).headline}


def test_without_rules_nothing_is_said_of_them(trace):
    assert shares(trace)["attention"] == 0.4  # gate 250, turn 150
    assert "named_by_rules_share" not in metrics(trace)
    assert not any("rules" in note for note in breakdown(trace).notes)


def test_a_rule_stands_before_all_evidence_and_the_first_decides(trace):
    given = named(
        trace,
        NameRule("router", op="gate"),
        NameRule("norm", scope="^attention/"),
        NameRule("moe_other", op="send"),
    )
    rows = classes_of(given).pandas().set_index("op")
    assert rows["component"][["gate", "turn", "send"]].tolist() == ["router", "norm", "moe_other"]
    assert set(rows["evidence"][["gate", "turn", "send"]]) == {"names"}
    assert rows["confidence"]["gate"] == 1.0
    assert rows["is_collective"]["send"]
    assert classes_of(trace).pandas().set_index("op")["component"]["gate"] == "attention"


def test_what_rules_name_and_changed_is_told_as_shares_of_op_time(trace):
    given = named(
        trace,
        NameRule("router", op="gate"),  # 250 of 1000 ns, was attention
        NameRule("attention", op="turn"),  # 150: the same
        NameRule("norm", function="mix"),  # 300; the cast of 50 goes with it
        NameRule("router", op="gate|none"),  # what the first names
        NameRule("permute", function="nobody", scope="moe"),
    )
    (note,) = (text for text in breakdown(given).notes if text.startswith("names.yml: "))
    before, other = shares(trace), shares(given)
    assert (before["attention"], other["attention"]) == (0.4, 0.15)
    assert (other["router"], other["norm"]) == (0.25, 0.35)
    begin = "names.yml: 3 of 5 rules name 70.0 % of op time, 5.0 % more beside them; changed: "
    assert note.startswith(begin)
    assert "other → norm 30.0 %, attention → router 25.0 %, unattributed → norm 5.0 %" in note
    assert "rule 4 (op 'gate|none') matches only what rules before it name" in note
    assert note.endswith("rule 5 (scope 'moe', function 'nobody') matches nothing")


def note_of(trace, *rules):
    return breakdown(named(trace, *rules)).notes[0]


def test_many_rules_that_match_nothing_are_not_all_listed(trace):
    rules = [NameRule("router", op=f"none{n}") for n in range(200)]
    note = note_of(trace, NameRule("router", op="gate"), *rules)
    assert note.endswith(
        "; rule 2 (op 'none0'), rule 3 (op 'none1'), rule 4 (op 'none2') and 197 more match nothing"
    )
    assert note_of(trace, *rules[:2]).endswith(
        "; rule 1 (op 'none0') and rule 2 (op 'none1') match nothing"
    )
    long = note_of(trace, NameRule("router", op="x" * 500))
    assert f"rule 1 (op '{'x' * 59}…') matches nothing" in long


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (NameRule("norm", scope="jvp()/blend"), r"scope: 'jvp\(\)/blend' would"),
        (NameRule("norm", op="mi"), "op: 'mi.*' would"),
        (NameRule("norm", op="mi|ga"), "op: '(mi|ga).*' would"),
        (NameRule("norm", op="mi", scope="blend"), "op: 'mi.*' would"),
        (NameRule("norm", op="gate", scope="blend"), "matches nothing"),  # each does alone
        (NameRule("norm", function="blend"), "matches nothing"),
    ],
)
def test_a_text_that_was_copied_is_told_as_a_pattern(trace, rule, told):
    assert note_of(trace, rule).endswith(told)


def test_what_a_profile_does_not_keep_is_no_typing_error(trace):
    bare = replace(trace, hlo_ops=trace.hlo_ops.assign(op_name="", frames="", opcode=""))
    rules = (NameRule("norm", scope="a", op="mix"), NameRule("norm", source="net.py:11"))
    assert note_of(bare, *rules).endswith(
        "rule 1 (scope 'a', op 'mix') and rule 2 (source 'net.py:11') cannot match: this profile "
        "keeps no scopes, no functions, no source lines, so only op can"
    )
    assert note_of(bare, NameRule("norm", op="mix")).startswith("names.yml: 1 of 1 rules name 30.0")


def test_a_profile_that_tells_nothing_of_its_ops_is_told_to_name_no_part(trace):
    bare = replace(trace, hlo_ops=trace.hlo_ops.assign(op_name="", frames="", opcode="", shape=""))
    law = next(law for law in laws_of(bare) if law.check == "names")
    assert (law.verdict, law.found) == ("warn", 1.0)
    assert law.detail.startswith("100.0 % of op time is not known: named by the program 0.0 %")


def test_rules_that_agree_with_the_program_change_nothing(trace):
    (note, *_) = breakdown(named(trace, NameRule("attention", scope="attention"))).notes
    assert note == ("names.yml: 1 of 1 rules name 40.0 % of op time; no component changed by them")
    assert shares(named(trace, NameRule("attention", scope="attention"))) == shares(trace)


def test_the_ways_to_know_a_part_add_up(trace):
    found = metrics(named(trace, NameRule("router", op="gate")))
    parts = ("rules", "program", "structure")
    known = [found[f"named_by_{part}_share"] for part in parts]
    assert found["named_by_rules_share"] == 0.25
    assert sum(known) + found["guessed_share"] + found["unattributed_share"] == pytest.approx(1)
    law = next(law for law in laws_of(named(trace, NameRule("router", op="gate")))
               if law.check == "names")  # fmt: skip
    assert law.verdict == "warn"
    assert law.detail == (
        "10.0 % of op time is not known and 30.0 % of op time is guessed: named by your rules "
        "25.0 %, by the program 35.0 %, by structure 0.0 %, guessed 30.0 %, not known 10.0 %; "
        "`--names FILE` names it"
    )


def test_no_rule_names_what_does_no_work(trace):
    given = named(trace, NameRule("router", op="x|w|gate"))
    rows = classes_of(given).pandas().set_index("op")["evidence"]
    assert rows[["x", "w", "gate"]].eq("names").tolist() == [False, False, True]


def test_a_loop_is_named_by_its_own_name_alone(tmp_path):
    inside = computation(
        "body",
        op("p", "parameter", "f32[4]"),
        op("step", "exponential", "f32[4]", "p", op_name="jit(s)/while/body/exp", **at(5, "scan")),
    )
    main = computation(
        "main",
        op("a", "parameter", "f32[4]"),
        op(
            "loop",
            "while",
            "f32[4]",
            "a",
            called=("body",),
            op_name="jit(s)/while",
            **at(5, "scan"),
        ),
    )
    work = [thunk("loop", 1, 100, run_id=0), thunk("step", 11, 60, run_id=0)]
    trace = trace_of(tmp_path, hlo_proto(inside, main), *work)
    by_place = (
        classes_of(named(trace, NameRule("norm", source="net.py:5"))).pandas().set_index("op")
    )
    by_name = classes_of(named(trace, NameRule("norm", op="loop"))).pandas().set_index("op")
    assert by_place["component"][["loop", "step"]].tolist() == ["loop_gaps", "norm"]
    assert by_name["component"]["loop"] == "norm"


def test_the_costliest_ops_say_that_a_rule_named_them(trace):
    table = ops(named(trace, NameRule("router", op="gate"))).table.set_index("op")
    assert table.loc["gate", ["component", "evidence", "confidence"]].tolist() == [
        "router", "names", 1.0,
    ]  # fmt: skip


def test_rules_go_with_stored_tables(trace, tmp_path):
    given = named(trace, NameRule("router", op="gate"), NameRule("norm", source="net.py:11"))
    write_tables(given, tmp_path / "tables")
    back = read_tables(tmp_path / "tables")
    assert back.meta.names == given.meta.names
    assert shares(back) == shares(given)


def test_stored_rules_that_cannot_be_used_are_one_line(trace):
    with pytest.raises(SpecError, match=r"names.yml: rule 1: component: .*found 'gone'"):
        classes_of(named(trace, NameRule("gone", op="gate"))).pandas()


def test_both_sides_of_a_comparison_have_the_same_rules(trace):
    rule = NameRule("router", op="gate")
    both = compare(named(trace, rule), named(trace, rule))
    assert both.is_whole
    assert set(both.rows["component"]) >= {"router"}
    (note,) = (note for note in both.notes if "names.yml" in note)  # the same of both: once
    assert note.startswith("base and new: names.yml: 1 of 1 rules")
    one = compare(trace, named(trace, rule))
    assert not one.is_whole
    assert len(one.step) > 0
    assert any("found none in base and 1 of rules/names.yml in new" in n for n in one.notes)


def test_the_file_of_the_same_rules_may_have_another_name(trace):
    rule = NameRule("router", op="gate")
    moved = with_names(trace, replace(named(trace, rule).meta.names, file="old.yml"))
    assert compare(named(trace, rule), moved).is_whole


def test_a_rule_for_what_did_not_run_says_so(trace):
    idle = replace(trace, events=trace.events[trace.events["op"] != "gate"])
    (note, *_) = breakdown(named(idle, NameRule("router", op="gate"))).notes
    assert note == (
        "names.yml: 0 of 1 rules name 0.0 % of op time; no component changed by them; "
        "rule 1 (op 'gate') names no op that ran by itself in the steps"
    )


def test_without_any_work_rules_name_nothing(trace):
    empty = replace(trace, events=trace.events.iloc[:0])
    notes = breakdown(named(empty, NameRule("router", op="gate"))).notes
    assert any("0 of 1 rules name 0.0 % of op time" in note for note in notes)


def test_a_fusion_is_matched_by_the_name_of_its_product(tmp_path):
    fused = computation(
        "fused",
        op("p", "parameter", "f32[8,4]"),
        op("q", "parameter", "f32[4,4]", parameter=1),
        dot("product", "f32[8,4]", "p", "q", op_name="jit(s)/jvp()/experts/dot_general"),
        op("scaled", "multiply", "f32[8,4]", "product", "p", op_name="jit(s)/jvp()/last/mul"),
    )
    main = computation(
        "main",
        op("x", "parameter", "f32[8,4]"),
        op("w", "parameter", "f32[4,4]", parameter=1),
        op(
            "both",
            "fusion",
            "f32[8,4]",
            "x",
            "w",
            called=("fused",),
            op_name="jit(s)/jvp()/last/mul",
        ),
    )
    trace = trace_of(tmp_path, hlo_proto(fused, main), thunk("both", 1, 100, run_id=0))
    given = named(trace, NameRule("norm", scope="^last/"), NameRule("router", scope="^experts/"))
    assert classes_of(given).pandas().set_index("op")["component"]["both"] == "router"
    (note, *_) = breakdown(given).notes
    assert "rule 1 (scope '^last/') names no op that ran by itself" in note


def test_the_end_of_asynchronous_work_is_matched_by_what_it_runs(tmp_path):
    inside = computation(
        "wrapped",
        op("p", "parameter", "f32[8,4]"),
        op("swap", "all-to-all", "f32[8,4]", "p", op_name="jit(s)/jvp()/hand_over/all_to_all"),
    )
    main = computation(
        "main",
        op("x", "parameter", "f32[8,4]"),
        op("begun", "async-start", "(f32[8,4], f32[8,4])", "x", called=("wrapped",)),
        op("ended", "async-done", "f32[8,4]", "begun"),
    )
    work = [thunk("begun", 1, 10, run_id=0), thunk("ended", 20, 90, run_id=0)]
    trace = trace_of(tmp_path, hlo_proto(inside, main), *work)
    rows = (
        classes_of(named(trace, NameRule("combine", scope="^hand_over/"))).pandas().set_index("op")
    )
    assert rows["component"][["begun", "ended"]].tolist() == ["combine", "combine"]
    assert rows["evidence"]["ended"] == "names"
