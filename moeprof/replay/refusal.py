"""How an op is refused of which no code says the same."""

from __future__ import annotations

from typing import NoReturn

from moeprof.errors import ReplayError
from moeprof.hlo.program import Op


def refused(op: Op, why: str) -> NoReturn:
    """Say which op it is, and why it has no translation.

    Raises:
        ReplayError: always.
    """
    raise ReplayError(f"{op.name} ({op.opcode}) {why}, which has no translation")
