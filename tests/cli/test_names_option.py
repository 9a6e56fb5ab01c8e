"""`--names`: every command that shows parts takes the rules, and a bad file is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import host, line, metadata, thunk, xspace

from moeprof.session.name_rules import read_names
from moeprof.tables.name_rule import NameRule

DOCS = Path(__file__).parents[2] / "docs"

PROGRAM = hlo_proto(
    computation(
        "main",
        op("a", "parameter", "f32[8]"),
        op("first", "add", "f32[8]", "a", "a", op_name="jit(f)/jvp()/attention/add"),
        op("second", "negate", "f32[8]", "first", op_name="jit(f)/jvp()/attention/neg"),
        op("third", "sine", "f32[8]", "second", op_name="jit(f)/jvp()/norm/sin"),
    )
)
RULES = """
- component: router
  scope: attention/neg
- component: permute
  op: sort\\.\\d+
"""


def profile(folder, name: str, second_ns: int):
    """Four steps of 500, `second_ns` and 200 ns."""
    work = []
    for run in range(4):
        start = run * 2000 + 10
        for what, length in (("first", 500), ("second", second_ns), ("third", 200)):
            work.append(thunk(what, start, length, run_id=run))
            start += length
    file = folder / f"{name}.xplane.pb"
    file.write_bytes(xspace(metadata(p7=PROGRAM), host(line("pool", *work))))
    return file


@pytest.fixture
def run(tmp_path):
    return profile(tmp_path, "base", 300)


@pytest.fixture
def rules(tmp_path):
    file = tmp_path / "names.yml"
    file.write_text(RULES, encoding="utf-8")
    return file


NOTE = (
    "names.yml: 1 of 2 rules name 30.0 % of op time; changed: attention → router 30.0 %; "
    r"rule 2 (op 'sort\.\d+') matches nothing"
)


def test_the_first_screen_says_what_the_rules_changed(ran, run, rules):
    code, out, _ = ran("analyze", run, "--names", rules)
    assert code == 0
    first = " ".join(out.partition("What ")[0].split())
    assert "named by your rules 30.0 %, by the program 70.0 %, by structure 0.0 %" in first
    assert NOTE in first


def test_json_has_the_rules_and_the_note(ran, run, rules):
    code, out, _ = ran("analyze", run, "--names", rules, "--json")
    document = json.loads(out, parse_constant=pytest.fail)
    assert code == 0
    assert document["run"]["names"] == {
        "file": str(rules),
        "rules": [
            {"component": "router", "scope": "attention/neg"},
            {"component": "permute", "op": r"sort\.\d+"},
        ],
        "told": NOTE,
    }
    breakdown = document["analyses"]["breakdown"]
    assert NOTE in breakdown["notes"]
    by_part = {row["component"]: row["per_step_ns"] for row in breakdown["rows"]}
    assert by_part == {"attention": 500.0, "router": 300.0, "norm": 200.0, "unattributed": 0.0}


def test_the_example_of_the_page_can_be_read(tmp_path):
    page = (DOCS / "questions" / "breakdown.md").read_text(encoding="utf-8")
    example = page.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "names.yml").write_text(example, encoding="utf-8")
    assert read_names(tmp_path / "names.yml").rules == (
        NameRule("router", function="Gate.score"),
        NameRule("permute", source="layers/moe.py:40-58"),
        NameRule("combine", scope="^moe/.*out", op=r"all-to-all\.\d+"),
    )


def test_without_rules_the_document_has_no_word_of_them(ran, run):
    document = json.loads(ran("analyze", run, "--json")[1])
    assert "names" not in document["run"]
    known = {metric["metric"] for metric in document["analyses"]["breakdown"]["headline"]}
    assert "named_by_rules_share" not in known


def test_both_sides_of_a_comparison_have_the_rules(ran, run, rules, tmp_path):
    new = profile(tmp_path, "new", 390)
    code, out, _ = ran(
        "compare", run, new, "--names", rules, "--json",
        "--fail-on", "router>+31%", "--fail-on", "attention>+0%",
    )  # fmt: skip
    document = json.loads(out)
    assert code == 0
    assert document["base"]["run"]["names"] == document["new"]["run"]["names"]
    parts = {r["component"]: r["change_ns"] for r in document["rows"]["rows"]
             if r["level"] == "component"}  # fmt: skip
    assert (parts["router"], parts["attention"]) == (90.0, 0.0)
    assert f"base: {NOTE}" in document["notes"]
    assert ran("compare", run, new, "--names", rules, "--fail-on", "router>+29%")[0] == 4
    assert ran("compare", run, new, "--fail-on", "router>+29%")[0] == 0


def test_stored_tables_keep_the_rules_until_others_are_given(ran, run, rules, tmp_path):
    assert ran("export", run, "--tables", tmp_path / "tables", "--names", rules)[0] == 0
    code, out, _ = ran("analyze", tmp_path / "tables", "--json")
    assert code == 0
    assert NOTE in json.loads(out)["analyses"]["breakdown"]["notes"]
    code, out, _ = ran("compare", run, tmp_path / "tables")
    assert code == 3
    assert "components are not compared: expected the same rules" in " ".join(out.split())
    assert ran("compare", run, tmp_path / "tables", "--names", rules)[0] == 0


def test_the_page_says_what_the_rules_changed(ran, run, rules, tmp_path):
    code, _, _ = ran("report", run, "--names", rules, "-o", tmp_path / "page.html")
    assert code == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "1 of 2 rules name 30.0 % of op time" in text.partition("<section")[2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected a YAML list of rules, found none"),
        ("[]", "expected a YAML list of rules, found none"),
        (
            "component: router",
            "expected a YAML list of rules, found keys and values without a list",
        ),
        ("- router", "rule 1: expected keys and values, found 'router'"),
        ("- {component: rooter, op: x}", "component: expected a part, as router"),
        ("- {component: [router], op: x}", "component: expected a text, found ['router']"),
        ("- {component: router, scop: x}", "rule 1: expected scope, found the key 'scop'"),
        ("- {component: router, kernel: x}", "found the key 'kernel'"),
        ("- {op: x}", "rule 1: expected the key component, found none"),
        ("- {component: router}", "expected one of scope, function, source and op, found none"),
        ("- {component: [router, norm], op: x}", "Write one rule per component."),
        ("- {component: router, op: 12}", "op: expected a text, found 12. Put it in ''."),
        ("- {component: router, op: 2026-01-01}", "found 2026-01-01. Put it in ''."),
        ("- {component: router, op: null}", "found nothing. Give a text, or leave the key out."),
        ("- {component: router, op: ''}", "found ''. Give a text, or leave the key out."),
        ("- {component: router, op: [a, b]}", "found ['a', 'b']. Write one rule for each."),
        ("- {component: yes, op: x}", "found yes or true. Give the name of a component."),
        ("- {component: router, op: x, op: y}", "found damage in line 1, column 3: key op twice"),
        ("- {component: router, scope: '('}", "scope: expected a regular expression, found '('"),
        ("- {component: router, source: 'a.py:b'}", "source: expected file.py, file.py:12 or"),
        (
            "- {component: router",
            "column 21: look at indentation, quotes and brackets",
        ),
        ("- {component: norm, op: x}\n- {component: norm}", "rule 2: expected one of scope"),
        ("- {component: router, op: *x}", "a text that begins with *; put it in ''"),
        ("- !!python/object:os.x {}", "column 3: a tag (!…), which rules have none of"),
        ("- {component: norm, op: x}\n---\n- {}", "line 2, column 1: a second document"),
        (
            "- {component: r, op: x}\n- {component: norm, op: 1, x: 2}",
            "rule 1: component: expected a part, as router",
        ),
        (
            "- {component: r, op: x}\n- {component: norm, op: 1, x: 2}",
            "; rule 2: op: expected a text, found 1; rule 2: expected component, scope, function, "
            "source, op, found the key 'x'. Correct the rule. Put it in ''. Correct the key.",
        ),
        ("- {op: 1}\n" * 4, "; rule 3: op: expected a text, found 1; and 3 more. Put it"),
        ("- {component: router, ? [a, b] : x}", "found damage"),
        ("- {component: router, ? {a: b} : x}", "found damage"),
    ],
)
def test_a_bad_file_is_one_line(ran, run, rules, text, expected):
    rules.write_text(text, encoding="utf-8")
    code, out, err = ran("analyze", run, "--names", rules)
    assert (code, out) == (1, "")
    assert err.startswith(f"moeprof: {rules}: ")
    assert expected in err
    assert len(err.splitlines()) == 1


def test_the_note_on_rules_stands_once_with_the_titles_of_the_bars(ran, run, rules):
    rules.write_text("- {component: grouped_gemm, op: second}", encoding="utf-8")
    out = " ".join(ran("analyze", run, "--names", rules)[1].split())
    assert out.count("names.yml: ") == 1
    assert "changed: attention → grouped GEMM 30.0 %" in out
    out = " ".join(ran("compare", run, run, "--names", rules)[1].split())
    assert out.count("names.yml: ") == 1
    assert "base and new: names.yml: 1 of 1 rules" in out


def test_an_op_can_be_replayed_by_the_name_of_a_rule(ran, run, rules, tmp_path):
    script = tmp_path / "op.py"
    words = ["replay", run, "--op", "router", "--no-run", "-o", script]
    assert ran(*words)[0] == 2
    code, out, _ = ran(*words, "--names", rules)
    assert code == 0, out
    assert "second" in out


def test_rules_name_the_parts_of_a_measured_pipeline(ran, run, rules):
    code, out, _ = ran("pipeline", "--run", run, "--names", rules, "--json")
    assert code == 0
    assert json.loads(out)["arguments"] == ["--run", str(run), "--names", str(rules)]
    code, _, err = ran("pipeline", "--stages", 2, "--microbatches", 2, "--names", rules)
    assert code == 2
    assert "--names is for the parts of a run" in err


def test_rules_are_not_read_from_standard_input(ran, run):
    code, _, err = ran("analyze", run, "--names", "-")
    assert code == 2
    assert "rules are not read from standard input; give a file." in err


def test_a_missing_file_is_one_line_of_every_command(ran, run, tmp_path):
    missing = tmp_path / "none.yml"
    for command in (
        ["analyze", run],
        ["report", run],
        ["compare", run, run],
        ["export", run, "--tables", tmp_path / "out"],
        ["view", run],
        ["replay", run, "--op", "router", "--no-run", "-o", tmp_path / "op.py"],
        ["pipeline", "--run", run],
        ["capture", "--out", tmp_path / "new", run],
    ):
        name, *words = command
        code, out, err = ran(name, "--names", missing, *words)
        assert (code, out) == (1, "")
        assert err == (f"moeprof: {missing}: expected a YAML list of rules, found no such file.\n")
