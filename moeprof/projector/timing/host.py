"""Question: what does a layer wait for its host?

A JAX program is launched as a whole and its shapes are static: the host waits for nothing and its
launches run ahead. PyTorch launches kernel by kernel, and a dynamic MoE layer waits for counts from
the device (ROCm/rocm-blogs, primus-moe-package, "Sync-Free MoE"); each wait drains the queue, which
takes about one trip: launch, kernel, copy, and the launches after it.

How long a trip takes differs between hosts and no source states it: 0.1 ms and 10 µs per launch of
about 60 kernels per MoE layer and pass (half for a dense one) are assumed.
"""

from __future__ import annotations

import numpy as np

from moeprof.projector.timing.flops import LayerKind
from moeprof.projector.timing.ground import Ground
from moeprof.projector.timing.reals import Real
from moeprof.projector.timing.recompute import recomputed
from moeprof.projector.timing.rows import TimeRow
from moeprof.projector.timing.tuning import SYNCS

SYNC_S = 1e-4
LAUNCH_S = 1e-5
_KERNELS = {"dense": 30, "moe": 60}


def host_row_list(ground: Ground, kind: LayerKind, device_s: Real) -> list[TimeRow]:
    """Waits and launches of one layer and microbatch; none in JAX."""
    if ground.setting.world != "megatron":
        return []
    again = ground.again * recomputed(ground.setting.plan.remat, "norms")
    launches = _KERNELS[kind] * (3 + again) * LAUNCH_S
    rows = [
        TimeRow(
            "launches",
            "host",
            np.maximum(launches - device_s, 0.0),
            np.minimum(launches, device_s),
            f"{_KERNELS[kind]} kernels · passes · 10 µs, as far as the device is done before",
            "assumed",
            "low",
        )
    ]
    if kind == "moe":
        syncs = SYNCS[ground.tuning.sync_free]
        routes_again = ground.again * recomputed(ground.setting.plan.remat, "exchange")
        seconds = syncs * SYNC_S * (1 + routes_again)
        formula = f"{syncs} waits per MoE layer, forward and again · 0.1 ms"
        rows.append(
            TimeRow("waits for the device", "host", seconds, 0.0, formula, "assumed", "low")
        )
    return rows
