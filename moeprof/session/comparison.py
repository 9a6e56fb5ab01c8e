"""Question: what changed between two runs, to somebody who asks in Python?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from moeprof.analyzers.comparison.compare import compare as changes_between
from moeprof.analyzers.comparison.gates import Gate, outcome, parse_gate
from moeprof.analyzers.comparison.notes import setting_changes
from moeprof.ingest.run import refuse_unrecorded
from moeprof.ingest.sources.store import is_remote
from moeprof.recordings import newest_recording
from moeprof.reports.comparison.document import (
    ComparisonDocument,
    GateInfo,
    build_comparison,
    comparison_json,
)
from moeprof.reports.run.document import build
from moeprof.reports.run.record import read_whole
from moeprof.session.answer import framed
from moeprof.session.run import Run, load, open_session

if TYPE_CHECKING:
    import pandas as pd

    from moeprof.reports.comparison.document import Changes


def compare(base: Run | str | PathLike[str], new: Run | str | PathLike[str]) -> Comparison:
    """What changed from `base` to `new`, per device and step, against the noise of their steps.

    Ops are matched by their place in the model and by what they do; devices and steps may differ
    in number.

    Args:
        base: a run, or the path of one.
        new: the other one.

    Raises:
        TraceError: a path cannot be read, or a run recorded no profile.

    Example:
        >>> moeprof.compare("runs/base", "runs/new").check("step>+2%")["verdict"]
        'passed'
    """
    return Comparison(_opened(base, new), _opened(new, base))


def _opened(run: Run | str | PathLike[str], beside: Run | str | PathLike[str]) -> Run:
    """A side. Its path means the newest recording, or the first where another is the other side."""
    if isinstance(run, Run):
        return run
    other = beside.path if isinstance(beside, Run) else beside
    are_paths = all(isinstance(each, str | PathLike) for each in (run, other))
    if are_paths and not is_remote(str(run)):
        path = Path(run)
        if newest_recording(path) != path == newest_recording(path, [Path(other)]):
            return open_session(run, as_named=True)
    return load(run)


class Comparison:
    """Two runs, and what changed between them. Figures that a law withholds are left out."""

    def __init__(self, base: Run, new: Run) -> None:
        """Compare now.

        Raises:
            NoProfileError: one of them recorded no profile.
        """
        self._traces = (base.trace, new.trace)
        for trace in self._traces:
            refuse_unrecorded(trace)
        self._changes = changes_between(*self._traces)

    @property
    def is_whole(self) -> bool:
        """Whether the step and the components could be compared."""
        return self._changes.is_whole

    @property
    def table(self) -> pd.DataFrame:
        """All op time, each component, each op: a row with both times, the change and its noise."""
        return _frame(self._document["rows"])

    @property
    def step(self) -> pd.DataFrame:
        """The step, then the times that add up to it."""
        return _frame(self._document["step"])

    @property
    def token(self) -> pd.DataFrame:
        """The step's time per token, where the tokens of a step are known of both: one row."""
        return _frame(self._document["token"])

    @property
    def memory(self) -> pd.DataFrame:
        """The peak of the step's program, then its parts."""
        return _frame(self._document["memory"])

    @property
    def settings(self) -> pd.DataFrame:
        """Settings that differ, where capture made both runs."""
        return _frame(self._document["settings"])

    @property
    def notes(self) -> tuple[str, ...]:
        """What else is to be known."""
        return self._changes.notes

    def check(self, expression: str) -> GateInfo:
        """A gate, as ``--fail-on`` has them: ``compare(a, b).check("step>+2%")["verdict"]``.

        Returns:
            verdict ``passed``, ``failed`` or ``not known``, with the change and what is allowed.

        Raises:
            SpecError: the expression has another form, or names no figure.
        """
        (found,) = self.document([parse_gate(expression)])["gates"]
        return found

    def document(
        self, gates: Sequence[Gate] = (), arguments: Sequence[str] = ()
    ) -> ComparisonDocument:
        """The comparison as plain values, `moeprof.comparison/1`."""
        base, new = (build(trace, {}) for trace in self._traces)
        return build_comparison(
            base,
            new,
            self._changes,
            [outcome(gate, self._changes) for gate in gates],
            settings=setting_changes(*(read_whole(t.meta.run_folder) for t in self._traces)),
            arguments=arguments or [trace.meta.path for trace in self._traces],
        )

    def to_json(self) -> str:
        """The text that ``moeprof compare BASE NEW --json`` prints."""
        return comparison_json(self._document)

    def report(self, path: str | PathLike[str]) -> Path:
        """Write the page that ``moeprof compare --html`` writes.

        Raises:
            MoeprofError: `path` cannot be written.
        """
        from moeprof.reports.comparison.page import write_page

        write_page(self._document, Path(path), "path=")
        return Path(path)

    @cached_property
    def _document(self) -> ComparisonDocument:
        return self.document()

    def __str__(self) -> str:
        """What the command prints."""
        from moeprof.reports.comparison.terminal import comparison_text

        return comparison_text(self._document).plain

    def __repr__(self) -> str:
        """What it is, in one line."""
        base, new = (trace.meta.path for trace in self._traces)
        return f"<moeprof comparison of {base!r} with {new!r}>"

    def _repr_html_(self) -> str:
        from moeprof.reports.run.cell import text_cell

        return text_cell(str(self))


def _frame(changes: Changes) -> pd.DataFrame:
    return framed(changes["rows"], changes["columns"])
