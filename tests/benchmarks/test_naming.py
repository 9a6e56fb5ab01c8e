"""The scorer of names: what is right for an op, and how much of the time is."""

import ast
import json
import sys
from pathlib import Path

import pandas as pd
import pytest
from builders.hlo import computation, dot, hlo_proto, op
from builders.trace import trace_of
from builders.xspace import thunk

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "naming"))

import naming
import scoring
from captures import programs, variants
from cost_model import costs
from op_flow import Graph
from op_truth import truths
from rename import renamed
from source_truth import of_json, of_script

from moeprof.columns.table import Table
from moeprof.ingest.dump import open_dump

SCRIPT = """
def gate(x, w):
    return x @ w  # is: router

def helper(x):
    return -x

def work(x):
    y = helper(x)  # is: attention
    for _ in range(3):
        y = y + 1
    return y @ y  # is: grouped_gemm
"""
GATE, HELPER, CALL, LOOP, EXPERTS = (
    *((("/x/toy.py", 3, "gate"),), (("/x/toy.py", 6, "helper"), ("/x/toy.py", 9, "work"))),
    *((("/x/toy.py", 9, "work"),), (("/x/toy.py", 11, "work"), ("/x/toy.py", 3, "gate"))),
    (("/x/toy.py", 12, "work"),),
)
WEIGHT, ROWS = "f32[8,4]", "f32[16,8]"


def source():
    return of_script(Path("toy.py"), SCRIPT)


def truths_of(tmp_path, *instructions, more=()):
    program = hlo_proto(*more, computation("entry", *instructions))
    trace = trace_of(tmp_path, program)
    rows = trace.hlo_ops
    if rows.empty:  # of a program that did not run
        trace = trace_of(tmp_path, program, thunk(instructions[-1].name, 0, 1, run_id=1))
        rows = trace.hlo_ops
    return {name: truth.components for name, truth in truths(Graph(rows), source()).items()}


def parameter(name, shape, number=0):
    return op(name, "parameter", shape, parameter=number)


def test_shares_of_all_op_time_are_those_worked_out_by_hand(tmp_path, monkeypatch):
    """40 of 100 ns are right by their line, 10 by their user, 25 have no name, 5 no truth."""
    inner = computation("c", parameter("a", ROWS), op("neg", "negate", ROWS, "a", frames=CALL))
    program = hlo_proto(
        inner,
        computation(
            "entry",
            parameter("p", ROWS),
            parameter("q", "s32[4]", 1),
            dot("scores", ROWS, "p", "p", frames=GATE, op_name="jit(f)/jvp()/dot_general"),
            dot("back", ROWS, "p", "p", frames=GATE, op_name="jit(f)/transpose(jvp())/dot_general"),
            op("moved", "transpose", ROWS, "p"),
            op("mixed", "fusion", ROWS, "moved", called=("c",), frames=CALL),
            op("lost", "negate", "s32[4]", "q"),
        ),
    )
    called = {"scores": "router", "back": "attention", "moved": "attention"}
    called |= {"mixed": "unattributed", "lost": "norm"}
    lengths = {"scores": 40, "back": 20, "moved": 10, "mixed": 25, "lost": 5}
    work = [
        thunk(name, 1000 + 100 * place, length, run_id=1)
        for place, (name, length) in enumerate(lengths.items())
    ]
    trace = trace_of(tmp_path, program, *work)
    classes = pd.DataFrame(
        {"module": 7, "op": called.keys(), "component": called.values(), "evidence": "structure"}
    )
    monkeypatch.setattr(scoring, "classes_of", lambda _trace: Table.of(classes))
    score = scoring.of_trace(trace, source())
    assert score.row() == {
        "right": 50.0,
        "guessed": 0.0,
        "unattributed": 25.0,
        "inherited": 10.0,
        "untold": 5.0,
    }
    assert [line.split()[0] for line in scoring.largest_wrong(score, {})] == [
        "25.00",
        "20.00",
        "5.00",
    ]
    assert scoring.calibration([score]) == {}


