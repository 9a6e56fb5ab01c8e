"""Question: which share of its peaks does a device reach in a training step?

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
"""

from __future__ import annotations

from typing import NamedTuple

from moeprof.projector.breakdown import Confidence
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
