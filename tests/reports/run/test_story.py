from __future__ import annotations

import pytest
from builders.report_cases import MS, breakdown, document, trace

from moeprof.answers import story
from moeprof.reports.parts import phrases
from moeprof.reports.run import words as run_words
from moeprof.reports.run.document import build
from moeprof.reports.run.page import page_view
from moeprof.reports.run.terminal import overview
from moeprof.reports.run.words import comparison_sentence
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.schema import Schema


def of_steps(*steps: tuple[int, int, str]):
    return build(trace(steps=steps), {})


def test_step_time_is_the_median_of_the_used_steps():
    time = story.step_time(of_steps((1, 900, "compiles"), (2, 10, ""), (3, 14, ""), (4, 11, "")))
    assert time == story.StepTime(11 * MS, 10 * MS, 14 * MS, used=3, found=4)


def test_op_time_that_is_more_than_the_step_is_explained():
    long = {"breakdown": breakdown({("attention", "forward"): 413})}
    short = {"breakdown": breakdown({("attention", "forward"): 412})}
    # the median step is (410 + 414) / 2 = 412 ms
    assert run_words.overlap(build(trace(), long)) == (
        "more than the step, as several streams run at once"
    )
    assert run_words.overlap(build(trace(), short)) == ""
    assert run_words.overlap(build(trace(steps=()), long)) == ""


@pytest.mark.parametrize(
    ("platform", "hosts", "devices", "words"),
    [
        ("cpu", ["a"], 8, "The 8 devices are virtual ones that share the host's cores"),
        ("cpu", ["a", "b"], 8, "The 8 devices are virtual ones that share the hosts' cores"),
        ("cpu", ["a"], 1, ""),
        ("gpu", ["a"], 8, ""),
    ],
)
def test_times_of_virtual_devices_are_those_of_cores(platform, hosts, devices, words):
    made = document()
    made["run"] |= {"platform": platform, "hosts": hosts, "devices": devices}
    assert run_words.of_cores(made).partition(":")[0] == words


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((), "not known: no step was found"),
        (((1, 5, "compiles"),), "not known: none of the 1 steps found can be used"),
        (((1, 5, ""),), "5.000 ms (one step: no spread known)"),
        (((1, 5, ""), (2, 7, "")), "6.000 ms (median of 2 steps, 5.000 ms to 7.000 ms)"),
    ],
)
def test_step_time_in_words(steps, words):
    assert story.described_step(of_steps(*steps)) == words


def test_phases_of_a_component_add_up_and_the_largest_is_first():
    made = build(
        trace(),
        {"breakdown": breakdown({("a", "forward"): 1, ("b", "forward"): 2, ("a", "backward"): 5})},
    )
    assert [(p.component, p.duration_ns, p.share) for p in story.parts(made)] == [
        ("a", 6 * MS, 0.75),
        ("b", 2 * MS, 0.25),
    ]


def test_parts_without_any_time_have_no_share():
    made = build(trace(), {"breakdown": breakdown({("a", "forward"): 0})})
    assert [part.share for part in story.parts(made)] == [0.0]


def test_the_worst_verdict_decides():
    checks = [("a", "ok", ""), ("b", "warn", "some lost"), ("c", "fail", "all lost")]
    assert phrases.worst_verdict(build(trace(trust=checks), {})) == "fail"
    assert phrases.worst_verdict(build(trace(trust=checks[:2]), {})) == "warn"
    assert phrases.worst_verdict(build(trace(trust=checks[:1]), {})) == "ok"
    assert phrases.worst_verdict(build(trace(trust=()), {}) | {"trust": []}) == "unchecked"


def test_failed_checks_are_named_before_warnings():
    checks = [("b", "warn", "some lost"), ("a", "ok", ""), ("c", "fail", "all lost")]
    found = phrases.troubles(build(trace(trust=checks), {}))
    assert [check["check"] for check in found] == ["c", "b"]


def test_comparison_names_the_shortest_and_the_longest_step():
    # medians: 412 ms and 2 × (410, 414) = 824 ms
    words = comparison_sentence([document("runs/slow", scale=2.0), document("runs/fast")])
    assert words == "fast has the shortest step: 412.0 ms, 2.00 times as fast as slow (824.0 ms)."


