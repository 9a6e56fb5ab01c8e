"""`moeprof memory explain-oom`: a log, a run folder, a compiled program; text, JSON, one-liners."""

from __future__ import annotations

import json

import pytest
from builders.assignment import assignment_text, value
from click.testing import CliRunner

from moeprof.cli.memory.subcommands import explain_oom as command
from moeprof.errors import TraceError

GIB = 1 << 30
DENSE = "jit(step)/transpose(jvp())/layers_7/moe/ragged_dot_general"
LOG = """
I0302 10:00:00.000000 7 train.py:5] step 12
jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9.60GiB.
BufferAssignment stats:
             parameter allocation:   66.00GiB
     preallocated temp allocation:    9.60GiB
                 total allocation:   75.60GiB
Peak buffers:
\tBuffer 1:
\t\tSize: 9.60GiB
\t\tOperator: op_name="jit(step)/jvp(M)/layers_7/moe/experts/ragged_dot_general" source_file="/w/moe.py" source_line=40
\t\tXLA Label: custom-call
\t\tShape: bf16[719023,7168]
\t\t==========================
"""  # noqa: E501


def run(*arguments: object) -> str:
    done = CliRunner().invoke(command, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def documented(*arguments: object):
    document = json.loads(run(*arguments, "--json"))
    assert document["schema"] == "moeprof.oom/1"
    return document


@pytest.fixture
def log(tmp_path):
    file = tmp_path / "train.log"
    file.write_text(LOG)
    return file


def test_the_json_holds_request_pool_program_and_groups(log):
    (message,) = documented(log, "--hardware", "h100_sxm", "--mem-fraction", "0.93")["messages"]
    assert message["request"]["size_bytes"] == round(9.6 * GIB)
    assert message["request"]["is_arena"] is True
    assert message["program"]["argument_bytes"] == 66 * GIB
    assert message["verdict"] == "program_too_large"
    (group,) = message["groups"]
    assert (group["layer"], group["component"]) == (7, "grouped_gemm")
    assert message["not_listed_bytes"] == 0
    assert message["said_by"]["line"] == 3


def test_the_text_is_80_columns_wide_and_says_why_first(log):
    lines = run(log, "--hardware", "h100_sxm", "--mem-fraction", "0.93").splitlines()
    assert lines[0].startswith("The program alone needs 75.6 GiB, the pool has 73.6 GiB")
    assert max(map(len, lines)) <= 80
    assert any("layer 7 MoE" in line for line in lines)
    assert any("arguments come on top" in line for line in lines)


def test_a_captured_run_adds_the_pool_and_the_programs_sizes(tmp_path):
    (tmp_path / "oom.txt").write_text(
        "JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9.60GiB.\n"
    )
    sample = {"devices": {"0": {"bytes_limit": 74 * GIB, "bytes_in_use": 60 * GIB}}}
    program = {
        "program": "jit_step",
        "argument_bytes": 60 * GIB, "output_bytes": 60 * GIB, "alias_bytes": 60 * GIB,
        "temp_bytes": round(9.6 * GIB) + 8,
    }  # fmt: skip
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "p0.json").write_text(
        json.dumps(
            {"windows": [{"before": sample, "in": [], "after": None}], "programs": [program]}
        )
    )
    document = documented(tmp_path)
    (message,) = document["messages"]
    assert message["pool"]["limit_bytes"] == 74 * GIB
    assert message["program"]["argument_bytes"] == 60 * GIB
    assert message["request"]["is_arena"] is True
    # 60 + 9.6 fit 74 alone, so more than 4.4 GiB were held by something else
    assert message["verdict"] == "together_too_large"
    assert "more than 4.4 GiB" in message["sentence"]
    assert any("jit_step" in note for note in document["notes"])


def test_a_backend_that_reports_no_memory_is_named_so(tmp_path):
    (tmp_path / "oom.txt").write_text("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes.\n")
    zeros = dict.fromkeys(("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes"), 0)
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "p0.json").write_text(
        json.dumps({"windows": [], "programs": [{"generated_code_bytes": 2856, **zeros}]})
    )
    document = documented(tmp_path)
    assert any("not reported by this backend" in note for note in document["notes"])
    assert document["messages"][0]["program"]["temp_bytes"] is None


def test_a_compiled_program_is_held_against_a_device(tmp_path):
    arrays = [
        value(f"s.{n}", 4 * GIB, 4 * n * GIB, "bf16[64,32768,1024]", DENSE) for n in range(20)
    ]
    lives = {part.op: (1, 5) for part in arrays}
    file = tmp_path / "m-buffer-assignment.txt"
    file.write_text(assignment_text(*arrays, temp_bytes=80 * GIB, lives=lives))
    (message,) = documented(file, "--hardware", "h100_sxm", "--mem-fraction", "0.9")["messages"]
    assert message["verdict"] == "program_too_large"
    (change,) = message["changes"]
    assert change["saves_bytes"] == 20 * (4 * GIB - GIB // 16)  # 63 of 64 shares
    assert change["is_enough"] is True
    assert "dense fallback of ragged dot: 20 ×" in run(file)


@pytest.mark.parametrize(
    ("name", "content"), [("fine.log", b"step 1 loss 2\n"), ("bytes.bin", bytes(range(256)))]
)
def test_a_text_in_which_nothing_ran_out_of_memory_is_one_line(tmp_path, name, content):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(TraceError, match="expected an out-of-memory message") as raised:
        run(file)
    assert "\n" not in str(raised.value)


def test_a_folder_without_anything_to_read_is_one_line(tmp_path):
    with pytest.raises(TraceError, match=r"expected oom\.txt of a captured run"):
        run(tmp_path)
