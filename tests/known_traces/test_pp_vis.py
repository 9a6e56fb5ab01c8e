"""The pipelines that Primus published: bubbles as its own drawing tool gives them."""

import pytest

from moeprof.analyzers.questions.pipeline import pipeline_stages
from moeprof.ingest.sources.pp_dump import read_pp_dump

ITERATION = 7


@pytest.mark.parametrize(
    ("name", "length_ms", "percent"),
    [
        ("pp8", 3237.89, [36.4, 37.0, 36.4, 35.6, 35.6, 35.0, 37.4, 30.0]),
        ("pp8_vpp2", 2880.70, [26.1, 28.4, 27.8, 31.0, 30.2, 29.4, 30.4, 17.3]),
    ],
)
def test_bubbles_are_those_of_pp_vis(data, name, length_ms, percent):
    analysis = pipeline_stages(read_pp_dump(data / "pp_vis" / name), ITERATION)
    headline = {m.metric: m.value for m in analysis.headline}
    assert headline["iteration_time"] / 1e6 == pytest.approx(length_ms, abs=0.005)
    assert (100 * analysis.table["bubble_share"]).tolist() == pytest.approx(percent, abs=0.1)
    parts = analysis.table[["fill_ns", "imbalance_ns", "wait_ns"]]
    assert (parts.sum(axis=1) == analysis.table["idle_ns"]).all()
    causes = headline["fill_share"] + headline["imbalance_share"] + headline["wait_share"]
    assert causes == pytest.approx(headline["bubble_share"])
