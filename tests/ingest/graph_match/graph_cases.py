"""Small programs and launches of GPU graphs, a line each."""

from __future__ import annotations

import pandas as pd

from moeprof.columns.table import Table
from moeprof.hlo.instruction import instructions_of
from moeprof.hlo.program import Program
from moeprof.ingest.placing.graph_match import match_graphs

Row = dict[str, object]

GEMM_KERNEL = "nvjet_sm90_tst_128x128_64x5"
GRAPH = "command_buffer_1"


def fusion(name: str, body: str = "", *, kind: str = "kLoop") -> Row:
    """A fusion; those of one `body` share a kernel, without one it has a body of its own."""
    return {"op": name, "opcode": "fusion", "body": body or name, "details": f"kind={kind}"}


def gemm(name: str) -> Row:
    return {"op": name, "opcode": "custom-call", "custom_call_target": "__cublas$lt$matmul"}


def op(name: str, opcode: str, *called: str, target: str = "") -> Row:
    """Any other instruction, with the computations that it calls."""
    return {
        "op": name,
        "opcode": opcode,
        "called": " ".join(called),
        "custom_call_target": target,
    }


def program(main: list[Row], *, is_scheduled: bool = True, **others: list[Row]) -> pd.DataFrame:
    """The columns of `HLO_OPS` that matching reads; computations in the order given."""
    rows: list[Row] = []
    for computation, members in {**others, "main": main}.items():
        for place, member in enumerate(members):
            row = {"computation": computation, "schedule": place if is_scheduled else -1, **member}
            if "body" in row:
                row["called"] = f"fused_{row['op']}"
                inner = {"computation": row["called"], "op": f"in.{row['op']}"}
                rows.append({**inner, "opcode": str(row.pop("body"))})
            rows.append(row)
    defaults: Row = {"called": "", "custom_call_target": "", "details": "", "operands": ""}
    defaults |= {"shape": "f32[8]", "parameter": -1, "schedule": -1}
    return pd.DataFrame([{**defaults, **row} for row in rows])


def launch(
    *names: str,
    op: str = GRAPH,
    correlation: int = 7,
    start: int = 1000,
    nodes: list[int] | None = None,
    run: int = 1,
    device: int = 0,
    graph: int = 5,
) -> pd.DataFrame:
    """Kernels of one launch, 10 ns each, one after the other; ``nodes`` none for ids unknown."""
    count = len(names)
    return pd.DataFrame(
        {
            "device": device,
            "line": "Stream #1",
            "name": list(names),
            "kind": ["memset" if name.startswith("Memset") else "kernel" for name in names],
            "op": op,
            "run_id": run,
            "start_ns": [start + 10 * place for place in range(count)],
            "duration_ns": 10,
            "correlation_id": correlation,
            "graph_id": graph,
            "graph_node": [(graph << 32) + node for node in nodes] if nodes else [-1] * count,
            "details": "",
        }
    )


def recorded(name: str, op: str, start: int, **others: int) -> pd.DataFrame:
    """One kernel launched by itself, with its op on record."""
    return launch(name, op=op, start=start, correlation=100_000 + start, graph=-1, **others)


def ops_of(instructions: pd.DataFrame, *parts: pd.DataFrame) -> list[str]:
    """Op of each kernel as matched, in the order given."""
    return matched(instructions, *parts)["op"].astype(str).tolist()


def matched(instructions: pd.DataFrame, *parts: pd.DataFrame) -> pd.DataFrame:
    return match_rows(pd.concat(parts, ignore_index=True), instructions)


def match_rows(work: pd.DataFrame, instructions: pd.DataFrame) -> pd.DataFrame:
    """`match_graphs` with a program by its rows; the answers under the index of `work`."""
    known = work.loc[:, ~work.isna().any()]  # columns of a test's own may lack values
    found = match_graphs(Table.of(known), Program(instructions_of(instructions)))
    return found.pandas().set_axis(work.index)
