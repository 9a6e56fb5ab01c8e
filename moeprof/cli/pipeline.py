"""`moeprof pipeline`: the bubble of a pipeline, projected from its schedule and as measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click
from click.core import ParameterSource

from moeprof.cli.findings import EXIT_PARTIAL, is_partial, newest
from moeprof.cli.output import refuse_other_than_a_page, screen, show
from moeprof.cli.progress import working
from moeprof.cli.selection import RunPath, names_parts, selects
from moeprof.cli.stage_options import (
    StageOptions,
    activation_bytes,
    describes_stages,
    source_of,
    stage_work,
)
from moeprof.specs.schedule import SCHEDULES, V_CHUNKS, V_SHAPED
from moeprof.tables.name_rule import NameRules

if TYPE_CHECKING:
    from moeprof.reports.pipeline.document import PipelineDocument, Planned, Shown


_ALL = "all"


@click.command("pipeline")
@click.option("--stages", type=click.IntRange(1), help="Stages of the projected pipeline.")
@click.option("--microbatches", type=click.IntRange(1), help="Microbatches per iteration.")
@click.option(
    "--virtual",
    "chunks",
    type=click.IntRange(1),
    help="Chunks of layers per stage (virtual stages, circular repeats). Default: 1, or the 2 of "
    "the schedules that go down and back up the stages (zbv, v-half, v-min).",
)
@click.option(
    "--schedule",
    type=click.Choice((*SCHEDULES, _ALL)),
    help="Default: 1f1b, or interleaved where --virtual is above 1. all compares them.",
)
@describes_stages
@click.option("--run", "path", type=RunPath(), help="What was measured.")
@click.option(
    "--iteration", type=click.IntRange(0), help="Of the run; default: that of median length."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document, moeprof.pipeline/1.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write one self-contained HTML page as well.",
)
@names_parts
@selects
@click.pass_context
def command(
    ctx: click.Context,
    stages: int | None,
    microbatches: int | None,
    chunks: int | None,
    schedule: str | None,
    path: Path | str | None,
    iteration: int | None,
    as_json: bool,
    html: Path | None,
    session: str | None,
    hosts: tuple[str, ...],
    names: NameRules | None,
    **work: Unpack[StageOptions],
) -> None:
    """The bubble of a pipeline: projected from its schedule, measured from a run, drawn.

    --stages and --microbatches project an iteration: every piece of work as soon as its stage is
    free and what it needs is there, beside the bubble of the closed form, and the microbatches
    whose activations each stage holds at its peak. --schedule all compares the schedules. --run
    takes what `analyze` takes, or the folder that Primus' dump_pp_data writes (config.json,
    pp_rank_N.json). Why stages idle is told in three parts that add up to the bubble: the schedule
    fills and drains, stages are unequal, and the rest: transfers and waits.

    Exit code 3: figures of the run were withheld.

    Examples:

        moeprof pipeline --stages 4 --microbatches 8 --schedule zb-h1 --head-ms 0.3

        moeprof pipeline --stages 8 --microbatches 32 --schedule all --html pipeline.html
    """
    if (stages is None) != (microbatches is None):
        raise click.UsageError("--stages and --microbatches belong together.")
    if stages is None and path is None:
        raise click.UsageError("Say what to show: --stages and --microbatches, --run, or both.")
    if names is not None and path is None:
        raise click.UsageError("--names is for the parts of a run: --run.")
    if html is not None:
        refuse_other_than_a_page(html, "--html", [path] if path is not None else [])
    from moeprof.reports.pipeline.document import SCHEMA, to_json

    document: PipelineDocument = {"schema": SCHEMA, "projected": None, "measured": None}
    if stages is not None and microbatches is not None:
        shape = stages, microbatches, chunks
        if schedule == _ALL:
            with working("playing the schedules"):
                document["schedules"] = _compared(shape, work)
            if as_json or html is not None:
                document["planned"] = _planned(document["schedules"], shape, work)
        else:
            with working("playing the schedule"):
                document["projected"] = _projected(schedule, shape, work)
    is_cut = False
    if path is not None:
        document["measured"], is_cut = _measured(path, iteration, session, hosts, names)
    document["arguments"] = given_words(ctx, ("as_json", "html"))
    if html is not None:
        from moeprof.reports.pipeline.page import write_page

        with working("writing the page"):
            write_page(document, html)
        click.echo(f"moeprof: page written to {html}", err=True)
    if as_json:
        click.echo(to_json(document))
    else:
        from moeprof.reports.pipeline.terminal import drawn

        show(drawn(document, screen().width))
    if is_cut:
        ctx.exit(EXIT_PARTIAL)


def _projected(
    name: str | None,
    shape: tuple[int, int, int | None],
    given: StageOptions,
) -> Shown:
    from moeprof.analyzers.questions.pipeline import pipeline_stages
    from moeprof.analyzers.stages.grid import stage_grid
    from moeprof.analyzers.stages.projected import projected
    from moeprof.reports.pipeline.document import shown
    from moeprof.specs.schedule import Schedule

    stages, microbatches, virtual = shape
    name = name or ("interleaved" if (virtual or 1) > 1 else "1f1b")
    chunks = virtual or (V_CHUNKS if name in V_SHAPED else 1)
    schedule = Schedule(name, stages, microbatches, chunks)
    is_forward_only = given["is_forward_only"]
    if is_forward_only and schedule.splits_backward:
        raise click.UsageError(f"--forward-only: {name} is a way to order backward work.")
    asked = stage_work(given)
    work = projected(
        schedule,
        asked,
        is_forward_only=is_forward_only,
        activation_bytes=activation_bytes(given, stages),
    )
    return shown(source_of(asked), pipeline_stages(work), work.work, stage_grid(work, 0))


def _compared(shape: tuple[int, int, int | None], given: StageOptions) -> Shown:
    from moeprof.analyzers.stages.projected import compared
    from moeprof.reports.pipeline.document import shown
    from moeprof.tables.pipeline import STAGE_WORK

    asked = stage_work(given)
    analysis = compared(
        shape,
        asked,
        is_forward_only=given["is_forward_only"],
        activation_bytes=activation_bytes(given, shape[0]),
    )
    return shown(source_of(asked), analysis, STAGE_WORK.frame())


def _planned(
    compared: Shown, shape: tuple[int, int, int | None], given: StageOptions
) -> dict[str, Planned]:
    """What to draw of each schedule that was compared."""
    from moeprof.analyzers.questions.pipeline import pipeline_stages
    from moeprof.analyzers.stages.grid import stage_grid
    from moeprof.analyzers.stages.projected import projected
    from moeprof.reports.pipeline.document import planned
    from moeprof.specs.schedule import Schedule

    asked, found = stage_work(given), {}
    for row in compared["finding"]["rows"]:
        name, chunks = str(row["schedule"]), int(str(row["chunks"]))
        schedule = Schedule(name, shape[0], shape[1], chunks)
        work = projected(schedule, asked, is_forward_only=given["is_forward_only"])
        found[name] = planned(pipeline_stages(work), stage_grid(work, 0))
    return found


def _measured(
    path: Path | str,
    iteration: int | None,
    session: str | None,
    hosts: tuple[str, ...],
    names: NameRules | None,
) -> tuple[Shown, bool]:
    """What a run shows, and whether figures of it are withheld."""
    from moeprof.analyzers import analyze
    from moeprof.analyzers.questions.pipeline import pipeline_stages
    from moeprof.analyzers.stages.grid import stage_grid
    from moeprof.analyzers.stages.recorded import pipeline_of
    from moeprof.ingest import open_run
    from moeprof.ingest.sources.pp_dump import is_pp_dump, read_pp_dump
    from moeprof.reports.pipeline.document import shown
    from moeprof.reports.run.document import build
    from moeprof.tables.pipeline import STAGE_WORK
    from moeprof.tables.trace import with_names

    if isinstance(path, Path) and is_pp_dump(path):
        found, is_cut = read_pp_dump(path), False
    else:
        path = newest(path, session)
        with working("reading the run") as progress:
            trace = open_run(path, session, hosts, tell=progress.counting("reading the run"))
            trace = with_names(trace, names) if names else trace
            progress.phase("finding the stages")
            answer = analyze(trace, ["pipeline"])
        is_cut = is_partial(build(trace, answer))
        work = pipeline_of(trace)
        if isinstance(work, str) or answer["pipeline"].table.empty:  # none, or withheld
            return shown(str(path), answer["pipeline"], STAGE_WORK.frame()), is_cut
        found = work
    analysis = pipeline_stages(found, iteration)
    number = next((m.value for m in analysis.headline if m.metric == "iteration"), None)
    grid = stage_grid(found, number) if isinstance(number, int) else None
    of_iteration = found.work[found.work["iteration"] == number]
    return shown(str(path), analysis, of_iteration, grid), is_cut


# Which words of a command line say what was asked, and not how it is shown.


def given_words(ctx: click.Context, leave_out: Sequence[str]) -> list[str]:
    """Options that stood on the command line with their values, in the order of the help text.

    ``leave_out`` names parameters that only say how the answer is shown.
    """
    words: list[str] = []
    for option in ctx.command.params:
        name = option.name or ""
        is_given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not isinstance(option, click.Option) or name in leave_out or not is_given:
            continue
        value, flag = ctx.params[name], option.opts[-1]
        if isinstance(value, NameRules):
            value = value.file
        if option.is_flag:
            words.append(flag)
        elif option.multiple:
            words += [word for each in value for word in (flag, str(each))]
        else:
            words += [flag, _written(value)]
    return words


def _written(value: object) -> str:
    """A value as it may be given again: numbers in a row with commas between."""
    if isinstance(value, tuple):
        return ",".join(map(_written, value))
    return f"{value:.15g}" if isinstance(value, float) else str(value)
