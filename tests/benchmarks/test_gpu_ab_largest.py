"""The search for the largest batch, on plans that are lines worked out by hand."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize(
    ("common", "guess", "compiled", "largest"),
    [
        ((1, 20), 20, [20, 27], 27),  # 18 + 2 p ≤ 72.5 up to 27: the line leads there
        ((1, 20), 27, [27], 27),
        ((1, 20), 40, [40, 27], 27),
        ((1, 20), 0, [], 1),  # nothing fits by the closed form: the common batch stays
        ((27, 72), 20, [20], 27),  # the line leads back to the common batch
    ],
)
def test_the_line_of_plans_leads_to_the_largest(program, common, guess, compiled, largest):
    asked = []

    def planned(pdbs: int) -> float:
        asked.append(pdbs)
        return 18 + 2 * pdbs

    found = program("gpu.ab_largest").planned_largest(common, guess, 72.5, planned)
    assert (found, asked) == (largest, compiled)


def test_plans_that_do_not_grow_end_the_search(program):
    assert program("gpu.ab_largest").planned_largest((1, 20), 9, 72, lambda pdbs: 20) == 9


@pytest.mark.parametrize(
    ("first", "most", "tried"),
    [
        (27, 27, [(27, True), (28, False)]),
        (27, 28, [(27, True), (28, True), (29, False)]),
        (27, 25, [(27, False), (26, False), (25, True)]),
        (27, 40, [(27, True), (28, True), (29, True), (30, True)]),  # four attempts at most
        (2, 2, [(3, False)]),  # the common batch is not run again
        (3, 2, [(3, False)]),
    ],
)
def test_attempts_end_between_one_that_ran_and_one_that_failed(program, first, most, tried):
    found = program("gpu.ab_largest").attempts(first, 2, lambda pdbs: pdbs <= most)
    assert list(found) == tried


def test_the_largest_is_bounded_by_the_next_one_that_failed(program):
    largest_of = program("gpu.ab_largest").largest_of
    ran, failed = {"pdbs": 5}, {"pdbs": 6, "failed": "RESOURCE_EXHAUSTED"}
    assert largest_of(2, [ran, failed]) == {"pdbs": 5, "is_bounded": True, "tried": [ran, failed]}
    assert not largest_of(2, [ran])["is_bounded"]
    assert largest_of(5, [failed])["is_bounded"]
    assert largest_of(None, []) == {"pdbs": 0, "is_bounded": False, "tried": []}


class Step:
    """An executable whose plan is 10 bytes a sequence, two thirds of them arguments."""

    def __init__(self, pdbs: int) -> None:
        self.argument_size_in_bytes, self.temp_size_in_bytes = 4 * pdbs, 6 * pdbs

    def memory_analysis(self) -> Step:
        return self


def test_every_attempt_is_a_line_of_json(program, capsys):
    made = []

    def compiled(pdbs: int) -> Step:
        made.append(pdbs)
        return Step(pdbs)

    def run(step: Step, pdbs: int) -> str | None:
        return "RESOURCE_EXHAUSTED" if pdbs > 6 else None

    program("gpu.ab_largest").search_here((2, 20), 4, 70, compiled, run)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    # The plan of 7 fits into 70 bytes, and yet it fails; 6 runs.
    assert rows == [
        {"pdbs": 7, "planned_bytes": 70, "failed": "RESOURCE_EXHAUSTED"},
        {"pdbs": 6, "planned_bytes": 60},
    ]
    assert made == [4, 7, 6]
