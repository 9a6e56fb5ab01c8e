"""`moeprof hardware`: the devices whose peaks are known, and where each figure is from."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from moeprof.reports.parts.terminal import WIDTH, wrapped
from moeprof.specs.hardware import HardwareSpec, hardware_keys, load_hardware

SCHEMA = "moeprof.hardware/1"
_HEADINGS = ("key", "memory", "memory", "bf16", "fp8", "fp4", "peers", "network", "domain")
_UNITS = ("", "GiB", "TB/s", "TFLOP/s", "TFLOP/s", "TFLOP/s", "GB/s", "GB/s", "devices")
_WIDTHS = (10, 7, 7, 8, 8, 8, 6, 8, 8)


@click.command("hardware")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, moeprof.hardware/1.")
@click.argument("key", required=False)
def command(key: str | None, as_json: bool) -> None:
    """Devices that moeprof knows: peaks, memory, links, and where that is from.

    All of them, or with KEY one with its sources. Figures are of one device as JAX counts it and
    FLOP/s without sparsity; memory is what the runtime reports. Peers are all others that the fast
    links join, together and in one direction.

    Example:

        moeprof hardware mi355x
    """
    specs = [load_hardware(name) for name in ((key,) if key else hardware_keys())]
    if as_json:
        document = {"schema": SCHEMA, "devices": [asdict(spec) for spec in specs]}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
        return
    for cells in (_HEADINGS, _UNITS, *map(_cells, specs)):
        click.echo(_line(cells))
    if key:
        for text in (specs[0].name, f"source: {specs[0].source}", _trust(specs[0])):
            click.echo("\n".join(wrapped(text, WIDTH, indent="  ")))


def _trust(spec: HardwareSpec) -> str:
    return f"confidence: {spec.confidence}" + (f"; {spec.note}" if spec.note else "")


def _cells(spec: HardwareSpec) -> tuple[str, ...]:
    return (
        spec.key,
        f"{spec.hbm_bytes / 2**30:.1f}",
        _scaled(spec.hbm_bytes_per_s, 1e12),
        _scaled(spec.bf16_flops_per_s, 1e12),
        _scaled(spec.fp8_flops_per_s, 1e12),
        _scaled(spec.fp4_flops_per_s, 1e12),
        _scaled(spec.peer_bytes_per_s, 1e9),
        _scaled(spec.network_bytes_per_s, 1e9),
        str(spec.domain),
    )


def _scaled(value: float | None, unit: float) -> str:
    """Four or five digits, as the vendor states them; a dash where none is stated."""
    return "-" if value is None else f"{value / unit:.5g}"


def _line(cells: tuple[str, ...]) -> str:
    first, *others = (cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
    return " ".join((first.strip().ljust(_WIDTHS[0]), *others)).rstrip()
