"""A server in a process of its own answers the official client what `moeprof analyze` prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders.assistant import serving
from builders.ended import write_record

import moeprof
from moeprof.analyzers.registry import all_names, all_patterns
from moeprof.assistant.tools import TOOLS

DENSE, GMM = "gpu/dense-cf1.25", "gpu/sparse-gmm"
MAXTEXT = "maxtext/deepseek3_tiny_ep8_cf125.xplane.pb.gz"
GPU = ("dense-cf1.25", "sparse-gmm-deepep", "sparse-gmm-deepep-graphs")


@pytest.fixture(scope="module")
def dense(root):
    return moeprof.load(root / DENSE)


def test_it_says_who_it_is_and_how_to_begin(server):
    assert server.client.server_info.name == "moeprof"
    assert server.client.server_info.version == moeprof.__version__
    assert "overview" in server.client.instructions


def test_every_tool_is_described_with_typed_arguments_and_reads_alone(server):
    tools = server.tools()
    assert list(tools) == [tool.name for tool in TOOLS]
    for tool in tools.values():
        assert tool.annotations.read_only_hint
        assert len(tool.description) > 80
        assert tool.input_schema["additionalProperties"] is False
        for argument in tool.input_schema["properties"].values():
            assert argument["type"] in ("string", "integer", "array")
            assert argument["description"]
    assert tools["ask"].input_schema["required"] == ["run", "question"]


def test_questions_and_patterns_are_listed(server):
    found = server.answer("questions")
    assert [each["name"] for each in found["questions"]] == all_names()
    assert len(found["patterns"]) == len(all_patterns())
    assert found["cut"] == []


def test_columns_of_a_question_have_units_and_meanings(server):
    columns = {each["name"]: each for each in server.answer("questions", name="ops")["columns"]}
    assert columns["per_step_ns"]["unit"] == "ns"
    assert columns["op"]["meaning"]
    assert "others wait" in server.answer("questions", name="late_rank")["what"]


def test_the_first_screen_is_that_of_the_command(server, dense):
    found = server.answer("overview", run=DENSE)
    document = dense.document()
    assert found["run"]["is"].startswith("2 × NVIDIA H200")
    assert found["trust"]["verdict"] == str(dense.trust)
    assert found["step"]["figures"] == document["analyses"]["step_time"]["headline"]
    parts = found["largest_parts"]["rows"]
    assert parts[0]["component"] == "weight_gather"
    assert sum(part["share"] for part in parts) == pytest.approx(1)
    hints = document["analyses"]["hints"]["rows"]
    assert [row["hint"] for row in found["findings"]["rows"]] == [row["hint"] for row in hints]
    assert [each["question"] for each in found["answers"]] == all_names()


def test_an_answer_has_the_figures_of_the_command(server, dense):
    found = server.answer("ask", run=DENSE, question="collectives")
    finding = dense.document(["collectives"])["analyses"]["collectives"]
    assert found["figures"] == finding["headline"]
    assert found["table"]["rows"] == finding["rows"][:20]
    assert all({"name", "unit", "meaning"} <= set(each) for each in found["table"]["columns"])
    assert found["times_are"] == "per device and step"
    assert found["cut"] == [
        "table of collectives, rows: 20 of 25 are here; the same with skip=20 has the next"
    ]


@pytest.mark.parametrize("question", ["ops", "breakdown", "collectives", "roofline"])
@pytest.mark.parametrize("run", [*(f"gpu/{name}" for name in GPU), MAXTEXT])
def test_the_largest_answers_fit_and_all_rows_can_be_had(server, run, question):
    rows, at = [], 0
    while True:
        found = server.answer("ask", run=run, question=question, rows=1000, skip=at)
        rows += found["table"]["rows"]
        if len(rows) == at or not any("has the next" in line for line in found["cut"]):
            break
        at = len(rows)
        (line,) = (line for line in found["cut"] if "has the next" in line)
        assert line.endswith(f"skip={at} has the next")
    lines = [line for line in found["cut"] if line.startswith("table")]
    assert not lines or lines[0].endswith(f"of {len(rows)} are here")


def test_fewer_columns_leave_room_for_more_rows(server):
    found = server.answer("ask", run=DENSE, question="ops", rows=50, columns=["op", "share"])
    assert [set(row) for row in found["table"]["rows"]] == [{"op", "share"}] * 50
    assert found["cut"] == []


def test_two_runs_are_compared_with_gates(server, root):
    found = server.answer("compare", base=DENSE, new=GMM, gates=["step>+2%", "memory>+100GiB"])
    document = moeprof.compare(root / DENSE, root / GMM).document()
    assert [gate["verdict"] for gate in found["gates"]] == ["failed", "passed"]
    assert found["tables"]["step"]["rows"] == document["step"]["rows"]
    assert found["tables"]["rows"]["rows"] == document["rows"]["rows"][:12]
    assert set(found["tables"]) == {"step", "rows", "memory", "buffers", "settings"}
    assert found["is_whole"]
    assert found["trust_of_base"]["verdict"].startswith("good")
    assert any(line.startswith("table rows, rows: 12 of 457") for line in found["cut"])


def test_one_table_of_a_comparison_is_read_on(server):
    arguments = {"base": DENSE, "new": GMM, "table": "rows", "rows": 1000}
    found = server.answer("compare", **arguments, skip=100)
    assert list(found["tables"]) == ["rows"]
    assert found["cut"][0].startswith("table rows, rows: 101 to ")


def test_a_cut_profile_says_so_and_its_figures_are_null(server):
    found = server.answer("overview", run="cut.xplane.pb")
    trust = found["trust"]
    assert trust["worst"] in ("warn", "fail")
    assert any("truncated: recovered" in line for line in trust["failed_or_warned"])
    assert trust["withheld_figures"]
    assert "withheld" in trust["verdict"]


def test_a_profile_without_device_work_withholds_figures_by_name(server):
    found = server.answer("ask", run="idle.xplane.pb", question="breakdown")
    assert found["status"] == "withheld"
    assert found["says"].startswith("Withheld: device_work failed")
    assert found["trust"]["withheld_figures"] == ["breakdown: all figures (by device_work)"]
    assert all(figure["value"] is None for figure in found["figures"])
    assert found["table"]["rows"] == []
    compared = server.answer("compare", base="idle.xplane.pb", new=DENSE)
    assert not compared["is_whole"]
    assert (
        "breakdown: all figures (by device_work)" in compared["trust_of_base"]["withheld_figures"]
    )


def test_a_run_that_ended_without_a_profile_says_what_its_record_knows(server, root):
    write_record(root / "ended", problems=[["ended early"]], codes=[1], seconds=3.0)
    found = server.answer("overview", run="ended")
    assert "the script ended with exit code 1" in found["run"]["problems"]
    assert all(figure["value"] is None for figure in found["step"]["figures"])
    assert "step_time: all figures (by profile)" in found["trust"]["withheld_figures"]
    told = server.error("compare", base="ended", new="ended", gates=["step>+1%"])
    assert "expected a profile" in told
    assert "ended with exit code 1" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"run": "html.xplane.pb", "question": "ops"}, "html.xplane.pb"),
        ({"run": "nowhere", "question": "ops"}, "no such file or folder below"),
        ({"run": "nowhere", "question": "ops"}, "there are: "),
        ({"run": "nowhere", "question": "ops"}, "gpu/dense-cf1.25"),
        ({"run": DENSE, "question": "speed"}, "no question is named 'speed'; there are: step_time"),
        ({"run": DENSE, "question": "ops", "columns": ["x"]}, "no column is named 'x'; there are"),
        ({"run": DENSE, "question": "ops", "rows": 0}, "rows: Input should be greater than"),
        ({"run": DENSE}, "question: Field required; its arguments are: run, question, [rows]"),
        ({"run": DENSE, "question": "ops", "verbose": 1}, "verbose: Extra inputs"),
        ({"run": "/etc/hostname", "question": "ops"}, "expected a path below"),
        ({"run": "../x", "question": "ops"}, "expected a path below"),
        ({"run": "a\0b", "question": "ops"}, "expected a path, found a zero byte"),
        ({"run": "x" * 5000, "question": "ops"}, "cannot be read"),
    ],
)
def test_a_wrong_call_is_one_line(server, arguments, told):
    assert told in server.error("ask", **arguments)


def test_wrong_calls_of_the_other_tools_are_one_line(server):
    assert "no tool is named 'run'" in server.error("run")
    assert "late_rank" not in server.error("questions", name="speed")
    assert "gate 'step>2': expected NAME>+NUMBER" in server.error(
        "compare", base=DENSE, new=GMM, gates=["step>2"]
    )
    assert "table=rows" in server.error("compare", base=DENSE, new=GMM, skip=3)
    assert "table" in server.error("compare", base=DENSE, new=GMM, table="ops")


def test_the_server_said_nothing_beside_the_protocol(server):
    server.answer("questions")
    assert server.stderr.read_text() == ""


def test_nothing_is_written_below_the_root(tmp_path, root):
    def state(folder: Path) -> list[tuple[str, int, int]]:
        files = sorted(folder.rglob("*"))
        return [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files]

    before = state(root)
    with serving(root, tmp_path / "stderr") as served:
        served.answer("overview", run=GMM)
        served.answer("compare", base=DENSE, new=GMM)
    assert state(root) == before


NOISY = """
import os, sys, warnings
from moeprof.assistant import tools
def noisy(runs, given):
    print("printed"); os.write(1, b"written\\n"); os.system("echo child")
    warnings.warn("warned")
    if given.name: raise KeyError("broken")
    return {"cut": []}
