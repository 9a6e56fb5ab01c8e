"""What uneven routing costs, as the kept captures say: the committed table is theirs."""

from __future__ import annotations

import json

import pytest

from .conftest import BENCHMARKS


def test_the_committed_row_is_what_the_capture_says(program):
    imbalance = program("gpu.imbalance")
    committed = json.loads((BENCHMARKS / "results/gpu_imbalance.json").read_text())
    row = imbalance.row_of("sparse-gmm", imbalance.analysis(imbalance.CAPTURES / "sparse-gmm"))
    assert row in committed["rows"]
    # Steps 3 and 4 of answers.json: 4096 pairs a layer, so 2048 is a rank's mean.
    answers = json.loads((imbalance.CAPTURES / "sparse-gmm/answers.json").read_text())
    used = [step["received_rows"] for step in answers["steps"] if step["step"] in (3, 4)]
    fullest = [[max(step[layer][0][:2]) for step in used] for layer in (0, 1)]
    assert row["rank_imbalance"] == pytest.approx(max(map(sum, fullest)) / 2 / 2048)
    assert 0 < row["tax_least_us"] < row["tax_most_us"] < row["step_us"]


def test_a_tax_that_is_not_known_says_why(program):
    document = {
        "steps": [{"used": True, "duration_ns": 3000}, {"used": False, "duration_ns": 9000}],
        "analyses": {
            "expert_load": {
                "headline": [
                    {"metric": "worst_expert_imbalance", "value": 4.0},
                    {"metric": "worst_rank_imbalance", "value": 1.5},
                    {"metric": "tax_most", "value": None},
                ],
                "notes": ["all even", "the tax is not known: a fixed size"],
            }
        },
    }
    assert program("gpu.imbalance").row_of("dense-cf2", document) == {
        "strategy": "dense-cf2",
        "step_us": 3.0,
        "expert_imbalance": 4.0,
        "rank_imbalance": 1.5,
        "not_known": "the tax is not known: a fixed size",
    }
