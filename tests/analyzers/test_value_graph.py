"""The graph of values by hand: what makes an operand, in programs sound, odd and very deep."""

from builders.programs import parameter, program
from builders.work import Row, hlo

from moeprof.analyzers.classify.facts import find_facts
from moeprof.analyzers.classify.values import RELAID, Flow, Values


def made(*rows: Row) -> dict[str, list[str]]:
    """Names of what makes the operands of each instruction, parameters aside."""
    values = Values(program(*rows))
    assert all(m < i for i, makers in enumerate(values.makers) for m in makers)
    return {
        op.name: [values.ops[m].name for m in makers]
        for op, makers in zip(values.ops, values.makers, strict=True)
        if op.opcode != "parameter"
    }


def twice(opcode: str) -> tuple[Row, ...]:
    """One computation that is run twice, the second time on what came out the first time."""
    return (
        hlo("a", "parameter", computation="f", parameter=0),
        hlo("n", "negate", "a", computation="f", is_root=True),
        parameter("p", "f32[4]", parameter=0),
        hlo("first", opcode, "p", called="f"),
        hlo("second", opcode, "first", called="f"),
        hlo("reader", "sine", "second"),
    )


def test_of_a_computation_called_twice_the_second_call_gives_and_nothing_reads_itself():
    assert made(*twice("call")) == {"n": [], "reader": ["n"]}


def test_a_fusion_run_twice_is_no_circle_through_what_is_inside():
    """What is inside reads the first fusion, which then reads nothing that is inside."""
    assert made(*twice("fusion")) == {
        **{"first": [], "n": ["first"], "second": ["n"], "reader": ["second"]}
    }


def test_operands_in_a_circle_are_followed_once():
    assert made(
        hlo("x", "negate", "y"),
        hlo("y", "cosine", "x"),
        hlo("z", "sine", "y"),
    ) == {"y": [], "x": ["y"], "z": ["y"]}


def test_carriers_in_a_circle_give_nothing():
    rows = (
        hlo("one", "get-tuple-element", "two", details="index=0"),
        hlo("two", "get-tuple-element", "one", details="index=1"),
        hlo("held", "optimization-barrier", "again"),
        hlo("again", "optimization-barrier", "held"),
        hlo("z", "add", "one held"),
    )
    assert made(*rows) == {"z": []}
    assert Flow(program(*rows)).readers == {}


def test_what_is_known_in_part_makes_itself_or_nothing():
    found = made(
        hlo("loop", "while"),
        hlo("part", "get-tuple-element", details="index=0"),
        hlo("call", "call", called="gone"),
        hlo("reader", "add", "part call lost loop"),
    )
    assert found == {"call": [], "reader": ["call"]}


def test_the_source_of_a_view_is_behind_all_that_show_it():
    values = Values(
        program(
            parameter("p", "f32[4]", parameter=0),
            hlo("x", "negate", "p"),
            hlo("turned", "transpose", "x"),
            hlo("cast", "convert", "turned"),
            hlo("wide", "broadcast", "cast"),
        )
    )

    def source(name: str, *more: str, within: set[str] | None = None) -> str:
        inside = {values.number[n] for n in within} if within else None
        return values.ops[values.source(values.number[name], RELAID | {*more}, inside)].name

    assert source("cast") == "x"
    assert source("wide") == "wide"
    assert source("wide", "broadcast") == "x"
    assert source("cast", within={"cast", "turned"}) == "turned"


def test_1500_barriers_in_a_row_hand_on_one_value():
    chain = [hlo(f"b{i}", "optimization-barrier", f"b{i - 1}" if i else "x") for i in range(1500)]
    assert made(hlo("x", "negate"), *chain, hlo("z", "sine", "b1499")) == {"x": [], "z": ["x"]}


def test_1200_nested_calls_hand_on_what_the_last_makes():
    deep = [
        row
        for i in range(1200)
        for row in (
            hlo(f"a{i}", "parameter", parameter=0, computation=f"f{i}"),
            hlo(f"n{i}", "call", f"a{i}", called=f"f{i + 1}", computation=f"f{i}", is_root=True),
        )
    ]
    last = (
        hlo("a", "parameter", parameter=0, computation="f1200"),
        hlo("n", "negate", "a", computation="f1200", is_root=True),
    )
    entry = (hlo("x", "cosine"), hlo("c", "call", "x", called="f0"), hlo("z", "sine", "c"))
    assert made(*deep, *last, *entry) == {"x": [], "n": ["x"], "z": ["n"]}


def test_a_part_is_taken_by_its_number_in_both_graphs():
    rows = (
        hlo("a", "negate"),
        hlo("b", "sine"),
        hlo("pair", "tuple", "a b"),
        hlo("second", "get-tuple-element", "pair", details="index=1"),
        hlo("z", "cosine", "second"),
    )
    assert made(*rows)["z"] == ["b"]
    assert Flow(program(*rows)).readers == {"b": ["z"]}


def test_a_search_gives_all_that_it_found_before_it_was_too_many():
    """450 readers side by side, each with one more behind: past 400 none is followed further."""
    wide = [hlo(f"r{i}", "negate", "x", shape="f32[4]") for i in range(450)]
    behind = [hlo(f"s{i}", "sine", f"r{i}", shape="f32[4]") for i in range(450)]
    total = hlo("z", "add", " ".join(f"r{i}" for i in range(450)), shape="f32[4]")
    facts = find_facts(Values(program(hlo("x", "cosine", shape="f32[4]"), *wide, *behind, total)))
    number = facts.values.number
    ahead = list(facts.ahead(number["x"], lambda _: False))
    assert {number[f"r{i}"] for i in range(450)} == set(ahead)
    back = list(facts.back([number["z"]], lambda _: False))
    assert set(back) == {number["z"], *ahead}


def test_joined_weights_are_told_apart_along_the_dimension_that_joins_them():
    """Two weights of 3 and 5 columns: slices of the product count as products of each."""
    facts = find_facts(
        Values(
            program(
                parameter("x", "f32[4,2]", parameter=0),
                parameter("u", "f32[2,3]", parameter=1, size_bytes=24),
                parameter("v", "f32[2,5]", parameter=2, size_bytes=40),
                hlo("uv", "concatenate", "u v", shape="f32[2,8]", details="dimensions=1"),
                hlo("act", "tanh", "x", shape="f32[4,2]"),
                hlo("both", "dot", "act uv", shape="f32[4,8]"),
                hlo("left", "slice", "both", shape="f32[4,3]"),
                hlo("right", "slice", "both", shape="f32[4,5]"),
            )
        )
    )
    number = facts.values.number
    assert {i: part.weight.name for i, part in facts.parts.items()} == {
        number["left"]: "u",
        number["right"]: "v",
    }
