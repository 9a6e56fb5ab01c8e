"""Pairs that no slot took: by what ranks received, else at least by what experts have room for."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from builders.programs import call, dims
from builders.work import FORWARD, MODULE, hlo, kernel, traced

from moeprof.analyzers.dropped import dropped_pairs
from moeprof.analyzers.questions.expert_load import expert_load
from moeprof.ingest import open_run
from moeprof.tables.routing import RECEIVED, ROUTING
from moeprof.tables.trace import MODULES

DATA = Path(__file__).parents[1] / "data" / "gpu"
EXPERTS = FORWARD + "experts/ebcm,emf->ebcf/dot_general"
CHOSEN = {0: [[40, 8, 8, 8], [16, 16, 16, 16]], 1: [[30, 30, 2, 2], [64, 0, 0, 0]]}
"""By step: pairs of 4 experts in 2 layers, 64 in all; ranks 0 and 1 have two experts each."""


def batched(op, k, n, rows=24):
    """2 experts on a device, each with room for `rows` rows."""
    numbers = dims(lhs=(2,), rhs=(1,), lhs_batch=(0,), rhs_batch=(0,))
    made = call(
        "__cublas$gemm", f"(bf16[2,{rows},{n}], s8[64])", f"{op}_x", f"{op}_w", config=numbers
    )
    inputs = (
        hlo(f"{op}_x", "parameter", shape=f"bf16[2,{rows},{k}]"),
        hlo(f"{op}_w", "parameter", shape=f"bf16[2,{k},{n}]"),
    )
    return (*inputs, {**made, "op": op, "op_name": EXPERTS})


DENSE = [(*batched(f"up{n}", 64, 256), *batched(f"down{n}", 256, 64)) for n in range(4)]
GROUPED = [
    (
        hlo("x", "parameter", shape="bf16[64,64]"),
        hlo("w", "parameter", shape="bf16[2,64,256]"),
        {
            **call("moeprof_grouped_gemm", "bf16[64,256]", "x", "w"),
            "op": "up",
            "op_name": EXPERTS,
        },
    )
]


def run(products=DENSE[:2], taken=None, chosen=CHOSEN, devices=2):
    """Two steps on 2 devices, in which each product runs once.

    `products` are instructions by layer, `taken` rows by step, layer and rank.
    """
    ops = [row for of_layer in products for row in of_layer]
    names = [str(row["op"]) for row in ops if row["opcode"] == "custom-call"]
    work = [
        kernel(op, s * 1000 + at * 50, 40, device=d, step=s, run_id=s)
        for s in (0, 1)
        for d in (0, 1)
        for at, op in enumerate(names)
    ]
    routing = [
        {"step": s, "layer": layer, "expert": e, "rank": e // 2, "tokens": count}
        for s, of_step in chosen.items()
        for layer, of_layer in enumerate(of_step)
        for e, count in enumerate(of_layer)
    ]
    received = [
        {"step": s, "layer": layer, "group": 0, "rank": rank, "rows": rows}
        for s, of_step in (taken or {}).items()
        for layer, of_layer in enumerate(of_step)
        for rank, rows in enumerate(of_layer)
    ]
    trace = traced(work, ops)
    meta = dataclasses.replace(
        trace.meta, are_steps_numbered_by_script=True, expected_devices=devices
    )
    return dataclasses.replace(
        trace, meta=meta, routing=ROUTING.frame(routing), received=RECEIVED.frame(received)
    )


def figures(trace):
    return {metric.metric: metric.value for metric in expert_load(trace).headline}


ALL = {s: [[sum(of[:2]), sum(of[2:])] for of in layers] for s, layers in CHOSEN.items()}
CUT = {0: [[32, 16], [32, 32]], 1: [[48, 4], [24, 0]]}
"""64 · 4 = 256 chosen; dropped 16 and 0, then 12 and 40: 68."""


def test_what_was_chosen_and_not_received_is_dropped():
    trace = run(taken=CUT)
    found = figures(trace)
    assert found["dropped_share"] == pytest.approx(68 / 256)
    assert found["dropped_share_at_least"] == pytest.approx(68 / 256)
    rows = expert_load(trace).table.set_index("layer")
    assert rows["dropped_share"].tolist() == pytest.approx([28 / 128, 40 / 128])
    assert rows["peak_dropped_share"].tolist() == pytest.approx([16 / 64, 40 / 64])
    assert rows["peak_dropped_step"].tolist() == [0, 1]


def test_what_experts_have_no_room_for_is_dropped_at_least():
    """Each of 4 experts, 2 on a device, has 24 slots. Beyond: 16, none; 6 + 6, 40."""
    trace = run()
    found = figures(trace)
    assert found["dropped_share"] is None
    assert found["dropped_share_at_least"] == pytest.approx((16 + 12 + 40) / 256)
    rows = expert_load(trace).table.set_index("layer")
    assert rows["dropped_share"].isna().all()
    assert rows["dropped_share_at_least"].tolist() == pytest.approx([28 / 128, 40 / 128])
    assert rows["peak_dropped_step"].tolist() == [-1, -1]
    assert any(
        "rows that each rank received were not recorded" in n for n in expert_load(trace).notes
    )


def test_devices_without_a_record_have_slots_too():
    """Of 4 devices, 2 of them recorded: 48 slots an expert. 16 of one layer and step are beyond."""
    assert figures(run(devices=4))["dropped_share_at_least"] == pytest.approx(16 / 256)


def of_partitions(count, replicas=1, **more):
    """A run that does not name its devices, of one program whose work so many share."""
    trace = run(devices=0, **more)
    row = {c.name: "" if c.kind == "text" else -1 for c in MODULES.columns}
    row |= {"module": MODULE, "partitions": count, "replicas": replicas, "is_scheduled": True}
    return dataclasses.replace(trace, modules=MODULES.frame([row]))


def test_slots_of_a_run_that_does_not_name_its_devices_are_those_of_its_program():
    assert figures(of_partitions(4))["dropped_share_at_least"] == pytest.approx(16 / 256)
    assert figures(of_partitions(2, taken=CUT))["dropped_share"] == pytest.approx(68 / 256)


@pytest.mark.parametrize(("partitions", "replicas"), [(-1, -1), (-1, 1), (1, 1), (2, 2)])
def test_no_slots_are_known_where_devices_are_not(partitions, replicas):
    """2 devices are recorded, of how many nobody knows."""
    trace = of_partitions(partitions, replicas)
    assert figures(trace)["dropped_share_at_least"] is None
    received = of_partitions(partitions, replicas, taken=CUT)
    assert figures(received)["dropped_share"] is None
    assert "how many devices the run has" in dropped_pairs(received).why
    assert figures(run(devices=0))["dropped_share_at_least"] is None


def test_a_layer_that_multiplies_more_than_once_has_more_room():
    """As with microbatches: its slots are not those of one product."""
    assert figures(run(DENSE))["dropped_share_at_least"] is None


def test_a_dropless_run_that_received_all_dropped_none():
    found = figures(run(GROUPED, ALL))
    assert (found["dropped_share"], found["dropped_share_at_least"]) == (0, 0)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"products": GROUPED}, "fewer rows were received than pairs chosen"),
        ({"devices": 4}, "the rows of some device were not recorded"),
        ({"taken": {0: [[32, 60], [32, 32]], 1: CUT[1]}}, "not counted over the same batch"),
        ({"taken": {1: CUT[1]}}, "not counted over the same batch"),
        ({"chosen": {0: [[20, 20, 8, 8], [16, 16, 16, 16]], 1: CHOSEN[1]}}, "counted after some"),
        ({"taken": ALL}, "contradict each other"),  # 40 of 24 slots
    ],
)
def test_what_is_not_sure_is_not_told(more, why):
    trace = run(**{"taken": CUT, **more})
    assert figures(trace)["dropped_share"] is None
    assert why in dropped_pairs(trace).why


def test_no_bound_where_figures_contradict_each_other():
    assert figures(run(taken=ALL))["dropped_share_at_least"] is None


@pytest.mark.parametrize("name", ["dense-cf1.25", "sparse-gmm", "sparse-ragged-dot"])
def test_recorded_runs_dropped_what_their_script_counted(name):
    """2 layers of 2048 tokens with 2 experts each; steps 3 and 4."""
    answers = json.loads((DATA / name / "answers.json").read_text())
    taken = np.array([answers["steps"][s]["received_rows"] for s in (3, 4)])
    share = 1 - taken.sum() / (2 * 2 * 2048 * 2)
    assert figures(open_run(DATA / name))["dropped_share"] == pytest.approx(share)
    assert (share > 0.29) == (name == "dense-cf1.25")


def test_rows_that_are_tokens_say_nothing_of_pairs():
    found = dropped_pairs(open_run(DATA / "sparse-gmm-deepep"))
    assert "tokens of this exchange" in found.why
    assert found.least.isna().all()
