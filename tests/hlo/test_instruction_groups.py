"""Groups of devices: their text both ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprof.hlo.instruction import NOT_READ, groups_text, parse_groups

devices = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=5).map(tuple)


@given(st.lists(devices, max_size=5).map(tuple))
def test_groups_are_what_their_text_says(groups):
    assert parse_groups(groups_text(groups)) == groups


@pytest.mark.parametrize("text", ["", "{}", "{{}}", " "])
def test_no_group_is_all_devices(text):
    assert parse_groups(text) == ()


def test_a_short_form_numbers_transposes_and_cuts():
    """0 to 7 as [2, 4] are 0 1 2 3 / 4 5 6 7; by columns 0 4 1 5 2 6 3 7."""
    assert parse_groups("[4,2]<=[8]") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert parse_groups("[4,2]<=[2,4]T(1,0)") == ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize("text", ["[4,2]<=[9]", "[0,2]<=[0]", "mesh['x'=8] {'x'}", "all of them"])
def test_groups_in_another_form_are_not_all_devices(text):
    assert parse_groups(text) == NOT_READ
    assert parse_groups(groups_text(NOT_READ)) == NOT_READ
