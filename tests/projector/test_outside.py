"""DeepEP's buffers, to the byte: the values that its own functions return; what NCCL takes."""

from dataclasses import replace

import numpy as np
import pytest

from moeprof.projector.breakdown import MemoryBreakdown
from moeprof.projector.memory import project, project_many
from moeprof.projector.outside import nvl_bytes, rdma_bytes
from moeprof.projector.setting import Setting, degrees_of
from moeprof.specs.hardware import load_hardware
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.strategy import parse_strategy

HIDDEN = 7168 * 2


@pytest.mark.parametrize(
    ("ranks", "sms", "nvl", "rdma"),
    [
        (8, 64, 1_074_271_232, 0),
        (8, 32, 537_135_616, 0),
        (8, 20, 335_709_824, 0),
        (64, 64, 1_208_568_832, 1_176_162_304),
        (64, 32, 604_284_416, 588_081_152),
        (16, 64, 1_208_556_544, 294_040_576),
        (32, 64, 1_208_560_640, 537_675_776),
    ],
)
def test_buffers_of_a_row_of_7168_bfloat16(ranks: int, sms: int, nvl: int, rdma: int) -> None:
    assert nvl_bytes(ranks, HIDDEN, sms) == nvl
    assert rdma_bytes(ranks, HIDDEN, sms) == rdma


def on_h100(devices: int, hardware: str = "h100_sxm") -> MemoryBreakdown:
    return project(
        Setting(
            load_preset("mixtral-8x7b"),
            ParallelPlan(fsdp=devices),
            parse_strategy("dense-cf1.25"),
            load_hardware(hardware),
        )
    )


@pytest.mark.parametrize(
    ("devices", "outside"),
    [
        (1, 1_060_000_000),
        (2, 1_060_000_000 + 468_571_429),
        (8, 4_340_000_000),  # as it was measured: NVIDIA/nccl issue 1685
        (16, 4_340_000_000 + 2**29),
        (1024, 4_340_000_000 + 2**29),  # peers beyond the second node need no more: issue 986
    ],
)
def test_what_nccl_takes_beside_the_pool(devices: int, outside: int) -> None:
    assert on_h100(devices).outside_bytes == outside


def test_what_rccl_takes_is_bounded_by_what_was_observed() -> None:
    """AMD-AGI/maxtext-slurm: with 64 devices more than 5.8 GiB, at most 20."""
    assert 5.8 < (on_h100(64, "mi355x").outside_bytes or 0) / 2**30 < 20


def test_many_plans_at_once_have_the_outside_of_each() -> None:
    setting = on_h100(8).setting
    fsdp = np.array([1, 2, 8, 16, 1024])
    many = project_many(setting, degrees_of(setting)._replace(fsdp=fsdp))
    assert many.outside.tolist() == [on_h100(int(n)).outside_bytes for n in fsdp]


def test_one_rank_of_megatron_has_no_communicators() -> None:
    alone = project(replace(on_h100(1).setting, framework="megatron"))
    buffers = {row.name: row.size_bytes for row in alone.worst.outside}
    assert buffers["communicators' buffers"] == 0
