"""The native reader and the plain one give the same, whatever the bytes and the threads."""

import numpy as np
import pytest
from builders.protobuf import field, message
from builders.xspace import METADATA, Plane, Ref, event, host, line, xspace
from fuzz_seeds import CORPUS, seeds
from hypothesis import given, settings
from hypothesis import strategies as st
from space_strategies import ASKED, BROKEN, damaged, spaces
from space_views import columns_view, space_view

from moeprof.ingest.xspace.native_space import NativeSpace
from moeprof.ingest.xspace.python_space import open_python_space
from moeprof.ingest.xspace.space import MOST_LISTED


def assert_twins_agree(data: bytes, asked: tuple[str, ...] = ASKED) -> None:
    expected = space_view(open_python_space(data), asked)
    for threads in (1, 3):
        space = NativeSpace(data, threads)
        assert space_view(space, asked) == expected
        space.close()


@settings(max_examples=500)
@given(spaces(BROKEN, noisy_maps=True))
def test_any_space_is_the_same_to_both(data):
    assert_twins_agree(data)


@settings(max_examples=1000)
@given(damaged())
def test_a_damaged_space_is_the_same_to_both(data):
    assert_twins_agree(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_the_same_to_both(data):
    assert_twins_agree(data)


WHOLE = xspace(
    host(line("t0", *(event("k", i, 1, op=Ref("dot.1"), run_id=i) for i in range(6)))),
    Plane(METADATA, programs={1: b"xyz"}, stats={"v": "1"}),
)


def test_every_cut_is_the_same_to_both():
    for length in range(len(WHOLE) + 1):
        assert_twins_agree(WHOLE[:length])


def many_events(count: int) -> bytes:
    """One long line and short ones around it; names, strings and damage all along the long one."""

    def one(at: int) -> bytes:
        if at % 9_000 == 8_999:
            return field(4, b"\x0a\xff")  # an event that cannot be read
        text = (5, f"op{at // 7_000}") if at % 3 else (7, 2 + at % 2)
        op = message((1, 1), text)
        return field(4, message((1, at % 3), (2, at * 1000), (3, 1500), (4, op)))

    def entry(key: int, name: str) -> bytes:
        return message((1, key), (2, message((1, key), (2, name))))

    long = b"".join(map(one, range(count)))
    short = b"".join(map(one, range(5)))
    return field(
        1,
        b"".join(field(3, part) for part in (short, long, b"", short))
        + b"".join(field(4, entry(key, f"k{key}")) for key in range(2))
        + b"".join(field(5, entry(1 + at, name)) for at, name in enumerate(("op", "op1", "b"))),
    )


def test_a_line_that_several_threads_share_is_read_in_order():
    data = many_events(70_000)
    plain, native = open_python_space(data), NativeSpace(data, 3)
    (plane,), (same_plane,) = plain.head.planes, native.head.planes
    expected = plain.events(plane, texts=("op",))
    assert columns_view(native.events(same_plane, texts=("op",))) == columns_view(expected)
    assert (len(expected), expected.damaged) == (70_010 - 7, 7)
    assert native.head.damage == plain.head.damage


def test_rows_close_up_where_many_names_are_skipped():
    data = many_events(70_000)
    plain, native = open_python_space(data), NativeSpace(data, 3)
    (plane,), (same_plane,) = plain.head.planes, native.head.planes
    skip = np.array([True, False])
    expected = plain.events(plane, texts=("op",), skip_names=skip)
    found = native.events(same_plane, texts=("op",), skip_names=skip)
    assert columns_view(found) == columns_view(expected)


def test_more_damage_than_is_listed_is_counted():
    broken = field(4, b"\x0a\xff")
    data = field(1, field(3, broken * 50) + field(3, broken * 50))
    for space in (open_python_space(data), NativeSpace(data, 3)):
        (plane,) = space.head.planes
        assert space.events(plane).damaged == 100
        assert (len(space.head.damage), space.head.damaged_places) == (MOST_LISTED, 100)
        space.events(plane)  # what is read again is not damaged again
        assert (len(space.head.damage), space.head.damaged_places) == (MOST_LISTED, 100)


def test_many_damaged_planes_take_no_longer_than_their_bytes():
    data = b"\x0a\x01\xff" * 30_000
    for space in (open_python_space(data), NativeSpace(data, 3)):
        assert len(space.head.planes) == 30_000
        assert (len(space.head.damage), space.head.damaged_places) == (MOST_LISTED, 30_000)


@pytest.mark.parametrize("file", sorted(CORPUS.iterdir()), ids=lambda file: file.name)
def test_what_fuzzing_found_is_the_same_to_both(file):
    assert_twins_agree(file.read_bytes())


def test_the_seeds_of_fuzzing_are_what_the_builders_write():
    for name, content in seeds().items():
        assert (CORPUS / f"seed-{name}").read_bytes() == content
