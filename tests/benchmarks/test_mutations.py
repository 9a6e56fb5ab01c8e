"""A damaged capture is right, withheld or warned about; one that loses nothing stays right.

A sample of all kinds over some of the captures; `benchmarks/mutations.py` runs all of them.
"""

import functools
import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from mutations import ALL_KINDS, RIGHT, WARNED, WRONG, Sound, captures, damaged, judged

NAMES = ("gpu/sparse-gmm", "maxtext/deepseek3_tiny_ep8_cf125")
SEED, MOST = 1, 14
SAMPLE = random.Random(SEED).sample([kind for kind in ALL_KINDS if not kind.invisible], MOST)


@functools.cache
def sound(name):
    return Sound(captures()[name])


@pytest.mark.parametrize("kind", SAMPLE, ids=lambda kind: kind.name)
def test_no_damage_gives_a_wrong_figure_under_good_trust(kind, tmp_path):
    name = NAMES[SAMPLE.index(kind) % len(NAMES)]
    verdict, off = judged(sound(name), damaged(captures()[name], kind, SEED, tmp_path))
    if kind.loses:
        assert verdict != WRONG, (name, off)
    else:
        assert verdict == RIGHT, (name, off)


def test_there_are_many_kinds_and_few_that_no_check_can_see():
    assert sum(kind.loses for kind in ALL_KINDS) >= 25
    assert all(kind.loses for kind in ALL_KINDS if kind.invisible)
    assert len([kind for kind in ALL_KINDS if kind.invisible]) <= 7


def test_a_wrong_figure_is_found(tmp_path):
    """The judge itself: a device that is said to be faster than it was is no right figure."""
    faster = next(kind for kind in ALL_KINDS if kind.name == "one_device_faster")
    made = damaged(captures()["gpu/sparse-gmm"], faster, 0, tmp_path)
    verdict, off = judged(sound("gpu/sparse-gmm"), made)
    assert verdict in (WRONG, WARNED)
    assert "breakdown.op_time" in off
