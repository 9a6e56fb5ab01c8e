"""Whatever a program looks like, each of its instructions gets a part: no error, and an end.

A file may be cut, written by another compiler, or damaged. Programs here are random, of 51
opcodes in up to six computations, the same ones in every run.
"""

import random

import pytest
from builders.programs import program
from builders.work import Row, hlo

from moeprof.analyzers.classify import classify
from moeprof.analyzers.classify.components import MEANINGS
from moeprof.hlo.program import Program

_CALLING = (
    *("while", "conditional", "call", "fusion", "async-start", "reduce", "scatter", "sort"),
    *("all-reduce", "reduce-scatter"),
)
_OPCODES = (
    *_CALLING,
    *("parameter", "constant", "iota", "tuple", "get-tuple-element", "async-update", "async-done"),
    *("dot", "ragged-dot", "multiply", "add", "subtract", "divide", "sqrt", "rsqrt", "log"),
    *("exponential", "gather", "topk", "custom-call", "slice", "dynamic-slice", "concatenate"),
    *("dynamic-update-slice", "broadcast", "reshape", "copy", "bitcast", "transpose", "convert"),
    *("all-gather", "all-gather-start", "all-gather-done", "all-to-all", "collective-permute"),
    *("select", "compare", "optimization-barrier", "convolution", "copy-start", "copy-done"),
)
_SHAPES = (
    *("f32[8,16]", "f32[16]", "f32[]", "s32[8]", "s32[]", "(f32[8,16], s32[8])", "f32[4,16,16]"),
    *("bf16[8,4]", "()", "pred[]", "no shape", "f32[16,4]"),
)
_NAMES = (
    *("", "", "jit(f)/jvp()/dot_general", "jit(f)/transpose(jvp())/moe/add", "jit(f)/add"),
    *("jit(f)/transpose(jvp())/rematted_computation/mul", "jit(f)/jvp()/top_k"),
)
_TARGETS = ("__cublas$gemm", "TopK", "moe_dispatch", "x")
_DETAILS = ("", "index=0", "index=5", "dimensions=0", "dimensions=0,1", "dimensions=7")


def some_program(seed: int, mode: str) -> Program:
    """`mode`: ``sound``, ``missing`` names, operands in a ``cycle``, calls in a ``callcycle``."""
    pick = random.Random(f"{mode}{seed}")
    computations = ["main", *(f"c{i}" for i in range(pick.randint(0, 5)))]
    place = [pick.choice(computations) for _ in range(pick.randint(3, 40))]
    return program(*(_row(pick, i, place, computations, mode) for i in range(len(place))))


def _row(pick: random.Random, i: int, place: list[str], computations: list[str], mode: str) -> Row:
    near = [j for j, other in enumerate(place) if other == place[i]]
    pool = [f"i{j}" for j in near if j < i or mode == "cycle"]
    inner = computations[computations.index(place[i]) + 1 :] or ["gone"]
    inner = computations if mode == "callcycle" else inner
    if mode == "missing":
        pool, inner = pool + ["lost"] * (1 + len(pool) // 5), [*inner, "gone"]
    opcode = pick.choice(_OPCODES)
    operands = [pick.choice(pool) for _ in range(pick.choice([0, 1, 1, 2, 2, 3])) if pool]
    called = [pick.choice(inner) for _ in range(pick.choice([0, 1, 1, 2]))]
    return hlo(
        f"i{i}",
        opcode,
        " ".join(operands),
        called=" ".join(called) if opcode in _CALLING else "",
        computation=place[i],
        shape=pick.choice(_SHAPES),
        is_root=pick.random() < 0.25,
        op_name=pick.choice(_NAMES),
        frames=pick.choice(["", f"a.py:{pick.randint(1, 5)}:f\nb.py:3:g"]),
        custom_call_target=pick.choice(_TARGETS) if opcode == "custom-call" else "",
        details=pick.choice(_DETAILS),
        parameter=pick.choice([0, 1, -1]) if opcode == "parameter" else -1,
    )


@pytest.mark.parametrize("mode", ["sound", "missing", "cycle", "callcycle"])
def test_each_instruction_of_any_program_gets_a_part(mode):
    for seed in range(100):
        made = some_program(seed, mode)
        found = classify({1: made}).pandas()
        assert found["op"].tolist() == list(made.ops), seed
        assert set(found["component"]) <= set(MEANINGS), seed


def test_the_same_seed_makes_the_same_program():
    assert some_program(3, "cycle").ops == some_program(3, "cycle").ops


@pytest.mark.parametrize("opcode", ["call", "fusion"])
def test_a_computation_that_runs_twice_in_a_row_is_no_obstacle(opcode):
    made = program(
        hlo("a", "parameter", computation="f", parameter=0, shape="f32[16,8]"),
        hlo("n", "negate", "a", computation="f", is_root=True, shape="f32[16,8]"),
        hlo("p", "parameter", parameter=0, shape="f32[16,8]"),
        hlo("first", opcode, "p", called="f", shape="f32[16,8]"),
        hlo("second", opcode, "first", called="f", shape="f32[16,8]"),
        hlo("z", "negate", "second", shape="f32[16,8]", op_name="jit(f)/jvp()/attention/neg"),
    )
    parts = classify({1: made}).pandas().set_index("op")["component"].to_dict()
    assert parts["z"] == "attention"
    assert parts["first"] == ("loop_gaps" if opcode == "call" else "attention")
