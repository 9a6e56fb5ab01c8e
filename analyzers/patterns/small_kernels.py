"""Pattern: a step is thousands of kernels that end before the host has launched the next.

A kernel of less than 10 us costs the host about as long to launch as the device to run. XLA's
command buffers (GPU graphs) launch many at once. On ROCm each launch takes its arguments from a
pool, whose size HSA_KERNARG_POOL_SIZE sets; when it is used up launches wait.
"""

from __future__ import annotations

import re

from moeprof.analyzers.activity.work import SHORT_NS
from moeprof.analyzers.question import Hint, Pattern
from moeprof.analyzers.questions.timeline import timeline
from moeprof.analyzers.window import window
from moeprof.tables.law import JAX, PYTORCH
from moeprof.tables.trace import Trace
from moeprof.units import format_count, format_ns, format_percent

MANY = 1000
"""Short kernels per device and step from which on they are a pattern."""
_FIX = {
    JAX: "leave XLA's command buffers on (no --xla_gpu_enable_command_buffer= in XLA_FLAGS) and "
    "fuse elementwise work",
    PYTORCH: "fuse elementwise work and replay what repeats as a CUDA graph (torch.compile, "
    'mode="reduce-overhead")',
}
_AMD = re.compile(r"AMD|MI\d|gfx")
_IDLE = 0.05
"""Share of the step that the device must idle: where it never runs dry, launches cost nothing."""


def find(trace: Trace) -> Hint | None:
    """Many short kernels that are launched one by one, on a device that runs dry."""
    if trace.meta.platform != "gpu":
        return None
    view = window(trace)
    is_kernel, length_ns = view.events["kind"] == "kernel", view.events["duration_ns"]
    is_short = is_kernel & (length_ns < SHORT_NS) & (view.events["graph_node"] == -1)
    count = int(is_short.sum()) / view.shares
    spent = timeline(trace).cells
    idle = float(spent["idle_ns"].sum() / max(spent["duration_ns"].sum(), 1))
    if count < MANY or idle < _IDLE:
        return None
    share = float(length_ns[is_short].sum() / max(length_ns[is_kernel].sum(), 1))
    is_amd = any(map(_AMD.search, trace.table("devices")["model"].tolist()))
    return Hint(
        f"{format_count(count)} kernels {view.each} are shorter than {format_ns(SHORT_NS)}, "
        f"outside any command buffer: {format_percent(share)} of kernel time, while the device "
        f"idles {format_percent(idle)} of the time",
        _FIX[trace.meta.framework]
        + "; a larger HSA_KERNARG_POOL_SIZE for their arguments" * is_amd,
        "launch",
        gain_ns=float(spent["idle_ns"].sum() / view.shares),
    )


PATTERN = Pattern("small_kernels", "Kernels end before the host launches the next", 13, find)
