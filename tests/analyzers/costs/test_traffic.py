"""Bytes that ops move, each worked out by hand."""

import pytest
from builders.programs import call, dims, parameter, program
from builders.work import hlo

from moeprof.analyzers.costs.table import bytes_of


def moved(*rows):
    made = program(*rows)
    return bytes_of(made, made.ops["out"])


def test_operands_and_result_count_once_and_the_workspace_not():
    """64 + 256 bytes read, 128 written; the 1024 bytes of scratch are no traffic."""
    assert (
        moved(
            parameter("a", "bf16[4,8]", size_bytes=64),
            parameter("b", "bf16[8,16]", size_bytes=256),
            {
                **call("__cublas$lt$matmul", "(bf16[4,16], s8[1024])", "a", "b", config=dims()),
                "size_bytes": 1152,
            },
        )
        == 448
    )


def test_an_operand_that_is_given_twice_is_read_once():
    a = parameter("a", "f32[8]", size_bytes=32)
    assert moved(a, hlo("out", "multiply", "a a", shape="f32[8]", size_bytes=32)) == 64


def test_the_first_half_of_a_collective_writes_its_result():
    """An all-gather's tuple names its operand as well, an all-reduce's its results alone."""
    a, b = (parameter(name, "f32[8]", size_bytes=32) for name in "ab")
    gather = hlo("out", "all-gather-start", "a", shape="(f32[8], f32[16])", size_bytes=96)
    assert moved(a, gather) == 32 + 64
    both = hlo("out", "all-reduce-start", "a b", shape="(f32[8], f32[8])", size_bytes=64)
    assert moved(a, b, both) == 64 + 64


def test_views_and_loops_and_second_halves_move_nothing():
    a = parameter("a", "f32[8]", size_bytes=32)
    for opcode in ("bitcast", "tuple", "get-tuple-element", "while", "all-gather-done"):
        assert moved(a, hlo("out", opcode, "a", shape="f32[8]", size_bytes=32)) == 0


def fusion(*inside, size_bytes: int, operands: str = "a i u"):
    return moved(
        parameter("a", "f32[100,8]", size_bytes=3200),
        parameter("i", "s32[]", size_bytes=4),
        parameter("u", "f32[1,8]", size_bytes=32),
        parameter("pa", "f32[100,8]", computation="f", parameter=0, size_bytes=3200),
        parameter("pi", "s32[]", computation="f", parameter=1, size_bytes=4),
        parameter("pu", "f32[1,8]", computation="f", parameter=2, size_bytes=32),
        *inside,
        hlo("out", "fusion", operands, shape="f32[1,8]", called="f", size_bytes=size_bytes),
    )


def inner(name: str, opcode: str, operands: str, shape: str, size_bytes: int, root: bool = False):
    return hlo(
        *(name, opcode, operands),
        shape=shape,
        size_bytes=size_bytes,
        computation="f",
        is_root=root,
    )


def test_a_slice_reads_what_it_takes():
    """32 bytes of 3200, the index of 4, 32 of the other operand, and 32 written."""
    cut = inner("cut", "dynamic-slice", "pa pi", "f32[1,8]", 32)
    root = inner("root", "add", "cut pu", "f32[1,8]", 32, root=True)
    assert fusion(cut, root, size_bytes=32) == 32 + 4 + 32 + 32


def test_an_update_in_place_writes_what_it_changes():
    """The 3200 bytes stay where they are: 4 + 32 read, 32 written."""
    root = inner("root", "dynamic-update-slice", "pa pu pi", "f32[100,8]", 3200, root=True)
    assert fusion(root, size_bytes=3200) == 4 + 32 + 32


def test_what_is_computed_and_then_gathered_is_read_where_it_is_gathered():
    """The logarithm is taken of the 8 numbers asked for: 32 bytes, not 3200."""
    log = inner("log", "log", "pa", "f32[100,8]", 3200)
    cut = inner("cut", "gather", "log pi", "f32[1,8]", 32)
    root = inner("root", "add", "cut pu", "f32[1,8]", 32, root=True)
    assert fusion(log, cut, root, size_bytes=32) == 32 + 4 + 32 + 32


def test_an_operand_that_is_also_read_whole_counts_whole():
    """What no one uses is not read: 3200 and 4, and 64 written."""
    cut = inner("cut", "dynamic-slice", "pa pi", "f32[1,8]", 32)
    whole = inner("whole", "reduce", "pa", "f32[8]", 32)
    root = inner("root", "tuple", "cut whole", "(f32[1,8], f32[8])", 64, root=True)
    assert fusion(cut, whole, root, size_bytes=64) == 3200 + 4 + 64


UNKNOWN = "type77[512]"


def unknown(name):
    return parameter(name, UNKNOWN, size_bytes=-1)


def test_an_operand_of_unknown_size_makes_the_sum_unknown():
    a = parameter("a", "f32[512]", size_bytes=2048)
    out = hlo("out", "add", "a b", shape="f32[512]", size_bytes=2048)
    assert moved(a, unknown("b"), out) is None
    assert moved(a, parameter("b", "f32[512]", size_bytes=2048), out) == 3 * 2048


def test_a_result_of_unknown_size_makes_the_sum_unknown():
    a = parameter("a", "f32[512]", size_bytes=2048)
    assert moved(a, hlo("out", "convert", "a", shape=UNKNOWN, size_bytes=-1)) is None
    start = hlo("out", "all-gather-start", "a", shape=f"(f32[512], {UNKNOWN})", size_bytes=-1)
    assert moved(a, start) is None


def test_a_library_call_whose_scale_is_unknown_moves_nobody_knows_how_much():
    a = parameter("a", "f8e4m3fn[4,8]", size_bytes=32)
    result = {**call("__cublas$lt$matmul$f8", "bf16[4,4]", "a", "b"), "size_bytes": 32}
    assert moved(a, unknown("b"), result) is None


def test_what_is_free_stays_free():
    assert moved(unknown("a"), hlo("out", "bitcast", "a", shape=UNKNOWN, size_bytes=-1)) == 0


@pytest.mark.parametrize("touched", ["slice", "add"])
def test_a_fusion_that_reads_an_unknown_type_is_unknown(touched):
    size = -1 if touched == "slice" else 64
    inner = [
        hlo("p", "parameter", shape=UNKNOWN, size_bytes=-1, computation="f", parameter=0),
        hlo("s", touched, "p", shape="type77[64]", size_bytes=size, computation="f"),
        hlo("r", "negate", "s", shape="f32[64]", size_bytes=256, computation="f", is_root=True),
    ]
    out = hlo("out", "fusion", "a", shape="f32[64]", size_bytes=256, called="f")
    assert moved(unknown("a"), *inner, out) is None
