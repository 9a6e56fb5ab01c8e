"""The bundled model counts tokens itself: the counts of its stand-in are the same."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from moeprof.model.data import batches
from moeprof.model.layout import build_mesh, put_batch
from moeprof.model.train import OptimizerSettings, init_state, make_job, make_step
from moeprof.recording.choices.outputs import Chosen
from moeprof.recording.choices.stand_in import stand_in_for
from moeprof.specs.plan import fill_plan
from moeprof.specs.presets import load_preset
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import parse_strategy

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("strategy", ["dense-cf1.25", "sparse-ragged-dot", "sparse-gmm"])
def test_counts_of_each_strategy(strategy):
    model = dataclasses.replace(load_preset("small", None), layers=3)
    plan = fill_plan(8, fsdp=4, expert=2, remat=Remat("full"))
    mesh = build_mesh(plan, model)
    settings = OptimizerSettings(learning_rate=1e-3)
    job = make_job(model, plan, parse_strategy(strategy), mesh)
    state = init_state(job, mesh, seed=0, settings=settings)
    batch = put_batch(next(batches(plan.devices, 16, seed=0)), mesh)
    arguments = (state, batch), {}
    found = stand_in_for(make_step(job, mesh, settings), arguments)
    assert found.layout.ranks == 2
    (_, report), indices = found(found.leaves(arguments))
    chosen = Chosen(found.layout)
    chosen.add(indices)
    assert np.asarray(chosen).tolist() == np.asarray(report.tokens_per_expert).tolist()
