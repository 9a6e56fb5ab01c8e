"""Planning in Python gives what the commands give, as values and tables."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

import moeprof
from moeprof.cli import main as command_line


@pytest.fixture(scope="module")
def planned() -> moeprof.MemoryPlan:
    return moeprof.memory(
        "deepseek_v3", hardware="mi355x", ep=8, fsdp=8, strategy="sparse-gmm", pdbs=[4, 8]
    )


@pytest.fixture
def printed(monkeypatch, capsys):
    """What the command prints."""

    def call(*arguments: object) -> str:
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr("sys.argv", ["moeprof", "memory", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        assert not ended.value.code
        return capsys.readouterr().out

    return call


def test_a_plan_is_what_the_command_prints(planned, printed):
    asked = ("--model", "deepseek_v3", "--hardware", "mi355x", "--ep", 8, "--fsdp", 8,
             "--strategy", "sparse-gmm", "--pdbs", "4,8")  # fmt: skip
    assert f"{planned}\n" == printed(*asked)
    document = json.loads(printed(*asked, "--json"))
    assert json.loads(planned.to_json()) == {**document, "arguments": []}


def test_components_sum_to_the_cell_that_is_shown(planned):
    assert planned.shown == ("sparse-gmm", 4)
    cell = planned.cells.set_index("pdbs").loc[4]
    assert planned.components["size_bytes"].sum() == cell["total_bytes"]
    assert planned.stages["total_bytes"].tolist() == [cell["total_bytes"]]


def test_verdicts_stand_beside_each_cell(planned):
    assert (planned.verdict, planned.fits) == ("fits", True)
    assert planned.cells["verdict"].tolist() == ["fits", "oom"]
    assert planned.largest_pdbs == {"sparse-gmm": 7}
    assert (planned.certainty["share"], planned.certainty["plans"]) == (0.1, 1)
    cell = planned.cells.set_index("pdbs").loc[4]
    inside = cell["args_bytes"] + cell["temp_bytes"]
    half = int(0.1 * cell["temp_bytes"])
    assert planned.range_bytes == (inside - half, inside + half)
    assert planned.levers["name"].iloc[0] == "CP 2, FSDP 4"
    assert repr(planned).startswith("<moeprof memory of 64 × AMD Instinct MI355X: sparse-gmm at")


def test_what_cannot_be_told_is_missing_and_has_no_verdict():
    found = moeprof.memory("mixtral_8x7b", ep=8, seq="unknown")
    assert (found.fits, found.verdict) == (None, "unknown")
    assert found.cells["total_bytes"].isna().all()
    assert len(found.levers) == 0


def test_whose_program_it_is_follows_from_the_device(planned):
    assert (planned.framework, planned.build) == ("maxtext", "rocm-26.2")
    assert moeprof.memory("mixtral_8x7b", ep=8, pdbs=1).build == "0.2.5"
    bundled = moeprof.memory("mixtral_8x7b", ep=8, pdbs=1, framework="bundled")
    assert (bundled.framework, bundled.build) == ("bundled", None)


def test_a_plan_does_not_change(planned):
    with pytest.raises(dataclasses.FrozenInstanceError):
        planned.document = {}


def test_options_that_are_none_are_not_said():
    assert moeprof.memory("mixtral_8x7b", ep=None, overload=None, pdbs=1).cells["pdbs"].eq(1).all()


def test_a_search_is_what_the_command_prints(printed):
    found = moeprof.search("qwen3_30b_a3b", 16, framework="megatron", top=3, pdbs=2, what_if=True)
    asked = ("search", "--model", "qwen3_30b_a3b", "--devices", 16, "--world", "megatron",
             "--top", 3, "--pdbs", 2, "--what-if")  # fmt: skip
    assert f"{found}\n" == printed(*asked)
    made = json.loads(printed(*asked, "--json"))
    assert json.loads(found.to_json()) == made | {"arguments": []}
    assert made["arguments"][:2] == ["--model", "qwen3_30b_a3b"]
    assert found.plans["rank"].tolist() == [1, 2, 3]
    assert found.rejected["plans"].sum() + found.fitting == found.considered
    assert found.what_if is not None


def test_a_search_that_finds_nothing_has_an_empty_table():
    found = moeprof.search("deepseek_v3", 1)
    assert (len(found.plans), found.fitting, found.what_if) == (0, 0, None)
    assert "seconds_high" in found.plans


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"fsdb": 8}, "fsdb: expected one of model, hardware, devices, ep, fsdp"),
        ({"ep": "8"}, "ep: expected a whole number of at least -1, found '8'"),
        ({"ep": -2}, "ep: expected a whole number of at least -1, found -2"),
        ({"devices": True}, "devices: expected a whole number of at least 1, found True"),
        ({"overload": "more"}, "overload: expected a number, found 'more'"),
        ({"world": "mars"}, "framework: expected one of maxtext, bundled, megatron"),
        ({"fused_loss": 1}, "fused_loss: expected True or False, found 1"),
        ({"framework": "mars"}, "framework: expected one of maxtext, bundled, megatron"),
        ({"strategy": ["sparse-gmm", "dense"]}, "strategy: expected dense-cfX"),
        ({"detail": "sparse-gmm@x"}, "expected STRATEGY@PDBS"),
    ],
)
def test_a_mistake_is_one_line(said, message):
    with pytest.raises(moeprof.MoeprofError) as told:
        moeprof.memory("deepseek_v3", **said)
    assert message in str(told.value)
    assert "\n" not in str(told.value)


def test_a_search_takes_whole_numbers_alone():
    with pytest.raises(moeprof.MoeprofError, match="top: expected a whole number"):
        moeprof.search("deepseek_v3", 8, top=0)


def test_planning_imports_no_pandas_before_a_table_is_asked_for(tmp_path: Path):
    code = (
        "import moeprof, sys; str(moeprof.memory('mixtral_8x7b', ep=8)); "
        "print({'pandas', 'jax', 'plotly'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["dp", "global_batch", "microbatches", "eval_pdbs", "pdbs", "seq"])
def test_numbers_that_no_run_has_are_refused(name):
    with pytest.raises(moeprof.MoeprofError, match=f"--{name.replace('_', '-')}: expected at most"):
        moeprof.memory("mixtral_8x7b", **{name: 10**30})
