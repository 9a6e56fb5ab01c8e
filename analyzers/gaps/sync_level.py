"""Question: for what does a MoE layer still wait for the host?

Counts of tokens are known on the device first. A layer that sizes its work by them on the host
stops the device: the counts are copied to the host, and the launches that need them come late.
The levels count how much of a layer works without that:

    0  routing and permutation wait for the host
    1  these do not, but the exchange does: its sizes are read on the host
    2  nor does the exchange, but the experts do: their group sizes are read on the host
    3  nothing in the layer does
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from moeprof.analyzers.attribution import sure_rows, work_in_steps
from moeprof.analyzers.classify.components import MOE
from moeprof.analyzers.classify.op_kinds import exchange_of
from moeprof.analyzers.gaps.causes import is_copy_to_host, same_execution
from moeprof.tables.trace import Trace

_LEVELS = (
    ("router", "permute", "unpermute", "moe_other"),
    ("dispatch", "combine"),
    ("grouped_gemm", "expert_elementwise"),
)
"""Components by the level at which they still wait for the host."""
FREE = len(_LEVELS)
_CALLBACK = r"callback"


def host_syncs(trace: Trace) -> pd.DataFrame | None:
    """Rows (row, component, op) of copies to the host and callbacks in MoE layers.

    None where that is not known: no MoE layer is in the used steps; no GPU ran it, as other devices
    record no such copies; or no program was kept, whose calls would show callbacks. A copy without
    a sure op is of the component that ran before it on its device in the same execution.
    """
    work = work_in_steps(trace)
    is_moe = work["component"].isin(MOE).to_numpy()
    if trace.meta.platform != "gpu" or not is_moe.any() or not has_programs(trace):
        return None
    is_copy = is_copy_to_host(work)
    targets = trace.hlo_ops["custom_call_target"].str.contains(_CALLBACK, case=False)
    is_call = np.append(targets.to_numpy(dtype=bool), False).take(sure_rows(work))
    owner = _owners(work)
    wanted = np.flatnonzero((is_copy | is_call) & is_moe[owner])
    return pd.DataFrame(
        {
            "row": work.index.to_numpy()[wanted],
            "component": work["component"].iloc[owner[wanted]].astype("str").to_numpy(),
            "op": work["op"].iloc[wanted].astype("str").to_numpy(),
        }
    )


def has_programs(trace: Trace) -> bool:
    """Whether instructions are those of programs, rather than names that events mention."""
    return bool(trace.hlo_ops["opcode"].eq("parameter").any())


def _owners(work: pd.DataFrame) -> np.ndarray:
    """Place of the piece whose component counts: its own, or the last before it with a sure op."""
    has_op = sure_rows(work) >= 0
    last = np.maximum.accumulate(np.where(has_op, np.arange(len(work)), -1))
    at = np.maximum(last, 0)
    same = (last >= 0) & same_execution(work, at, np.arange(len(work)))
    for place in (work["device"].to_numpy(), work["host"].cat.codes.to_numpy()):
        same &= place[at] == place
    owners: np.ndarray = np.where(has_op | ~same, np.arange(len(work)), at)
    return owners


def level_of(syncs: pd.DataFrame) -> int:
    """The level, 0 to 3, of layers that have these `host_syncs`."""
    found = set(syncs["component"])
    return next((level for level, names in enumerate(_LEVELS) if found & set(names)), FREE)


def has_library_exchange(trace: Trace) -> bool:
    """Whether a library exchanges tokens, whose host may poll for counts without any copy."""
    return any(exchange_of(target) for target in trace.hlo_ops["custom_call_target"].unique())
