"""The largest batch that fits, found without trying every one."""

import pytest
from builders.memory import GIB, breakdown, setting

from moeprof.projector.batches import (
    BOUND,
    Reach,
    at_pdbs,
    reach,
    reach_at_once,
    worth_showing,
)
from moeprof.projector.memory import project
from moeprof.projector.setting import Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.strategy import parse_strategy


def at(gib_each: float, asked: list[int] | None = None):
    """72 GiB of pool, of which each sequence takes some."""

    def project(run):
        if asked is not None:
            asked.append(run.pdbs)
        return breakdown(run, temp=int(run.pdbs * gib_each * GIB))

    return at_pdbs(setting(), project)


@pytest.mark.parametrize(
    ("gib_each", "expected"),
    [
        # Of an account that was not measured 10 %: 7 · 10 · 1.1 is above 72, 8 · 10 · 0.9 is not.
        (10, Reach(8, 6)),
        (73, Reach(1, 0)),  # 1.4 % above: borderline
        (100, Reach(0, 0)),
        (1 / 1024, Reach(BOUND, BOUND)),
    ],
)
def test_the_largest_is_that_of_a_search_one_by_one(gib_each, expected):
    found = reach(at(gib_each))
    assert found == expected
    slow = [n for n in range(1, 100) if at(gib_each)(n).verdict != "oom"]
    assert (found.largest or 0) == (BOUND if found.is_bound else max(slow, default=0))


def test_no_batch_is_computed_twice():
    asked: list[int] = []
    reach(at(1.0, asked))
    assert len(asked) == len(set(asked)) < 20


def test_an_unknown_size_leaves_the_largest_unknown():
    assert reach(lambda pdbs: breakdown(setting(pdbs=pdbs), temp=None)) == Reach(None, None)


PLANS = [
    ("deepseek_v3", "mi355x", "maxtext", ParallelPlan(fsdp=8, expert=8), 1),
    ("deepseek_v3", "h100_sxm", "maxtext", ParallelPlan(expert=64), 1),
    ("small", "b200", "bundled", ParallelPlan(), 1),
    ("qwen3_30b_a3b", "h200_sxm", "maxtext", ParallelPlan(expert=8, pipeline=4), 8),
    ("moe_1t", "mi355x", "megatron", ParallelPlan(data=32, expert=8, pipeline=24), 48),
]


@pytest.mark.parametrize("strategy", ["dense-cf1.25", "sparse-gmm-deepep", "sparse-ragged-dot"])
@pytest.mark.parametrize(("model", "hardware", "world", "plan", "microbatches"), PLANS)
def test_many_batches_at_once_find_the_same(strategy, model, hardware, world, plan, microbatches):
    run = Setting(load_preset(model), plan, parse_strategy(strategy), load_hardware(hardware),
                  framework=world, microbatches=microbatches)  # fmt: skip
    assert reach_at_once(run) == reach(at_pdbs(run, project))


def test_at_once_too_an_unknown_size_leaves_the_largest_unknown():
    run = Setting(load_preset("small"), ParallelPlan(), parse_strategy("sparse-gmm"),
                  load_hardware("b200"), sequence=None)  # fmt: skip
    assert reach_at_once(run) == reach(at_pdbs(run, project)) == Reach(None, None)


def test_limits_and_one_beyond_are_worth_showing():
    assert worth_showing([Reach(9, 9), Reach(7, 6), Reach(0, 0)], 6) == [1, 4, 7, 8, 9, 10]
    assert worth_showing([Reach(9, 9), Reach(7, 6), Reach(0, 0)], 3) == [1, 7, 9]
    assert worth_showing([Reach(None, None)], 6) == [1]
    assert worth_showing([Reach(BOUND, BOUND)], 6) == [1, BOUND // 2, BOUND]
