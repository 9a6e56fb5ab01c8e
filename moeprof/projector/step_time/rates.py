"""Question: which share of its peaks does a device reach in a step, alone and with its peers?

From that, a setting's degrees and what a run tunes about time all parts of an estimate are computed
(`Ground`); they are rows. What their sum is worth says
`moeprof.projector.step_time.Basis`.

A rate is a share of a peak in `moeprof.specs.hardware`. There is one set per vendor, the same for
every model and plan.

AMD     DeepSeek-V3 on 64 MI355X (ROCm/rocm-blogs, maxtext-dropless-moe; AMD-AGI/maxtext-slurm,
        utils/profile_drill.py). A trace of a step of 24,576 tokens per device has 8.2 s of GEMMs
        and 1.8 s of attention: 0.245 of the peak. What one more unit of capacity factor costs in
        the throughput table, 1.47 s per sequence, gives the plain GEMM; the rest of the trace's is
        grouped.
NVIDIA  kernels alone on an H100, bfloat16: GEMM 700 to 790, grouped GEMM 580 to 720 TFLOP/s of 989;
        device copy 2,950 of 3,350 GB/s; peer copy 395 of 450 GB/s. A step's are smaller and share
        the device with communication: 0.85 of the middle. Attention: Shah et al. 2024,
        FlashAttention-3, arXiv 2407.08608, figure 5, forward and backward.
Google  by analogy with published model FLOP utilisation of 50 to 60 %: low confidence.

Of a collective, what leaves the domain goes through the members' own network cards, what stays uses
the links between peers; both run at the same time, the slower one counts. Ring all-gather and
reduce-scatter: Thakur et al. 2005, "Optimization of Collective Communication Operations in MPICH",
section 4: each member receives (g − 1) / g of the whole.

Peers with most traffic are neighbours. From the inside out, in JAX tensor, expert, context, fsdp,
data, pipeline; in Megatron-LM tensor, context, data, pipeline, and, in a layout of their own over
the same devices of a stage, expert_tensor, expert and their replicas (Liu et al. 2025, "MoE
Parallel Folding", arXiv 2504.14960, section 3.2). A group of g members, s devices apart, has

    inside = clip(domain / s, 1, g)

members per domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from moeprof.errors import SpecError
from moeprof.projector.breakdown import Confidence
from moeprof.projector.framework import framework
from moeprof.projector.setting import Count, Degrees, Real, Setting
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.hardware import HardwareSpec


class Rates(NamedTuple):
    """Shares of peaks, in (0, 1].

    ``gemm``, ``grouped`` and ``attention`` are of the FLOP/s of matrix units, ``memory`` of HBM's
    bytes/s, ``peer`` and ``network`` of the links' bytes/s.
    """

    gemm: float
    grouped: float
    attention: float
    memory: float
    peer: float
    network: float
    confidence: Confidence
    source: str


_AMD = Rates(
    gemm=0.55,
    grouped=0.27,
    attention=0.245,
    memory=0.80,
    peer=0.70,
    network=1.0,
    confidence="medium",
    source="DeepSeek-V3 on 64 MI355X: ROCm/rocm-blogs maxtext-dropless-moe, maxtext-slurm traces",
)
_NVIDIA = Rates(
    gemm=0.64,
    grouped=0.55,
    attention=0.45,
    memory=0.88,
    peer=0.80,
    network=0.90,
    confidence="medium",
    source="kernels measured alone on an H100; arXiv 2407.08608",
)
_GOOGLE = Rates(
    gemm=0.65,
    grouped=0.50,
    attention=0.45,
    memory=0.85,
    peer=0.80,
    network=0.90,
    confidence="low",
    source="assumed from published model FLOP utilisation of 50 to 60 %",
)
_BY_VENDOR = {"AMD": _AMD, "NVIDIA": _NVIDIA, "Google": _GOOGLE}


def rates_of(hardware: HardwareSpec) -> Rates:
    """Rates of a device, by its vendor; NVIDIA's with low confidence for one not known."""
    return _BY_VENDOR.get(hardware.vendor, _NVIDIA._replace(confidence="low"))


