"""Question: which tables does moeprof keep, and what does each column hold?

Prints docs/tables.md from the schemas themselves:

    python docs/write_tables.py > docs/tables.md
"""

from __future__ import annotations

from moeprof.analyzers.breakdown import SCHEMA as BREAKDOWN
from moeprof.analyzers.classify import CLASSES
from moeprof.analyzers.collectives import SCHEMA as COLLECTIVES
from moeprof.analyzers.collectives_ranks import SCHEMA as STRAGGLERS
from moeprof.analyzers.ops import SCHEMA as OPS
from moeprof.analyzers.pipeline_stages import STAGES
from moeprof.analyzers.receive_buffers import SCHEMA as RECEIVE_BUFFERS
from moeprof.analyzers.step_time import SCHEMA as STEP_TIME
from moeprof.analyzers.timeline import SCHEMA as TIMELINE
from moeprof.tables import routing, trace
from moeprof.tables.schema import Column, Schema

INTRODUCTION = """\
# Tables

Written by `python docs/write_tables.py > docs/tables.md`; a test compares the two.

Times are int64 ns since the capture began, on the clock of the host that took them; sizes are
int64 bytes. The unit of a column stands behind its kind. Text is never missing; a figure that is
not known is NaN in a float64 column, `null` in JSON, and -1 in an int64 column that says so."""

STORED = """\
`moeprof export RUN --tables DIR` writes each of these, and the recorded routing, as
`DIR/<table>.parquet`; every command takes DIR in the place of the run. The metadata of a file has
`moeprof.table`, `moeprof.schema` (`moeprof.trace/1`) and `moeprof.columns`, a JSON list of name,
kind, unit and meaning. Labels are dictionaries, NaN is null. `DIR/trace.json` holds what is said of
the profile as a whole (`meta`), the checks (`trust`), and rows and bytes of each file."""

TRACE = (
    (trace.EVENTS, "One row per piece of device work. A device may run several at once."),
    (trace.DEVICES, "One row per device that the profile knows, with or without work."),
    (trace.HLO_OPS, "One row per HLO instruction of every program that ran in the window."),
    (trace.EXECUTIONS, "One row per execution of a module on a device."),
    (trace.MODULES, "One row per program, whether it ran in the window or not."),
    (trace.STEPS, "One row per step found, the dropped ones included."),
    (trace.BUFFERS, "One row per logical buffer of the compiler's buffer assignment."),
    (trace.RENDEZVOUS, "One row per wait of a device of a CPU run for its peers."),
    (trace.MARKERS, "One row per step annotation that the user's program made."),
    (trace.DROPPED, "One row per kind of event that was read and left out."),
)
ROUTING = (
    (routing.ROUTING, "One row per step, layer and expert; an expert without a token has 0."),
    (routing.RECEIVED, "One row per step, layer, exchange group and rank."),
)
FINDINGS = (
    (STEP_TIME, "One row per step found."),
    (BREAKDOWN, "One row per component and phase."),
    (TIMELINE, "One row per device and used step."),
    (OPS, "One row per HLO instruction that ran, the most expensive first."),
    (COLLECTIVES, "One row per call site, the most expensive first."),
    (STRAGGLERS, "One row per rank, the most waited-for first."),
    (RECEIVE_BUFFERS, "One row per op that makes or fills such a buffer."),
    (STAGES, "One row per pipeline stage."),
    (CLASSES, "One row per HLO instruction: what the findings attribute its time to."),
)


def document() -> str:
    """The whole of docs/tables.md."""
    parts = [
        INTRODUCTION,
        "## A profile: `moeprof.ingest.open_run`",
        STORED,
        *(_section(schema, rows) for schema, rows in TRACE),
        "## Recorded routing: `RUN/routing/*.parquet`",
        *(_section(schema, rows) for schema, rows in ROUTING),
        "## Findings: `moeprof analyze`",
        *(_section(schema, rows) for schema, rows in FINDINGS),
    ]
    return "\n\n".join(parts)


def _section(schema: Schema, rows: str) -> str:
    head = ["| column | kind | meaning |", "|---|---|---|"]
    return "\n".join([f"### {schema.name}", "", rows, "", *head, *map(_row, schema.columns)])


def _row(column: Column) -> str:
    unit = f", {column.unit}" if column.unit else ""
    return (
        f"| `{column.name}` | {column.kind}{unit} | {column.meaning.replace('|', chr(92) + '|')} |"
    )


if __name__ == "__main__":
    print(document())
