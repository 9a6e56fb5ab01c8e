"""Runs whose hot rank moves from step to step, or stays."""

from __future__ import annotations

import pytest

from moeprof.analyzers.questions.expert_load import expert_load
from moeprof.analyzers.questions.hints import hints
from moeprof.ingest import open_run


@pytest.mark.parametrize(("name", "sums"), [("moves", (1.0, 1.1)), ("stays", (2.2, 2.6))])
def test_every_step_waits_for_its_own_hot_rank(data, name, sums):
    trace = open_run(data / "cases" / "moving_hot_spot" / name)
    found = expert_load(trace)
    row = found.table.iloc[0]
    assert row[["rank_imbalance", "expert_imbalance"]].tolist() == pytest.approx([2.2, 2.6])
    of_sums = row[["rank_imbalance_of_sums", "expert_imbalance_of_sums"]]
    assert of_sums.tolist() == pytest.approx(sums)
    head = {metric.metric: metric.value for metric in found.headline}
    assert head["tax_least"] == head["tax_most"] == pytest.approx(720_000)
    gains = hints(trace).table.set_index("hint")["gain_ns"]
    assert gains["unbalanced_experts"] == pytest.approx(720_000)