# In which formats a step computes and moves, and how fast products in them can be.

_HLO_NAMES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float8_e4m3fn": "f8e4m3fn",
    "float8_e5m2": "f8e5m2",
}


def item_bytes(setting: Setting) -> int:
    """Bytes of one activation."""
    return DTYPE_BYTES[setting.precision.compute]


def expert_item_bytes(setting: Setting) -> int:
    """Bytes of one operand of the experts' products."""
    return DTYPE_BYTES[setting.precision.experts or setting.precision.compute]


def peak_flops_per_s(setting: Setting, dtype: str) -> float:
    """The device's peak for products of a format.

    Raises:
        SpecError: the vendor states none.
    """
    peak = setting.hardware.flops_per_s(_HLO_NAMES.get(dtype, dtype))
    if peak is None:
        raise SpecError(
            f"step time: no peak of {setting.hardware.name} for {dtype} is known. "
            "Estimate in bfloat16."
        )
    return peak


# Links of a device, and which of its peers they reach.


class Links(NamedTuple):
    """Bytes/s of one device in one direction, as reached; ``network`` NaN where not known."""

    peer_bytes_per_s: float
    network_bytes_per_s: float
    domain: int


class Group(NamedTuple):
    """Devices that exchange: how many, and how many of them one domain holds."""

    size: Count
    inside: Count


def links_of(hardware: HardwareSpec, rates: Rates) -> Links:
    """The links of a device at the rates reached."""
    network = hardware.network_bytes_per_s
    return Links(
        hardware.peer_bytes_per_s * rates.peer,
        float("nan") if network is None else network * rates.network,
        hardware.domain,
    )


def all_to_all_s(sent_bytes: Real, group: Group, links: Links) -> Real:
    """Seconds of an all-to-all in which each member has ``sent_bytes`` for all, itself included."""
    outside = sent_bytes * (1 - group.inside / group.size)
    within = sent_bytes * (group.inside - 1) / group.size
    return slower(within, outside, links)


def gather_s(whole_bytes: Real, group: Group, links: Links) -> Real:
    """Seconds of an all-gather of ``whole_bytes``, or of a reduce-scatter of as much.

    A domain receives what it lacks once, shared among its members' network cards.
    """
    outside = whole_bytes * (1 - group.inside / group.size) / group.inside
    within = np.where(group.inside > 1, whole_bytes * (1 - 1 / np.asarray(group.size)), 0.0)
    return slower(within, outside, links)


def slower(within_bytes: Real, outside_bytes: Real, links: Links) -> Real:
    """Seconds of two transfers at once; what is 0 needs no link."""
    outside = np.asarray(outside_bytes, dtype=np.float64)
    network_s = np.where(outside > 0, outside / links.network_bytes_per_s, 0.0)
    return np.maximum(np.asarray(within_bytes) / links.peer_bytes_per_s, network_s)


class Groups(NamedTuple):
    """The groups of a plan.

    ``expert_weights`` share, or replicate, a rank's experts, ``other_weights`` all else;
    ``replicas`` hold the same weights in JAX; ``stages`` are two neighbours in the pipeline.
    """

    tensor: Group
    context: Group
    exchange: Group
    expert_weights: Group
    other_weights: Group
    replicas: Group
    stages: Group


def groups_of(name: str, degrees: Degrees, domain: int) -> Groups:
    """The groups of one plan, or of many, in the framework of a name."""
    if framework(name).folds_experts:
        return _folded(degrees, domain)
    d = degrees
    spread = d.context * d.fsdp
    stage = d.tensor * d.expert * spread * d.data
    return Groups(
        tensor=_group(1, d.tensor, domain),
        context=_group(d.tensor * d.expert, d.context, domain),
        exchange=_group(d.tensor, d.expert, domain),
        expert_weights=_group(d.tensor * d.expert, spread, domain),
        other_weights=_group(d.tensor, d.expert * spread, domain),
        replicas=_group(d.tensor * d.expert * spread, d.data, domain),
        stages=_group(stage, 2, domain),
    )