def test_runs_whose_steps_overlap_are_not_ranked_in_silence():
    # 410 to 414 ms against 412 to 416 ms; 1.01 × 410 = 414.1 is past both
    words = comparison_sentence([document("b", scale=1.005), document("a"), document("c", 2)])
    assert words.endswith("Steps of b overlap with its steps: measure more to tell them apart.")


def test_one_run_is_compared_with_nothing():
    assert comparison_sentence([document()]) == ""


def test_runs_of_one_name_are_told_apart_by_their_folder():
    made = [document("a/run"), document("b/run")]
    assert story.run_labels(made) == ["a/run", "b/run"]


def test_the_same_run_twice_is_told_apart_by_its_place():
    assert story.run_labels([document("a/run"), document("a/run")]) == ["a/run (1)", "a/run (2)"]


def test_a_path_is_quoted_for_the_shell():
    assert phrases.command(document("a run"), "report") == "moeprof report 'a run'"


def test_withheld_parts_are_not_called_missing_work():
    made = build(trace(), {"breakdown": breakdown({})})
    assert run_words.unknown_parts(made).endswith("this trace holds no device work.")
    made["trust"][0] |= {"check": "clocks", "withholds": ["breakdown"]}
    assert run_words.unknown_parts(made).startswith(
        "Where the step goes is withheld: clocks failed"
    )
    assert run_words.unknown_parts(document()) == ""


MFU = "(model FLOPs without recompute, of the dense bf16 peak)"
RATE = {
    "step_time": {"tokens_per_second_device": 12419.6, "step_tokens_per_second_device": 20000.0}
}
EXACT = {"roofline": {"mfu": 0.4, "mfu_at_most": 0.4, "interval_mfu": 0.31}}
AT_MOST = {"roofline": {"mfu": None, "mfu_at_most": 0.4, "interval_mfu_at_most": 0.31}}


def told(figures, *, has_interval=True):
    """A run of two steps whose answers have these headline figures."""
    findings = {
        name: Analysis(
            name,
            "?",
            tuple(Metric(metric, value, "share") for metric, value in of_name.items()),
            Schema(name, ()),
            Schema(name, ()).frame(),
            status="not_known",
        )
        for name, of_name in figures.items()
    }
    made = build(trace(), findings)
    if has_interval:
        made["steps"][1]["interval_ns"] = 412.3 * MS
    return made


def lost(exact, least):
    return {"expert_load": {"dropped_share": exact, "dropped_share_at_least": least}}


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({}, ""),
        (RATE, "12,420 tokens/s/device"),
        (EXACT, f"MFU 31.0 % {MFU}"),
        (AT_MOST, f"MFU at most 31.0 % {MFU}"),
        (RATE | EXACT, f"12,420 tokens/s/device · MFU 31.0 % {MFU}"),
        (RATE | lost(0.021, 0.021), "12,420 tokens/s/device · 2.1 % of (token, expert) pairs "
         "dropped"),
        (lost(None, 0.01), "at least 1.0 % of (token, expert) pairs dropped"),
        (lost(0.0, 0.0), "no (token, expert) pair dropped"),
        (lost(None, 0.0), ""),  # that some may be dropped says nothing
        (lost(None, None), ""),
        ({"step_time": {"tokens_per_second_device": None}}, ""),
    ],
)  # fmt: skip
def test_what_a_step_does_is_told_where_it_is_known(figures, words):
    assert story.described_rate(told(figures)) == words


def test_without_an_interval_the_time_is_said():
    found = story.described_rate(told(RATE | EXACT, has_interval=False))
    assert found == (f"by the device work of a step: 20,000 tokens/s/device · MFU 40.0 % {MFU}")
    assert story.described_rate(told(lost(0.021, 0.021), has_interval=False)).startswith("2.1 %")


def test_what_a_step_does_stands_below_its_time():
    made = told(RATE | EXACT | lost(0.021, 0.021))
    assert page_view([made]).runs[0].rate == story.described_rate(made)
    lines = overview(made).plain.splitlines()
    at = next(n for n, line in enumerate(lines) if "tokens/s/device" in line)
    assert lines[at].startswith("       12,420 tokens/s/device · MFU 31.0 % (model FLOPs")
    assert max(map(len, lines)) <= 80
