"""Which program a command runs: a module, MaxText, the command of a captured run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moeprof.errors import CompileError, TraceError
from moeprof.interpreter import module_file
from moeprof.projector.any_step.command import (
    Command,
    maxtext_notes,
    plan_maxtext,
    recorded_command,
    words_to_plan,
)
from moeprof.projector.any_step.script import run_script
from moeprof.projector.batches import tried_sizes
from moeprof.specs.sources.maxtext_command import configuration

RUN = str(Path(__file__).parents[2] / "data" / "maxtext_configs" / "run.yml")
MODULE = """
import sys, jax
from pkg import LEFT
assert __name__ == "__main__" and __package__ == "pkg", (__name__, __package__)
assert [device.slice_index for device in jax.devices()] == [0] * 8 + [1] * 8
sys.exit(LEFT + len(sys.argv))
"""


def test_a_module_runs_in_its_package_with_each_host_a_slice(plugin, tmp_path, monkeypatch):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("LEFT = 40")
    (tmp_path / "pkg" / "train.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert module_file("pkg.train") == tmp_path / "pkg" / "train.py"
    assert module_file("pkg.nothing") is None
    request = {
        "script": str(tmp_path / "pkg" / "train.py"),
        "module": "pkg.train",
        "arguments": ["--lr", "1"],
        "hardware": "h100_sxm",
        "devices": 16,
        "pool_bytes": 2**30,
        "programs": 8,
        "seconds": 60.0,
    }
    assert "exit code 43" in run_script(request, tmp_path)["error"]


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["-m", "pkg.train", "--lr", "1"], Command("pkg.train", True, ("--lr", "1"))),
        (["-u", "-X", "dev", "train.py", "-m"], Command("train.py", False, ("-m",))),
    ],
)
def test_the_command_of_a_run_is_that_of_its_record(tmp_path, argv, command):
    devices = [{"id": 0, "kind": "NVIDIA H200", "platform": "gpu"}]
    process = {"process_index": 0, "global_devices": 16, "devices": devices}
    meta = {"schema": "moeprof.run/1", "argv": ["python", *argv], "processes": [process]}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    found = recorded_command(tmp_path)
    assert (found.target, found.is_module, found.arguments) == (
        command.target, command.is_module, command.arguments,
    )  # fmt: skip
    assert (found.devices, found.hardware) == (16, "h200_sxm")


@pytest.mark.parametrize("number", [True, 0, -1, "8", None])
def test_a_number_of_devices_that_is_none_is_not_taken(tmp_path, number):
    process = {"process_index": 0, "global_devices": number, "devices": []}
    meta = {"schema": "moeprof.run/1", "argv": ["python", "a.py"], "processes": [process]}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    assert recorded_command(tmp_path).devices is None


@pytest.mark.parametrize(
    "meta",
    [None, {"schema": "moeprof.run/1"}, {"schema": "moeprof.run/1", "argv": ["python", "-c", "1"]},
     {"schema": "moeprof.run/1", "argv": ["python", "-m"]}],
)  # fmt: skip
def test_a_run_without_the_command_of_a_script_is_one_line(tmp_path, meta):
    if meta is not None:
        (tmp_path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(TraceError, match="expected the command of a script in"):
        recorded_command(tmp_path)


def test_a_run_that_is_not_there_or_damaged_is_one_line_as_with_other_commands(tmp_path):
    with pytest.raises(TraceError, match="none: no such file or folder"):
        recorded_command(tmp_path / "none")
    (tmp_path / "meta.json").write_text("{broken")
    with pytest.raises(TraceError, match=r"meta\.json, found damage: meta\.json is not JSON"):
        recorded_command(tmp_path)


@pytest.mark.parametrize(
    ("target", "is_module", "arguments", "words"),
    [
        ("maxtext.trainers.pre_train.train", True, ("a.yml", "b=1"), ("a.yml", "b=1")),
        ("maxtext.trainers.pre_train.train", True, ("b=1",), ("base.yml", "b=1")),
        ("/x/maxtext/trainers/pre_train/train.py", False, ("a.yml",), ("a.yml",)),
        ("train.py", False, ("a.yml",), ()),
        ("pkg.train", True, ("a.yml",), ()),
    ],
)
def test_maxtexts_training_is_known_by_its_module_and_its_file(target, is_module, arguments, words):
    assert Command(target, is_module, arguments).maxtext == words


def test_maxtext_is_given_what_keeps_it_from_data_files_and_other_hosts():
    words = ("attention=cudnn_flash_te", "dataset_type=grain", "run_name=a", "M=1")
    found = configuration((RUN, *words[:3]), {})
    changed = words_to_plan(found)
    assert changed["attention"] == "flash"
    assert (changed["dataset_type"], changed["hardware"]) == ("synthetic", "gpu")
    assert changed["enable_checkpointing"] is False
    assert "run_name" not in changed
    notes = " ".join(maxtext_notes(found, changed))
    assert "attention=cudnn_flash_te: NVIDIA's kernel cannot be compiled" in notes
    assert "dataset_type grain: synthetic here" in notes
    own = configuration((RUN, "hardware=gpu_multiprocess"), {})
    assert words_to_plan(own)["run_name"] == "plan"
    assert words_to_plan(own).keys().isdisjoint({"attention", "hardware", "dataset_type"})


def test_attention_that_nothing_stands_in_for_is_one_line(monkeypatch):
    monkeypatch.setattr("moeprof.projector.any_step.command.installed_maxtext", lambda: True)
    words = (RUN, "attention=cudnn_flash_te", "attention_sink=True")
    with pytest.raises(CompileError, match="attention=cudnn_flash_te with attention_sink: NVIDIA"):
        plan_maxtext(words, devices=8)


def test_without_maxtext_there_is_one_line_on_what_to_install():
    with pytest.raises(
        CompileError, match=r"expected MaxText in the environment of .*, found none"
    ):
        plan_maxtext((RUN,), devices=8)


@pytest.mark.parametrize(
    ("start", "largest", "tried"),
    [
        (16, 16, [16, 20, 18, 17]),
        (16, 5, [16, 8, 4, 6, 5]),
        (16, 0, [16, 8, 4, 2, 1]),
        (1, 2, [1, 2, 3]),
        (64, 1000, [64, 80, 100, 125, 156, 195]),
    ],
)
def test_batches_are_tried_until_the_largest_that_fits_is_known(start, largest, tried):
    found = list(tried_sizes(start, lambda size: "fits" if size <= largest else "oom"))
    assert [size for size, _ in found] == tried
    assert all((verdict == "fits") == (size <= largest) for size, verdict in found)