from dataclasses import replace
tools.TOOLS = (replace(tools.TOOLS[0], answer=noisy),)
from moeprof.cli.main import group
group(["mcp"], prog_name="moeprof")
"""


BEGIN = (
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "raw", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
)


def call(number: int, tool: str, **arguments: object) -> dict:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def started(*command: str, cwd: Path) -> subprocess.Popen:
    """A server whose raw streams a test reads, as another client does."""
    paths = os.pathsep.join(path for path in sys.path if path)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.Popen([sys.executable, *command], **pipes, cwd=cwd, env=environment)


def send(process: subprocess.Popen, *messages: dict) -> None:
    process.stdin.write(b"".join(json.dumps(each).encode() + b"\n" for each in messages))
    process.stdin.flush()


def test_what_libraries_print_is_no_protocol(tmp_path):
    """One JSON message a line, and nothing else."""
    with started("-c", NOISY, cwd=tmp_path) as process:
        send(process, *BEGIN, call(2, "questions"), call(3, "questions", name="x"))
        lines = [json.loads(process.stdout.readline()) for _ in range(3)]
        rest, error = process.communicate(timeout=60)
    assert [each["id"] for each in lines] == [1, 2, 3]
    assert rest == b""
    assert lines[1]["result"]["content"][0]["text"] == '{"cut":[]}'
    assert lines[2]["result"]["isError"]
    assert "moeprof failed (KeyError: 'broken')" in lines[2]["result"]["content"][0]["text"]
    for said in (b"printed", b"written", b"child", b"warned", b"Traceback"):
        assert said in error
    assert process.returncode == 0


def test_ctrl_c_ends_it_at_once(root):
    with started("-m", "moeprof", "mcp", cwd=root) as process:
        send(process, *BEGIN)
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == -signal.SIGINT
        assert process.stderr.read() == b""


def test_it_ends_quietly_with_a_client_that_has_gone(root):
    with started("-m", "moeprof", "mcp", cwd=root) as process:
        send(process, *BEGIN)
        process.stdout.readline()
        process.stdout.close()
        send(process, call(2, "questions"), call(3, "questions"))
        process.stdin.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == b""
