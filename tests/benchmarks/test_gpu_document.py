"""docs/gpu.md is what its writer makes of the committed results, and says what they hold."""

from __future__ import annotations

import importlib.util
import json
from types import ModuleType

import pytest

from .conftest import BENCHMARKS

ROOT = BENCHMARKS.parent
MACHINE = {
    "cards": ["NVIDIA X, 1.2, 8 MiB"] * 2,
    "jax": "0.1",
    "torch": "2.0",
    "nvcc": "13.0",
    "date": "2026-01-02",
}


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_gpu", ROOT / "docs/write_gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_written_from_the_results(writer):
    assert (ROOT / "docs/gpu.md").read_text(encoding="utf-8") == writer.page() + "\n"


def test_ours_is_set_against_the_best_peer_and_the_best_dense_product(writer, tmp_path):
    row = {
        "case": "c",
        "pass": "dB",
        "groups": 8,
        "k": 4,
        "n": 6,
        "spread": "zipf",
        "relative_error": 0.002,
        "tflops": {
            "moeprof": 660.0,
            "torch_grouped_mm": 600.0,
            "pallas": 500.0,
            "dense_jax": 800.0,
        },
        "failed": {"ragged_dot": "no `room`"},
    }
    document = {"machine": MACHINE, "rows": [row]}
    (tmp_path / "gpu_grouped_gemm.json").write_text(json.dumps(document))
    page = writer.page(tmp_path)
    # torch's dense product took no part: it has no column. ragged_dot failed: it has a dash.
    cells = "8, 4 → 6 (zipf) | dB | 660 | 600 | 500 | – | 800 | 1.10 | 82 %"
    assert f"| {cells} |" in page
    assert "- lax.ragged_dot at E=8, dB: no room" in page
    assert (
        "Measured on 2 × NVIDIA X, driver 1.2, jax 0.1, torch 2.0, nvcc 13.0, 2026-01-02." in page
    )


def test_steps_are_set_against_our_step(writer, tmp_path):
    def op(name: str, us: float) -> dict:
        return {"op": name, "us": us, "payload_GB_s": 300.4, "wire_GB_s": 310.6}

    load = {
        "tokens": 4096,
        "ops": [op("step: moe_dispatch, moe_combine", 400.0), op("step: ragged", 36000.0)],
        "peer_copies": [op("peer copy, one way", 150.0)],
        "failed": {},
    }
    (tmp_path / "gpu_exchange.json").write_text(json.dumps({"machine": MACHINE, "loads": [load]}))
    page = writer.page(tmp_path)
    assert "| `step: ragged` | 36,000 | 300 | 311 | 90 |" in page
    assert "| `peer copy, one way` | 150 | 300 | 311 |  |" in page
    assert max(len(line) for line in page.splitlines()) <= 100


def test_strategies_are_set_against_the_cheapest_dropping(writer, tmp_path):
    def run(pdbs: int, tokens: float) -> dict:
        return {
            "pdbs": pdbs,
            "data": "text",
            "step_ms": 200.04,
            "tokens_s_device": tokens,
            "peak_bytes": [2**30, 3 * 2**29],
            "busiest_expert_over_mean": 3.2,
            "busiest_rank_over_mean": 1.1,
        }

    out_of_memory = {"pdbs": 9, "data": "text", "failed": "RESOURCE_EXHAUSTED"}
    document = {
        "machine": MACHINE,
        "model": {"layers": 8, "hidden": 4, "experts": 2, "top_k": 1, "moe_ffn": 3},
        "sequence": 4096,
        "expert": 2,
        "pool_bytes": 2**30,
        "strategies": {
            "sparse-gmm": {
                "projected_largest_pdbs": 7,
                "runs": [run(2, 19000.0), run(4, 20000.0), out_of_memory],
            },
            "dense-cf1.25": {"projected_largest_pdbs": 9, "runs": [run(2, 20000.0)]},
        },
    }
    (tmp_path / "gpu_ab.json").write_text(json.dumps(document))
    page = writer.page(tmp_path)
    assert "| sparse-gmm | 2 | text | 200.0 | 19,000 | 0.95 | 1.50 | 3.20 | 1.10 |" in page
    assert "| sparse-gmm | 4 | text | 200.0 | 20,000 | – | 1.50 | 3.20 | 1.10 |" in page
    assert "- sparse-gmm, pdbs 9, text: RESOURCE_EXHAUSTED" in page
    assert "sparse-gmm 7, dense-cf1.25 9." in page.replace("\n", " ")
    document["strategies"]["sparse-gmm"]["largest"] = {"pdbs": 8, "is_bounded": True, "tried": [1]}
    document["strategies"]["dense-cf1.25"]["largest"] = {"pdbs": 0, "tried": []}
    (tmp_path / "gpu_ab_one_gpu.json").write_text(json.dumps(document | {"expert": 1}))
    page = writer.page(tmp_path).replace("\n", " ")
    assert "one more runs out of memory): sparse-gmm 8; by the closed form" in page
    assert "## The strategies on the bundled model, one GPU" in page
    assert "One GPU holds all experts: there is no exchange" in page


