"""A memory projection on a terminal and as JSON: verdicts in marks and words."""

import dataclasses
import json

import pytest
from builders.memory import GIB, breakdown, cell, document, part, setting

from moeprof.projector.breakdown import Peak, Phase
from moeprof.projector.levers import Lever
from moeprof.reports.memory.document import row_of, to_json
from moeprof.reports.memory.terminal import drawn


def three_cells():
    """Pool 72 of 80 GiB: 50 fits, 70 is near, 75.5 does not fit; 9 of 8 beside it do not."""
    return document(
        [
            cell("sparse-gmm", 1, args=20 * GIB, temp=30 * GIB, outside=GIB),
            cell("sparse-gmm", 2, args=20 * GIB, temp=50 * GIB, outside=GIB),
            cell("sparse-gmm", 4, args=20 * GIB, temp=59 * GIB, outside=GIB),
            cell("sparse-gmm-deepep", 1, args=20 * GIB, temp=30 * GIB, outside=9 * GIB),
        ],
        {"sparse-gmm": 2, "sparse-gmm-deepep": 0},
    )


def test_marks_say_what_fits():
    lines = drawn(three_cells()).plain.splitlines()
    assert any(line.split() == ["sparse-gmm", "✓", "~", "✗+7.0", "2"] for line in lines)
    assert any(line.split() == ["sparse-gmm-deepep", "✗out", "0"] for line in lines)
    assert " sparse-gmm at 4: loss: logits" in lines
    assert " sparse-gmm-deepep at 1: outside the pool" in lines


def test_the_shown_cell_is_told_in_a_sentence_and_row_by_row():
    text = drawn(three_cells()).plain
    needs = "MaxText 0.2.5: sparse-gmm at pdbs 1 needs 50.0 of the pool's 72.0 GiB: fits,"
    assert text.startswith(f"{needs}\n22.0 GiB left.\n")
    assert "pool 72.0 GiB (0.9 × 80.0) · weights and optimizer 20.0 GiB" in text
    assert "left for the step 52.0 GiB" in text
    assert "   logits: given" in text
    assert "Beside the pool: 1.0 of 8.0 GiB." in text
    # 50 / 80 = 0.625 and 79 / 80 = 0.9875, rounded inwards
    assert "--mem-fraction from 0.625 to 0.987." in text


def test_a_sliver_of_a_terminal_is_no_error():
    assert drawn(three_cells(), 12).plain == drawn(three_cells(), 40).plain


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_broken(width):
    wide = drawn(three_cells(), 80).plain
    text = drawn(three_cells(), width).plain
    assert max(map(len, text.splitlines())) <= min(width, 80)
    assert set(text.split()) - set(wide.split()) <= {"GiB", *["strategy", "pdbs", "largest"]} | {
        word for word in text.split() if "█" in word or "▏" in word
    }


def test_many_batches_go_on_below():
    rows = [cell("sparse-gmm", n, temp=GIB) for n in range(1, 30)]
    lines = drawn(document(rows, {"sparse-gmm": 4096}), 60).plain.splitlines()
    heads = [line for line in lines if line.startswith(" strategy")]
    assert [int(n) for line in heads for n in line.split()[2:-1]] == list(range(1, 30))
    assert max(map(len, lines)) <= 60
    assert any("≥ 4096" in line for line in lines)


def test_an_unknown_size_is_no_zero():
    made = document([cell("sparse-gmm", 1, temp=None)], {"sparse-gmm": None})
    text = drawn(made).plain
    assert "sparse-gmm at pdbs 1: whether it fits cannot be told." in text
    assert "not known" in text
    (row,) = json.loads(to_json(made))["rows"]
    assert (row["verdict"], row["temp_bytes"], row["total_bytes"]) == ("unknown", None, None)


def test_a_change_that_helps_is_told_with_its_size():
    lever = Lever("vocab tiling 4", "slower", 6 * GIB, "fits", setting())
    made = document([cell("sparse-gmm", 1, temp=75 * GIB, levers=[lever])], {"sparse-gmm": 0})
    text = drawn(made).plain
    assert "What would help sparse-gmm at pdbs 1 (3.0 GiB too much)" in text
    assert "   −6.0 GiB  vocab tiling 4: then fits (slower)" in text


@pytest.mark.parametrize(
    ("temp", "limit", "said"),
    [
        (50, 2.5, "Fits up to an imbalance factor of 2.5: the fullest rank receives 2.5 × what"),
        (90, 1.5, "It would fit with buffers for an imbalance factor of up to 1.5: the"),
        (90, 0.0, "It does not fit even with an even routing."),
    ],
)
def test_the_overload_up_to_which_it_fits_is_told(temp, limit, said):
    row = cell("sparse-gmm", 1, temp=temp * GIB, overload=limit)
    assert said in drawn(document([row], {"sparse-gmm": 1})).plain


