"""`moeprof pipeline`: the bubble of a pipeline, projected from its schedule and as measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from moeprof.cli.findings import EXIT_PARTIAL, is_partial
from moeprof.cli.progress import working
from moeprof.cli.selection import selects
from moeprof.cli.stage_options import (
    StageOptions,
    activation_bytes,
    describes_stages,
    source_of,
    stage_work,
)
from moeprof.specs.schedule import SCHEDULES, V_CHUNKS, V_SHAPED

if TYPE_CHECKING:
    from moeprof.reports.pipeline_view import PipelineDocument, Shown

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
@click.option(
    "--run", "path", type=click.Path(exists=True, path_type=Path), help="What was measured."
)
@click.option(
    "--iteration", type=click.IntRange(0), help="Of the run; default: that of median length."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document, moeprof.pipeline/1.")
@selects
@click.pass_context
def command(
    ctx: click.Context,
    stages: int | None,
    microbatches: int | None,
    chunks: int | None,
    schedule: str | None,
    path: Path | None,
    iteration: int | None,
    as_json: bool,
    session: str | None,
    hosts: tuple[str, ...],
    **work: Unpack[StageOptions],
) -> None:
    """The bubble of a pipeline: projected from its schedule, measured from a run, drawn.

    --stages and --microbatches project an iteration: every piece of work as soon as its stage is
    free and what it needs is there, beside the bubble of the closed form, and the microbatches
    whose activations each stage holds at its peak. --schedule all compares the schedules. --run
    takes what `analyze` takes, or the folder that Primus' dump_pp_data writes (config.json,
    pp_rank_N.json). Why stages idle is told in three parts that add up to the bubble: the schedule
    fills and drains, stages are unequal, and the rest: transfers and waits.

    Exit code 3: the run is damaged or partial.

    Example:

        moeprof pipeline --stages 4 --microbatches 8 --schedule zb-h1 --head-ms 0.3
    """
    if (stages is None) != (microbatches is None):
        raise click.UsageError("--stages and --microbatches belong together.")
    if stages is None and path is None:
        raise click.UsageError("Say what to show: --stages and --microbatches, --run, or both.")
    from rich.console import Console

    from moeprof.reports import pipeline_view as view

    document: PipelineDocument = {"schema": view.SCHEMA, "projected": None, "measured": None}
    if stages is not None and microbatches is not None:
        shape = stages, microbatches, chunks
        if schedule == _ALL:
            document["schedules"] = _compared(shape, work)
        else:
            document["projected"] = _projected(schedule, shape, work)
    is_cut = False
    if path is not None:
        document["measured"], is_cut = _measured(path, iteration, session, hosts)
    if as_json:
        click.echo(json.dumps(document, allow_nan=False))
    else:
        Console(highlight=False).print(view.drawn(document), soft_wrap=True)
    if is_cut:
        ctx.exit(EXIT_PARTIAL)


def _projected(
    name: str | None,
    shape: tuple[int, int, int | None],
    given: StageOptions,
) -> Shown:
    from moeprof.analyzers.pipeline import pipeline_stages
    from moeprof.analyzers.stages.projected import projected
    from moeprof.reports.pipeline_view import shown
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
    return shown(source_of(asked), pipeline_stages(work), work.work)


def _compared(shape: tuple[int, int, int | None], given: StageOptions) -> Shown:
    from moeprof.analyzers.stages.compared import compared
    from moeprof.reports.pipeline_view import shown
    from moeprof.tables.pipeline import STAGE_WORK

    asked = stage_work(given)
    analysis = compared(
        shape,
        asked,
        is_forward_only=given["is_forward_only"],
        activation_bytes=activation_bytes(given, shape[0]),
    )
    return shown(source_of(asked), analysis, STAGE_WORK.frame())


def _measured(
    path: Path, iteration: int | None, session: str | None, hosts: tuple[str, ...]
) -> tuple[Shown, bool]:
    """What a run shows, and whether it is damaged or partial."""
    from moeprof.analyzers import analyze
    from moeprof.analyzers.pipeline import pipeline_stages
    from moeprof.analyzers.stages.recorded import pipeline_of
    from moeprof.ingest import open_run
    from moeprof.ingest.sources.pp_dump import is_pp_dump, read_pp_dump
    from moeprof.reports.document import build
    from moeprof.reports.pipeline_view import shown
    from moeprof.tables.pipeline import STAGE_WORK

    if is_pp_dump(path):
        found, is_cut = read_pp_dump(path), False
    else:
        with working("reading the run") as progress:
            trace = open_run(path, session, hosts, tell=progress.counting("reading the run"))
            progress.phase("finding the stages")
            answer = analyze(trace, ["pipeline"])
        is_cut = is_partial(build(trace, answer))
        work = pipeline_of(trace)
        if isinstance(work, str) or answer["pipeline"].table.empty:  # none, or withheld
            return shown(str(path), answer["pipeline"], STAGE_WORK.frame()), is_cut
        found = work
    analysis = pipeline_stages(found, iteration)
    number = next((m.value for m in analysis.headline if m.metric == "iteration"), None)
    return shown(str(path), analysis, found.work[found.work["iteration"] == number]), is_cut
