"""Random programs, run by a simulator that knows which op each kernel is of."""

from __future__ import annotations

import numpy as np
import pandas as pd
from graph_cases import GEMM_KERNEL, Row, fusion, gemm, launch, match_rows, op, program
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprof.tables.trace import LOW_CONFIDENCE

BODIES = ("add", "exp", "tanh")
COLLECTIVE = "ncclDevKernel_AllGather_RING_LL"


def computation(prefix: str) -> st.SearchStrategy[list[Row]]:
    """Fusions that often share a kernel, products, and collectives, which cut graphs."""
    kinds = st.sampled_from((*BODIES, "own", "gemm", "gemm", "all-gather"))
    return st.lists(kinds, min_size=1, max_size=9).map(
        lambda drawn: [instruction(f"{prefix}.{n}", kind) for n, kind in enumerate(drawn)]
    )


def instruction(name: str, kind: str) -> Row:
    if kind == "gemm":
        return gemm(f"custom-call.{name}")
    if kind == "all-gather":
        return op(f"all-gather.{name}", "all-gather")
    return fusion(f"fusion.{name}", "" if kind == "own" else kind)


def kernels(row: Row, first_of: dict[str, str]) -> list[str]:
    """Names of the kernels of an instruction; fusions of one body share that of the first."""
    if row["opcode"] == "custom-call":
        return ["Memset 3", GEMM_KERNEL]
    if row["opcode"] == "all-gather":
        return [COLLECTIVE]
    name = str(row["op"])
    return [first_of.setdefault(str(row["body"]), name).replace(".", "_")]


class Simulator:
    """Runs computations; stretches between collectives are graphs, launched whole."""

    def __init__(self) -> None:
        self.parts: list[pd.DataFrame] = []
        self.first_of: dict[str, str] = {}
        self.clock = 0

    def run(self, rows: list[Row], graph: str, run: int) -> None:
        stretch: list[Row] = []
        for place, row in enumerate([*rows, None]):
            if row is not None and row["opcode"] != "all-gather":
                stretch.append(row)
                continue
            self._launch(stretch, f"{graph}_{place}", run)
            stretch = []
            if row is not None:
                self._launch([row], str(row["op"]), run)

    def _launch(self, rows: list[Row], label: str, run: int) -> None:
        pairs = [(name, str(row["op"])) for row in rows for name in kernels(row, self.first_of)]
        if pairs:
            self.clock += 1
            names, truth = zip(*pairs, strict=True)
            start = 1000 * self.clock
            work = launch(*names, op=label, correlation=self.clock, start=start, run=run)
            self.parts.append(work.assign(truth=truth))


@st.composite
def recorded_runs(draw: st.DrawFn) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Work of two executions, with its truth, and the program: before, a loop, after."""
    before, body, after = (draw(computation(prefix)) for prefix in ("a", "b", "c"))
    trips = draw(st.integers(1, 3))
    simulator = Simulator()
    for run in (1, 2):
        simulator.run(before, "command_buffer_1", run)
        for _ in range(trips):
            simulator.run(body, "command_buffer_2", run)
        simulator.run(after, "command_buffer_3", run)
    main = [*before, op("while.1", "while", "body"), *after]
    copies = {"body": [dict(row) for row in body]}
    instructions = program([dict(row) for row in main], **copies)
    return pd.concat(simulator.parts, ignore_index=True), instructions


@settings(deadline=None, max_examples=60, derandomize=True)
@given(recorded_runs())
def test_what_is_sure_is_true(case):
    work, instructions = case
    found = match_rows(work, instructions)
    is_sure = found["confidence"] >= LOW_CONFIDENCE
    assert (found["op"].astype(str) == work["truth"])[is_sure].all()


@settings(deadline=None, max_examples=30, derandomize=True)
@given(recorded_runs(), st.randoms(use_true_random=False), st.booleans())
def test_any_loss_and_any_order_of_rows_give_a_sound_answer(case, random, has_nodes):
    work, instructions = case
    kept = [row for row in range(len(work)) if random.random() > 0.3]
    random.shuffle(kept)
    part = work.iloc[kept].copy()
    if has_nodes:
        part["graph_node"] = [random.randrange(4) for _ in kept]
    part["correlation_id"] = [random.choice((-1, value)) for value in part["correlation_id"]]
    found = match_rows(part, instructions)
    assert len(found) == len(part)
    assert found["confidence"].between(0, 1).all()
    assert set(found["op"]) <= {"", *instructions["op"]}
    has_op = (found["op"] != "").to_numpy()
    assert np.array_equal(has_op, (found["evidence"] == "graph").to_numpy())
    assert np.array_equal(has_op, (found["confidence"] > 0).to_numpy())
    assert not has_op[part["op"].isin(instructions["op"])].any()
