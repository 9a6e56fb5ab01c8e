"""Raw profile formats, bytes to tables: one format per file. `open_run` reads any of them."""

from moeprof.ingest.run import open_run

__all__ = ["open_run"]
