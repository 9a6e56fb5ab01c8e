"""Question: how is a folder of tables opened in the place of the profile that it came from?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moeprof.errors import SelectionError
from moeprof.ingest.sources.choose import hosts_named
from moeprof.tables.store import read_tables
from moeprof.tables.trace import Trace


def open_stored(folder: Path, session: str | None, hosts: Sequence[str]) -> Trace:
    """The trace in a folder that `moeprof.tables.store.write_tables` made.

    Figures over all of its hosts are in the tables, so they are not to be had for some of them.

    Raises:
        SelectionError: a session is asked for, a host that is not in it, or not all of its hosts.
        TraceError: the folder is not whole or of another version.
    """
    trace = read_tables(folder)
    if session is not None:
        raise SelectionError(
            f"{folder}: no session is named '{session}'; tables hold a single session"
        )
    known = trace.meta.hosts
    if len(hosts_named(folder, known, hosts)) < len(known):
        raise SelectionError(
            f"{folder}: expected all hosts of these tables or none to be named, found "
            f"{', '.join(hosts)} of {', '.join(known)}; choose hosts of the profile itself"
        )
    return trace