def test_that_nothing_fits_is_said_first():
    rows = [cell("sparse-gmm", 1, temp=90 * GIB), cell("sparse-gmm-deepep", 1, temp=99 * GIB)]
    both = drawn(document(rows, {"sparse-gmm": 0, "sparse-gmm-deepep": 0})).plain
    first = "MaxText 0.2.5: None of the strategies fits, not even with one sequence per device."
    assert " ".join(both.split()).startswith(f"{first} sparse-gmm at pdbs 1 needs")
    one = drawn(document(rows[:1], {"sparse-gmm": 0})).plain
    assert one.startswith("MaxText 0.2.5: It does not fit, not even with one sequence per")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        # 30 · 0.1 either way; 36 plans: ±7 %.
        (
            {"optimizer": "muon"},
            "not measured for such a plan; ±10 % of the arena is taken: 47.0 to",
        ),
        ({}, "±7 % of the arena, measured on 36 plans: 47.9 to 52.1 GiB."),
    ],
)
def test_how_sure_it_is_follows_the_verdict(changes, said):
    row = row_of(breakdown(setting("dense-cf1.25", **changes), args=20 * GIB, temp=30 * GIB))
    text = " ".join(drawn(document([row], {"dense-cf1.25": 1})).plain.split())
    verdict = text.index("22.0 GiB left.")
    assert text.index(f"Certainty: {said}") == verdict + len("22.0 GiB left. ")


def test_a_document_has_the_error_and_both_ends():
    row = cell("dense-cf1.25", 1, args=20 * GIB, temp=30 * GIB)
    assert row["error"]["share"] == 0.07
    assert (row["error"]["of"], row["error"]["plans"]) == ("arena", 36)
    half = int(0.07 * 30 * GIB)
    assert row["inside_range_bytes"] == [50 * GIB - half, 50 * GIB + half]


@pytest.mark.parametrize(
    ("own", "library", "sentence"),
    [
        # Of 72 GiB, with 20 of arguments: libraries' end leaves 12, and 10 % of its 40 are 4.
        (30, 40, "needs 50.0 to 60.0 of the pool's 72.0 GiB, {why}: fits, 12.0 GiB left."),
        # 50 and 73: which kernels decides. 50 and 71: 1 of 72 below, nearer than 5 %.
        (30, 53, "needs 50.0 to 73.0 of the pool's 72.0 GiB, {why}: borderline, the limit lies"),
        (30, 51, "needs 50.0 to 71.0 of the pool's 72.0 GiB, {why}: borderline, 1.4 % below"),
        (53, 60, "needs 73.0 to 80.0 of the pool's 72.0 GiB, {why}: borderline, 1.4 % above"),
        (70, 80, "needs 90.0 to 100.0 of the pool's 72.0 GiB, {why}: out of memory by 18.0 GiB."),
        (30, 20, "needs 50.0 of the pool's 72.0 GiB: fits, 22.0 GiB left."),
    ],
)
def test_a_step_between_two_ends_has_both_in_its_sentence(own, library, sentence):
    run = setting("dense-cf1.25", framework="bundled", optimizer="muon")  # not measured: 10 %
    found = breakdown(run, args=20 * GIB, temp=own * GIB)
    moment = Peak("backward, by libraries", (part("copies", "temp", library * GIB),))
    stage = dataclasses.replace(found.worst, libraries=(moment,))
    row = row_of(dataclasses.replace(found, stages=(stage,)))
    text = " ".join(drawn(document([row], {"dense-cf1.25": 1})).plain.split())
    assert sentence.format(why="by which kernels XLA chooses for products") in text
    most = max(own, library)
    assert row["temp_range_bytes"] == [own * GIB, most * GIB]
    assert row["library_error"]["share"] == 0.1
    ends = [(20 + 0.9 * own) * GIB, (20 + 1.1 * most) * GIB]
    assert row["inside_range_bytes"] == pytest.approx(ends)
    assert row["error"]["more"] == pytest.approx(1.1 * most / own - 1.1, abs=6e-4)
    assert ("where libraries compute products" in text.partition("Arena")[2]) == (library > own)


def test_nothing_more_is_said_first_where_something_fits():
    assert "not even" not in drawn(three_cells()).plain


def test_every_stage_of_a_pipeline_is_a_line():
    row = row_of(breakdown(setting(), args=10 * GIB, temp=40 * GIB, stages=2))
    lines = drawn(document([row], {"sparse-gmm": 1})).plain.splitlines()
    assert "      0      10.0      20.0       0.0      30.0" in lines
    assert "      1      10.0      40.0       0.0      50.0  ← worst" in lines


def test_the_document_is_strict_and_its_components_sum_to_the_total():
    made = json.loads(to_json(three_cells()), parse_constant=pytest.fail)
    assert made["schema"] == "moeprof.memory/1"
    for row in made["rows"]:
        assert sum(c["bytes"] for c in row["components"]) == row["total_bytes"]
        inside = sum(c["bytes"] for c in row["components"] if c["pool"] != "outside")
        assert inside == row["args_bytes"] + row["temp_bytes"]


