"""Whether losses differ by more than chance, against values worked out by hand."""

from __future__ import annotations

import pytest


def runs(strategy: str, *losses: float, router: str = "balanced") -> list[dict]:
    return [
        {"router": router, "strategy": strategy, "seed": seed, "loss": loss}
        for seed, loss in enumerate(losses)
    ]


def test_differences_are_paired_by_seed(program):
    order = program("gpu.convergence_order")
    found = [*runs("a", 2.0, 3.0, 5.0), *runs("b", 1.9, 2.8, 4.7, 9.0)]
    (row,) = order.comparisons(found, [("a", "b")], "loss")
    # 0.1, 0.2 and 0.3: mean 0.2, standard deviation 0.1, over √3. b's fourth seed has no partner.
    assert row["seeds"] == [0, 1, 2]
    assert row["differences"] == [0.1, 0.2, 0.3]
    assert row["difference"] == pytest.approx(0.2)
    assert row["standard_error"] == pytest.approx(0.1 / 3**0.5)
    assert row["verdict"] == "higher"  # 0.2 / 0.0577 = 3.46 > 2.92


@pytest.mark.parametrize(
    ("difference", "error", "seeds", "verdict"),
    [
        (0.2, None, 1, "one seed"),
        (0.291, 0.1, 3, "not told apart"),  # 2.920 with two degrees of freedom
        (0.293, 0.1, 3, "higher"),
        (-0.293, 0.1, 3, "lower"),
        (0.2, 0.1, 12, "higher"),  # more than ten seeds are held to the quantile of ten
        (0.0, 0.0, 2, "not told apart"),
    ],
)
def test_a_verdict_needs_the_quantile_of_its_seeds(program, difference, error, seeds, verdict):
    assert program("gpu.convergence_order").verdict(difference, error, seeds) == verdict


def test_quantiles_are_those_of_students_t(program):
    stats = pytest.importorskip("scipy.stats")
    for freedom, quantile in enumerate(program("gpu.convergence_order").T_95, start=1):
        assert stats.t.ppf(0.95, freedom) == pytest.approx(quantile, abs=5e-4)


def test_neighbours_and_what_drops_against_what_does_not_are_compared(program):
    pairs_of = program("gpu.convergence_order").pairs_of
    a, b, c, d = ("dense-cf2", "dense-cf4", "sparse-gmm", "sparse-gmm-deepep")
    assert pairs_of((a, b, c, d)) == [(a, b), (b, c), (c, d), (a, c)]
    assert pairs_of((a, b)) == [(a, b)]


def test_failures_and_other_routers_take_no_part(program):
    found = [
        *runs("a", 2.0),
        *runs("b", 1.0, router="unbalanced"),
        {"strategy": "b", "failed": "x"},
    ]
    trained = [run for run in found if "failed" not in run]
    assert program("gpu.convergence_order").comparisons(trained, [("a", "b")], "loss") == []


def test_the_held_out_text_is_read_once(program):
    import numpy as np

    setting = program("gpu.convergence_setting")
    text = np.arange(30, dtype=np.uint8)
    first, second = setting.whole(text, 2, 7)
    # 29 bytes can be predicted: two batches of two sequences of seven, one left out.
    assert first.tolist() == [list(range(8)), list(range(7, 15))]
    assert second.tolist() == [list(range(14, 22)), list(range(21, 29))]
    assert len(list(setting.whole(text, 2, 7, limit=1))) == 1
