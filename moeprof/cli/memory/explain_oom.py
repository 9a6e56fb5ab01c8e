"""`moeprof memory explain-oom`: an out-of-memory message in the model's terms."""

from __future__ import annotations

from pathlib import Path

import click

from moeprof.cli.progress import working


@click.command("explain-oom")
@click.argument("path", metavar="LOG|RUN", type=click.Path(path_type=Path))
@click.option("--hardware", metavar="KEY", help="Device. Default: as captured in RUN.")
@click.option(
    "--mem-fraction",
    type=click.FloatRange(0, 1, min_open=True),
    help="XLA_PYTHON_CLIENT_MEM_FRACTION of the run. Default: as captured, else JAX's own.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document, moeprof.oom/1.")
def command(path: Path, hardware: str | None, mem_fraction: float | None, as_json: bool) -> None:
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
