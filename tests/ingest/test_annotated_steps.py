"""Which step a program belongs to that runs between two executions of the largest one."""

from moeprof.ingest.placing.annotated_steps import with_companions
from moeprof.ingest.placing.step import Execution

MAIN, UPDATE = 1, 2


def execution(module, run_id, start_ns, end_ns):
    return Execution(module, run_id, start_ns, end_ns, busy_ns=end_ns - start_ns, ops=1, devices=1)


def runs_of(*spans):
    """(module, start, end) in time."""
    return [execution(module, n, start, end) for n, (module, start, end) in enumerate(spans)]


def test_an_update_that_a_busy_machine_runs_late_still_follows_up():
    """50 ns behind the one and 35 before the next, in the middle as far as that tells."""
    runs = runs_of(
        (MAIN, 0, 100), (UPDATE, 150, 165), (MAIN, 200, 300), (UPDATE, 350, 365),
        (MAIN, 400, 500), (UPDATE, 550, 565),
    )  # fmt: skip
    steps = with_companions(runs, MAIN)
    assert [[e.run_id for e in step] for step in steps] == [[0, 1], [2, 3], [4, 5]]


def test_a_copy_right_before_the_next_prepares_it_though_the_capture_cut_the_first():
    """80 ns behind the one and 5 before the next."""
    runs = runs_of(
        (MAIN, 0, 100), (UPDATE, 180, 195), (MAIN, 200, 300), (UPDATE, 380, 395),
        (MAIN, 400, 500), (UPDATE, 580, 595),
    )  # fmt: skip
    steps = with_companions(runs, MAIN)
    assert [[e.run_id for e in step] for step in steps] == [[0], [1, 2], [3, 4]]


def test_what_comes_before_the_first_and_never_after_the_last_prepares():
    runs = runs_of(
        (UPDATE, 0, 10), (MAIN, 90, 200), (UPDATE, 205, 215), (MAIN, 290, 400),
        (UPDATE, 405, 415), (MAIN, 490, 600),
    )  # fmt: skip
    steps = with_companions(runs, MAIN)
    assert [[e.run_id for e in step] for step in steps] == [[0, 1], [2, 3], [4, 5]]


def test_else_what_it_is_nearer_to_tells():
    runs = runs_of(
        (UPDATE, 0, 10), (MAIN, 20, 100), (UPDATE, 180, 195), (MAIN, 200, 300), (UPDATE, 380, 395)
    )
    steps = with_companions(runs, MAIN)
    assert [[e.run_id for e in step] for step in steps] == [[0, 1], [2, 3]]
