"""All that a reader gives of an XSpace, in a form to compare."""

from __future__ import annotations

import numpy as np

from moeprof.ingest.xspace.space import EventColumns, Space


def columns_view(found: EventColumns) -> dict[str, object]:
    """Columns as lists, their dtypes beside them."""
    arrays = {
        "line": found.line,
        "name": found.name,
        "start_ns": found.start_ns,
        "end_ns": found.end_ns,
        "skipped": found.skipped,
        **{f"number {name}": column for name, column in found.numbers.items()},
        **{f"text {name}": column for name, column in found.texts.items()},
    }
    plain = {name: (column.dtype.str, column.tolist()) for name, column in arrays.items()}
    return {**plain, "strings": found.strings, "damaged": found.damaged, "events": len(found)}


def space_view(space: Space, asked: tuple[str, ...]) -> list[object]:
    """Heads, events read in four ways, stats of names, and the damage met after each."""
    head = space.head
    view: list[object] = [head.hostnames, head.errors, head.warnings]
    for plane in head.planes:
        ids, names = plane.event_ids, plane.event_names
        # repr: a NaN equals itself there
        view += [(plane.index, plane.name, plane.lines, repr(plane.stats), ids.tolist(), names)]
        every_other_name = np.arange(len(names)) % 2 == 0
        every_other_line = np.arange(len(plane.lines)) % 2 == 0
        readings = (
            space.events(plane, skip_names=every_other_name),
            space.events(plane, numbers=asked, skip_lines=every_other_line),
            space.events(plane, texts=asked[1:], numbers=asked[:2], skip_names=every_other_name),
            space.events(plane, texts=asked, numbers=asked),
        )
        view += [columns_view(found) for found in readings]
        view += [repr(space.name_stats(plane, name)) for name in range(len(names))]
        view += [list(head.damage), head.damaged_places]
    return view
