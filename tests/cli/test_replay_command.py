import json

import pytest
from builders.work import hlo, kernel, traced
from click.testing import CliRunner, Result

from moeprof.cli.main import group
from moeprof.errors import ReplayError


@pytest.fixture
def stored(monkeypatch, tmp_path):
    """A run of one product of 2 µs, and of one sort that has no translation."""
    shape = {"shape": "f32[8,8]", "size_bytes": 256}
    dims = "lhs_contracting=1 rhs_contracting=0"
    ops = [
        hlo("x", "parameter", **shape),
        hlo("product", "dot", "x x", **shape, details=dims, op_name="jit(f)/moe/experts/dot"),
        hlo("shaped", "fft", "x", **shape),
    ]
    trace = traced([kernel("product", 0, 2000), kernel("shaped", 2000, 5)], ops, {0: (0, 2005)})
    monkeypatch.setattr("moeprof.ingest.open_run", lambda *_, **__: trace)
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["replay", *map(str, arguments)])


def test_a_script_is_written_and_run(stored, tmp_path):
    done = run(stored, "--op", "product", "-o", tmp_path / "again.py")
    assert done.exit_code == 0, done.output
    assert "Traced    2.000 µs, median of 1 calls" in done.stdout
    assert "Replayed  " in done.stdout
    assert "lax.dot_general(x, x, (((1,), (0,)), ((), ()))" in (tmp_path / "again.py").read_text()


def test_the_same_as_json_without_running_it(stored, tmp_path):
    file = tmp_path / "again.py"
    done = run(stored, "--op", "moe/experts", "-o", file, "--no-run", "--json")
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    assert document["schema"] == "moeprof.replay/1"
    assert (document["op"]["op"], document["op"]["median_ns"]) == ("product", 2000)
    assert (document["script"], document["replayed"]) == (str(file), None)
    assert document["input_bytes"] == 256


def test_nothing_is_written_where_an_op_has_no_translation(stored, tmp_path):
    done = run(stored, "--op", "shaped", "-o", tmp_path / "again.py")
    assert isinstance(done.exception, ReplayError)
    assert str(done.exception) == "shaped has opcode fft, which has no translation"
    assert not (tmp_path / "again.py").exists()


def test_neither_written_nor_run_is_wrong_usage(stored):
    assert run(stored, "--op", "product", "--no-run").exit_code == 2