def test_the_tax_of_uneven_routing_is_that_of_expert_load(writer, tmp_path):
    known = {
        "strategy": "sparse-gmm",
        "step_us": 10000.0,
        "expert_imbalance": 3.948,
        "rank_imbalance": 1.325,
        "tax_least_us": 4.0,
        "tax_most_us": 250.0,
    }
    capacity = {**known, "strategy": "dense-cf2", "not_known": "of a fixed size"}
    document = {
        "model": dict.fromkeys(("layers", "hidden", "experts", "top_k"), 2),
        "plan": {"expert": 2},
        "sequence": 512,
        "pdbs": 2,
        "devices": ["NVIDIA X"] * 2,
        "jax": "0.1",
        "rows": [known, capacity],
    }
    (tmp_path / "gpu_imbalance.json").write_text(json.dumps(document))
    page = writer.page(tmp_path)
    assert "captured on 2 × NVIDIA X, jax 0.1." in page.replace("\n", " ")
    assert "| sparse-gmm | 10,000 | 3.95 | 1.32 | 4 to 250 | 2 % |" in page
    assert "| dense-cf2 | 10,000 | 3.95 | 1.32 | – | – |" in page
    assert "- dense-cf2: of a fixed size" in page


def test_losses_are_means_over_seeds_and_differences_come_in_pairs(writer, tmp_path):
    def run(seed: int, final: float) -> dict:
        return {
            "router": "balanced",
            "strategy": "dense-cf2",
            "seed": seed,
            "final_loss": final,
            "held_out": 1.5,
            "held_out_dropless": 1.4,
            "dropped": {"first": 0.5, "all": 0.0567, "last": 0.01},
            "busiest_expert_over_mean": 2.0,
        }

    difference = {
        "router": "balanced",
        "quantity": "final_loss",
        "first": "dense-cf2",
        "second": "sparse-gmm",
        "seeds": [0, 1],
        "difference": -0.0123,
        "standard_error": 0.001,
        "verdict": "lower",
    }
    sizes = ("layers", "hidden", "experts", "top_k", "sequences", "sequence")
    document = {
        "machine": MACHINE,
        "setting": {
            **dict.fromkeys(sizes, 4),
            "steps": 2000,
            "warm_up": 100,
            "learning_rate": 0.001,
        },
        "xla_flags": "--flag",
        "bias_speed": {"balanced": 0.001},
        "runs": [run(0, 1.2), run(1, 1.3), {"strategy": "sparse-gmm", "failed": "no room"}],
        "order": [difference],
    }
    (tmp_path / "gpu_convergence.json").write_text(json.dumps(document))
    page = writer.page(tmp_path)
    assert "### Router: balanced (bias moved by 0.001 a step)" in page
    # Standard deviation of 1.2 and 1.3: 0.1/√2; over √2: 0.05.
    losses = "1.2500 ± 0.0500 | 1.5000 ± 0.0000 | 1.4000 ± 0.0000"
    assert f"| dense-cf2 | 2 | {losses} | 50.0 % | 5.7 % | 1.0 % | 2.00 |" in page
    found = "final | balanced | dense-cf2 − sparse-gmm | −0.0123 ± 0.0010 | 2 | lower"
    assert f"| {found} |" in page
    assert "- sparse-gmm: no room" in page


def test_what_sanitizers_found(writer, tmp_path):
    clean = {"program": "exchange", "tool": "memcheck", "found": 0, "is_clean": True}
    clean["rounds"] = 60
    late = {**clean, "program": "late", "is_clean": False, "found": None, "rounds": None}
    late["wrong"] = "expected it to end within its limit"
    planted = {"program": "planted race", "tool": "racecheck", "found": 1, "is_clean": False}
    planted["is_planted"] = True
    hazards = {"program": "exchange", "tool": "racecheck", "found": 3, "is_clean": False}
    found = {"machine": MACHINE, "runs": [planted, clean, hazards, late]}
    (tmp_path / "gpu_sanitize.json").write_text(json.dumps(found))
    page = writer.page(tmp_path)
    assert "| exchange | memcheck | 60 | clean |" in page
    assert "planted race" not in page
    assert "| late | memcheck | – | expected it to end within its limit |" in page
    assert "| exchange | racecheck | – | 3 |" in page


