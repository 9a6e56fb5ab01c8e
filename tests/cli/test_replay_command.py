import json

import pytest
from builders.work import hlo, kernel, traced
from click.testing import CliRunner, Result

from moeprof.cli.main import group
from moeprof.errors import ReplayError, SelectionError


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


NAMES = ("ragged-all-to-all.4.2", "ragged-all-to-all.3.2", "add")


@pytest.fixture
def cut(monkeypatch, tmp_path):
    """A run of ops whose names a narrow table cuts."""
    ops = [hlo(n, "add", "x x", shape="f32[8]", op_name=f"jit(f)/moe/{n}/add") for n in NAMES]
    ops.append(hlo("x", "parameter", shape="f32[8]", size_bytes=32))
    work = [kernel(name, 10 * place, 5 + place) for place, name in enumerate(NAMES)]
    trace = traced(work, ops, {0: (0, 100)})
    monkeypatch.setattr("moeprof.ingest.open_run", lambda *_, **__: trace)
    return tmp_path


@pytest.mark.parametrize("name", ["ragged-a….4.2", "…-all.4.2", "ragged-all-to-all.4…", NAMES[0]])
def test_a_cut_name_that_fits_one_op_is_that_op(cut, name):
    done = run(cut, "--op", name, "-o", cut / "again.py", "--no-run", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["op"]["op"] == NAMES[0]


def test_a_cut_scope_is_that_scope(cut):
    done = run(cut, "--op", "jit(f)/m…4.2/add", "-o", cut / "again.py", "--no-run", "--json")
    assert json.loads(done.stdout)["op"]["op"] == NAMES[0]


def test_a_cut_name_that_fits_several_ops_lists_them_in_one_line(cut):
    done = run(cut, "--op", "ragged-a….2", "--no-run", "-o", cut / "again.py")
    assert isinstance(done.exception, SelectionError)
    said = str(done.exception)
    assert "\n" not in said
    assert said.startswith("'ragged-a….2' is cut, and 2 ops fit it")
    assert all(name in said for name in NAMES[:2])


def test_a_cut_name_that_fits_nothing_is_told_as_any_other(cut):
    done = run(cut, "--op", "send…7", "--no-run", "-o", cut / "again.py")
    assert "no op that ran is called 'send…7'" in str(done.exception)