def _folded(d: Degrees, domain: int) -> Groups:
    replicas = d.context * d.fsdp * d.data
    stage = d.tensor * replicas
    experts = d.expert_tensor * d.expert
    return Groups(
        tensor=_group(1, d.tensor, domain),
        context=_group(d.tensor, d.context, domain),
        exchange=_group(d.expert_tensor, d.expert, domain),
        expert_weights=_group(experts, stage // experts, domain),
        other_weights=_group(d.tensor, replicas, domain),
        replicas=_group(d.tensor, 1, domain),
        stages=_group(stage, 2, domain),
    )


def _group(apart: Count, size: Count, domain: int) -> Group:
    return Group(size, np.clip(domain // np.asarray(apart), 1, np.maximum(size, 1)))


# What all parts of an estimate are computed from, and what they add up to.

KINDS = ("compute", "memory passes", "exchange", "collectives", "pipeline", "host")


@dataclass(frozen=True)
class TimeRow:
    """One component of a step on the slowest stage; ``kind`` is one of `KINDS`.

    ``seconds`` are those that nothing hides, ``hidden_s`` those that run beside other work; an
    array of them in a vectorised evaluation.
    """

    name: str
    kind: str
    seconds: Real
    hidden_s: Real
    formula: str
    source: str
    confidence: Confidence


def total_s(rows: tuple[TimeRow, ...]) -> Real:
    """Seconds of a step: what is not hidden adds up."""
    seconds: Real = 0.0
    for row in rows:
        seconds = seconds + row.seconds
    return seconds


SYNCS = (4, 2, 1, 0)
"""Waits of the host for the device per MoE layer, forward, by level of ``sync_free``: of router,
permutation, dispatch and grouped GEMM; level 1 removes the first two, 2 all but the permutation's,
3 all (ROCm/rocm-blogs, primus-moe-package, table 2)."""


@dataclass(frozen=True)
class Tuning:
    """What a run does about time.

    ``sync_free`` is Primus's level of MoE without waits for the device, 0 to 3, Megatron
    only: a JAX program has static shapes and never waits. ``overlaps_exchange``: dispatch and
    combine of one microbatch run beside the products of another (1F1B with all-to-all overlap;
    DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.2.1).
    """

    sync_free: int = 0
    overlaps_exchange: bool = False

    def __post_init__(self) -> None:
        """Check the level."""
        if self.sync_free not in range(len(SYNCS)):
            raise SpecError(f"sync-free level: expected 0 to 3, found {self.sync_free}.")


PLAIN = Tuning()


class Ground(NamedTuple):
    """``tokens`` are those of one device in one microbatch.

    ``again`` is the share of layers whose forward work is done again where their remat asks for it.
    """

    setting: Setting
    degrees: Degrees
    tuning: Tuning
    rates: Rates
    links: Links
    groups: Groups
    tokens: Real
    again: Real


def ground_of(setting: Setting, degrees: Degrees, tuning: Tuning) -> Ground:
    """What a setting gives; the degrees may be arrays."""
    assert degrees.pdbs is not None
    assert degrees.sequence is not None
    rates = rates_of(setting.hardware)
    tokens = degrees.pdbs * degrees.sequence / degrees.context
    again: Real = 1.0
    if setting.recomputed_layers is not None:
        per_stage = setting.model.layers / np.asarray(degrees.pipeline)
        again = np.minimum(setting.recomputed_layers / per_stage, 1.0)
    links = links_of(setting.hardware, rates)
    groups = groups_of(setting.framework, degrees, links.domain)
    return Ground(setting, degrees, tuning, rates, links, groups, tokens, again)


def memory_bytes_per_s(ground: Ground) -> float:
    """What passes HBM, at the rate reached."""
    return ground.setting.hardware.hbm_bytes_per_s * ground.rates.memory
