from __future__ import annotations

import itertools

import numpy as np
import pytest

from moeprof.reports.components import COLOURS, colour, in_order, ink_on

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision
# Deficiency", 2009, table 1, severity 1.0; on linear RGB.
VISION = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
         [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip


def lab(hex_colour: str, vision: str) -> np.ndarray:
    """CIE L*a*b* (D65) of an sRGB colour as it is seen."""
    srgb = np.array([int(hex_colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(VISION[vision] @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ seen / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


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
