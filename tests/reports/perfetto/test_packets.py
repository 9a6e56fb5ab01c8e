"""Slices become the same bytes by both writers, whatever their stamps, numbers and looks."""

from __future__ import annotations

import io
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from moeprof.reports.perfetto import file
from moeprof.reports.perfetto.layout import Layout
from moeprof.reports.perfetto.slices import NONE, Counter, Look, Slices, Tracks, order_of
from moeprof.tables.intervals import lanes


def _slices_of_all_kinds(seed: int, count: int = 300) -> Slices:
    """Slices that nest, touch, begin together or are empty; some have numbers and arrows."""
    random = np.random.default_rng(seed)
    track = random.choice([1, 127, 128, 70_000 if seed % 2 else 7], count)
    start = np.sort(random.integers(0, 60, count)) * 10 ** random.integers(0, 17)
    end = start + random.choice([0, 1, 10, 2**40], count)
    lane = lanes(track, start, end)
    track = track * 1000 + lane
    looks = [
        Look("", "", {}),
        Look("dot.1", "experts", {"scope": "x" * 300, "bytes": -5, "share": 0.5}),
        Look("never used", "none", {"scope": "y"}),
        Look("\ud800", "experts", {"scope": "x" * 300}),
    ]
    numbers = {
        "step": random.integers(-1, 3, count),
        "bytes": random.choice([NONE, 0, -2, 2**62, -(2**63)], count),
    }
    place = random.choice([0, 1, 3], count)
    flow = random.choice([NONE, 0, 2**40], count) if seed % 3 else None
    shuffled = random.permutation(count) if seed % 2 else np.arange(count)
    return Slices(
        *(column[shuffled] for column in (track, start, end, place)),
        looks,
        {name: values[shuffled] for name, values in numbers.items()} if seed % 5 else {},
        None if flow is None else flow[shuffled],
    )


@pytest.mark.parametrize("seed", range(8))
def test_slices_of_all_kinds_are_the_same_bytes_as_packet_by_packet(seed, monkeypatch):
    """Also across the limits of blocks and batches, with counters and tracks between them."""
    monkeypatch.setattr(file, "_BLOCK", 13)
    monkeypatch.setattr(file, "_BATCH", 7)
    tracks = Tracks()
    tracks.counter(tracks.process("p"), "used", "bytes")
    counters = [Counter(2, np.arange(9), np.arange(9) / 2)]
    parts = [_slices_of_all_kinds(seed), _slices_of_all_kinds(seed + 1, 14 + seed)]
    made = Layout(tracks, parts, counters)

    def written(writer: str) -> tuple[bytes, list[tuple[int, int]]]:
        monkeypatch.setenv("MOEPROF_READER", writer)
        told: list[tuple[int, int]] = []
        with closing(file._Batches(TraceProtoBuilder, out := io.BytesIO())) as batches:
            file._write(made, batches, lambda done, total: told.append((done, total)))
        assert told[-1] == (314 + seed, 314 + seed)
        return out.getvalue(), told

    assert written("native") == written("python")


@pytest.mark.parametrize("seed", range(8))
def test_slices_are_in_order_of_track_and_time(seed):
    slices = _slices_of_all_kinds(seed)
    expected = np.lexsort((-slices.end_ns, slices.start_ns, slices.track))
    assert order_of(slices).tolist() == expected.tolist()
    sorted_already = replace(slices, **{
        name: getattr(slices, name)[expected] for name in ("track", "start_ns", "end_ns")
    })  # fmt: skip
    assert order_of(sorted_already).tolist() == list(range(len(slices)))
