"""Whether the processes that lie in one file can be told apart."""

from __future__ import annotations

from moeprof.ingest.planes.merged_processes import MergedProcesses
from moeprof.ingest.trust.evidence import TIMED
from moeprof.tables.law import Law


def merged(told: MergedProcesses) -> Law:
    """Work that may be of several ranks has no figure; what is left out is named."""
    if told.mixed:
        return Law(
            "merged",
            "fail",
            f"{told.mixed}; give the files of the ranks themselves, or merge them with numbers of "
            "processes of their own",
            TIMED,
        )
    if told.unpaired:
        return Law("merged", "warn", "; ".join(told.unpaired))
    if told.found == 1:
        return Law("merged", "ok", "one process in the file")
    return Law(
        "merged", "ok", f"{told.found} processes of the run in one file, each read by itself"
    )
