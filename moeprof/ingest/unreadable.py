"""Question: what is said where the system refuses to read a file?"""

from __future__ import annotations

from moeprof.errors import TraceError


def unreadable(path: object, error: OSError) -> TraceError:
    """The error to raise where the system refuses to read `path`."""
    reason = error.strerror or str(error)
    return TraceError(f"{path}: expected to read it, found: {reason}; check its permissions")
