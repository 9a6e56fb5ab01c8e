"""Memory in use over time, by hand."""

from __future__ import annotations

import dataclasses

import pandas as pd
from builders.work import kernel, traced

from moeprof.analyzers.drawings.allocated import MOST_RANKS, MOST_STRETCHES, allocated
from moeprof.analyzers.questions.memory import NO_ALLOCATOR
from moeprof.tables.host_side import ALLOCATIONS

EMPTY = {name: -1 for name in ALLOCATIONS.names} | {
    "host": "a", "is_free": False, "op": "", "region_type": "", "shape": "",
}  # fmt: skip


def pools(*changes, free=1000):
    """Changes (device, ns, bytes in use) of pools that can give out `free` more."""
    rows = [
        EMPTY | {"allocator": f"GPU_{device}_bfc", "device": device, "start_ns": at,
                 "allocated_bytes": size, "available_bytes": free}
        for device, at, size in changes
    ]  # fmt: skip
    devices = {device for device, *_ in changes if device >= 0}
    made = traced([kernel("k", 0, 9, device=device) for device in devices or {0}])
    return dataclasses.replace(made, allocations=ALLOCATIONS.frame(rows))


def test_changes_stand_by_rank_and_time():
    found = allocated(pools((1, 5, 70), (0, 3, 50), (0, 1, 40), (-1, 2, 999)))
    assert found.table.to_numpy().tolist() == [
        [0, 1, 40, "GPU_0_bfc"], [0, 3, 50, "GPU_0_bfc"], [1, 5, 70, "GPU_1_bfc"],
    ]  # fmt: skip
    told = {metric.metric: metric.value for metric in found.headline}
    assert told == {
        "most_in_use": 70, "fullest_rank": 1, "fullest_pool": "GPU_1_bfc", "pool": 1050,
    }  # fmt: skip
    assert found.notes == ()


def test_pools_of_one_device_are_told_apart():
    """Of one device a pool goes from 500 to 510 while another holds 10."""
    trace = pools((0, 1, 500), (0, 2, 10), (0, 3, 510))
    names = trace.allocations["allocator"].astype("str").tolist()
    told = trace.allocations.assign(allocator=pd.Categorical([names[0], "collectives", names[2]]))
    found = allocated(dataclasses.replace(trace, allocations=told))
    assert found.table[["pool", "start_ns", "in_use_bytes"]].to_numpy().tolist() == [
        ["GPU_0_bfc", 1, 500], ["GPU_0_bfc", 3, 510], ["collectives", 2, 10],
    ]  # fmt: skip


def test_without_an_allocator_a_sentence_says_so():
    found = allocated(traced([kernel("k", 0, 9)]))
    assert found.table.empty
    assert found.notes == (NO_ALLOCATOR,)


def test_close_changes_are_merged_and_the_fullest_and_the_last_stay():
    sizes = [at % 997 for at in range(10_000)]
    sizes[7213] = 5000
    found = allocated(pools(*((0, at, size) for at, size in enumerate(sizes))))
    table = found.table
    assert len(table) <= 2 * MOST_STRETCHES
    assert table["in_use_bytes"].max() == 5000
    assert table["start_ns"].iloc[table["in_use_bytes"].argmax()] == 7213
    assert table.iloc[-1].tolist() == [0, 9999, sizes[-1], "GPU_0_bfc"]
    assert all(
        sizes[at] == size for at, size in zip(table["start_ns"], table["in_use_bytes"], strict=True)
    )
    assert found.notes == (f"10000 changes are drawn as {len(table)}, peaks kept",)


def test_of_many_ranks_the_fullest_are_drawn():
    found = allocated(pools(*((device, 1, 10 + device) for device in range(MOST_RANKS + 4))))
    assert found.table["rank"].tolist() == list(range(4, MOST_RANKS + 4))
    assert (
        found.notes[0] == f"of {MOST_RANKS + 4} ranks the {MOST_RANKS} that were fullest are drawn"
    )
