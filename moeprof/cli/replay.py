"""`moeprof replay`: one op of a trace as a script that runs it again."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moeprof.cli.findings import newest
from moeprof.cli.progress import working
from moeprof.cli.selection import RunPath, names_parts, selects

if TYPE_CHECKING:
    from moeprof.replay.script import Script
    from moeprof.replay.target import Replayed, Target
    from moeprof.tables.name_rule import NameRules
    from moeprof.tables.trace import Trace

SCHEMA = "moeprof.replay/1"
_MOST_ELSEWHERE = 4 * 2**30  # bytes of inputs: more would fill a machine that is not the trace's


@click.command("replay")
@click.argument("path", metavar="RUN", type=RunPath())
@click.option(
    "--op", "wanted", required=True, metavar="NAME", help="An HLO op, a component, or a scope."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The script; replaced if it is there. Default: only run it.",
)
@click.option("--run/--no-run", "is_run", default=True, help="Whether to run it here.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, moeprof.replay/1.")
@names_parts
@selects
def command(
    path: Path | str,
    wanted: str,
    output: Path | None,
    is_run: bool,
    as_json: bool,
    session: str | None,
    hosts: tuple[str, ...],
    names: NameRules | None,
) -> None:
    """Write a script that runs one op of a trace again, and compare its time.

    The script needs JAX alone: shapes, types, order in memory and flags are those of the trace,
    numbers are random. Of a component or scope the costliest op is taken. What has no faithful
    translation is refused by name. A name that a narrow table has cut, as 'ragged-a….4.2', will do
    where it fits one op.

    Example:

        moeprof replay runs/train-2026-12-01T10-22-07 --op fusion.12 -o fusion.py
    """
    if output is None and not is_run:
        raise click.UsageError("Nothing to do: -o FILE.py, --run, or both.")
    from moeprof.ingest import open_run
    from moeprof.replay.target import target_of
    from moeprof.tables.trace import with_names

    path = newest(path, session)
    with working("reading the run") as work:
        trace = open_run(path, session, hosts, tell=work.counting("reading the run"))
        trace = with_names(trace, names) if names else trace
        work.phase("writing the script")
        target = target_of(trace, wanted)
        script = _script(trace, target)
    if output is not None:
        output.write_text(script.text, encoding="utf-8")
    with working("running the op again"):
        result = _result(script, target, output) if is_run else "not asked for"
    if as_json:
        click.echo(json.dumps(_document(target, script, output, result), allow_nan=False))
    else:
        click.echo("\n".join(_lines(target, script, output, result)))


def _script(trace: Trace, target: Target) -> Script:
    from moeprof.ingest.sources.run_record import read_meta
    from moeprof.replay.script import script_of

    module = trace.modules[trace.modules["module"] == target.module]
    devices = trace.meta.devices
    if len(module) and int(module["partitions"].iloc[0]) > 0:
        devices = int(module["partitions"].iloc[0]) * max(int(module["replicas"].iloc[0]), 1)
    meta = read_meta(Path(trace.meta.run_folder)) if trace.meta.run_folder else None
    flags = meta.get("xla_flags") if meta else None
    text = flags if isinstance(flags, str) else ""
    return script_of(trace.programs[target.module], target, devices, text)


def _result(script: Script, target: Target, output: Path | None) -> Replayed | str:
    from moeprof.replay.target import replayed

    if target.platform != "gpu" or script.input_bytes <= _MOST_ELSEWHERE:
        if output is not None:
            return replayed(output)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "replay.py"
            file.write_text(script.text, encoding="utf-8")
            return replayed(file)
    return f"its inputs take {script.input_bytes / 2**30:.1f} GiB: run the script on the GPU"


def _document(
    target: Target, script: Script, output: Path | None, result: Replayed | str
) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "op": asdict(target) | {"notes": list(script.notes)},
        "script": str(output) if output is not None else None,
        "devices": script.devices,
        "input_bytes": script.input_bytes,
        "replayed": None if isinstance(result, str) else asdict(result),
        "why_not": result if isinstance(result, str) else None,
    }


def _lines(
    target: Target, script: Script, output: Path | None, result: Replayed | str
) -> list[str]:
    from moeprof.answers.values import printable
    from moeprof.reports.parts.terminal import WIDTH, wrapped
    from moeprof.units import format_ns

    where = target.device or target.platform
    known = (
        f"not known, of {target.calls} pieces of work"
        if target.median_ns is None
        else f"{format_ns(target.median_ns)}, median of {target.calls} calls"
    )
    facts = [("Op", target.op), ("", target.op_name), ("Traced", f"{known} · {where}")]
    if isinstance(result, str):
        facts.append(("Replayed", f"no: {result}"))
    else:
        time = format_ns(result.median_ns)
        facts.append(("Replayed", f"{time}, median of {result.calls} calls · {result.device}"))
        is_known = result.ratio is not None
        facts.append(("Ratio", f"{result.ratio:.3f}") if is_known else ("", result.remark))
    lines = [
        line
        for name, text in facts
        if text
        for line in wrapped(printable(text), WIDTH, first=f"{name:<10}", indent=" " * 10)
    ]
    lines += [f"Script    {output}"] if output is not None else []  # whole, to be copied
    for note in script.notes:
        lines += wrapped(printable(note), WIDTH, first=" - ", indent="   ")
    return lines
