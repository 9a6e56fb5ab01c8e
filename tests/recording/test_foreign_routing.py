"""A run that records no routing itself: `moeprof capture --routing auto` does."""

from __future__ import annotations

import ast
import re
import subprocess

import jax
import numpy as np
import pytest
from builders import processes, quick
from builders.sessions import read_routing

import moeprof
from moeprof.errors import CaptureError
from moeprof.ingest.sources.beside import Beside
from moeprof.ingest.sources.routing import routing_of_run
from moeprof.recording.choices import stand_in

from .choices import models
from .running import SCRIPTS, command_line, environment
from .test_several_processes import free_port

pytestmark = pytest.mark.quick


def chosen(stdout):
    """Counts that the script printed, by step."""
    lines = re.findall(r"step (\d+) .* chose (.*)", stdout)
    return {int(step): np.array(ast.literal_eval(counts)) for step, counts in lines}


def recorded(run_dir):
    """Counts of the run's table, by step."""
    table, _ = read_routing(run_dir)
    return {
        step: rows.pivot(index="layer", columns="expert", values="tokens").to_numpy()
        for step, rows in table.groupby("step")
    }


def losses(stdout):
    return re.findall(r"loss (\S+)", stdout)


def quickly():
    """For runs whose losses are compared with nothing: compiling them is most of their time."""
    return {"XLA_FLAGS": quick.flags()}


def test_counts_are_the_models_own_and_losses_stay(capture):
    eight = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    ran = capture("foreign_moe.py", "12", options=("--routing", "auto"), env=eight)
    assert ran.exit_code == 0
    told, table = chosen(ran.stdout), recorded(ran.run_dir)
    assert len(table) == ran.window["steps"] == 3
    assert min(table) == ran.window["first_step"]
    for step, counts in table.items():
        assert counts.tolist() == told[step].tolist()
    assert (
        "routing: update runs with the indices of its routers as further results until the window "
        "closes: 2 layer(s), top 2 of 4 experts, 256 bytes a call over all devices"
    ) in ran.stderr
    plain = capture("foreign_moe.py", "12", env=eight, name="plain")
    assert losses(plain.stdout) == losses(ran.stdout)
    assert not (plain.run_dir / "routing").exists()
    assert "routing" not in plain.stderr


def test_a_model_without_experts_has_no_table_and_a_line_says_why(capture):
    ran = capture(
        "foreign_moe.py", "12", "vocabulary", options=("--routing", "auto"), env=quickly()
    )
    assert "routing: none found: nothing in it chooses the largest (update)" in ran.stderr
    assert not (ran.run_dir / "routing").exists()


def test_what_the_script_records_itself_is_left_to_it(capture):
    ran = capture("records_routing.py", "12", options=("--routing", "auto"), env=quickly())
    assert "routing: the script records it itself: left to it (train_step)" in ran.stderr
    assert [counts.tolist() for counts in recorded(ran.run_dir).values()] == [[[2] * 4]] * 12


def test_a_finder_that_fails_leaves_the_training_as_it_is(capture):
    ran = capture("broken_finder.py", "12", options=("--routing", "auto"), env=quickly())
    assert ran.exit_code == 0
    assert len(losses(ran.stdout)) == 12
    assert ran.window["steps"] == 3
    assert "routing: not recorded: KeyError: 'num_consts' (update)" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not (ran.run_dir / "routing").exists()


def launched(run_dir):
    port = str(free_port())
    options = "--no-report", "--out", run_dir, "--steps", "3", "--routing", "auto"
    commands = [command_line(*options, "foreign_moe.py", "12", rank, port) for rank in ("0", "1")]
    settings = {"cwd": SCRIPTS, "env": environment(MOEPROF_LAUNCH_ID="one launch", **quickly())}
    with processes.all_started(commands, stdout=subprocess.PIPE, **settings) as ranks:
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return outputs


def test_processes_count_their_own_tokens_and_the_sum_is_the_batch(tmp_path):
    told = [chosen(output) for output in launched(tmp_path / "run")]
    table = recorded(tmp_path / "run")
    assert len(table) == 3
    for step, counts in table.items():
        assert counts.sum() == 2 * 16 * 2  # layers, tokens, experts of each
        assert counts.tolist() == (told[0][step] + told[1][step]).tolist()
    (tmp_path / "run" / "routing" / "p1.parquet").unlink()
    found = routing_of_run(tmp_path / "run", Beside(tmp_path / "run"))
    assert not len(found.routing)
    assert found.faults == (
        "2 processes counted a part of the routing each, 1 table(s) are here: left out",
    )


def test_a_block_records_the_steps_that_were_jitted_in_it(tmp_path):
    told = []
    with moeprof.capture(tmp_path / "run", steps=2, routing="auto", say=told.append):
        step = models.step_of(models.scanned, returns_indices=True)
        weights, every = models.parameters(), []
        for _ in range(9):
            weights, _, indices = step(weights, models.batch())
            every.append(models.counted(indices))
    table = recorded(tmp_path / "run")
    assert len(table) == 2
    for number, counts in table.items():
        assert counts.tolist() == every[number].tolist()
    assert any("routing: step_of.<locals>.step runs with" in line for line in told)


def test_a_block_whose_finder_fails_trains_on(tmp_path, monkeypatch):
    def fail(_):
        raise KeyError("num_consts")

    monkeypatch.setattr(stand_in, "find", fail)
    told = []
    with moeprof.capture(tmp_path / "run", steps=1, routing="auto", say=told.append):
        step, weights, losses = models.step_of(models.scanned), models.parameters(), []
        for _ in range(8):
            weights, value = step(weights, models.batch())
            losses.append(float(value))
    assert len(losses) == 8
    assert np.isfinite(losses[0])
    assert any("routing: not recorded: KeyError: 'num_consts' (step_of" in line for line in told)
    assert (tmp_path / "run" / "meta.json").exists()


def test_a_block_says_that_it_saw_no_function_jitted_before(tmp_path):
    told = []
    double = jax.jit(lambda x: x * 2)
    with moeprof.capture(tmp_path / "run", steps=1, routing="auto", say=told.append):
        for _ in range(8):
            double(np.ones(3)).block_until_ready()
    assert any("none found: no function that was jitted under capture" in line for line in told)


def test_another_word_than_auto_is_refused():
    with pytest.raises(CaptureError, match="expected 'off' or 'auto', found 'all'"):
        moeprof.capture(routing="all")
