"""Question: how far can a run's figures be trusted, to somebody who asks in Python?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from moeprof.reports.parts.phrases import described_trust, troubles, worst_verdict

if TYPE_CHECKING:
    from moeprof.answers.document import Document, TrustInfo

_COLUMNS = ["check", "verdict", "detail", "expected", "found", "unit", "withholds"]


class Trust:
    """The trust record of a run: what was checked, and which figures fall with what failed."""

    def __init__(self, document: Document) -> None:
        """Of a document with all answers."""
        self._document = document

    @property
    def verdict(self) -> str:
        """The worst verdict: ``ok``, ``warn``, ``fail``, or ``unchecked``."""
        return worst_verdict(self._document)

    @property
    def laws(self) -> tuple[TrustInfo, ...]:
        """Every law, as in JSON."""
        return tuple(self._document["trust"])

    @property
    def troubles(self) -> tuple[TrustInfo, ...]:
        """Laws that failed or warn, the worst first."""
        return tuple(troubles(self._document))

    @property
    def table(self) -> pd.DataFrame:
        """One row per law."""
        return pd.DataFrame(self._document["trust"], columns=_COLUMNS)

    def __str__(self) -> str:
        """The record in words."""
        return described_trust(self._document)

    def __repr__(self) -> str:
        """What it is, in one line."""
        return f"<moeprof trust {self}>"

    def _repr_html_(self) -> str:
        from moeprof.reports.run.cell import trust_cell

        return trust_cell(self._document)
