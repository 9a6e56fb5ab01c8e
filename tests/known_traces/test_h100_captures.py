"""Captures of two H100: our reading beside one by protobuf's own library."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "ingest"))

from descriptors import message_class

from moeprof.tables.intervals import cover

CAPTURES = [
    "h100x2_moe_ragged.xplane.pb",
    "maxtext_h100x2_ds_ep2_cf125.xplane.pb.gz",
    "maxtext_h100x2_ds_ep2_cf125_nocmdbuf.xplane.pb.gz",
]
# Products are cuBLAS kernels or Triton fusions; both exchanges and reductions are NCCL's or XLA's.
PRODUCTS = r"^(nvjet|cutlass|void cutlass|sm90_|gemm_fusion|.*gemm)"
EXCHANGES = r"^(nccl|.*RaggedAllToAll)"


def busy_by_device(file: Path) -> dict[int, int]:
    """Union of the stream events of each GPU in ns, stamps rounded down, point by point."""
    raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    space = message_class("tensorflow.profiler.XSpace")()
    space.ParseFromString(raw)
    found = {}
    for plane in space.planes:
        if not plane.name.startswith("/device:GPU:"):
            continue
        spans = sorted(
            (
                line.timestamp_ns + event.offset_ps // 1000,
                line.timestamp_ns + (event.offset_ps + event.duration_ps) // 1000,
            )
            for line in plane.lines
            if line.name.startswith("Stream")
            for event in line.events
        )
        total = reached = 0
        for start, end in spans:
            total += max(0, end - max(start, reached))
            reached = max(reached, end)
        found[int(plane.name.rpartition(":")[2])] = total
    return found


@pytest.mark.parametrize("name", CAPTURES)
def test_busy_time_of_each_device_is_that_of_an_independent_decode(data, opened, name):
    events = opened(name).events
    ours = {
        device: cover(
            part["start_ns"].to_numpy(), (part["start_ns"] + part["duration_ns"]).to_numpy()
        ).total
        for device, part in events.groupby("device")
    }
    assert ours == busy_by_device(data / "traces" / name)


@pytest.mark.parametrize("name", CAPTURES)
def test_every_communication_and_gemm_kernel_resolves_to_its_op(opened, name):
    events = opened(name).events
    for pattern in (PRODUCTS, EXCHANGES):
        kernels = events[events["name"].astype("str").str.match(pattern)]
        assert len(kernels)
        assert (kernels["instruction"] >= 0).all()


def test_the_json_copy_tells_of_the_same_work(opened):
    """JAX writes start and length in whole ns, each rounded: an end may be 1 ns off per event."""
    profile = opened("h100x2_moe_ragged.xplane.pb").events
    copy = opened("h100x2_moe_ragged.trace.json.gz").events
    columns = ["device", "name", "line", "kind", "start_ns"]
    keys = [
        frame[columns].astype("str").sort_values(columns).reset_index(drop=True)
        for frame in (profile, copy)
    ]
    assert len(profile) == len(copy)
    assert (keys[0]["name"] == keys[1]["name"]).all()
    assert abs(int(profile["duration_ns"].sum()) - int(copy["duration_ns"].sum())) <= len(copy)
    starts = [frame["start_ns"].sort_values().to_numpy() for frame in (profile, copy)]
    assert abs(starts[0] - starts[1]).max() <= 1