@pytest.mark.parametrize(
    ("fraction", "said"),
    [
        (0.93, "needs 72.0 of the pool's 74.4 GiB: borderline, 3.2 % below the limit."),
        (0.98, "but 3.7 of the 1.6 GiB beside it: out of memory there."),
        (0.8, "needs 72.0 of the pool's 64.0 GiB: out of memory by 8.0 GiB."),
    ],
)
def test_two_pools_are_told_apart_and_a_fraction_is_proposed(fraction, said):
    """72 GiB inside, EP buffers of 2,384,731,136 B and 1.5 GiB beside (NVIDIA/nccl#2038)."""
    outside = 2_384_731_136 + 3 * GIB // 2
    row = cell("sparse-gmm", 1, temp=72 * GIB, outside=outside, mem_fraction=fraction)
    text = " ".join(drawn(document([row], {"sparse-gmm": 1})).plain.split())
    assert said in text
    # 72 / 80 = 0.900; 1 − 3.72 / 80 = 0.95348
    assert "Both pools suffice with --mem-fraction from 0.900 to 0.953." in text


def of_a_restore(restore_gib, temp_gib, **more):
    """A row beside whose step a restore holds so much of the pool of 72 of 80 GiB."""
    temp = None if temp_gib is None else temp_gib * GIB
    made = breakdown(setting(**more), args=2 * GIB, temp=temp, outside=GIB)
    kept = (part("weights", "args", 2 * GIB, "params"),)
    again = (Peak("state", (part("restored", "temp", (restore_gib - 2) * GIB),)),)
    hosted = (part("shards", "host", 30 * GIB, "host copies"),)
    other = Phase("restore", kept, again, made.worst.outside, hosted)
    return row_of(dataclasses.replace(made, others=(other,)), 2.0)


@pytest.mark.parametrize(
    ("row", "said", "unsaid"),
    [
        # 85 + 1 of 80 GiB at the restore; 2 + 48 in the step.
        (
            of_a_restore(85, 48),
            [
                "needs 85.0 of the pool's 72.0 GiB to restore a checkpoint: out of memory by 13.0 "
                "GiB; the step alone needs 50.0. Certainty of the step: ±",
                "No --mem-fraction helps: 86.0 GiB are needed, the device has 80.0.",
                "In the pool the step alone fits up to an imbalance factor of 2: the fullest",
            ],
            "would fit with buffers",
        ),
        # 67 of 72 is exact in the restore; 2 + 64 in the step is so to 0.1 · 64.
        (
            of_a_restore(67, 64, optimizer="muon"),
            ["needs 66.0 of the pool's 72.0 GiB: borderline, 8.3 % below", "Certainty: not"],
            "the step alone",
        ),
        (
            of_a_restore(40, 48, host_memory_bytes=16 * GIB),
            [
                "needs 30.0 of a host's 16.0 GiB to restore a checkpoint: out of memory there. "
                "Certainty of the step: ±",
                "In the pool the step alone fits up to",
            ],
            "would fit with buffers",
        ),
        (
            of_a_restore(85, None),
            ["to restore a checkpoint: out of memory by 13.0 GiB. Certainty of the step: ±"],
            "the step alone needs",
        ),
        (of_a_restore(40, None), ["at pdbs 1: whether it fits cannot be told."], "helps"),
    ],
    ids=["restore", "step-by-its-error", "host", "restore-step-unknown", "unknown"],
)
def test_a_sentence_is_of_the_phase_that_decides(row, said, unsaid):
    text = " ".join(drawn(document([row], {"sparse-gmm": 1})).plain.split())
    for each in said:
        assert each in text
    assert unsaid not in text


@pytest.mark.parametrize(
    ("row", "mark", "legend"),
    [
        (of_a_restore(85, 48), "✗+13", "✗+3.2 out of memory by 3.2 GiB"),
        (of_a_restore(40, 48, host_memory_bytes=16 * GIB), "✗host", "✗host too much in a host's"),
    ],
)
def test_a_mark_of_another_phase_is_in_the_legend(row, mark, legend):
    lines = drawn(document([row], {"sparse-gmm": 0})).plain.splitlines()
    at = next(n for n, line in enumerate(lines) if line.split() == ["sparse-gmm", mark, "0"])
    assert lines[at + 1].strip().startswith(legend)


def test_what_lies_beside_the_pool_is_not_cured_by_a_routing():
    row = cell("sparse-gmm-deepep", 1, temp=30 * GIB, outside=9 * GIB, overload=4.0)
    text = " ".join(drawn(document([row], {"sparse-gmm-deepep": 0})).plain.split())
    assert "9.0 of the 8.0 GiB beside it: out of memory there." in text
    assert "In the pool the step alone fits up to an imbalance factor of 4: the" in text
