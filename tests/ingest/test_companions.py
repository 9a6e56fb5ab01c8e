"""Which step a program belongs to that runs between two executions of the largest one."""

from moeprof.ingest.placing.companions import with_companions
from moeprof.ingest.placing.execution import Execution

MAIN, UPDATE = 1, 2


def execution(module, run_id, start_ns, end_ns):
    return Execution(module, run_id, start_ns, end_ns, busy_ns=end_ns - start_ns, ops=1, devices=1)


def runs_of(*spans):
    """(module, start, end) in time."""
    return [execution(module, n, start, end) for n, (module, start, end) in enumerate(spans)]


def test_what_comes_after_the_last_and_never_before_the_first_follows_up():
    """Updates that a busy machine runs just before the next step are of the one before."""
    runs = runs_of(
        (MAIN, 0, 100), (UPDATE, 180, 195), (MAIN, 200, 300), (UPDATE, 380, 395),
        (MAIN, 400, 500), (UPDATE, 580, 595),
    )  # fmt: skip
    steps = with_companions(runs, MAIN)
    assert [[e.run_id for e in step] for step in steps] == [[0, 1], [2, 3], [4, 5]]


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
