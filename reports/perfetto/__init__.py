"""A run as a trace for ui.perfetto.dev: tracks and slices of a `Trace`, and the file of these."""

from __future__ import annotations

from moeprof.reports.perfetto.file import Written, write_perfetto

__all__ = ["Written", "write_perfetto"]
