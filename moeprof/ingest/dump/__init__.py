"""Compiled programs that the compiler wrote to files, opened as the `Trace` of a run of nothing."""

from moeprof.ingest.dump.open import is_dump, open_dump

__all__ = ["is_dump", "open_dump"]
