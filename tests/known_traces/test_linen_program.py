"""A compiled train step of MaxText's Linen modules, of which only the text was kept.

INDEX.md: PP 2 × EP 8 for gfx950; collectives with the trip counts of their loops multiplied.
"""

import gzip
from collections import Counter

import pandas as pd
import pytest
from builders.protobuf import message

from moeprof.analyzers.classify import classify
from moeprof.analyzers.classify.values import CARRIERS
from moeprof.hlo.program import programs_in
from moeprof.ingest.hlo.programs import parse_program
from moeprof.ingest.program_frames import hlo_frame

hlo = pytest.importorskip("jaxlib._hlo")
NAME = "maxtext_moe_bf16_pp2_ep8_gfx950.after_optimizations.txt.gz"
PER_STEP = {
    "all-gather": 20,
    "all-reduce": 11,
    "all-to-all": 112,
    "collective-permute": 67,
    "reduce-scatter": 10,
}


@pytest.fixture(scope="module")
def ops(data) -> pd.DataFrame:
    text = gzip.decompress((data / "hlo" / NAME).read_bytes()).decode()
    module = hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    return hlo_frame({1: parse_program(message((1, module)))}).pandas()


def runs_of(ops: pd.DataFrame) -> dict[str, int]:
    """How often each computation runs in a step: the trip counts of the loops around it."""
    callers = {
        name: (row.computation, max(int(row.trip_count), 1) if row.opcode == "while" else 1)
        for row in ops.itertuples()
        for name in row.called.split()
    }
    runs = {}
    for computation in ops["computation"].unique():
        place, times = computation, 1
        while place in callers:
            place, rounds = callers[place]
            times *= rounds
        runs[computation] = times
    return runs


def test_collectives_per_step(ops):
    runs = runs_of(ops)
    counts = Counter()
    for row in ops.itertuples():
        opcode = row.opcode.removesuffix("-start")
        if opcode in PER_STEP:
            counts[opcode] += runs[row.computation]
    assert counts == PER_STEP


def test_less_than_two_percent_of_the_scheduled_instructions_stay_unexplained(ops):
    classes = ops[["op", "opcode", "schedule", "computation"]].merge(
        classify(programs_in(ops, [1])).pandas(), on="op"
    )
    fused = {
        name
        for row in ops.itertuples()
        if row.opcode not in ("while", "conditional", "call", "async-start")
        for name in row.called.split()
    }
    work = classes[
        ~classes["computation"].isin(fused) & ~classes["opcode"].isin([*CARRIERS, "constant"])
    ]
    is_unexplained = work["component"].isin(["unattributed", "other", "moe_other"])
    assert len(work) > 500
    assert is_unexplained.mean() < 0.02
