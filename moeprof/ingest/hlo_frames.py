"""Question: how do compiled programs look as tables: instructions, buffers, modules?"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from moeprof.ingest.programs import Program
from moeprof.ingest.replica_groups import groups_text
from moeprof.tables.trace import BUFFERS, HLO_OPS, MODULES


def hlo_frame(programs: Mapping[int, Program]) -> pd.DataFrame:
    """`HLO_OPS`, programs in order of their id, instructions in that of the proto."""
    rows = [
        {
            "module": module,
            "op": op.name,
            "id": op.id,
            "computation": op.computation,
            "is_root": op.is_root,
            "opcode": op.opcode,
            "shape": str(op.shape),
            "size_bytes": op.shape.size_bytes,
            "op_name": op.op_name,
            "custom_call_target": op.custom_call_target,
            "operands": " ".join(op.operands),
            "called": " ".join(op.called),
            "frames": op.frames,
            "replica_groups": groups_text(op.groups),
            "parameter": op.parameter,
            "details": op.details,
        }
        for module, program in sorted(programs.items())
        for op in program.module.instructions
    ]
    return HLO_OPS.frame(rows)


def buffers_frame(programs: Mapping[int, Program]) -> pd.DataFrame:
    """`BUFFERS`, programs in order of their id."""
    rows = [
        {
            "module": module,
            "op": buffer.op,
            "shape_index": buffer.shape_index,
            "buffer": buffer.id,
            "size_bytes": buffer.size_bytes,
            "allocation": buffer.allocation,
            "offset_bytes": buffer.offset_bytes,
            "kind": buffer.kind,
            "live_from": buffer.live_from,
            "live_to": buffer.live_to,
        }
        for module, program in sorted(programs.items())
        for buffer in program.buffers
    ]
    return BUFFERS.frame(rows)


def modules_frame(
    programs: Mapping[int, Program], events: pd.DataFrame, executions: pd.DataFrame
) -> pd.DataFrame:
    """`MODULES`, by program id; modules seen in events alone have no name and no instruction."""
    device_ns = events.groupby("module")["self_ns"].sum()
    runs = executions.groupby("module")["run_id"].count()
    ids = sorted({*programs, *(int(m) for m in device_ns.index if m != -1)})
    rows = [
        {
            "module": key,
            "name": programs[key].module.name if key in programs else "",
            "instructions": len(programs[key].module.instructions) if key in programs else 0,
            "executions": int(runs.get(key, 0)),
            "device_ns": int(device_ns.get(key, 0)),
        }
        for key in ids
    ]
    return MODULES.frame(rows)
