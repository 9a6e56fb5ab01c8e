"""The commands under `moeprof memory`: a search, and what files that are there say of memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from moeprof.cli.findings import newest
from moeprof.cli.memory.options import (
    MAXTEXT,
    arguments_of,
    given_to,
    spread,
    take_arguments,
    takes,
)
from moeprof.cli.output import refuse_other_than_a_page
from moeprof.cli.progress import working
from moeprof.projector.request.plan import SHARED
from moeprof.specs.plan import SHORT

if TYPE_CHECKING:
    from moeprof.tables.trace import Trace


@click.command("diff")
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document, moeprof.memory_difference/1."
)
def diff(base: Path, new: Path, as_json: bool) -> None:
    """Which buffers NEW holds at its memory peak that BASE does not, the most new first.

    BASE and NEW are XLA dump folders (XLA_FLAGS=--xla_dump_to=FOLDER, as text or as protos),
    single *.hlo.pb or *buffer-assignment.txt files, or what `moeprof analyze` takes. Buffers are
    matched by kind of tensor, part of the model and shape. Of a dump of several programs the one
    that needs most memory counts.

    Example:

        moeprof memory diff dump-before/ dump-after/
    """
    from moeprof.reports.memory.difference import build_difference, difference_json, difference_text

    read = (newest(base, None, (new,), ""), newest(new, None, (base,), ""))
    with working("reading the base program") as work:
        before = _opened(read[0])
        work.phase("reading the new program")
        document = build_difference(before, _opened(read[1]))
    if as_json:
        click.echo(difference_json(document))
        return
    from rich.console import Console

    Console(highlight=False).print(difference_text(document), soft_wrap=True)


def _opened(path: Path) -> Trace:
    from moeprof.ingest import open_run
    from moeprof.ingest.dump import is_dump, open_dump

    return open_dump(path) if is_dump(path) else open_run(path, as_named=True)


@click.command("explain-oom")
@click.argument("path", metavar="LOG|RUN", type=click.Path(path_type=Path))
@click.option("--hardware", metavar="KEY", help="Device. Default: as captured in RUN.")
@click.option(
    "--mem-fraction",
    type=click.FloatRange(0, 1, min_open=True),
    help="XLA_PYTHON_CLIENT_MEM_FRACTION of the run. Default: as captured, else JAX's own.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document, moeprof.oom/1.")
def explain_oom(
    path: Path, hardware: str | None, mem_fraction: float | None, as_json: bool
) -> None:
    """Why a step ran out of memory, what fills it, and the one change that buys most.

    LOG is the log of one or more processes (RESOURCE_EXHAUSTED of JAX on GPU and TPU, dumps of
    XLA's allocator, NCCL, RCCL, DeepEP, driver errors), packed with gzip or not. RUN is the folder
    of a captured run. An XLA dump folder, *.hlo.pb or *buffer-assignment.txt is taken as a program
    that is to fit.

    Exit code 1: nothing in it ran out of memory.

    Example:

        moeprof memory explain-oom train.log --hardware mi355x --mem-fraction 0.93
    """
    from moeprof.projector.oom.capacity import capacity_of, capacity_of_run
    from moeprof.projector.oom.document import build_oom, oom_json
    from moeprof.projector.oom.sources import read_oom
    from moeprof.specs.hardware import load_hardware

    capacity = capacity_of_run(path, mem_fraction)
    if hardware is not None:
        capacity = capacity_of(load_hardware(hardware), mem_fraction)
    with working("reading what was said of the memory"):
        document = build_oom(str(path), read_oom(path), capacity)
    if as_json:
        click.echo(oom_json(document))
        return
    from rich.console import Console

    from moeprof.reports.oom import oom_text

    Console(highlight=False).print(oom_text(document), soft_wrap=True)


# `moeprof memory search`: plans for a number of devices that fit, ranked by estimated time.

_OPTIONS = (
    click.option("--model", metavar="KEY|FILE", help="As of `moeprof memory`."),
    click.option(*MAXTEXT[0], **MAXTEXT[1]),  # type: ignore[arg-type]
    click.option("--hardware", metavar="KEY", help="As of `moeprof memory`."),
    click.option("--devices", type=click.IntRange(1), help="How many there are."),
    click.option("--seq", type=click.IntRange(1), help="Tokens of a sequence. Default: 4096."),
    click.option("--global-batch", type=click.IntRange(1), help="Sequences of a step."),
    click.option(
        "--pdbs",
        type=click.IntRange(1),
        help="Sequences per device and microbatch. Default: the largest that fits; with "
        "--global-batch each of 1, 2, 4, 8, 16.",
    ),
    click.option(
        "--strategy",
        multiple=True,
        metavar="NAME…|all",
        help="As of `moeprof memory`. Default: all.",
    ),
    click.option(
        "--remat",
        multiple=True,
        metavar="POLICY",
        help="Each one is compared. Default: full, in Megatron none and full.",
    ),
    click.option(
        "--framework",
        "--world",
        "framework",
        metavar="NAME",
        help="Whose program: maxtext, bundled or megatron.",
    ),
    click.option("--max-ep", type=click.IntRange(1), help="No more expert parallelism than this."),
    *(
        click.option(f"--{name}", metavar="N,…", help=f"Only these degrees of {axis}.")
        for name, axis in SHORT.items()
    ),
    takes(SHARED),
    click.option("--sync-free", type=int, default=0, help="Megatron: sync-free MoE, level 0 to 3."),
    click.option("--overlap", is_flag=True, help="Megatron: exchange beside another microbatch."),
    click.option(
        "--rank-by",
        metavar="time|fit",
        help="Default: time where it is measured or calibrated for the framework and device.",
    ),
    click.option(
        "--correction",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Arena and times as runs showed that `moeprof memory --calibrate` stored.",
    ),
    click.option(
        "--compile-top",
        type=click.IntRange(0),
        default=0,
        metavar="N",
        help="Ask XLA's compiler for the N best (the bundled model's step, a minute each).",
    ),
    click.option("--what-if", "asks_what_if", is_flag=True, help="What optimisations would buy."),
    click.option("--top", type=click.IntRange(1), default=10, show_default=True),
    click.option(
        "--html",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write one self-contained HTML page as well.",
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON document, moeprof.search/1."),
)


def _with_options(function: click.decorators.FC) -> click.decorators.FC:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


class _WithWords(click.Command):
    """A command that takes MaxText's words between its own options, and after ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words apart."""
        return super().parse_args(ctx, spread(take_arguments(ctx, args, ())))


@click.command("search", cls=_WithWords)
@click.pass_context
@_with_options
def search(
    ctx: click.Context,
    /,
    asks_what_if: bool,
    top: int,
    as_json: bool,
    rank_by: str | None,
    correction: Path | None,
    compile_top: int,
    html: Path | None,
    maxtext: str | None,
    **options: object,
) -> None:
    """Plans that fit, ranked by fit, or by time where that is measured or calibrated.

    Every way to spread the model over the devices is checked, projected and estimated. Times are
    estimates with a band: by rates fitted to published runs (MaxText on MI355X), by a run of yours
    (--correction), or assumed: then they are shown and rank nothing.

    Examples:

        moeprof memory search --model deepseek_v3 --hardware mi355x --devices 64 --what-if

        moeprof memory search --model mixtral_8x7b --hardware h100_sxm --devices 32 --compile-top 3
    """
    from moeprof.projector.request.search import SearchRequest
    from moeprof.reports.search.document import to_json
    from moeprof.session.plan_search import Extras, answered

    if maxtext is not None:
        options["maxtext"] = (maxtext, *arguments_of(ctx))
    if html is not None:
        inputs = [Path(str(read)) for read in (correction, options["model"]) if read]
        refuse_other_than_a_page(html, "--html", inputs)
    arguments = given_to("memory", "search")
    extras = Extras(top, asks_what_if, rank_by, correction, compile_top, arguments)
    with working("projecting plans") as work:
        document = answered(SearchRequest(**options), extras, work.counting)  # type: ignore[arg-type]
    if html is not None:
        from moeprof.reports.search.page import write_page

        with working("writing the page"):
            write_page(document, html)
        click.echo(f"moeprof: page written to {html}", err=True)
    if as_json:
        click.echo(to_json(document))
        return
    from rich.console import Console

    from moeprof.reports.search.terminal import drawn

    console = Console(highlight=False)
    console.print(drawn(document, console.width), soft_wrap=True)