def test_a_stated_confidence_is_compared_with_what_is_right(tmp_path):
    """Of 100 ns 60 are said with 0.9 and 45 of them right, 40 with 0.5 and 10 of them right."""
    ops = pd.DataFrame(
        {
            "weight": [45.0, 15.0, 10.0, 30.0],
            "confidence": [0.9, 0.9, 0.5, 0.5],
            "right": [True, False, True, False],
            "component": "router",
            "evidence": "neighbour",
        }
    )
    score = scoring.Score(ops)
    found = scoring.calibration([score])
    assert score.guessed == 0.4
    assert [(b["stated"], b["right"], b["share"]) for b in found["buckets"]] == [
        ("[0.5, 0.6)", 0.25, 0.4),
        ("[0.9, 0.95)", 0.75, 0.6),
    ]
    # 0.45 * 0.1² + 0.15 * 0.9² + 0.4 * 0.5²; a constant 0.55 gives 0.55 * 0.45
    assert found["brier"] == pytest.approx(0.226)
    assert found["brier_of_a_constant"] == pytest.approx(0.2475)
    assert found["share_at_least_0.9"] == 0.6


def test_a_helper_is_what_its_caller_is_and_a_silent_line_is_not(tmp_path):
    found = truths_of(
        tmp_path,
        parameter("p", ROWS),
        op("a", "negate", ROWS, "p", frames=HELPER),
        op("b", "add", ROWS, "a", "a", frames=LOOP),
        dot("c", ROWS, "b", "b", frames=EXPERTS),
    )
    assert found["a"] == {"attention"}
    assert found["b"] == {"attention", "grouped_gemm", "expert_elementwise"}  # by its neighbours
    assert found["c"] == {"grouped_gemm"}


def test_what_multiplies_nothing_on_the_experts_line_may_be_elementwise(tmp_path):
    inner = computation("c", parameter("x", ROWS), dot("d", ROWS, "x", "x", frames=EXPERTS))
    found = truths_of(
        tmp_path,
        parameter("p", ROWS),
        op("mask", "select", ROWS, "p", "p", frames=EXPERTS),
        op("product", "fusion", ROWS, "mask", called=("c",), frames=GATE),
        more=(inner,),
    )
    assert found["mask"] == {"grouped_gemm", "expert_elementwise"}
    assert found["product"] == {"grouped_gemm"}  # its product's line, not its own


def test_a_copy_may_be_a_copy_and_what_is_seen_through_a_loop_is_inherited(tmp_path):
    body = computation(
        "body",
        parameter("in", "(f32[16,8], s32[])"),
        op("x", "get-tuple-element", ROWS, "in", extra=((13, 0),)),
        op("i", "get-tuple-element", "s32[]", "in", extra=((13, 1),)),
        op("neg", "negate", ROWS, "x", frames=CALL),
        op("out", "tuple", "(f32[16,8], s32[])", "neg", "i"),
    )
    ends = computation("ends", parameter("t", "(f32[16,8], s32[])"), op("no", "constant", "pred[]"))
    found = truths_of(
        tmp_path,
        parameter("p", ROWS),
        parameter("n", "s32[]", 1),
        op("copied", "copy", ROWS, "p"),
        op("start", "tuple", "(f32[16,8], s32[])", "copied", "n"),
        op("loop", "while", "(f32[16,8], s32[])", "start", called=("body", "ends")),
        more=(body, ends),
    )
    assert found["copied"] == {"attention", "copies"}
    assert found["loop"] == {"loop_gaps"}


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("gathered", {"weight_gather"}),
        ("tokens", {"router", "collectives"}),
        ("summed", {"gradient_reduce"}),
        ("again", {"router", "collectives"}),
    ],
)
def test_collectives_of_the_compiler_are_what_they_carry(tmp_path, name, right):
    backward = "jit(f)/transpose(jvp())/dot_general"
    found = truths_of(
        tmp_path,
        parameter("w", "f32[2,4]"),
        parameter("p", ROWS, 1),
        op("gathered", "all-gather", WEIGHT, "w", frames=GATE),
        op("scores", "negate", ROWS, "p", frames=GATE),
        op("tokens", "all-gather", "f32[64,8]", "scores", frames=GATE),
        op("g", "negate", WEIGHT, "gathered", frames=GATE, op_name=backward),
        op("summed", "all-reduce", WEIGHT, "g", frames=GATE, op_name=backward),
        op(
            "again",
            "all-reduce",
            WEIGHT,
            "scores",
            frames=GATE,
            op_name="jit(f)/transpose(jvp())/checkpoint/rematted_computation/dot_general",
        ),
    )
    assert found[name] == right


