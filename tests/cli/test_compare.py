"""`moeprof compare`: what is printed, the JSON, and the exit codes in their order."""

from __future__ import annotations

import json
from functools import partial

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, event, host, line, metadata, thunk, xspace
from click.testing import CliRunner

from moeprof.cli.main import group

PROGRAM = hlo_proto(
    computation("main", op("add", "add", "f32[8]", op_name="jit(f)/jvp()/attention/add"))
)


def profile(folder, name: str, length: int, cut: float = 1.0, program: bytes = PROGRAM):
    """Four steps back to back, of one op that takes `length` ns."""
    work = [thunk("add", length * i + 10, length, run_id=i) for i in range(4)]
    data = xspace(metadata(p7=program), host(line("pool", *work)))
    file = folder / f"{name}.xplane.pb"
    file.write_bytes(data[: int(cut * len(data))])
    return file


def invoke(*words) -> str:
    """What another command prints."""
    return CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False).stdout


@pytest.fixture
def ran(ran):
    """Run `compare` as a shell would: exit code, stdout and stderr."""
    return partial(ran, "compare")


@pytest.fixture
def pair(tmp_path):
    return profile(tmp_path, "base", 1000), profile(tmp_path, "new", 1300)


def test_the_verdict_comes_first_and_lines_fit(ran, pair, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # a pipe without it has names whole
    code, out, _ = ran(*pair)
    assert code == 0
    assert out.startswith("step 1.000 → 1.300 µs  (+30.0 %, noise ±0.0 %: beyond it)\n")
    assert "+300 ns  attention" in out
    assert "the same calls take longer +300 ns" in out
    assert max(map(len, out.splitlines())) <= 80


def test_calls_of_other_shapes_are_not_the_same_calls(ran, pair, tmp_path):
    larger = hlo_proto(
        computation("main", op("add", "add", "f32[16]", op_name="jit(f)/jvp()/attention/add"))
    )
    out = ran(pair[0], profile(tmp_path, "larger", 1300, program=larger))[1]
    assert "f32[8] → f32[16], other shape" in out
    assert "calls of other shapes take longer +300 ns" in out
    assert "the same calls" not in out


def test_parts_of_the_step_that_neither_run_has_are_left_out(ran, pair):
    out = ran(*pair)[1]
    parts = out.partition("Where the step's change is")[2].partition("\n\n")[0]
    assert "compute" in parts
    assert "copy" not in parts
    assert "0 → 0 ns" not in out


def test_a_run_has_as_many_checks_beside_another_one(ran, pair):
    alone = json.loads(invoke("analyze", pair[0], "--json"))["trust"]
    beside = json.loads(ran(*pair, "--json")[1])["base"]["trust"]
    assert [(c["check"], c["verdict"]) for c in alone] == [
        (c["check"], c["verdict"]) for c in beside
    ]


def test_json_is_strict_and_says_the_same(ran, pair):
    code, out, _ = ran(*pair, "--json", "--fail-on", "step>+50%")
    document = json.loads(out, parse_constant=pytest.fail)
    assert code == 0
    assert document["schema"] == "moeprof.comparison/1"
    assert document["step"]["rows"][0]["change_ns"] == 300.0
    assert {row["level"] for row in document["rows"]["rows"]} == {"total", "component", "op"}
    assert document["gates"][0]["verdict"] == "passed"
    assert document["base"]["run"]["devices"] == 1
    assert set(document) >= {"base", "new", "memory", "noise", "notes"}


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        (["step>+29%"], 4),
        (["step>+31%", "attention>+299ns"], 4),
        (["step>+30%", "router>+1%"], 0),
        (["memory>+1GiB", "step>+1%"], 4),
    ],
)
def test_a_failed_gate_has_an_exit_code_of_its_own(ran, pair, gates, expected):
    options = [text for gate in gates for text in ("--fail-on", gate)]
    code, out, _ = ran(*pair, *options)
    assert code == expected
    assert "Gates" in out


def test_a_gate_on_a_figure_that_is_not_known_is_told(ran, tmp_path, pair):
    idle = tmp_path / "idle.xplane.pb"
    idle.write_bytes(xspace(metadata(p7=PROGRAM), host(line("pool"))))
    code, out, _ = ran(pair[0], idle, "--fail-on", "step>+1%")
    assert code == 3
    assert "not known step>+1%" in out


@pytest.mark.parametrize("gate", ["grouped_gem>+5%", "step>5", "step>+5GiB"])
def test_a_wrong_gate_is_wrong_usage_and_says_what_there_is(ran, pair, gate):
    code, _, err = ran(*pair, "--fail-on", gate)
    assert code == 2
    assert "there are" in err or "expected" in err


def test_a_damaged_side_is_told_by_the_exit_code(ran, tmp_path, pair):
    damaged = profile(tmp_path, "cut", 1000, cut=0.9)
    code, out, _ = ran(pair[0], damaged)
    assert code == 3
    assert "fail" in out or "warn" in out


def test_the_page_carries_what_json_prints(ran, pair, tmp_path):
    page = tmp_path / "changed.html"
    gate = ["--fail-on", "step>+50%"]
    code, out, err = ran(*pair, *gate, "--html", page)
    assert (code, err) == (0, f"moeprof: page written to {page}\n")
    assert out.startswith("step 1.000 → 1.300 µs")
    text = page.read_text(encoding="utf-8")
    start = text.index('class="document">') + len('class="document">')
    carried = json.loads(text[start : text.index("</script>", start)])
    assert carried == json.loads(ran(*pair, *gate, "--json")[1])
    assert carried["arguments"] == [*map(str, pair), *gate]


def test_a_page_does_not_take_the_place_of_a_profile(ran, pair):
    before = pair[1].read_bytes()
    code, _, err = ran(*pair, "--html", pair[1])
    assert code == 2
    assert "expected a name that ends in .html" in err
    assert pair[1].read_bytes() == before


def test_of_which_run_a_figure_is_not_known_is_told(ran, tmp_path, pair):
    damaged = profile(tmp_path, "damaged", 1000, cut=0.7)
    told = " ".join(ran(damaged, pair[1])[1].split())
    assert told.startswith("step time is not known of base: see the notes memory peak is not known")
    told = " ".join(ran(pair[0], damaged)[1].split())
    assert told.startswith("step time is not known of new: see the notes memory peak is not known")
    assert "known of either run: see the notes" in " ".join(ran(damaged, damaged)[1].split())


def test_another_platform_is_told_before_the_verdict(ran, tmp_path, pair):
    work = [event("add", 10_000 * i + 10, 900, hlo_op="add", program_id=7) for i in range(4)]
    file = tmp_path / "gpu.xplane.pb"
    file.write_bytes(xspace(metadata(p7=PROGRAM), Plane("/device:GPU:0", (line("s", *work),))))
    assert ran(file, pair[1])[1].startswith("platform: gpu in base, cpu in new\n")
