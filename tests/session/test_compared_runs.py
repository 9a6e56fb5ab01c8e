"""Two runs compared in Python: what the command says, and gates."""

from __future__ import annotations

import json

import pytest
from session.conftest import DEEPEP, GMM

import moeprof
from moeprof.errors import SpecError


@pytest.fixture(scope="module")
def compared(gmm, deepep):
    return moeprof.compare(gmm, deepep)


def test_it_is_what_the_command_prints(compared, printed):
    asked = ("compare", GMM, DEEPEP)
    assert compared.to_json() == printed(*asked, "--json").removesuffix("\n")
    assert str(compared) == printed(*asked).rstrip("\n")


def test_runs_and_paths_do_alike(compared, gmm):
    assert moeprof.compare(gmm, str(DEEPEP)).to_json() == compared.to_json()


def test_its_tables_are_those_of_the_document(compared):
    document = json.loads(compared.to_json())
    tables = {
        "rows": compared.table,
        "step": compared.step,
        "memory": compared.memory,
        "settings": compared.settings,
    }
    for name, table in tables.items():
        found = document[name]
        assert len(table) == len(found["rows"])
        assert table.attrs["units"] == {each["name"]: each["unit"] for each in found["columns"]}
    assert list(compared.notes) == document["notes"]
    assert compared.is_whole
    assert compared.step["noise_ns"].dtype == "float64"  # not known of a single interval


def test_the_step_is_the_sum_of_its_parts(compared):
    step = compared.step.set_index("part")
    change = step["new_ns"] - step["base_ns"]
    assert change.drop("step").sum() == pytest.approx(change["step"])


def test_gates_are_those_of_the_command(compared, printed):
    gates = {
        "step>+2%": "passed",
        "step>-20%": "failed",
        "idle>+1ms": "failed",
        "memory>+0.5GiB": "passed",
    }
    found = [compared.check(gate) for gate in gates]
    assert [each["verdict"] for each in found] == list(gates.values())
    words = [word for gate in gates for word in ("--fail-on", gate)]
    assert json.loads(printed("compare", GMM, DEEPEP, "--json", *words, code=4))["gates"] == found


@pytest.mark.parametrize("gate", ["", "step", "steps>+2%", "step>+2GiB"])
def test_a_gate_that_cannot_be_is_one_line(compared, gate):
    with pytest.raises(SpecError) as error:
        compared.check(gate)
    assert str(error.value).startswith(f"gate '{gate}'")
    assert "\n" not in str(error.value)


def test_the_report_is_the_page_of_the_command(compared, printed, tmp_path):
    page = compared.report(tmp_path / "python.html")
    printed("compare", GMM, DEEPEP, "--html", tmp_path / "command.html")
    assert page.read_bytes() == (tmp_path / "command.html").read_bytes()
    with pytest.raises(moeprof.MoeprofError, match="Give another one with path="):
        compared.report(tmp_path / "nowhere" / "page.html")


def test_it_reads_in_a_notebook(compared):
    assert repr(compared) == f"<moeprof comparison of {str(GMM)!r} with {str(DEEPEP)!r}>"
    assert "step 18.40 → 16.78 ms" in compared._repr_html_()


def test_a_path_that_is_not_there_is_one_line(deepep, tmp_path):
    with pytest.raises(moeprof.MoeprofError, match="no such file or folder"):
        moeprof.compare(deepep, tmp_path / "gone")
