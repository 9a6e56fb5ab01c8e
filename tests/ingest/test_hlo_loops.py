import json

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.protobuf import message, packed

from moeprof.ingest.hlo.loops import written_trip_count
from moeprof.ingest.hlo.programs import parse_program

STATE = "(s32[], f32[4])"


def constant(name: str, value: int):
    literal = message((1, message((2, 4))), (4, packed([value])))
    return op(name, "constant", "s32[]", extra=((8, literal),))


def part(name: str, state: str, index: int):
    shape = "s32[]" if index == 0 else "f32[4]"
    return op(name, "get-tuple-element", shape, state, extra=((13, index),))


def trips(
    start: int = 0,
    step: int = 1,
    bound: int = 10,
    direction: str = "LT",
    change: str = "add",
    *,
    swapped: bool = False,
    config: bytes = b"",
) -> int:
    order = ("limit", "i.c") if swapped else ("i.c", "limit")
    condition = computation(
        "condition",
        op("state.c", "parameter", STATE),
        part("i.c", "state.c", 0),
        constant("limit", bound),
        op("go", "compare", "pred[]", *order, extra=((63, direction),)),
    )
    body = computation(
        "body",
        op("state.b", "parameter", STATE),
        part("i.b", "state.b", 0),
        part("x.b", "state.b", 1),
        constant("step", step),
        op("next", change, "s32[]", "i.b", "step"),
        op("out", "tuple", STATE, "next", "x.b"),
    )
    main = computation(
        "main",
        op("x", "parameter", "f32[4]"),
        constant("start", start),
        op("in", "tuple", STATE, "start", "x"),
        op("loop", "while", STATE, "in", called=("body", "condition"), extra=((43, config),)),
    )
    return trips_of(hlo_proto(body, condition, main))


def trips_of(proto: bytes) -> int:
    ops = {item.name: item for item in parse_program(proto).module.instructions}
    return ops["loop"].trip_count


@pytest.mark.parametrize(
    ("start", "step", "bound", "direction", "expected"),
    [
        (0, 1, 10, "LT", 10),
        (0, 3, 10, "LT", 4),  # 0, 3, 6, 9
        (0, 3, 9, "LE", 4),  # 0, 3, 6, 9
        (5, 1, 5, "LT", 0),
        (5, 1, 5, "LE", 1),
        (10, -2, 0, "GT", 5),  # 10, 8, 6, 4, 2
        (10, -2, 0, "GE", 6),
        (0, 2, 8, "NE", 4),
        (0, 3, 8, "NE", -1),  # steps over 8
        (0, -1, 10, "LT", -1),  # goes away from the bound
        (0, 1, 10, "GT", 0),  # fails at once
        (0, 1, 10, "EQ", -1),
        (0, 0, 10, "LT", -1),
    ],
)
def test_a_counted_loop_is_read_from_its_condition(start, step, bound, direction, expected):
    assert trips(start, step, bound, direction) == expected


def test_the_bound_may_stand_on_the_left():
    assert trips(bound=7, direction="GT", swapped=True) == 7  # 7 > i


def test_a_counter_may_be_decreased():
    assert trips(start=6, step=2, bound=0, direction="GT", change="subtract") == 3


def test_a_counter_that_is_multiplied_is_not_counted():
    assert trips(change="multiply") == -1


def test_what_the_compiler_wrote_goes_first():
    config = json.dumps({"known_trip_count": {"n": "4"}}).encode()
    assert trips(bound=99, config=config) == 4


def test_a_loop_whose_start_is_an_argument_is_not_counted():
    main = computation(
        "main",
        op("in", "parameter", STATE),
        op("loop", "while", STATE, "in", called=("body", "condition")),
    )
    empty = [
        computation(name, op(f"p.{name}", "parameter", STATE)) for name in ("body", "condition")
    ]
    assert trips_of(hlo_proto(*empty, main)) == -1


def test_fusions_around_the_comparison_and_the_step_are_looked_into():
    compared = computation(
        "compared",
        op("a", "parameter", "s32[]", parameter=0),
        op("b", "parameter", "s32[]", parameter=1),
        op("less", "compare", "pred[]", "a", "b", extra=((63, "LT"),)),
    )
    added = computation(
        "added",
        op("c", "parameter", "s32[]", parameter=0),
        constant("one", 1),
        op("sum", "add", "s32[]", "c", "one"),
    )
    condition = computation(
        "condition",
        op("state.c", "parameter", STATE),
        part("i.c", "state.c", 0),
        constant("limit", 12),
        op("go", "fusion", "pred[]", "i.c", "limit", called=("compared",)),
    )
    body = computation(
        "body",
        op("state.b", "parameter", STATE),
        part("i.b", "state.b", 0),
        part("x.b", "state.b", 1),
        op("next", "fusion", "s32[]", "i.b", called=("added",)),
        op("out", "tuple", STATE, "next", "x.b"),
    )
    main = computation(
        "main",
        op("x", "parameter", "f32[4]"),
        constant("start", 2),
        op("copied", "copy", "s32[]", "start"),
        op("in", "tuple", STATE, "copied", "x"),
        op("loop", "while", STATE, "in", called=("body", "condition")),
    )
    assert trips_of(hlo_proto(compared, added, body, condition, main)) == 10


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (b'{"known_trip_count":{"n":"4"}}', 4),
        (b'{"known_trip_count":{"n":4}}', 4),
        (b'{"known_trip_count":{}}', -1),
        (b'{"known_trip_count":{"n":"-3"}}', -1),
        (b'{"known_trip_count":[1]}', -1),
        (b"{broken", -1),
        (b'{"known_trip_count":{"n":1e999}}', -1),
        (b"[1]", -1),
        (b"", -1),
        (message((1, message((1, 6)))), 6),
        (message((2, message((1, 6)))), -1),
        (b"\xff\xff", -1),
    ],
)
def test_a_backend_config_tells_the_rounds_as_json_or_as_protobuf(config, expected):
    assert written_trip_count(config) == expected
