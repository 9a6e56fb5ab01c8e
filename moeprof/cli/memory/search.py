"""`moeprof memory search`: plans for a number of devices that fit, ranked by estimated time."""

from __future__ import annotations

import click

from moeprof.cli.progress import working
from moeprof.projector.request.search import AXES

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
        for name, axis in AXES.items()
    ),
    click.option("--weight-dtype", metavar="DTYPE", help="bf16, fp32 or the full name."),
    click.option("--mem-fraction", type=float, help="Share of the device that XLA may take."),
    click.option("--sync-free", type=int, default=0, help="Megatron: sync-free MoE, level 0 to 3."),
    click.option("--overlap", is_flag=True, help="Megatron: exchange beside another microbatch."),
    click.option("--what-if", "asks_what_if", is_flag=True, help="What optimisations would buy."),
    click.option("--top", type=click.IntRange(1), default=10, show_default=True),
    click.option("--json", "as_json", is_flag=True, help="One JSON document, moeprof.search/1."),
)


def _with_options(function: click.decorators.FC) -> click.decorators.FC:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command("search")
@_with_options
def command(asks_what_if: bool, top: int, as_json: bool, **options: object) -> None:
    """Plans that fit, ranked by the estimated time of a step.

    Every way to spread the model over the devices is checked, projected and estimated. The estimate
    is good for an order: rates of kernels and links, and what hides behind what.

    Example:

        moeprof memory search --model deepseek_v3 --hardware mi355x --devices 64 --what-if
    """
    from moeprof.projector.request import as_usage
    from moeprof.projector.request.search import SearchRequest, wanted_search
    from moeprof.projector.search import search
    from moeprof.projector.what_if import what_if
    from moeprof.reports.search.document import document_of, to_json

    asked = wanted_search(SearchRequest(**options))  # type: ignore[arg-type]
    with as_usage(), working("projecting plans") as work:
        tell = work.counting("projecting plans, by strategy and remat")
        result = search(asked.space, top, asked.tuning, tell=tell)
    effects = None
    if asks_what_if:
        effects = what_if(result.found[0].setting, asked.tuning) if result.found else ()
    document = document_of(result, asked.model_key, asked.said, asked.tuning, effects)
    if as_json:
        click.echo(to_json(document))
        return
    from rich.console import Console

    from moeprof.reports.search.terminal import drawn

    console = Console(highlight=False)
    console.print(drawn(document, console.width), soft_wrap=True)
