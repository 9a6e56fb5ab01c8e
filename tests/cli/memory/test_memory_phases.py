"""Phases beside the step, as a user asks for them and reads them."""

import json

import pytest
import yaml

import moeprof
from moeprof.reports.memory.page import memory_view, render
from tests.cli.memory.test_memory_config import YAML

RUN = ("--model", "deepseek_v3", "--ep", 8, "--fsdp", 8, "--pdbs", 1, "--strategy", "sparse-gmm")
OVER_AT_RESTORE = (
    *("--model", "qwen3_30b_a3b", "--ep", 8, "--hardware", "h100_sxm", "--pdbs", 1),
    *("--strategy", "dense-cf1.25", "--moment-dtype", "fp32", "--mem-fraction", 0.8),
)
"""30.5 B weights of 10 B on eight devices, 35.5 GiB: once they fit into 63.3, twice they do not."""


def shown(memory, *arguments: object) -> dict:
    code, out, _ = memory(*arguments, "--json")
    assert code == 0
    return json.loads(out)["rows"][0]


def test_a_restore_that_does_not_fit_decides_and_is_named(memory):
    row = shown(memory, *OVER_AT_RESTORE)
    phases = {one["name"]: one for one in row["phases"]}
    twice = phases["restore"]["args_bytes"] + phases["restore"]["temp_bytes"]
    assert (row["verdict"], row["largest_phase"]) == ("oom", "restore")
    assert row["breaks_first"] == "restore: made beside the restored: first moment"
    offload = next(one for one in row["levers"] if one["name"].startswith("offload of optimizer"))
    moments = sum(part["bytes"] for part in row["components"] if "moment" in part["name"])
    step_then = row["args_bytes"] + row["temp_bytes"] - moments  # then the step is the largest
    assert (offload["saved_bytes"], offload["verdict"]) == (twice - step_then, "fits")
    assert phases["step"]["verdict"] == "fits"
    assert phases["restore"]["temp_bytes"] == phases["start"]["args_bytes"]
    assert row["over_bytes"] == twice - row["pool_bytes"]
    text = memory(*OVER_AT_RESTORE)[1]
    assert "to restore a checkpoint: out of memory by" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("phases", ["start,evaluation,checkpoint", "step"])
def test_a_run_that_never_restores_says_so(memory, phases: str):
    row = shown(memory, *OVER_AT_RESTORE, "--phases", phases)
    assert (row["verdict"], row["largest_phase"]) == ("fits", "step")
    assert [one["name"] for one in row["phases"] if one["name"] != "step"] == [
        name for name in phases.split(",") if name != "step"
    ]


def test_the_memory_of_a_host_gives_it_a_verdict(memory):
    untold = shown(memory, *RUN, "--hardware", "mi355x")
    assert {one["host_verdict"] for one in untold["phases"]} == {None}
    assert untold["host"] == {"devices": 8, "memory_bytes": None}
    told = shown(memory, *RUN, "--hardware", "mi355x", "--host-memory", 512)
    verdicts = {one["name"]: one["host_verdict"] for one in told["phases"]}
    assert verdicts["checkpoint"] == "oom"
    assert verdicts["restore"] == "fits"
    assert told["verdict"] == "oom"
    assert told["breaks_first"] == "checkpoint, memory of the host: shards copied from the devices"
    text = memory(*RUN, "--hardware", "mi355x", "--host-memory", 512)[1]
    assert "of a host's 512.0 GiB to save a checkpoint: out of memory" in " ".join(text.split())
    assert "✗host" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--host-memory", 0), "host-memory: expected GiB above 0, found 0."),
        (
            ("--phases", "warm-up"),
            "--phases: expected some of start, restore, evaluation, checkpoint, step, all",
        ),
        (("--eval-pdbs", 0), "--eval-pdbs"),
    ],
)
def test_what_cannot_be_is_one_line(memory, arguments: tuple[object, ...], message: str):
    code, _, err = memory(*RUN, *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_maxtexts_own_options_are_taken(memory, tmp_path):
    path = tmp_path / "run.yml"
    more = {"enable_checkpointing": False, "eval_per_device_batch_size": 4.0}
    path.write_text(yaml.safe_dump(YAML | more))
    code, out, _ = memory("--model", path, "--pdbs", 1, "--strategy", "dense-cf1.25", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["inputs"]["phases"] == "start,evaluation"
    assert document["inputs"]["eval_pdbs"] == 4
    phases = {one["name"]: one for one in document["rows"][0]["phases"]}
    assert list(phases) == ["start", "step", "evaluation"]
    assert phases["evaluation"]["temp_bytes"] > 0


def test_python_has_phases_and_their_rows():
    found = moeprof.memory(
        "qwen3_30b_a3b", ep=8, hardware="h100_sxm", pdbs=1, strategy="dense-cf1.25",
        moment_dtype="fp32", mem_fraction=0.8,
    )  # fmt: skip
    table, rows = found.phases.set_index("name"), found.phase_rows
    assert list(table.index) == ["start", "restore", "step", "evaluation", "checkpoint"]
    assert (found.verdict, table.loc["restore", "verdict"]) == ("oom", "oom")
    of_restore = rows[rows["phase"].eq("restore")]
    for pool in ("args", "temp", "outside", "host"):
        size = of_restore.loc[of_restore["pool"].eq(pool), "size_bytes"].sum()
        assert size == table.loc["restore", f"{pool}_bytes"]
    assert rows["source"].str.len().gt(0).all()
    page = render(found.document)
    view = memory_view(found.document)
    assert view.phases is not None
    assert [row[0].text for row in view.phases.rows] == list(table.index)
    assert "phase-table" in page
    assert "phase-rows" in page


def test_a_search_leaves_out_plans_that_cannot_restore():
    """With EP 4 alone, on eight devices, a step of 69 GiB is borderline, two states are 85."""
    said = {
        "hardware": "h100_sxm",
        "ep": 4,
        "strategy": "dense-cf1.25",
        "pdbs": 1,
        "tp": 1,
        "cp": 1,
    }
    said |= {"fsdp": 1, "pp": 1}
    assert moeprof.search("qwen3_30b_a3b", 8, **said).fitting == 0
    assert moeprof.search("qwen3_30b_a3b", 8, phases="start", **said).fitting == 1


def test_a_phase_that_lacks_room_beside_the_pool_says_so(memory):
    """Restoring needs more than the step and fits the pool; 1 % of the device is left beside it."""
    code, out, _ = memory(
        "--model", "mixtral_8x7b", "--hardware", "h100_sxm", "--fsdp", 8, "--ep", 2,
        "--weight-dtype", "fp32", "--pdbs", 1, "--seq", 256, "--mem-fraction", 0.99,
        "--strategy", "sparse-gmm-deepep",
    )  # fmt: skip
    text = " ".join(out.split())
    assert code == 0
    assert "GiB to restore a checkpoint, but" in text
    assert "of the 0.8 GiB beside it: out of memory there." in text
    assert "by -" not in text
    assert "✗out" in text


@pytest.mark.parametrize(
    ("phases", "counted"),
    [
        (("start", "restore"), "start,restore"),
        (("start,", "restore"), "start,restore"),
        (("all",), "start,restore,evaluation,checkpoint"),
        (("step",), ""),
    ],
)
def test_phases_are_a_list_with_spaces_or_commas(memory, phases, counted):
    code, out, err = memory("--phases", *phases, *RUN, "--pdbs", 1, "--json")
    assert code == 0, err
    assert json.loads(out)["inputs"]["phases"] == counted
