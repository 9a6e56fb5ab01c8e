"""What devices, links and pipeline stages did, in profiles and records that others made."""

from __future__ import annotations

import numpy as np
import pytest

from moeprof.analyzers.questions.collectives import collectives
from moeprof.analyzers.questions.dispatch_combine import dispatch_combine
from moeprof.analyzers.questions.pipeline import pipeline_stages
from moeprof.analyzers.questions.receive_buffers import receive_buffers
from moeprof.analyzers.questions.stragglers import stragglers
from moeprof.analyzers.questions.timeline import timeline
from moeprof.ingest.sources.pp_dump import read_pp_dump

PARTS = ["compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns"]


@pytest.fixture
def ragged(opened):
    return opened("h100x2_moe_ragged.xplane.pb")


def test_parts_of_each_step_add_up_to_it_to_the_nanosecond(ragged):
    table = timeline(ragged).table
    assert table[PARTS].sum(axis="columns").tolist() == table["duration_ns"].tolist()
    steps = ragged.steps.set_index("step")["duration_ns"]
    assert table["duration_ns"].tolist() == steps.reindex(table["step"]).tolist()


def test_the_one_shot_ragged_exchange_takes_most_of_the_step(ragged):
    headline = {m.metric: m.value for m in timeline(ragged).headline}
    assert headline["exposed_communication_share"] == pytest.approx(0.699, abs=0.002)
    assert headline["idle_share"] < 0.01


def test_ragged_exchanges_are_slow_even_by_their_upper_bound(ragged):
    table = collectives(ragged, link_bytes_per_s=450e9).table
    slow = table[table["opcode"] == "ragged-all-to-all"]
    assert len(slow) == 6
    assert slow["bytes"].isna().all()
    assert sorted(set(slow["bound_bytes"])) == [2.0**25, 2.0**26]  # rows × 1024 × bf16
    assert slow["flag"].str.startswith("slow: at most ").all()
    assert slow["calls"].tolist() == [4.0] * 6  # once per layer


def test_token_exchanges_are_what_the_step_waits_for(ragged):
    found = dispatch_combine(ragged)
    headline = {m.metric: m.value for m in found.headline}
    assert headline["exchange_time"] == pytest.approx(169.43e6, abs=5e3)
    assert headline["worst_bus_bandwidth"] is None  # nothing tells how many rows were sent
    tokens = found.table[found.table["form"] == "ragged all-to-all"]
    assert len(tokens) == 6
    exposed = timeline(ragged).table["exposed_communication_ns"].mean()
    assert 0.99 * exposed < headline["exposed_exchange_time"] <= exposed


def test_receive_buffers_of_the_ragged_exchange(ragged):
    """4096 tokens, top-4, EP 2 with 16 experts each: at worst 2 · 4096 · 4 rows, evenly half."""
    table = receive_buffers(ragged).table
    assert set(table["calls"]) == {4.0}
    received = table[table["worst_rows"] > table["balanced_rows"]]
    assert set(received["worst_rows"]) == {2 * 4096 * min(32 // 2, 4)} == {32_768}
    assert set(received["balanced_rows"]) == {4096 * 4} == {16_384}
    assert set(received["worst_bytes"]) == {32_768 * 1024 * 2}
    assert set(received["copies_alive"]) == {2.0}


def test_sums_of_gradients_reach_half_of_the_link(ragged):
    table = collectives(ragged, link_bytes_per_s=450e9).table.set_index("op")
    row = table.loc["psum.46.1"]
    assert row["bytes"] == 4 * 1024 * 3072 * 4  # f32[4,1024,3072]
    # with two ranks the factor of an all-reduce is 1
    assert row["bus_gb_per_s"] == pytest.approx(row["bytes"] / row["transfer_ns"])
    assert row["link_share"] == pytest.approx(0.518, abs=0.005)


def test_every_exchange_call_of_both_ranks_is_paired(ragged):
    assert not any("not known" in note for note in stragglers(ragged).notes)


@pytest.mark.parametrize(
    ("name", "iteration_ms", "bubbles", "theory"),
    [
        ("pp8", 3237.89, (36.4, 37.0, 36.4, 35.6, 35.6, 35.0, 37.4, 30.0), 7 / 23),
        ("pp8_vpp2", 2880.70, (26.1, 28.4, 27.8, 31.0, 30.2, 29.4, 30.4, 17.3), 7 / 39),
    ],
)
def test_bubbles_of_recorded_pipelines(data, name, iteration_ms, bubbles, theory):
    """The figures that pp_vis prints for iteration 7 of its own examples."""
    analysis = pipeline_stages(read_pp_dump(data / "pp_vis" / name), iteration=7)
    found = 100 * analysis.table["bubble_share"].to_numpy()
    assert np.round(found, 1).tolist() == list(bubbles)
    headline = {m.metric: m.value for m in analysis.headline}
    assert headline["iteration_time"] == pytest.approx(iteration_ms * 1e6, abs=5e3)
    assert headline["schedule_share"] == pytest.approx(theory)