def test_products_without_jax(writer, tmp_path):
    rates = {"moeprof": 630, "moeprof_plain": 620, "torch_grouped_mm": 600, "dense_torch": 700}
    row = {"groups": 8, "k": 4, "n": 6, "pass": "dA", "tflops": rates}
    head = {"machine": MACHINE, "rows_per_product": 64, "dtype": "bfloat16", "note": "Said so."}
    text = json.dumps({**head, "rows": [row]})
    (tmp_path / "gpu_grouped_gemm_check.json").write_text(text)
    assert "| 8, 4 → 6 | dA | 630 | 620 | 600 | 700 | 1.05 | 90 % |" in writer.page(tmp_path)
    assert "long samples" not in writer.page(tmp_path)
    long = {"moeprof": 570, "torch_grouped_mm": 600}
    text = json.dumps({**head, "rows": [{**row, "long_tflops": long}]})
    (tmp_path / "gpu_grouped_gemm_check.json").write_text(text)
    page = writer.page(tmp_path)
    assert "In long samples:" in page
    assert "| 8, 4 → 6 | dA | 570 | 600 | – | 0.95 | – |" in page


def test_the_exchange_kernels_alone(writer, tmp_path):
    row = {"hidden": 7168, "top_k": 8, "experts": 256, "median_us": 180.04, "GB_s": 324.6}
    rows = [
        {"operation": "meeting of two host threads", "mean_us": 9.52, "samples": 500},
        {**row, "operation": "peer copy", "tokens": 4096, "blocks": 0},
        {**row, "operation": "dispatch", "tokens": 4096, "blocks": 96},
    ]
    text = json.dumps({"machine": MACHINE, "rows": rows})
    (tmp_path / "gpu_exchange_native.json").write_text(text)
    page = writer.page(tmp_path)
    assert "| dispatch | 4,096 | 96 | 180.0 | 325 |" in page
    assert "| peer copy | 4,096 | – | 180.0 | 325 |" in page
    assert "A meeting of two host threads takes 9.5 µs." in page


def test_a_pass_in_which_ours_failed_has_no_error_to_show(writer, tmp_path):
    head = {"groups": 8, "k": 4, "n": 6, "spread": "unbalanced", "pass": "dA"}
    row = {**head, "tflops": {"dense_torch": 700.0}, "relative_error": None}
    row["failed"] = {"moeprof": "was not ready within 20 s"}
    text = json.dumps({"machine": MACHINE, "rows": [row]})
    (tmp_path / "gpu_grouped_gemm.json").write_text(text)
    page = writer.page(tmp_path)
    assert "- moeprof at E=8, dA: was not ready within 20 s" in page
    assert "Largest relative error" not in page


def test_steps_stand_beside_their_plans(writer, tmp_path):
    gib = 2**30
    plan = {"argument_bytes": gib, "temp_bytes": 3 * gib, "peak_range_bytes": [4 * gib, 5 * gib]}
    plan |= {"at_least_s": 0.1, "at_most_s": None, "no_at_most": "no rate is known of x"}
    run = {"temp_bytes": 2 * gib, "peak_bytes": 4 * gib, "step_s": 0.15}
    compared = {"arguments_are_equal": False, "temp_error": 0.5, "beyond_range": 0.0}
    cases = {"plain": {"plan": plan, "run": run, "compared": compared}}
    cases |= {"nnx": {"skipped": "flax is not installed"}}
    document = {"machine": MACHINE, "cases": cases}
    (tmp_path / "gpu_plans.json").write_text(json.dumps(document))
    page = writer.page(tmp_path)
    figures = "| plain | 1.00 ≠ | 3.00 | 2.00 | +50.0 % | 4.00 to 5.00 | 4.00 | 0.0 % | 100.0 |"
    assert figures in page
    assert "- nnx: flax is not installed" in page
    assert "- plain: no rate is known of x" in page


def test_whole_commands_stand_beside_their_plans(writer, tmp_path):
    gib = 2**30
    plan = {"argument_bytes": gib, "range_bytes": [4 * gib, 5 * gib], "program": "step"}
    plan |= {"took_s": 41.4}
    compared = {"arguments_are_equal": True, "beyond_range": 0.2}
    cases = {"plain": {"plan": plan, "run": {"peak_bytes": 6 * gib}, "compared": compared}}
    cases |= {"nnx": {"failed": "run: no result within 150 s"}}
    document = {"machine": MACHINE, "hardware": "h200_sxm", "devices": 2, "cases": cases}
    (tmp_path / "gpu_whole_runs_two.json").write_text(json.dumps(document))
    page = writer.page(tmp_path)
    assert "## Whole commands beside their plans, on 2 GPUs" in page
    assert "| plain | step | 1.00 | 4.00 to 5.00 | 6.00 | 20.0 % | 41 s |" in page
    assert "- nnx: run: no result within 150 s" in page


def test_paths_of_maxtext_stand_with_their_losses(writer, tmp_path):
    row = {"tokens_s_device": 1234.5, "step_s": 0.0401, "losses": [10.9, 0.5, 0.25]}
    cases = {"kernels": row, "ragged": {"failed": "no result within 160 s"}}
    document = {"machine": MACHINE, "devices": 2, "cases": cases}
    (tmp_path / "gpu_maxtext_paths.json").write_text(json.dumps(document))
    page = writer.page(tmp_path)
    assert "| kernels | 1,234 | 40.1 | 10.9 | 0.5 | 0.25 |" in page
    assert "- ragged: no result within 160 s" in page
