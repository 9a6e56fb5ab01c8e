"""What both readers make of files worked out by hand."""

import gzip

import numpy as np
import pytest
from builders.protobuf import field, message
from builders.xspace import METADATA, Plane, Ref, event, host, line, xspace

from moeprof.errors import NativeError, SpecError, TraceError
from moeprof.ingest.xspace import native_library
from moeprof.ingest.xspace.native_space import open_native_space
from moeprof.ingest.xspace.open_space import open_space
from moeprof.ingest.xspace.python_space import open_python_space
from moeprof.ingest.xspace.space import ABSENT

LEAST, MOST = -(2**63), 2**63 - 1


@pytest.fixture(params=["native", "python"], autouse=True)
def reader(request, monkeypatch) -> str:
    monkeypatch.setenv("MOEPROF_READER", request.param)
    return request.param


def only_plane(data: bytes):
    space = open_space(data)
    (plane,) = space.head.planes
    return space, plane


def one_event(timestamp_ns: int, offset_ps: int, duration_ps: int) -> tuple[int, int]:
    """Stamps of an event with these fields."""
    fields = message((1, 1), (2, offset_ps), (3, duration_ps))
    space, plane = only_plane(field(1, message((3, message((3, timestamp_ns), (4, fields))))))
    found = space.events(plane)
    return found.start_ns.item(), found.end_ns.item()


def test_the_reader_asked_for_is_used(reader):
    assert type(open_space(b"")).__name__ == f"{reader.capitalize()}Space"


def test_an_empty_file_is_an_empty_space():
    space = open_space(b"")
    assert (space.head.planes, space.head.damage) == ((), [])


def test_names_references_and_numbers_become_columns():
    data = xspace(
        host(
            line("t0", event("k", 5, 2, op=Ref("dot.1"), n=-3, x=0.5)),
            line("t1", event("j", 1, 1, op="copy.2"), event("k", 2, 1, op=Ref("dot.1"))),
        )
    )
    space, plane = only_plane(data)
    found = space.events(plane, numbers=("n", "x", "none"), texts=("op", "n"))
    assert [line.name for line in plane.lines] == ["t0", "t1"]
    assert found.line.tolist() == [0, 1, 1]
    assert [plane.event_names[at] for at in found.name] == ["k", "j", "k"]
    assert found.start_ns.tolist() == [5, 1, 2]
    assert found.end_ns.tolist() == [7, 2, 3]
    assert found.numbers["n"].tolist() == [-3, ABSENT, ABSENT]
    assert found.numbers["x"].tolist() == [ABSENT] * 3  # 0.5 is no whole number
    assert found.numbers["none"].tolist() == [ABSENT] * 3
    assert found.texts["op"].tolist() == [0, 1, 0]
    assert found.texts["n"].tolist() == [-1] * 3  # a number is no text
    assert found.strings == ["dot.1", "copy.2"]


def test_columns_have_the_promised_dtypes_even_without_events():
    space, plane = only_plane(xspace(host(line("t0"))))
    found = space.events(plane, numbers=("n",), texts=("op",))
    dtypes = [found.line.dtype, found.name.dtype, found.start_ns.dtype, found.end_ns.dtype]
    assert dtypes == [np.int32, np.int32, np.int64, np.int64]
    assert (found.numbers["n"].dtype, found.texts["op"].dtype) == (np.int64, np.int32)
    assert (len(found), found.strings, found.skipped.tolist()) == (0, [], [])


def test_stamps_are_floored_to_whole_nanoseconds():
    assert one_event(10, 1_999, 0) == (11, 11)
    assert one_event(10, 1_999, 1) == (11, 12)
    assert one_event(10, -1, 1) == (9, 10)


def test_stamps_beyond_2_to_the_53_stay_exact():
    assert one_event(2**53 + 1, 1_000, 2_000) == (2**53 + 2, 2**53 + 4)


