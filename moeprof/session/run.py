"""Question: what does a recorded run answer, to somebody who asks it from Python?

A `Run` owns what is computed of its profile: nothing is computed twice, and all of it is freed with
the `Run`. The command line is a thin user of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from moeprof.analyzers import analyze
from moeprof.analyzers.registry import all_names, is_question, question
from moeprof.errors import SelectionError
from moeprof.ingest import open_run
from moeprof.reports.parts.phrases import described_trust, troubles, worst_verdict
from moeprof.reports.run.document import build, to_json
from moeprof.session.answer import Answer
from moeprof.specs.hardware import load_hardware
from moeprof.tables.trace import with_meta, with_names, with_steps
from moeprof.tell import Tell, unheard

if TYPE_CHECKING:
    import pandas as pd

    from moeprof.answers.document import Document, TrustInfo
    from moeprof.tables.name_rule import NameRules
    from moeprof.tables.trace import Trace

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
        import pandas as pd

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


Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def load(
    path: Paths,
    *,
    steps: int | Iterable[int] | None = None,
    hosts: str | Sequence[str] = (),
    session: str | None = None,
    hardware: str = "",
    names: str | PathLike[str] | None = None,
) -> Run:
    """Open a recorded run.

    Args:
        path: a run folder, a TensorBoard log folder, a ``plugins/profile/<session>`` folder, one
            ``.xplane.pb[.gz]`` or ``.trace.json[.gz]`` file, or a folder of tables, here or in a
            store, as ``s3://bucket/run``; several of them where one run lies in several folders. Of
            a run that was recorded again, as a job does that is started again, the newest recording
            is read, and `Run.notes` says so.
        steps: number of the only step that figures are taken from, or several, as ``range(3, 6)``.
            Default: all whole ones.
        hosts: name of the only host to read, or several. Default: all.
        session: name of a session folder. Default: the newest, of the newest recording.
        hardware: key of the device it ran on (`moeprof hardware` lists them). Default: what the
            profile says.
        names: a file of rules that name parts of the step (docs/questions/breakdown.md).

    Returns:
        The run. Nothing is analysed before it is asked.

    Raises:
        SelectionError: there is no such step, host, session or hardware.
        SpecError: the file of rules cannot be read.
        TraceError: the run cannot be read.

    Example:
        >>> run = moeprof.load("runs/base", steps=range(3, 6))
        >>> run.breakdown().table.head()
    """
    _check_paths(path)
    rules = None
    if names is not None:
        from moeprof.session.name_rules import read_names

        rules = read_names(Path(names))
    chosen = (hosts,) if isinstance(hosts, str) else hosts
    return open_session(path, session, chosen, hardware, rules, steps=_numbers(steps))


def _check_paths(path: object) -> None:
    """A path, or several, each of which says something.

    Raises:
        SelectionError: it is something else.
    """
    several = list(path) if isinstance(path, list | tuple) else [path]
    wrong = [each for each in several if not isinstance(each, str | PathLike) or not str(each)]
    if wrong or not several:
        found = repr(wrong[0]) if wrong else "none"
        raise SelectionError(f"path: expected the path of a run, or several, found {found}")


def _numbers(steps: int | Iterable[int] | None) -> tuple[int, ...] | None:
    """Steps as they were asked for, each a number.

    Raises:
        SelectionError: there is none, or something else stands among them.
    """
    if steps is None:
        return None
    asked = (steps,) if isinstance(steps, str) or not isinstance(steps, Iterable) else tuple(steps)
    wrong = [step for step in asked if not isinstance(step, Integral) or isinstance(step, bool)]
    if wrong or not asked:
        found = ", ".join(map(repr, wrong)) or "none"
        raise SelectionError(
            f"steps: expected numbers of steps, found {found}; the steps of a run are in .steps"
        )
    return tuple(map(int, asked))


def open_session(
    path: Paths,
    session: str | None = None,
    hosts: Sequence[str] = (),
    hardware: str = "",
    names: NameRules | None = None,
    *,
    steps: Iterable[int] | None = None,
    urls: Mapping[Path, str] | None = None,
    tell: Tell = unheard,
    as_named: bool = False,
) -> Run:
    """`load` with rules that were read; ``tell`` hears of every file that is read.

    A run that was recorded again is read ``as_named`` where its newest recording is not meant.
    ``urls`` says of files that are fetched first where they are to be had.
    Of a run that ended before its profile was written the answers say what its record knows.
    """
    if hardware:
        load_hardware(hardware)  # a wrong key is told before a long read
    ways = {"as_named": as_named, "even_unrecorded": True}
    trace = open_run(path, session, hosts, urls=urls, tell=tell, **ways)
    trace = with_meta(trace, hardware=hardware) if hardware else trace
    trace = with_names(trace, names) if names else trace
    return Run(trace if steps is None else with_steps(trace, steps))


class Run:
    """A recorded run, opened. Ask it by name, ``run.ask("breakdown")``, or ``run.breakdown()``."""

    def __init__(self, trace: Trace) -> None:
        """Of a profile that was read; `load` does that."""
        self._trace = trace
        self._answers: dict[str, Answer] = {}

    @property
    def path(self) -> str:
        """What was opened."""
        return self._trace.meta.path

    @property
    def trace(self) -> Trace:
        """The profile as tables (docs/tables.md), as `moeprof.ingest` reads them."""
        return self._trace

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of what was read: which recording, session and hosts."""
        return self._trace.meta.notes

    @property
    def questions(self) -> tuple[str, ...]:
        """Names of the questions that it can be asked."""
        return tuple(all_names())

    def ask(self, name: str) -> Answer:
        """The answer to the question, or the drawing, of this name.

        Raises:
            SelectionError: there is no such question.

        Example:
            >>> run.ask("step_time").headline["interval_median"]
            16780697.0
        """
        return _answered(self._trace, self._answers, name)

    def __getattr__(self, name: str) -> Callable[[], Answer]:
        """Each question as a method: ``run.step_time()``."""
        if name.startswith("_") or not is_question(name):
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )
        return _Asking(self._trace, self._answers, name)

    def __dir__(self) -> list[str]:
        """With the questions, so that completion offers them."""
        return sorted([*super().__dir__(), *self.questions])

    @cached_property
    def trust(self) -> Trust:
        """The trust record: every law that was checked, and what it withholds."""
        return Trust(self._document)

    @property
    def steps(self) -> pd.DataFrame:
        """The steps found, those that are not used included.

        Columns: ``step``; ``start_ns``; ``duration_ns``; ``interval_ns`` from its start to that of
        the next used one, NaN where none follows; ``used``; ``reason``, empty where it is used.
        """
        import pandas as pd

        table = pd.DataFrame(
            self._document["steps"],
            columns=["step", "start_ns", "duration_ns", "interval_ns", "used", "reason"],
        )
        return table.astype({"interval_ns": "float64"}).fillna({"reason": ""})

    def document(
        self, only: Sequence[str] = (), *, is_drawn: bool = False, tell: Tell = unheard
    ) -> Document:
        """The answers as plain values, `moeprof.analysis/1`: what text, pages and JSON show.

        Args:
            only: names of questions and drawings. Default: all questions.
            is_drawn: with the drawings, too.
            tell: hears of every question that is answered.

        Raises:
            SelectionError: `only` names what is no question.
        """
        return build(self._trace, analyze(self._trace, only, is_drawn=is_drawn, tell=tell))

    def to_json(self) -> str:
        """The text that ``moeprof analyze RUN --json`` prints."""
        return to_json(self.document(is_drawn=True))

    def report(self, path: str | PathLike[str]) -> Path:
        """Write the page that ``moeprof report`` writes, one file that needs nothing else.

        Raises:
            MoeprofError: `path` cannot be written.

        Example:
            >>> run.report("report.html")
            PosixPath('report.html')
        """
        from moeprof.reports.run.page import write_page

        write_page([self.document(is_drawn=True)], Path(path), "path=")
        return Path(path)

    @cached_property
    def _document(self) -> Document:
        return self.document()

    def __str__(self) -> str:
        """The first screen that the command prints: run, trust, step, parts, what to do."""
        from moeprof.reports.run.terminal import IN_PYTHON, overview

        return overview(self._document, IN_PYTHON).plain

    def __repr__(self) -> str:
        """What it is, in one line."""
        meta = self._trace.meta
        return f"<moeprof run {meta.path!r}: {meta.devices} × {meta.platform}>"

    def _repr_html_(self) -> str:
        from moeprof.reports.run.cell import run_cell

        return run_cell(self._document)


class _Asking:
    """A question of a run, to be asked by calling it; it does not keep the run alive."""

    def __init__(self, trace: Trace, answers: dict[str, Answer], name: str) -> None:
        self._trace, self._answers, self._name = trace, answers, name
        self.__doc__ = question(name).asks

    def __call__(self) -> Answer:
        return _answered(self._trace, self._answers, self._name)

    def __repr__(self) -> str:
        return f"<moeprof question {self._name}: ask it by .{self._name}()>"


def _answered(trace: Trace, answers: dict[str, Answer], name: str) -> Answer:
    if name not in answers:
        answers[name] = Answer(trace, name)
    return answers[name]


__all__ = ["Run", "load", "open_session"]
