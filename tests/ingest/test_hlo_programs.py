"""Programs are read when they are asked for, and damage in them is noted, never raised."""

from __future__ import annotations

import pytest
from builders.hlo import Allocation, LogicalBuffer, computation, dot, hlo_proto, op
from builders.protobuf import message, packed
from builders.xspace import metadata, xspace
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprof.ingest.hlo import programs
from moeprof.ingest.hlo.programs import METADATA_PLANE, Program, parse_program, read_programs
from moeprof.ingest.program_frames import buffers_frame, hlo_frame, modules_frame
from moeprof.ingest.xspace.open_space import open_space
from moeprof.ingest.xspace.wire import WireError
from moeprof.tables.trace import BUFFERS, EVENTS, EXECUTIONS, HLO_OPS, MODULES

STATE = "(s32[], f32[4])"
MESH = message((1, message((1, message((1, "e"), (2, 4))))), (2, message((1, 0))))
PROGRAM = hlo_proto(
    computation("wrapped", op("p", "parameter", "f32[4]"), op("ar", "all-reduce", "f32[4]", "p")),
    computation("test", op("s", "parameter", STATE), op("go", "compare", "pred[]", "s", "s")),
    computation("body", op("t", "parameter", STATE), op("same", "tuple", STATE, "t")),
    computation(
        "main",
        op("x", "parameter", "f32[2,4]", op_name="x", frames=[("a.py", 1, "f"), ("b.py", 2, "g")]),
        dot("dot.1", "f32[2,4]", "x", "x", op_name="jit(step)/moe/dot_general"),
        op("start", "async-start", "f32[4]", "x", called=("wrapped",), extra=((93, MESH),)),
        op("done", "async-done", "f32[4]", "start"),
        op("loop", "while", STATE, "done", called=("body", "test"), extra=((43, b'{"a":1}'),)),
        op("call", "custom-call", "f8e4m3fn[8]", "loop", target="f", extra=((77, 4),)),
    ),
    buffers=[LogicalBuffer(1, "dot.1", 32), LogicalBuffer(2, "x", 16, allocation=1)],
    heap=[(0, 1), (1, 1)],
    allocations={1: Allocation(16, (5,))},
    schedule={"main": ["x", "dot.1", "start", "done", "loop", "call"]},
    more=[(8, message((1, message((1, packed([0])), (4, 1))))), (15, message((1, 1), (2, 4)))],
)


def read(noted: list[str], **found: bytes) -> dict[int, Program]:
    space = open_space(xspace(metadata(**found)))
    plane = next(plane for plane in space.head.planes if plane.name == METADATA_PLANE)
    return read_programs(space, plane, noted)


def test_names_and_ids_are_known_before_anything_is_read(monkeypatch):
    def refuse(*_):
        raise AssertionError("read too early")

    for reader in ("parse_module", "parse_head", "parse_buffers", "parse_memory_totals"):
        monkeypatch.setattr(programs, reader, refuse)
    found = read([], p7=PROGRAM, p9=PROGRAM)
    assert {key: program.name for key, program in found.items()} == {7: "jit_step", 9: "jit_step"}


def test_instructions_are_counted_without_reading_them(monkeypatch):
    monkeypatch.setattr(programs, "parse_module", None)
    head = read([], p7=PROGRAM)[7].head
    assert (head.instructions, head.partitions, head.replicas) == (12, 4, 1)
    assert head.aliases == (programs.Alias((0,), 0, (), "may"),)


def test_a_program_is_read_once(monkeypatch):
    program = parse_program(PROGRAM)
    module = program.module
    monkeypatch.setattr(programs, "parse_module", None)
    assert program.module is module


def test_tables_hold_only_the_programs_given():
    found = read([], p7=PROGRAM, p9=PROGRAM)
    ops = hlo_frame({9: found[9]}).pandas()
    assert list(ops["module"].unique()) == [9]
    row = ops.set_index("op").loc["start"]
    assert (row["async_pair"], row["async_opcode"]) == ("done", "all-reduce")
    assert row["replica_groups"] == "{{0,1,2,3}}"
    assert ops.set_index("op")["schedule"]["loop"] == 4
    assert list(buffers_frame({9: found[9]})["op"]) == ["dot.1", "x"]