def test_stamps_beyond_64_bits_stay_at_the_end_of_the_range():
    assert one_event(MOST, 5_000, MOST) == (MOST, MOST)
    assert one_event(LEAST, -5_000, LEAST) == (LEAST, LEAST)
    # offset + duration leave int64, the stamp does not: (2**63 - 1) * 2 // 1000
    assert one_event(0, MOST, MOST) == (MOST // 1000, 2 * MOST // 1000)


def test_skipped_names_are_counted_and_skipped_lines_are_not_read():
    data = xspace(
        host(
            line("t0", event("a", 1, 1), event("b", 2, 1), event("a", 3, 1)),
            line("t1", event("a", 4, 1), event("b", 5, 1)),
        )
    )
    space, plane = only_plane(data)
    assert [line.events for line in plane.lines] == [3, 2]
    found = space.events(
        plane, skip_names=np.array([True, False]), skip_lines=np.array([False, True])
    )
    assert found.start_ns.tolist() == [2]
    assert found.skipped.tolist() == [2, 0]


def test_an_event_without_metadata_has_no_name():
    space, plane = only_plane(field(1, field(3, field(4, message((1, 5), (2, 1000))))))
    found = space.events(plane, skip_names=np.zeros(0, bool))
    assert (found.name.tolist(), found.start_ns.tolist()) == ([-1], [1])


def entry(key: int, name: str | bytes) -> bytes:
    return message((1, key), (2, message((1, key), (2, name))))


def test_of_a_name_or_a_stat_that_comes_twice_the_last_counts():
    stats = [message((1, 7), (4, 1)), message((1, 7), (4, 2)), message((1, 7), (5, "x"))]
    data = field(
        1,
        message(
            (4, entry(1, "first")),
            (4, entry(2, "other")),
            (4, entry(1, "last")),
            (5, entry(7, "n")),
            (3, field(4, message((1, 1), *((4, stat) for stat in stats)))),
        ),
    )
    space, plane = only_plane(data)
    assert (plane.event_ids.tolist(), plane.event_names) == ([1, 2], ["last", "other"])
    found = space.events(plane, numbers=("n",), texts=("n",))
    assert (found.numbers["n"].tolist(), found.strings) == ([2], ["x"])


def test_large_and_negative_ids_are_found():
    ids = [2**63 - 1, -1, 10**12]
    names = [(4, entry(key, f"e{key}")) for key in ids]
    events = b"".join(field(4, message((1, key))) for key in reversed(ids))
    space, plane = only_plane(field(1, message(*names, (3, events))))
    assert space.events(plane).name.tolist() == [2, 1, 0]


def test_a_uint64_keeps_its_bits():
    stat = message((1, 1), (3, 2**64 - 2))
    plane_fields = message((5, entry(1, "n")), (3, field(4, field(4, stat))), (6, stat))
    space, plane = only_plane(field(1, plane_fields))
    assert space.events(plane, numbers=("n",)).numbers["n"].tolist() == [-2]
    assert plane.stats == {"n": 2**64 - 2}


def test_texts_that_differ_only_in_broken_bytes_are_one():
    stats = [field(4, message((1, 1), (5, text))) for text in (b"k\x9f", b"k\x9e", b"k")]
    events = b"".join(field(4, stat) for stat in stats)
    space, plane = only_plane(field(1, message((5, entry(1, "op")), (3, events))))
    found = space.events(plane, texts=("op",))
    assert (found.texts["op"].tolist(), found.strings) == ([0, 0, 1], ["k\ufffd", "k"])


def test_a_reference_to_nothing_is_no_text():
    stat = message((1, 1), (7, 99))
    space, plane = only_plane(field(1, message((5, entry(1, "op")), (3, field(4, field(4, stat))))))
    assert space.events(plane, texts=("op",)).texts["op"].tolist() == [-1]


def test_a_program_is_a_stat_of_its_name():
    space, plane = only_plane(xspace(Plane(METADATA, programs={10: b"proto"})))
    assert plane.event_names == ["jit_step(10)"]
    assert space.name_stats(plane, 0) == {"Hlo Proto": b"proto", "program_id": 10}


def test_host_names_errors_and_warnings_are_kept():
    head = open_space(message((2, "e"), (3, "w"), (4, "a"), (4, "b"))).head
    assert (head.hostnames, head.errors, head.warnings) == (("a", "b"), ("e",), ("w",))


def test_a_cut_line_keeps_its_whole_events():
    # events are written before the plane's names: the cut takes the names, not the events
    data = xspace(host(line("t0", *(event("k", i, 1) for i in range(50)))), hostnames=())
    space, plane = only_plane(data[:200])
    found = space.events(plane)
    assert found.start_ns.tolist() == list(range(plane.lines[0].events))
    assert 0 < len(found) < 50
    assert set(found.name.tolist()) == {-1}
    assert [str(place) for place in space.head.damage] == [
        "byte 0: field 1 goes on past the end of the data",
        "byte 14: field 3 goes on past the end of the data",
        f"byte {space.head.damage[2].position}: field 4 goes on past the end of the data",
    ]


def test_a_broken_event_and_a_broken_stat_are_damage():
    whole = message((2, 1000), (4, message((1, 1), (4, 5))))
    broken_stat = message((2, 2000), (4, b"\x08"))
    events = field(4, whole) + field(4, b"\x0f") + field(4, broken_stat)
    data = field(1, field(5, entry(1, "n")) + field(3, events))
    space, plane = only_plane(data)
    found = space.events(plane, numbers=("n",))
    assert found.damaged == 1
    assert found.start_ns.tolist() == [1, 2]
    assert found.numbers["n"].tolist() == [5, ABSENT]
    assert space.head.damaged_places == 2
    assert {place.position: place.reason for place in space.head.damage} == {
        data.index(b"\x0f"): "field 1 has wire type 7, which nothing uses",
        len(data): "a number is cut off",
    }


def test_a_hostile_length_reserves_nothing():
    data = field(1, field(3, b"\x22" + b"\xff" * 8 + b"\x7f" + b"ab"))
    space, plane = only_plane(data)
    assert (plane.lines[0].events, len(space.events(plane))) == (0, 0)
    assert space.head.damaged_places == 1


def test_files_plain_and_packed_are_opened(tmp_path):
    data = xspace(host(line("t0", event("k", 1, 1))))
    for name, content in (("a.xplane.pb", data), ("a.xplane.pb.gz", gzip.compress(data))):
        (tmp_path / name).write_bytes(content)
        space = open_space(tmp_path / name)
        (plane,) = space.head.planes
        found = space.events(plane)
        space.close()
        assert found.start_ns.tolist() == [1]


def test_a_cut_archive_is_damage(tmp_path):
    data = xspace(host(line("t0", *(event(f"k{i}", i, 1) for i in range(999)))))
    (tmp_path / "a.xplane.pb.gz").write_bytes(gzip.compress(data)[:-500])
    head = open_space(tmp_path / "a.xplane.pb.gz").head
    assert any("archive is damaged" in place.reason for place in head.damage)


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "an empty file"), (b"<html>", "an HTML"), (b'{"a": 1}', "JSON")]
)
def test_a_file_that_is_no_profile_is_refused(tmp_path, content, reason):
    (tmp_path / "a.xplane.pb").write_bytes(content)
    with pytest.raises(TraceError, match=reason):
        open_space(tmp_path / "a.xplane.pb")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(TraceError, match="nowhere"):
        open_space(tmp_path / "nowhere.xplane.pb")


