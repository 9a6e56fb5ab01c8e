"""`moeprof compare`: what changed between two runs, as text, JSON or a page, and gates on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from moeprof.cli.findings import EXIT_PARTIAL, is_partial, newest
from moeprof.cli.output import csv_text, refuse_other_than_a_page, screen, show
from moeprof.cli.progress import working
from moeprof.cli.selection import RunPath, names_parts
from moeprof.errors import SpecError

if TYPE_CHECKING:
    from moeprof.analyzers.comparison.gates import Gate
    from moeprof.reports.comparison.document import ComparisonDocument
    from moeprof.tables.name_rule import NameRules

EXIT_GATE = 4
"""Exit code where a gate failed."""
CSV_TABLES = ("step", "token", "rows", "memory", "buffers", "settings")
"""The tables of `moeprof.comparison/1`."""


def _gates(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[Gate, ...]:
    if not texts:
        return ()
    from moeprof.analyzers.comparison.gates import parse_gate

    try:
        return tuple(parse_gate(text) for text in texts)
    except SpecError as error:
        raise click.BadParameter(str(error)) from None


@click.command("compare")
@click.argument("base", type=RunPath())
@click.argument("new", type=RunPath())
@click.option("--json", "as_json", is_flag=True, help="One JSON document, moeprof.comparison/1.")
@click.option(
    "--csv",
    "csv_of",
    type=click.Choice(CSV_TABLES),
    help="One table of --json as CSV: parts of the step; token, its time per token; rows, "
    "which are components and ops; memory; buffers at the peak; settings.",
)
@click.option(
    "--fail-on",
    "gates",
    multiple=True,
    metavar="EXPR",
    callback=_gates,
    help="Exit with 4 where NEW less BASE is above EXPR, as 'grouped_gemm>+5%'. Repeatable.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write one self-contained HTML page as well.",
)
@click.option("--base-session", metavar="NAME", help="Session of BASE. Default: the newest.")
@click.option("--new-session", metavar="NAME", help="Session of NEW. Default: the newest.")
@names_parts
@click.pass_context
def command(
    ctx: click.Context,
    base: Path | str,
    new: Path | str,
    as_json: bool,
    csv_of: Literal["step", "token", "rows", "memory", "buffers", "settings"] | None,
    gates: tuple[Gate, ...],
    html: Path | None,
    base_session: str | None,
    new_session: str | None,
    names: NameRules | None,
) -> None:
    """What changed between two runs, per device and step, against the noise of their steps.

    BASE and NEW are what `moeprof analyze` takes. Ops are matched by their place in the model
    (component, phase, scope) and by what they do, never by the number of a fusion. Devices and
    steps may differ in number. --names holds for both.

    EXPR is NAME>+NUMBER or NAME>-NUMBER with a unit: step>+2%, idle>+1ms, memory>+0.5GiB. NAME is
    step (from its start to the start of the next), token (the step's time over the tokens of it),
    compute, exposed_communication, exposed_copy, idle, between_idle, between_other, a component of
    `moeprof analyze --only breakdown`, or memory.
    Intervals with another program, as an evaluation, are left out by name. Units are %, ns, us, ms,
    s; for memory %, B, KiB, MiB, GiB, TiB. A gate looks at the change alone; whether that is
    beyond the noise is printed beside it.

    Exit codes, the first that holds: 2 wrong usage; 4 a gate failed; 3 figures were
    withheld, or the figure of a gate is not known; 0.

    Examples:

        moeprof compare runs/base runs/new --fail-on 'step>+2%' --fail-on 'memory>+1GiB'

        moeprof compare runs/base runs/new --html what-changed.html

        moeprof compare runs/base runs/new --csv rows > changes.csv
    """
    from moeprof.analyzers.comparison.gates import FAILED, NOT_KNOWN
    from moeprof.reports.comparison.document import comparison_json
    from moeprof.session.comparison import Comparison
    from moeprof.session.run import open_session

    if as_json and csv_of:
        raise click.UsageError("--csv and --json: expected one of them, found both.")
    if html is not None:
        refuse_other_than_a_page(html, "--html", [base, new])

    read = (
        newest(base, base_session, (new,), "--base-session"),
        newest(new, new_session, (base,), "--new-session"),
    )
    with working("reading the base run") as work:
        tell = work.counting("reading the base run")
        before = open_session(read[0], base_session, names=names, tell=tell, as_named=True)
        tell = work.counting("reading the new run")
        after = open_session(read[1], new_session, names=names, tell=tell, as_named=True)
        work.phase("comparing")
        comparison = Comparison(before, after)
        asked = _asked((base, new), gates, (base_session, new_session), names)
        document = comparison.document(gates, asked)
    if html is not None:
        from moeprof.reports.comparison.page import write_page

        with working("writing the page"):
            write_page(document, html)
        click.echo(f"moeprof: page written to {html}", err=True)
    if as_json:
        click.echo(comparison_json(document))
    elif csv_of:
        click.echo(csv_text(document[csv_of]["columns"], document[csv_of]["rows"]), nl=False)
    else:
        _show(document)
    verdicts = {found["verdict"] for found in document["gates"]}
    if FAILED in verdicts:
        ctx.exit(EXIT_GATE)
    is_partly = not comparison.is_whole or any(
        is_partial(document[side]) for side in ("base", "new")
    )
    if NOT_KNOWN in verdicts or is_partly:
        ctx.exit(EXIT_PARTIAL)


def _asked(
    runs: tuple[Path | str, Path | str],
    gates: tuple[Gate, ...],
    sessions: tuple[str | None, str | None],
    names: NameRules | None,
) -> list[str]:
    """The command's words, without those that only say how the answer is shown."""
    named = zip(("--base-session", "--new-session"), sessions, strict=True)
    return [
        *map(str, runs),
        *(word for gate in gates for word in ("--fail-on", gate.expression)),
        *(word for name, session in named if session for word in (name, session)),
        *(("--names", names.file) if names else ()),
    ]


def _show(document: ComparisonDocument) -> None:
    from moeprof.reports.comparison.terminal import comparison_text

    show(comparison_text(document, screen().width))
