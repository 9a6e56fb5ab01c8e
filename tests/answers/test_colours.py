from __future__ import annotations

import itertools

import numpy as np
import pytest
from colour_vision import VISION, lab

from moeprof.answers.colours import COLOURS, colour, in_order, ink_on


@pytest.mark.parametrize("vision", VISION)
def test_parts_that_touch_are_told_apart(vision):
    # A difference of 10 is seen at a glance (a just noticeable one is 2.3, CIE 1976).
    for left, right in itertools.pairwise(COLOURS):
        difference = np.linalg.norm(lab(COLOURS[left], vision) - lab(COLOURS[right], vision))
        assert difference > 10, (left, right, difference)


@pytest.mark.parametrize("vision", VISION)
def test_any_two_that_may_touch_in_a_timeline_or_flame_graph_are_told_apart(vision):
    # twice what is just noticed
    for one, other in itertools.combinations(COLOURS, 2):
        difference = np.linalg.norm(lab(COLOURS[one], vision) - lab(COLOURS[other], vision))
        assert difference > 2 * 2.3, (one, other, difference)


def test_no_two_components_share_a_colour():
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_an_unknown_component_keeps_its_colour():
    assert colour("my_layer") == colour("my_layer")
    assert colour("my_layer") not in COLOURS.values()


def test_unknown_components_stand_before_the_striped_ones():
    assert in_order(["idle", "zeta", "attention", "alpha", "unattributed"]) == [
        "attention", "alpha", "zeta", "unattributed", "idle",
    ]  # fmt: skip


def test_text_on_a_colour_is_black_or_white_by_its_contrast():
    assert [ink_on("#ffffff"), ink_on("#000000")] == ["#000000", "#ffffff"]
    assert ink_on("#777777") == "#000000"  # 4.69 : 1 against 4.48 : 1
    assert ink_on("#767676") == "#000000"  # 4.62 : 1 against 4.54 : 1
    assert ink_on(COLOURS["combine"]) == "#ffffff"
