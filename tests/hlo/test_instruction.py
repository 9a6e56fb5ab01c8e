"""Instructions as rows of `HLO_OPS`: what is written is read back; programs are read on demand."""

import pandas as pd
import pytest
from builders.ops import ops, row
from builders.work import kernel, traced

from moeprof.hlo.attributes import Attributes, DotDims
from moeprof.hlo.instruction import Frame, Instruction, columns_of, instructions_of
from moeprof.hlo.program import Program, Programs, programs_in
from moeprof.hlo.shape import parse_shape
from moeprof.ingest.hlo.programs import METADATA_PLANE, read_programs
from moeprof.ingest.program_frames import hlo_frame, instructions_frame
from moeprof.ingest.xspace.open_space import open_space
from moeprof.tables.trace import HLO_OPS

EVERYTHING = Instruction(
    name="dot.1",
    opcode="dot",
    result=parse_shape("(f32[2,3]{0,1:S(5)}, s32[])"),
    operands=("x", "w"),
    called=("body", "cond"),
    attributes=Attributes(dot=DotDims((1,), (0,)), precision=(2, 2)),
    computation="main",
    is_root=True,
    size_bytes=28,
    op_name="jit(f)/moe/dot_general",
    frames=(Frame("a b/moe.py", 12, "gate"), Frame("train.py", 40, "")),
    target="__cublas$gemm",
    config='{"a": "b c"}',
    groups=((0, 1), (2, 3)),
    parameter=3,
    trip_count=8,
    id=1 << 40,
    schedule=5,
    channel_id=7,
    uses_global_ids=True,
    pairs=((0, 1), (1, 0)),
    async_pair="dot.2",
    async_opcode="all-gather",
    api_version="API_VERSION_TYPED_FFI",
)
BARE = Instruction("x", "parameter", parse_shape("f32[2]"))


def test_every_field_has_a_column_and_comes_back():
    table = instructions_frame({1: [EVERYTHING, BARE]})
    assert set(columns_of([EVERYTHING])) | {"module"} == set(HLO_OPS.names)
    assert instructions_of(table) == [EVERYTHING, BARE]


def test_a_column_that_is_not_there_is_unknown():
    (found,) = instructions_of(pd.DataFrame({"op": ["x"], "opcode": ["add"], "shape": ["s32[]"]}))
    assert found == Instruction("x", "add", parse_shape("s32[]"))


@pytest.mark.parametrize("name", ["ep8_cf125", "fsdp8_ragged_dot"])
def test_programs_of_a_profile_are_the_same_from_their_bytes_and_from_the_table(pytestconfig, name):
    file = pytestconfig.rootpath / f"tests/data/maxtext/deepseek3_tiny_{name}.xplane.pb.gz"
    space = open_space(file)
    plane = next(plane for plane in space.head.planes if plane.name == METADATA_PLANE)
    programs = read_programs(space, plane, [])
    (largest,) = sorted(programs, key=lambda key: programs[key].head.instructions)[-1:]
    read = programs[largest].module.instructions
    assert instructions_of(hlo_frame({largest: programs[largest]})) == list(read)
    assert len(read) > 1000


def test_programs_are_read_when_they_are_asked_for_and_once():
    table = ops(
        row("a", "add", "f32[]"), row("b", "add", "f32[]", module=9), row("c", "add", "f32[]")
    )
    programs = Programs(table)
    assert (list(programs), len(programs)) == ([7, 9], 2)
    assert list(programs[7].ops) == ["a", "c"]  # rows need not lie side by side
    assert programs[7] is programs[7]
    assert 8 not in programs
    assert dict(Programs(ops())) == {}
    assert list(programs_in(table, [9, 11])) == [9]


def test_of_instructions_that_share_a_name_the_first_counts():
    twice = Program([BARE, BARE._replace(opcode="add")])
    assert twice.ops["x"].opcode == "parameter"
    assert len(twice.members[""]) == 1


def test_a_trace_has_its_programs_and_a_copy_with_other_rows_has_others():
    trace = traced([kernel("a", 0, 1)], [row("a", "add", "f32[2]")])
    assert trace.programs[7].ops["a"].dims == (2,)
    assert trace.programs is trace.programs
    other = type(trace)(**{**vars(trace), "hlo_ops": ops(row("b", "add", "f32[3]"))})
    assert list(other.programs[7].ops) == ["b"]
