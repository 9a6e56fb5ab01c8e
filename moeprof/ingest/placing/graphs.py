"""Question: of which HLO ops are the kernels whose recorded op is no instruction?

Kernels that a GPU graph launched carry the name of the graph (``command_buffer_3``) instead of
their op's. `graph_match` finds the op from the program's schedule; here its answers enter the
work of a host.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from moeprof.hlo.program import Program
from moeprof.ingest.placing.graph_match import match_graphs
from moeprof.ingest.planes.record import LABELLED, Labels

_TEXTS = tuple(name for name in LABELLED if name != "line")


def with_graph_ops(
    work: pd.DataFrame, ops: pd.DataFrame, programs: Mapping[int, Program], labels: Labels
) -> pd.DataFrame:
    """`work` of a host, with op, instruction, evidence and confidence of what could be matched.

    `ops` are the `HLO_OPS` of all `programs`; work of other programs stays as it is.
    """
    is_stream_work = work["kind"] != labels.code("op")  # XLA:CPU and TPU name each op themselves
    is_open = is_stream_work & (work["instruction"] < 0) & (work["module"] != -1)
    modules = [m for m in work["module"][is_open].unique() if m in programs]
    if not modules:
        return work
    texts = pd.Index(labels.texts, dtype="str")
    found = work.copy()
    for module in modules:
        mine = work[work["module"] == module]
        answers = match_graphs(_readable(mine, texts), programs[module])
        _enter(found, answers, ops[ops["module"] == module], labels)
    return found


def _readable(work: pd.DataFrame, texts: pd.Index[str]) -> pd.DataFrame:
    """`work` with its texts, as categories, and lengths instead of ends."""
    columns = {name: pd.Categorical.from_codes(work[name], categories=texts) for name in _TEXTS}
    columns["line"] = pd.Categorical.from_codes(work["line"], categories=texts)
    return work.assign(**columns, duration_ns=work["end_ns"] - work["start_ns"])


def _enter(
    work: pd.DataFrame, answers: pd.DataFrame, program: pd.DataFrame, labels: Labels
) -> None:
    """Write the answers that name an instruction into `work`."""
    known = answers[answers["evidence"] == "graph"]
    ops = known["op"].astype("category").cat.remove_unused_categories().cat
    rows = pd.Series(program.index, index=program["op"]).reindex(ops.categories)
    codes = np.array([labels.code(op) for op in ops.categories], np.int64)
    work.loc[known.index, "instruction"] = rows.to_numpy(np.int64)[ops.codes]
    work.loc[known.index, "op"] = codes[ops.codes]
    work.loc[known.index, "evidence"] = labels.code("graph")
    work.loc[known.index, "confidence"] = known["confidence"].to_numpy(np.float64)