def test_modules_tell_of_programs_that_were_not_read():
    found = read([], p7=PROGRAM)
    (row,) = modules_frame(found, EVENTS.table(), EXECUTIONS.table()).dicts()
    assert (row["module"], row["name"], row["instructions"]) == (7, "jit_step", 12)
    assert (row["partitions"], row["is_scheduled"], row["argument_bytes"]) == (4, True, 16)
    assert "module" not in vars(found[7])


def test_no_program_gives_tables_without_rows():
    for table, schema in ((hlo_frame({}), HLO_OPS), (buffers_frame({}), BUFFERS)):
        assert list(schema.checked(table)) == schema.names
        assert len(table) == 0
    assert len(MODULES.checked(modules_frame({}, EVENTS.table(), EXECUTIONS.table()))) == 0


def test_a_damaged_program_is_noted_once_and_left_out():
    noted: list[str] = []
    cut = message((1, PROGRAM[:40]))
    found = read(noted, p7=cut, p9=PROGRAM)
    assert found[7].module.instructions == ()
    assert found[7].head.instructions == 0
    assert len(found[9].module.instructions) == 12
    assert len(noted) == 1
    assert noted[0].startswith("program 'jit_step': instructions left out, byte")


def test_bytes_that_are_no_program_are_noted():
    noted: list[str] = []
    assert read(noted, p7=b"\x0a\xff") == {}
    assert len(noted) == 1


def test_operands_that_stand_for_long_names_are_damage():
    # 30,000 operands of a byte or two, each the name of 4,000 letters: 120 MB out of 40 kB
    long = message((1, "n" * 4000), (2, "parameter"), (35, 1))
    greedy = message((1, "x"), (2, "tuple"), (35, 2), (36, packed([1] * 30_000)))
    proto = message((1, message((3, message((1, "main"), (2, long), (2, greedy), (5, 1))))))
    noted: list[str] = []
    assert parse_program(proto, noted).module.instructions == ()
    assert "120,000,000 letters" in noted[0]


def test_groups_of_more_devices_than_any_program_has_are_damage():
    iota = [message((1, 1), (2, (1 << 17) - n), (3, packed([(1 << 17) - n]))) for n in range(40)]
    ops = [op(f"ar.{n}", "all-reduce", "f32[]", extra=((92, part),)) for n, part in enumerate(iota)]
    noted: list[str] = []
    assert parse_program(hlo_proto(computation("main", *ops)), noted).module.instructions == ()
    assert "devices in all" in noted[0]


def read_whole(proto: bytes) -> None:
    """Read all that a program holds, as opening a trace with everything asked for does."""
    noted: list[str] = []
    try:
        program = parse_program(proto, noted)
    except WireError:
        return
    given_ = {7: program}
    ops = hlo_frame(given_)
    assert len(buffers_frame(given_)) == len(program.buffers)
    modules_frame(given_, EVENTS.table(), EXECUTIONS.table())
    assert noted or len(ops) == program.head.instructions
    assert int(ops.pandas().memory_usage(deep=True).sum()) < 1_000_000


def test_a_whole_program_is_read():
    read_whole(PROGRAM)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_changed_bytes_give_a_program_or_a_note(data):
    proto = bytearray(PROGRAM)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(proto) - 1))
        proto[place] = data.draw(st.integers(0, 255))
    read_whole(bytes(proto))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, len(PROGRAM)), st.binary(max_size=8), st.integers(0, 16))
def test_cut_and_pasted_bytes_give_a_program_or_a_note(place, pasted, removed):
    read_whole(PROGRAM[:place] + pasted + PROGRAM[place + removed :])


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_program_or_a_note(content):
    read_whole(content)
    read_whole(message((1, content), (3, content)))
    read_whole(message((1, message((3, message((2, content)))))))


@pytest.mark.parametrize("number", [3, 7, 8, 15, 17, 20, 22])
def test_a_number_where_a_message_should_be_is_passed_over(number):
    read_whole(message((1, message((number, 5))), (3, message((1, 5), (3, 5), (4, 5), (5, 5)))))


def test_a_head_keeps_the_shapes_of_parameters_and_result_to_be_compared():
    shapes = message((1, message((2, 11), (3, 8))), (2, message((2, 11), (3, 8))))  # f32[8], f32[8]
    data = message((1, "jit_step"), (4, shapes))
    assert programs.parse_head(data, 0, len(data)).shapes == shapes
    assert programs.parse_head(data, 0, 10).shapes == b""  # the name alone
