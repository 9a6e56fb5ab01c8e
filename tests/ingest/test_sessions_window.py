import gzip

import pytest
from builders.protobuf import message
from builders.sessions import NOON_NS, profile, write
from builders.xspace import Plane, event, line, metadata, xspace
from hypothesis import given
from hypothesis import strategies as st

from moeprof.ingest.sources.sessions import Window, recorded_window

WHOLE = profile((5, 9))
WINDOW = Window(NOON_NS + 5, NOON_NS + 9)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_window_is_that_of_the_task_environment(tmp_path, pack):
    assert recorded_window(write(tmp_path / "a", pack(WHOLE))) == WINDOW


def test_planes_after_it_do_not_matter(tmp_path):
    more = xspace(Plane("/device:GPU:0", (line("s", event("k", 1, 2)),)))
    assert recorded_window(write(tmp_path / "a", WHOLE[: -len(message((4, "node0")))] + more)) == (
        WINDOW
    )


def test_large_planes_are_stepped_over(tmp_path, monkeypatch):
    big = message((1, message((2, "/host:CPU"), (3, b"\0" * 20_000_000))))
    file = write(tmp_path / "a", big + WHOLE)
    opened = file.open("rb")
    reads: list[int] = []

    class Watched:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            opened.close()

        def read(self, size):
            data = opened.read(size)
            reads.append(len(data))
            return data

        def __getattr__(self, name):
            return getattr(opened, name)

    monkeypatch.setattr(type(file), "open", lambda *_: Watched())
    assert recorded_window(file) == WINDOW
    assert sum(reads) < 2000


@pytest.mark.parametrize(
    "stats",
    [
        {},
        {"profile_start_time": 5},
        {"profile_start_time": 9, "profile_stop_time": 5},
        {"profile_start_time": 0, "profile_stop_time": 5},
        {"profile_start_time": "five", "profile_stop_time": 5},
    ],
)
def test_a_file_that_states_no_sound_window_has_none(tmp_path, stats):
    space = xspace(metadata(), Plane("Task Environment", stats=stats))
    assert recorded_window(write(tmp_path / "a", space)) is None


@pytest.mark.parametrize("content", [b"", b"<html>", b"\x0a", b"\x0a" + b"\xff" * 20, b"\x1f\x8b"])
def test_what_is_no_profile_has_none(tmp_path, content):
    assert recorded_window(write(tmp_path / "a", content)) is None


@given(st.integers(0, len(WHOLE)), st.booleans())
def test_a_cut_file_has_its_window_or_none(tmp_path_factory, at, packed):
    data = gzip.compress(WHOLE)[:at] if packed else WHOLE[:at]
    file = write(tmp_path_factory.getbasetemp() / "cut" / "a", data)
    assert recorded_window(file) in (None, WINDOW)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_changed_byte_is_no_error(tmp_path_factory, at, byte):
    data = WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :]
    file = write(tmp_path_factory.getbasetemp() / "changed" / "a", data)
    assert isinstance(recorded_window(file), Window | None)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("size", [2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**40])
def test_a_plane_that_claims_more_than_any_file_holds_states_no_window(tmp_path, pack, size):
    coded = bytes((size >> shift) & 0x7F | 0x80 for shift in range(0, 63, 7)) + bytes([size >> 63])
    file = write(tmp_path / "a.xplane.pb", pack(b"\x0a" + coded + WHOLE))
    assert recorded_window(file) is None
