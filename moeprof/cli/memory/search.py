"""`moeprof memory search`: plans for a number of devices that fit, the best first."""

from __future__ import annotations

from pathlib import Path

import click

from moeprof.cli.memory.options import given_to, takes
from moeprof.cli.output import refuse_other_than_a_page
from moeprof.cli.progress import working
from moeprof.projector.request.search import SHARED
from moeprof.specs.plan import SHORT

_OPTIONS = (
    click.option("--model", metavar="KEY|FILE", help="As of `moeprof memory`."),
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


@click.command("search")
@_with_options
def command(
    asks_what_if: bool,
    top: int,
    as_json: bool,
    rank_by: str | None,
    correction: Path | None,
    compile_top: int,
    html: Path | None,
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