def test_a_compiled_program_weighs_what_the_cost_model_says(tmp_path):
    """A loop of 5 rounds moves bytes, a product is bound by its FLOPs; what a fusion holds is 0."""
    config = json.dumps({"known_trip_count": {"n": "5"}}).encode()
    big, pair = "bf16[4096,4096]", "(f32[16,8], s32[])"
    body = computation(
        "body",
        parameter("in", pair),
        op("x", "get-tuple-element", ROWS, "in", extra=((13, 0),)),
        op("i", "get-tuple-element", "s32[]", "in", extra=((13, 1),)),
        op("neg", "fusion", ROWS, "x", called=("inner",)),
        op("out", "tuple", pair, "neg", "i"),
    )
    inner = computation("inner", parameter("a", ROWS), op("inside", "negate", ROWS, "a"))
    ends = computation("ends", parameter("t", pair), op("no", "constant", "pred[]"))
    entry = computation(
        "entry",
        parameter("p", ROWS),
        parameter("n", "s32[]", 1),
        parameter("w", big, 2),
        op("start", "tuple", pair, "p", "n"),
        dot("product", big, "w", "w"),
        op("loop", "while", pair, "start", called=("body", "ends"), extra=((43, config),)),
    )
    file = tmp_path / "a.hlo.pb"
    file.write_bytes(hlo_proto(inner, body, ends, entry))
    found = costs(open_dump(file)).set_index("op")["weight"].to_dict()
    assert found == {
        "neg": pytest.approx(5 * 2 * 16 * 8 * 4 / 3.35e12 * 1e9),
        "product": pytest.approx(2 * 4096**3 / 989.4e12 * 1e9),
    }


def test_a_truth_that_its_ops_would_not_carry_is_refused():
    with pytest.raises(ValueError, match="several lines"):
        of_script(Path("a.py"), "def f(x):\n    return (\n        -x\n    )  # is: router\n")
    with pytest.raises(ValueError, match="found rooter"):
        of_script(Path("a.py"), "y = 1  # is: rooter\n")


def test_truth_of_json_takes_the_op_name_then_the_line_then_the_function(tmp_path):
    path = tmp_path / "truth.json"
    path.write_text(
        '{"files": {"lib/m.py": {"lines": {"3": ["norm"]}, "functions": {"f": ["router"]}}},'
        ' "op_names": [["ragged", ["grouped_gemm"]]]}'
    )
    truth = of_json(path)
    assert truth.of("jit(a)/ragged_dot", "/x/lib/m.py:3:f") == {"grouped_gemm"}
    assert truth.of("jit(a)/add", "/x/lib/m.py:3:f") == {"norm"}
    assert truth.of("jit(a)/add", "/x/lib/m.py:4:f") == {"router"}
    assert truth.of("jit(a)/add", "/x/lib/other.py:4:g\n/x/lib/m.py:5:f") == {"router"}
    assert truth.of("jit(a)/add", "/x/lib/m.py:5:g") == frozenset()


def test_a_renamed_script_has_the_same_lines_and_calls_and_none_of_its_names():
    text = (
        "import jax\n\n\n"
        "def route(tokens, top=2):\n"
        '    w = dict(gate=tokens)["gate"]  # is: router\n'
        "    return jax.lax.top_k(w, k=top)\n\n\n"
        "def build(devices):\n"
        "    return route(devices, top=3)\n"
    )
    new = renamed(text)
    assert [line.partition("#")[2] for line in new.splitlines()] == [
        line.partition("#")[2] for line in text.splitlines()
    ]
    for name in ("route", "tokens", "gate", "devices", "top="):
        assert name not in new.replace("# is: router", "")
    assert "jax.lax.top_k(" in new
    assert ", k=" in new
    assert "def build(" in new


def test_the_corpus_is_whole_and_every_variant_of_it_can_be_read():
    every = programs()
    assert all(sum(p.half == half for p in every) >= 10 for half in ("rules", "scoring"))
    for program in every:
        of_script(Path(program.file_name), program.text)
        assert {"d", "f", "e"} <= program.sizes.keys()
        for variant in variants(program):
            ast.parse(variant.text)
            of_script(Path(variant.file_name), variant.text)


@pytest.mark.cpu("runs programs of the corpus on the CPU")
@pytest.mark.parametrize("name", ["cudnn_dataclass", "switch_vmap"])
def test_programs_of_the_rules_are_named(name, tmp_path):
    (program,) = programs("rules", name)
    score = naming.scored(program, "cpu", tmp_path)
    assert score.untold < 0.01
    assert score.right > 0.9, "\n".join(scoring.largest_wrong(score, naming.lines_of(program)))
