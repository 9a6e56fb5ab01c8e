"""Both readers against google.protobuf with the profiler's own schema."""

from typing import Any

import pytest
from hypothesis import given, settings
from space_oracle import event_rows, named_stats, parse
from space_strategies import ASKED, UNICODE, spaces

from moeprof.ingest.xspace.native_space import NativeSpace
from moeprof.ingest.xspace.python_space import open_python_space
from moeprof.ingest.xspace.space import PlaneHead, Space


def read_rows(space: Space, plane: PlaneHead) -> list[dict[str, Any]]:
    """Columns as rows, codes replaced by what they stand for."""
    found = space.events(plane, numbers=ASKED, texts=ASKED)
    columns: dict[str, list[Any]] = {
        "line": found.line.tolist(),
        "name": [None if at < 0 else plane.event_names[at] for at in found.name],
        "start_ns": found.start_ns.tolist(),
        "end_ns": found.end_ns.tolist(),
    }
    for name in ASKED:
        columns[f"number {name}"] = found.numbers[name].tolist()
        columns[f"text {name}"] = [
            None if code < 0 else found.strings[code] for code in found.texts[name]
        ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("opened", [open_python_space, lambda data: NativeSpace(data, 2)])
@settings(max_examples=300)
@given(data=spaces(UNICODE, noisy_maps=False))
def test_a_valid_space_says_what_protobuf_says(opened, data):
    expected, space = parse(data), opened(data)
    head = space.head
    assert (head.damage, head.hostnames) == ([], tuple(expected.hostnames))
    assert (head.errors, head.warnings) == (tuple(expected.errors), tuple(expected.warnings))
    assert len(head.planes) == len(expected.planes)
    for plane, known in zip(head.planes, expected.planes, strict=True):
        assert plane.name == known.name
        assert repr(plane.stats) == repr(named_stats(known, known.stats))
        names = dict(zip(plane.event_ids.tolist(), plane.event_names, strict=True))
        assert names == {key: value.name for key, value in known.event_metadata.items()}
        heads = [(line.id, line.name, line.timestamp_ns, line.events) for line in plane.lines]
        assert heads == [(x.id, x.name, x.timestamp_ns, len(x.events)) for x in known.lines]
        assert read_rows(space, plane) == event_rows(known, ASKED)
        for place, key in enumerate(plane.event_ids.tolist()):
            stats = named_stats(known, known.event_metadata[key].stats)
            assert repr(space.name_stats(plane, place)) == repr(stats)
