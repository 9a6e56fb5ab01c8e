"""A damaged capture is right, withheld or warned about; one that loses nothing stays right."""

import functools
import sys
import zlib
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from mutation_kinds import KINDS
from mutations import RIGHT, WRONG, Sound, captures, damaged, judged

NAMES = sorted(captures())


@functools.cache
def sound(name):
    return Sound(captures()[name])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_damage_gives_a_wrong_figure_under_good_trust(kind, tmp_path):
    if kind.invisible:
        return
    name = NAMES[zlib.crc32(kind.name.encode()) % len(NAMES)]
    verdict, off = judged(sound(name), damaged(captures()[name], kind, 0, tmp_path))
    if kind.loses:
        assert verdict != WRONG, (name, off)
    else:
        assert verdict == RIGHT, (name, off)


def test_there_are_many_kinds_and_few_that_no_check_can_see():
    assert sum(kind.loses for kind in KINDS) >= 25
    assert all(kind.loses for kind in KINDS if kind.invisible)
    assert len([kind for kind in KINDS if kind.invisible]) <= 4


def test_a_wrong_figure_is_found(tmp_path):
    """The judge itself: a device that is said to be faster than it was is no right figure."""
    faster = next(kind for kind in KINDS if kind.name == "one_device_faster")
    made = damaged(captures()["gpu/sparse-gmm"], faster, 0, tmp_path)
    verdict, off = judged(sound("gpu/sparse-gmm"), made)
    assert verdict == WRONG
    assert "breakdown.op_time" in off
