"""What runs in the place of a function is that function's own, and no half of a step is kept."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from moeprof.recording import routing
from moeprof.recording.choices import auto, stand_in
from moeprof.recording.choices.outputs import Chosen
from moeprof.recording.options import RUN_DIR_VARIABLE, CaptureOptions
from moeprof.recording.steps import Phase, StepCounter, Track, WindowPlan

from . import models

LAYER = {name: stack[0] for name, stack in models.stacks(models.parameters()).items()}
OTHER = {name: stack[1] for name, stack in models.stacks(models.parameters()).items()}


class Script:
    """Calls functions as a script under capture does, within the window."""

    def __init__(self, folder):
        self.said = []
        self.counter = StepCounter(WindowPlan(0, 3))
        self.counter.tracks["step"] = Track("step", number=0)
        self.counter.source, self.counter.phase = "step", Phase.RECORDING
        options = CaptureOptions(folder, routing="auto")
        self.routing = auto.AutoRouting(options, self.counter, self, lambda *_: None)

    def send(self, event, facts):
        self.said.append(facts["text"])

    def call(self, function, *arguments, key="key"):
        given = arguments, {}
        instead = self.routing.in_place_of(key, key, function, given)
        return (instead or function)(*arguments)

    def kept(self):
        return [entry for log in routing._LOGS.values() for entry in log.pending]


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(tmp_path))
    monkeypatch.setattr(routing, "_LOGS", {})
    monkeypatch.setattr(routing, "_prepare_exit", lambda: None)
    return Script(tmp_path)


def forward(scale):
    return jax.jit(lambda x, layer: scale * models.layer(x, layer)[0])


def training(x, layer):
    return jax.grad(lambda layer: models.layer(x, layer)[0].sum())(layer)


@pytest.mark.parametrize("one", [models.scanned, models.unrolled], ids=["scan", "unrolled"])
def test_results_are_those_of_the_step_and_its_arguments_are_donated(one):
    """To the last bit, as compiled for users."""
    x = models.batch()
    plain = models.step_of(one)(models.parameters(), x)
    *_, oracle = models.step_of(one, returns_indices=True)(models.parameters(), x)
    weights = models.parameters()
    found = stand_in.stand_in_for(models.step_of(one), ((weights, x), {}))
    results, indices = found(found.leaves(((weights, x), {})))
    chosen = Chosen(found.layout)
    chosen.add(indices)
    assert np.asarray(chosen).tolist() == models.counted(oracle).tolist()
    jax.tree.map(np.testing.assert_array_equal, results, plain)
    assert all(value.is_deleted() for value in jax.tree.leaves(weights))


def test_calls_of_one_step_are_added_up(script):
    step, x = forward(1.0), models.batch()
    for _ in range(4):
        script.call(step, x, LAYER)
    (entry,) = script.kept()
    counts = np.asarray(entry.tokens_per_expert)
    assert counts.tolist() == (2 * models.counted(models.layer(x, LAYER)[1][None])).tolist()


def test_another_function_from_the_same_line_runs_as_itself(script):
    one, other, x = forward(1.0), forward(2.0), models.batch()
    for _ in range(3):
        script.call(one, x, LAYER)
    result = script.call(other, x, LAYER)
    np.testing.assert_array_equal(result, other(x, LAYER))
    assert script.said[-1] == "routing: not recorded: key is jitted more than once"
    assert not script.kept()


def test_one_function_for_several_layers_is_no_layer(script):
    step, x = forward(1.0), models.batch()
    for layer in (LAYER, OTHER, LAYER, OTHER):
        script.call(step, x, layer)
    assert script.said[-1].endswith("one function computes several layers, each in a call")
    assert not script.kept()


def test_two_functions_that_train_experts_leave_no_half_table(script):
    one, other, x = jax.jit(training), jax.jit(lambda *a: training(*a)), models.batch()
    for _ in range(3):
        script.call(one, x, LAYER)
        script.call(other, x, LAYER, key="other")
    assert script.said[-1] == "routing: not recorded: key and other both choose experts"
    assert not script.kept()


def test_a_function_that_only_computes_makes_way_for_one_that_trains(script):
    evaluate, step, x = forward(1.0), jax.jit(training), models.batch()
    for _ in range(3):
        script.call(evaluate, x, LAYER, key="evaluate")
    for _ in range(3):
        script.call(step, x, LAYER, key="train")
    assert "routing: train runs with the indices" in script.said[-1]
    script.call(evaluate, x, LAYER, key="evaluate")
    (*_, entry) = script.kept()
    assert np.asarray(entry.tokens_per_expert).sum() == models.TOKENS * models.TOP


def test_a_function_that_is_differentiated_from_outside_runs_as_itself(script):
    step, x = forward(1.0), models.batch()
    for _ in range(3):
        script.call(step, x, LAYER)
    slope = jax.grad(lambda x: script.call(step, x, LAYER).sum())(x)
    np.testing.assert_allclose(slope, jax.grad(lambda x: step(x, LAYER).sum())(x))
    assert script.said[-1] == "routing: not recorded: key was called with other arguments"


def failing(*_):
    raise KeyError("num_consts\nand a second line")


@pytest.mark.parametrize("part", ["_traced", "find", "layout_of", "with_outputs"])
def test_whatever_fails_in_finding_the_function_runs_and_a_line_says_so(script, monkeypatch, part):
    monkeypatch.setattr(stand_in, part, failing)
    step, x = forward(1.0), models.batch()
    for _ in range(4):
        np.testing.assert_array_equal(script.call(step, x, LAYER), step(x, LAYER))
    script.routing.finish()
    (line,) = script.said
    assert line == "routing: not recorded: KeyError: 'num_consts\\nand a second line' (key)"


@pytest.mark.parametrize("part", ["_decide", "_take", "_leaves", "_keep"])
def test_whatever_fails_around_a_call_the_function_runs_and_a_line_says_so(
    script, monkeypatch, part
):
    monkeypatch.setattr(auto.AutoRouting, part, failing)
    step, x = forward(1.0), models.batch()
    for _ in range(4):
        np.testing.assert_array_equal(script.call(step, x, LAYER), step(x, LAYER))
    script.routing.finish()
    assert "routing: not recorded: KeyError: " in script.said[-1]
    assert not script.kept()


def test_a_rewritten_step_that_fails_gives_way_to_the_step(script, monkeypatch):
    monkeypatch.setattr(stand_in.StandIn, "__call__", failing)
    step, x = forward(1.0), models.batch()
    for _ in range(4):
        np.testing.assert_array_equal(script.call(step, x, LAYER), step(x, LAYER))
    assert "not recorded: the step with its indices failed: KeyError: " in script.said[-1]
