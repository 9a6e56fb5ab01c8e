"""Every question has a sentence; its figures are those of the headline, in words."""

from __future__ import annotations

import pytest
from builders.report_cases import document

from moeprof.analyzers.registry import all_questions
from moeprof.answers.document import Document, Value
from moeprof.answers.values import NONE
from moeprof.reports.run.words import sentence
from moeprof.tables.analysis import Status


def told(name: str, status: Status = "ok", **headline: Value) -> str:
    """The sentence of a question with this headline and no rows."""
    units = {"time": "ns", "share": "share"}
    made: Document = document()
    made["analyses"][name] = {
        "question": "?",
        "headline": [
            {"metric": metric, "value": value, "unit": units.get(metric.rsplit("_", 1)[-1], "")}
            for metric, value in headline.items()
        ],
        "columns": [],
        "rows": [],
        "notes": [],
        "status": status,
    }
    return sentence(made, name)


def test_every_question_has_a_sentence():
    assert all(each.sentence for each in all_questions())


def test_dispatch_and_combine():
    known = {
        "exchange_time": 216_100_000,
        "exposed_exchange_time": 143_800_000,
        "exchange_wait_share": 0.667,
    }
    assert told("dispatch_combine", **known) == (
        "Dispatch and combine take 216.1 ms per device and step, 143.8 ms of it exposed; "
        "66.7 % is waiting for other devices."
    )
    unknown = told("dispatch_combine", **{**known, "exchange_wait_share": None})
    assert unknown.endswith("exposed; how much of it is waiting for other devices is not known.")
    assert told("dispatch_combine", status="none", exchange_time=None) == NONE


def test_expert_load():
    known = {
        "worst_expert_imbalance": 3.9453,
        "worst_expert_layer": 1,
        "worst_expert": 0,
        "worst_rank_imbalance": 1.3257,
        "worst_layer": 2,
        "worst_rank": 1,
        "dead_experts": 0,
    }
    assert told("expert_load", **known) == (
        "In layer 1 expert 0 gets 3.95 × the tokens of the mean one; ranks differ most in layer 2, "
        "where rank 1 gets 1.33 × the mean; experts without a token: none."
    )
    moving = told("expert_load", **{**known, "worst_expert": None})
    assert moving.startswith("In layer 1 the busiest expert of each step gets 3.95 × the tokens")
    ranks = told("expert_load", **{**known, "worst_rank_imbalance": None, "dead_experts": 3})
    assert ranks == (
        "In layer 1 expert 0 gets 3.95 × the tokens of the mean one; experts without a token: 3."
    )
    assert told("expert_load", "not_known", layers=0).startswith("Not known")


def test_grouped_gemm():
    known = {
        "grouped_gemm_time": 94_760_000,
        "call_sites": 12,
        "rate": 412.0,
        "peak_share": 0.66,
        "fallback_wasted_time": 56_740_000,
        "padding_share": 0.5,
    }
    assert told("grouped_gemm", **known) == (
        "The experts' products take 94.76 ms per device and step at 412 TFLOP/s, 66.0 % of the "
        "device's peak; 56.74 ms of it multiplies zeros, as ragged_dot runs dense; 50.0 % of "
        "their rows are padding."
    )
    unknown = dict.fromkeys(("rate", "peak_share", "fallback_wasted_time", "padding_share"))
    least = told("grouped_gemm", **{**known, **unknown})
    assert least == "The experts' products take 94.76 ms per device and step."
    assert told("grouped_gemm", "none", call_sites=0) == NONE


def test_memory():
    made = document()
    made["analyses"]["memory"] = {
        "question": "?",
        "headline": [
            {"metric": metric, "value": value, "unit": "bytes"}
            for metric, value in (
                ("program_peak", 6 * 2**30),
                ("argument", 2 * 2**30),
                ("result", 2**30),
                ("temp", 3 * 2**30),
                ("allocator_peak", 7 * 2**30),
            )
        ],
        "columns": [],
        "rows": [],
        "notes": [],
    }
    assert sentence(made, "memory") == (
        "The step's program needs 6.000 GiB of a device at its peak: 2.000 GiB of arguments, "
        "1.000 GiB of results and up to 3.000 GiB that it holds while it runs. The allocator "
        "measured 7.000 GiB at most."
    )
    made["analyses"]["memory"]["headline"][2]["value"] = 0
    assert "2.000 GiB of arguments and up to 3.000 GiB that" in sentence(made, "memory")
    assert told("memory", "not_known", program_peak=None).startswith("Not known")


@pytest.mark.parametrize(
    ("mfu", "most", "words"),
    [
        (0.31, 0.31, "MFU is 31.0 % on NVIDIA H200 SXM, HFU 40.0 %"),
        (None, 0.35, "MFU is at most 35.0 % on NVIDIA H200 SXM, HFU 40.0 %"),
        (None, None, "MFU is not known on NVIDIA H200 SXM, HFU 40.0 %"),
    ],
)
def test_roofline_of_a_known_device(mfu, most, words):
    made = document()
    made["analyses"]["roofline"] = {
        "question": "?",
        "headline": [
            {"metric": "hardware_flops", "value": 82.745e9, "unit": "FLOP"},
            {"metric": "mfu", "value": mfu, "unit": "share"},
            {"metric": "mfu_at_most", "value": most, "unit": "share"},
            {"metric": "hfu", "value": 0.4, "unit": "share"},
            {"metric": "hardware", "value": "h200_sxm", "unit": ""},
        ],
        "columns": [],
        "rows": [],
        "notes": [],
    }
    said = f"{words}, from 82.75 GFLOP per device and step."
    assert sentence(made, "roofline") == said
    made["analyses"]["roofline"]["headline"] += [
        {"metric": "interval_mfu", "value": mfu and mfu / 2, "unit": "share"},
        {"metric": "interval_mfu_at_most", "value": most and most / 2, "unit": "share"},
    ]
    between = {0.31: " is 15.5 %", 0.35: " is at most 17.5 %", None: ""}[most]
    more = f" From the start of a step to that of the next MFU{between}." if between else ""
    assert sentence(made, "roofline") == said + more


def test_roofline_of_an_unknown_device():
    said = told("roofline", hardware_flops=1.0, hfu=None, mfu=None, hardware=None)
    assert said.endswith("ran; their share of a peak is not known, as the notes say.")
    assert told("roofline", "not_known", hardware_flops=None).startswith("Not known")


def test_sync_gaps():
    known = {
        "idle_time": 6_876_000,
        "host_late_time": 4_743_000,
        "longest_gap": 490_752,
        "main_cause": "host launch late",
    }
    assert told("sync_gaps", **known) == (
        "Devices stand still for 6.876 ms per device and step, at the longest for 490.8 µs; "
        "main cause: host launch late; the host's launches come late for 4.743 ms of it."
    )
    unknown = {**known, "host_late_time": None, "main_cause": None, "longest_gap": None}
    assert told("sync_gaps", **unknown) == ("Devices stand still for 6.876 ms per device and step.")


def test_launch():
    known = {"kernels_per_step": 588.0, "short_kernel_share": 0.909, "empty_queue_share": 0.362}
    assert told("launch", **known) == (
        "588 kernels per device and step, 90.9 % of them short; for 36.2 % of the step nothing is "
        "queued behind what runs."
    )
    assert told("launch", "none", kernels_per_step=None) == NONE


def test_hints():
    assert told("hints", hints=2, largest_gain=None) == (
        "2 patterns found; what they cost in time is not known."
    )
    assert told("hints", hints=0, largest_gain=None).startswith("None of the patterns")