def test_an_unknown_reader_is_refused(monkeypatch):
    monkeypatch.setenv("MOEPROF_READER", "rust")
    with pytest.raises(SpecError, match="expected native or python, found 'rust'"):
        open_space(b"")


def test_flags_of_another_length_are_refused(reader):
    space, plane = only_plane(xspace(host(line("t0", event("k", 1, 1)))))
    with pytest.raises(ValueError, match="skip_names: expected 1 flags"):
        space.events(plane, skip_names=np.zeros(2, bool))
    with pytest.raises(ValueError, match="skip_lines: expected 1 flags"):
        space.events(plane, skip_lines=np.zeros(0, bool))


def test_a_closed_space_says_so():
    space, plane = only_plane(xspace(host(line("t0", event("k", 1, 1)))))
    space.close()
    space.close()
    with pytest.raises(ValueError, match="closed"):
        space.events(plane)
    with pytest.raises(ValueError, match="closed"):
        space.name_stats(plane, 0)


def test_an_absent_library_is_explained(monkeypatch, tmp_path):
    monkeypatch.setenv("MOEPROF_XSPACE_LIBRARY", str(tmp_path / "none.so"))
    native_library.load.cache_clear()
    try:
        with pytest.raises(NativeError, match=r"expected .*none\.so, found nothing there"):
            open_native_space(b"")
        monkeypatch.delenv("MOEPROF_READER")
        assert type(open_space(b"")) is type(open_python_space(b""))
    finally:
        native_library.load.cache_clear()


@pytest.mark.parametrize("wish", ["0", "many", "-2"])
def test_a_number_of_threads_that_cannot_be_is_refused(monkeypatch, wish, reader):
    monkeypatch.setenv("MOEPROF_THREADS", wish)
    large = field(14, bytes(2 << 20))
    if reader == "native":
        with pytest.raises(SpecError, match="MOEPROF_THREADS: expected a number"):
            open_space(large)
    else:
        assert open_space(large).head.planes == ()
