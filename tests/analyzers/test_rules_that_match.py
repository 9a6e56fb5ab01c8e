"""Rules of the user: which conditions hold on which ops, and what is wrong with a rule."""

from dataclasses import replace

import pytest

from moeprof.analyzers.classify.components import MEANINGS
from moeprof.analyzers.classify.rules import CONDITIONS, NAMEABLE, Described, Subjects, fault_of
from moeprof.hlo.program import Frame
from moeprof.tables.name_rule import NameRule

FRAMES = (
    Frame("/job/models/block.py", 41, "Block.choose"),
    Frame("/job/train.py", 207, "make_step.<locals>.step"),
)
KNOWN = Described(
    "fusion.31",
    "jit(step)/transpose(jvp(block))/choose/dot_general",
    FRAMES,
    "/job/models/block.py:41",
)


def does_match(**conditions: str) -> bool:
    return Subjects([KNOWN]).holding(NameRule("router", **conditions)).tolist() == [True]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"op": r"fusion\.\d+"}, True),
        ({"op": "fusion"}, False),  # the whole name
        ({"scope": "^block/choose"}, True),  # forward and backward alike
        ({"scope": r"transpose\(jvp\(block"}, True),
        ({"scope": "choose/dot_general$"}, True),
        ({"scope": "^choose"}, False),
        ({"function": "Block.choose"}, True),
        ({"function": "choose"}, True),
        ({"function": "hoose"}, False),
        ({"function": "Block"}, False),
        ({"function": "step"}, True),  # of any frame
        ({"source": "block.py"}, True),
        ({"source": "models/block.py:41"}, True),
        ({"source": "./models/block.py:41"}, True),
        ({"source": "/job/models/block.py:41"}, True),
        ({"source": "/models/block.py:41"}, False),  # that is another file
        ({"source": "lock.py:41"}, False),
        ({"source": "block.py:40-41"}, True),
        ({"source": "block.py:41-60"}, True),
        ({"source": "block.py:42-60"}, False),
        ({"source": "block.py:4"}, False),
        ({"source": "train.py:207"}, False),  # the innermost line is another's
        ({"source": "block.py:41", "function": "step", "op": "fusion.31"}, True),
        ({"source": "block.py:41", "function": "loss"}, False),  # all must hold
    ],
)
def test_a_rule_matches_where_all_of_its_conditions_hold(conditions, expected):
    assert does_match(**conditions) is expected


def test_an_op_without_name_and_frames_is_matched_by_its_instruction_alone():
    bare = Described("copy.3", "", (), "")
    rules = [
        NameRule("permute", scope=".*"),
        NameRule("permute", function="f"),
        NameRule("permute", source="a.py"),
        NameRule("permute", op="copy.3"),
    ]
    subjects = Subjects([bare])
    assert [subjects.holding(rule).tolist() for rule in rules] == [[False]] * 3 + [[True]]
    assert [len(subjects.texts(name)) for name in CONDITIONS] == [0, 0, 0, 1]


def test_rules_find_nothing_where_there_is_no_op():
    assert Subjects([]).holding(NameRule("permute", op=".*", scope="x", source="a.py")).size == 0


@pytest.mark.parametrize("condition", ["op", "scope"])
def test_no_pattern_can_take_for_ever(condition):
    """Python's own regular expressions would take years."""
    known = Described("a" * 60, "jit(f)/" + "a" * 60, (), "")
    rule = NameRule("router", **{condition: r"(\w+\.?)+X"})
    assert not Subjects([known]).holding(rule).any()


def test_every_op_has_the_rules_that_match_it_alone():
    """What is looked at once per distinct text is handed back to the ops that have it."""
    ops = [
        replace(KNOWN, op=f"dot.{place}", op_name=name, frames=frames, source=source)
        for place, (name, frames, source) in enumerate(
            [("a/b/c", FRAMES, "x.py:3"), ("a/d/c", FRAMES[:1], "x.py:4"), ("", (), "")] * 2
        )
    ]
    subjects = Subjects(ops)
    for rule, expected in (
        (NameRule("router", op=r"dot\.[0-3]"), [1, 1, 1, 1, 0, 0]),
        (NameRule("router", scope="a/d"), [0, 1, 0, 0, 1, 0]),
        (NameRule("router", function="step"), [1, 0, 0, 1, 0, 0]),
        (NameRule("router", source="x.py:4-9"), [0, 1, 0, 0, 1, 0]),
        (NameRule("router", source="x.py", op="dot.0"), [1, 0, 0, 0, 0, 0]),
    ):
        assert subjects.holding(rule).tolist() == [bool(one) for one in expected]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (NameRule("grouped_gem", op="x"), "as grouped_gemm, found 'grouped_gem'"),
        (NameRule("other", op="x"), "found 'other'"),
        (NameRule("router"), "expected one of scope, function, source and op, found none"),
        (NameRule("router", scope="(moe"), "scope: expected a regular expression, found '(moe'"),
        (NameRule("router", op="*"), "op: expected a regular expression, found '*'"),
        (NameRule("router", op="a(?=b)"), "look-around and back references are not taken"),
        (NameRule("router", scope=r"(a)\1"), "look-around and back references are not taken"),
        (NameRule("router", op="a)|(b"), "op: expected a regular expression"),
        (NameRule("router", op="\ud800"), "no text of UTF-8"),
        (NameRule("router", source="a.py:9-3"), "source: expected file.py, file.py:12 or"),
        (NameRule("router", source="a.py:0"), "found 'a.py:0'"),
        (NameRule("router", source="a.py:x"), "found 'a.py:x'"),
        (NameRule("router", source="a.py:3-"), "found 'a.py:3-'"),
    ],
)
def test_the_fault_of_a_rule_names_what_is_wrong(rule, expected):
    assert expected in fault_of(rule)


def test_every_part_that_says_what_an_op_is_can_be_given():
    assert set(MEANINGS) - set(NAMEABLE) == {"loop_gaps", "other", "unattributed"}
    assert not any(fault_of(NameRule(name, op="x")) for name in NAMEABLE)
