from builders.xspace import METADATA, Plane, Ref, event, host, line, xspace
from hypothesis import given
from hypothesis import strategies as st

from moeprof.ingest.xplane import events, metadata_stats, parse_xspace, stat_values


def only_plane(data: bytes):
    (plane,) = parse_xspace(data).planes
    return plane


def test_an_empty_file_is_an_empty_space():
    assert parse_xspace(b"").planes == ()


def test_names_and_references_are_resolved():
    plane = only_plane(xspace(host(line("t0", event("k", 5, 2, op=Ref("dot.1"), n=-3, x=0.5)))))
    ((metadata_id, start_ps, duration_ps, spans),) = events(plane, plane.lines[0], [])
    assert plane.event_names[metadata_id] == "k"
    assert (start_ps, duration_ps) == (5_000, 2_000)
    assert stat_values(plane, spans, []) == {"op": "dot.1", "n": -3, "x": 0.5}


def test_picoseconds_are_added_to_the_line_without_rounding():
    # 2**53 ns + 0.001 ns has no float64 of its own
    late = line("t0", event("k", 0.001, 0.002), timestamp_ns=2**53)
    plane = only_plane(xspace(host(late)))
    ((_, start_ps, duration_ps, _),) = events(plane, plane.lines[0], [])
    assert (start_ps, duration_ps) == (2**53 * 1000 + 1, 2)


def test_a_program_is_a_stat_of_its_metadata():
    plane = only_plane(xspace(Plane(METADATA, programs={10: b"proto"})))
    (key,) = plane.event_metadata
    assert plane.event_names[key] == "jit_step(10)"
    assert metadata_stats(plane, key, []) == {"Hlo Proto": b"proto", "program_id": 10}


def test_host_names_are_kept():
    assert parse_xspace(xspace(hostnames=("a", "b"))).hostnames == ("a", "b")


def test_a_file_cut_in_its_second_plane_keeps_the_first_whole():
    first = host(line("t0", event("k", 1, 1)))
    data = xspace(first, Plane("/device:GPU:0", (line("s", event("x", 1, 1)),)), hostnames=())
    space = parse_xspace(data[:-10])
    assert len(space.planes) == 2
    assert list(space.planes[0].event_names.values()) == ["k"]
    assert len(space.damage) == 2  # the plane, and the map entry inside it


def test_a_cut_line_keeps_its_whole_events():
    # events are written before the plane's names: the cut takes the names, not the event
    data = xspace(host(line("t0", *(event("k", i, 1) for i in range(50)))), hostnames=())
    space = parse_xspace(data[:200])
    found = list(events(space.planes[0], space.planes[0].lines[0], []))
    assert 0 < len(found) < 50
    assert [start_ps for _, start_ps, _, _ in found] == [1000 * i for i in range(len(found))]


WHOLE = xspace(
    host(line("t0", *(event("k", i, 1, op=Ref("a"), n=i) for i in range(20)))),
    Plane(METADATA, programs={1: b"xyz"}, stats={"v": "1"}),
)


@given(st.integers(0, len(WHOLE)))
def test_every_cut_is_read_without_an_error(length):
    space = parse_xspace(WHOLE[:length])
    assert bool(space.damage) == (length not in _WHOLE_CUTS)
    for plane in space.planes:
        for part in plane.lines:
            list(events(plane, part, []))


def _whole_cuts() -> set[int]:
    """Lengths at which the file ends between two fields of the space."""
    from moeprof.ingest.wire import fields

    return {0, *(end for _, _, _, end in fields(WHOLE, 0, len(WHOLE)))}


_WHOLE_CUTS = _whole_cuts()


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_changed_byte_never_crashes_the_reader(at, byte):
    data = WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :]
    space = parse_xspace(data)
    for plane in space.planes:
        for part in plane.lines:
            for _, _, _, spans in events(plane, part, []):
                assert isinstance(spans, list)
