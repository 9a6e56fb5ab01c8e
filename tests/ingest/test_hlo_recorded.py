"""Every instruction and buffer of the programs in recorded profiles, against the oracle."""

from __future__ import annotations

import gzip
from pathlib import Path

import hlo_oracle
import pytest
from hlo_comparison import assert_read_as_the_oracle_does

from moeprof.ingest.hlo.programs import parse_program

TRAIN_STEP = "hlo/maxtext_h100x2_ds_ep2_cf125.hlo.pb.gz"
PROFILES = {
    "traces/h100x2_moe_ragged.xplane.pb": (30, 5193),
    "traces/maxtext_h100x2_ds_ep2_cf125.xplane.pb.gz": (22, 10405),
    "traces/maxtext_h100x2_ds_ep2_cf125_nocmdbuf.xplane.pb.gz": (22, 10405),
}


def contents(file: Path) -> bytes:
    data = file.read_bytes()
    return gzip.decompress(data) if file.suffix == ".gz" else data


@pytest.mark.parametrize("file", PROFILES)
def test_every_instruction_of_a_profile_is_read_as_protobuf_reads_it(recorded, file):
    programs = [data for _, _, data in hlo_oracle.programs(contents(recorded / file))]
    read = sum(assert_read_as_the_oracle_does(data) for data in programs)
    assert (len(programs), read) == PROFILES[file]


@pytest.fixture(scope="module")
def train_step(recorded):
    return parse_program(contents(recorded / TRAIN_STEP))


def test_every_instruction_of_a_dumped_program_is_read_as_protobuf_reads_it(recorded):
    assert assert_read_as_the_oracle_does(contents(recorded / TRAIN_STEP)) == 9517


def test_memory_totals_are_those_that_the_run_reported(train_step):
    # memory_analysis of the run: argument 2,009,196,532, temp 3,898,152,944, total 5,907,350,522
    memory = train_step.memory
    assert (memory.argument_bytes, memory.temp_bytes) == (2_009_196_532, 3_898_152_944)
    held = memory.argument_bytes + memory.output_bytes + memory.temp_bytes - memory.alias_bytes
    assert held == 5_907_350_522


def test_collectives_with_their_rounds_are_those_of_the_run(train_step):
    module = train_step.module
    rounds = dict.fromkeys({item.computation for item in module.instructions}, 0)
    rounds[module.entry] = 1
    callers = [item for item in module.instructions if item.called]
    for _ in range(16):  # deeper than the call graph
        counted = dict.fromkeys(rounds, 0) | {module.entry: 1}
        for item in callers:
            for called in item.called:
                counted[called] += rounds[item.computation] * max(item.trip_count, 1)
        rounds = counted
    names = ("all-gather", "all-reduce", "all-to-all", "reduce-scatter")
    found = {
        name: sum(rounds[item.computation] for item in module.instructions if item.opcode == name)
        for name in names
    }
    assert found == {"all-gather": 53, "all-reduce": 8, "all-to-all": 2, "reduce-scatter": 28}


def test_async_work_is_told_by_what_it_wraps(train_step):
    started = [item for item in train_step.module.instructions if item.opcode == "async-start"]
    wrapped = {item.async_opcode for item in started}
    assert len(started) == 77
    assert {"all-gather", "reduce-scatter", "all-reduce", "all-to-all"} <= wrapped


def test_collectives_of_two_devices_name_both(train_step):
    groups = {item.groups for item in train_step.module.instructions if item.opcode == "all-gather"}
    assert groups == {((0, 1),)}


def test_the_program_is_shared_by_two_devices(train_step):
    assert (train_step.head.partitions, train_step.head.replicas) == (2, 1)


def test_temporary_buffers_reach_to_the_end_of_their_allocation(train_step):
    temp = [b for b in train_step.buffers if b.kind == "temp"]
    held = max(b.offset_bytes + b.size_bytes for b in temp)
    assert held == train_step.memory.temp_bytes
