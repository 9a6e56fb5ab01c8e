"""The same MaxText run on two H100, with command buffers and without; figures as published."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from moeprof.ingest.xspace.open_space import open_space
from moeprof.tables.intervals import cover

WITH, WITHOUT = (f"maxtext_h100x2_ds_ep2_cf125{kind}.xplane.pb.gz" for kind in ("", "_nocmdbuf"))


def union_ms(events) -> float:
    starts = events["start_ns"].to_numpy()
    return cover(starts, starts + events["duration_ns"].to_numpy()).total / 1e6


def train_step(trace, device):
    (module,) = trace.modules["module"][trace.modules["name"] == "jit_train_step"]
    events = trace.events
    return events[(events["module"] == module) & (events["device"] == device)]


def is_nccl(events):
    return events["name"].str.startswith("nccl")


CASES = [
    # name, device, events, busy ms, kernels, step busy ms, step span ms, NCCL union, NCCL exposed
    (WITH, 0, 3350, 105.106, 2680, 104.851, 108.311, 30.465, 6.941),
    (WITH, 1, 3292, 104.564, 2680, 104.551, 108.323, 28.175, 6.923),
    (WITHOUT, 0, 3350, 105.552, 2472, 105.311, 115.631, 30.370, 6.842),
    (WITHOUT, 1, 3292, 104.909, 2472, 104.894, 115.682, 29.038, 7.661),
]


@pytest.mark.parametrize(
    ("name", "device", "events", "busy", "kernels", "step_busy", "span", "nccl", "exposed"), CASES
)
def test_every_published_figure_of_a_device(
    opened, name, device, events, busy, kernels, step_busy, span, nccl, exposed
):
    trace = opened(name)
    mine = trace.events[trace.events["device"] == device]
    step = train_step(trace, device)
    ends = step["start_ns"] + step["duration_ns"]
    collective = is_nccl(step)
    assert len(mine) == events
    assert round(union_ms(mine), 3) == busy
    assert len(step) == 3280
    assert (step["kind"] == "kernel").sum() == kernels
    assert round(union_ms(step), 3) == step_busy
    assert round((ends.max() - step["start_ns"].min()) / 1e6, 3) == span
    assert collective.sum() == 180
    assert round(union_ms(step[collective]), 3) == nccl
    assert round(union_ms(step) - union_ms(step[~collective]), 3) == exposed


@pytest.mark.parametrize(
    ("name", "device", "hidden", "hidden_ms", "named", "named_ms"),
    [
        (WITH, 0, 2094, 65.8, 978, 61.2),
        (WITH, 1, 2094, 66.0, 978, 58.6),
        (WITHOUT, 0, 0, 0.0, 2370, 109.5),
        (WITHOUT, 1, 0, 0.0, 2370, 106.8),
    ],
)
def test_what_the_record_itself_names(data, name, device, hidden, hidden_ms, named, named_ms):
    space = open_space(data / "traces" / name)
    plane = next(p for p in space.head.planes if p.name == f"/device:GPU:{device}")
    found = space.events(plane, texts=("hlo_op", "name", "hlo_module"))
    texts = {key: np.array([*found.strings, ""])[codes] for key, codes in found.texts.items()}
    is_step = texts["hlo_module"] == "jit_train_step"
    has_name = texts["name"] != ""
    is_hidden = is_step & ~has_name & np.char.startswith(texts["hlo_op"], "command_buffer")
    length_ms = (found.end_ns - found.start_ns) / 1e6
    assert is_hidden.sum() == hidden
    assert round(length_ms[is_hidden].sum(), 1) == hidden_ms
    assert (is_step & has_name).sum() == named
    assert round(length_ms[is_step & has_name].sum(), 1) == named_ms


@pytest.mark.parametrize("name", [WITH, WITHOUT])
def test_collectives_per_step_by_opcode(opened, name):
    """Static count times trip count: the loop over layers runs four times."""
    trace = opened(name)
    events = train_step(trace, 0)
    events = events[events["step"] == trace.steps["step"].iloc[0]]
    ops = trace.hlo_ops.iloc[events["instruction"][events["instruction"] >= 0]]
    counts = Counter(ops["opcode"].str.removesuffix("-start").str.removesuffix("-done"))
    assert {n: counts[n] for n in ("all-gather", "all-to-all", "reduce-scatter")} == {
        "all-gather": 53,
        "all-to-all": 2,
        "reduce-scatter": 28,
    }
