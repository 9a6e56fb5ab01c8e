"""`--csv`: the rows of one table, as JSON has them."""

from __future__ import annotations

import csv
import io
import json

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import event, host, line, metadata, thunk, xspace

from moeprof.cli.compare import CSV_TABLES

PROGRAM = hlo_proto(computation("main", op("add", "add", "f32[8]", op_name='jit(f)/"a,b"/add')))


@pytest.fixture
def runs(tmp_path):
    """Two runs of four steps, one half as fast."""
    made = []
    for name, length in (("base", 1000), ("new", 2000)):
        work = [thunk("add", 10_000 * place + 10, length, run_id=place) for place in range(4)]
        made.append(tmp_path / f"{name}.xplane.pb")
        made[-1].write_bytes(xspace(metadata(p7=PROGRAM), host(line("pool", *work))))
    return made


def read(out: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(out)))


def as_text(value: object) -> str:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("name", ["ops", "step_time", "timeline", "one_step"])
def test_rows_and_column_names_are_those_of_json(ran, runs, name):
    code, out, err = ran("analyze", runs[0], "--only", name, "--csv")
    assert (code, err) == (0, "")
    document = json.loads(ran("analyze", runs[0], "--only", name, "--json")[1])
    if name in document["analyses"]:
        rows = document["analyses"][name]["rows"]
        assert read(out) == [{key: as_text(cell) for key, cell in row.items()} for row in rows]
    else:
        assert list(read(out)[0]) == list(document["drawings"][name]["data"])


def test_rows_limit_the_csv_too(ran, runs):
    out = ran("analyze", runs[0], "--only", "step_time", "--csv", "--rows", "2")[1]
    assert len(read(out)) == 2


def test_withheld_figures_are_empty_and_the_exit_code_stays(ran, tmp_path):
    file = tmp_path / "node0.xplane.pb"  # a host plane alone
    file.write_bytes(xspace(metadata(p7=PROGRAM), host(line("python", event("train", 1, 9)))))
    code, out, err = ran("analyze", file, "--only", "breakdown", "--csv")
    assert code == 3
    assert len(out.splitlines()) == 1
    assert out.startswith("layer_kind,component,")
    assert "no device events" in err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), "found none"),
        (("--only", "ops", "--only", "memory"), "found --only ops, --only memory"),
        (("--only", "ops", "--json"), "expected one of them, found both"),
    ],
)
def test_csv_is_of_one_question(ran, runs, words, found):
    code, out, err = ran("analyze", runs[0], "--csv", *words)
    assert (code, out) == (2, "")
    assert found in " ".join(err.split())


def test_compare_writes_a_table_of_its_json(ran, runs):
    code, out, _ = ran("compare", *runs, "--csv", "rows")
    assert code == 0
    document = json.loads(ran("compare", *runs, "--json")[1])
    assert set(CSV_TABLES) == {name for name, part in document.items() if is_table(part)}
    rows = document["rows"]["rows"]
    assert read(out) == [{key: as_text(cell) for key, cell in row.items()} for row in rows]


def is_table(part: object) -> bool:
    return isinstance(part, dict) and set(part) == {"columns", "rows"}


def test_a_gate_fails_beside_csv(ran, runs):
    code, out, _ = ran("compare", *runs, "--csv", "step", "--fail-on", "compute>+5%")
    assert code == 4
    assert read(out)
    code, out, err = ran("compare", *runs, "--csv", "step", "--json")
    assert (code, out) == (2, "")
    assert "found both" in err
