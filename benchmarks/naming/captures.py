"""Programs of the corpus, their variants, and what they leave behind, kept between runs.

A recording is kept under a digest of the script without its truth, its sizes and devices, the
recorder, and the versions of jax and what else it needs. After a change of the classifier or of a
truth it is read again, in a second.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rename import renamed
from source_truth import untold

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
HALVES = ("rules", "scoring")
SUFFIXES = {"cpu": ".xplane.pb.gz", "h100": ".hlo.pb.gz"}
_LIMIT_S = 600


@dataclass(frozen=True)
class Program:
    """A script, with the constants that say how to run it.

    ``variant`` is empty, ``renamed``, or the sizes that are made equal; ``sizes`` override the
    script's.
    """

    name: str
    half: str
    text: str
    devices: int
    needs: tuple[str, ...]
    sizes: Mapping[str, int]
    large: Mapping[str, int]
    file_name: str
    variant: str = ""

    @property
    def is_possible(self) -> bool:
        """Whether what it needs is installed."""
        return all(importlib.util.find_spec(name) for name in self.needs)


class RecordError(Exception):
    """A program did not run or compile; the message has the last lines of what it said."""


def programs(half: str | None = None, name: str | None = None) -> list[Program]:
    """The programs of one half, or of both."""
    return [
        _program(path, each)
        for each in HALVES
        if half in (None, each)
        for path in sorted((PROGRAMS / each).glob("*.py"))
        if name in (None, path.stem)
    ]


def variants(program: Program) -> Iterator[Program]:
    """Renamed; D = F; E = D; k = 1, where the script does not have that already.

    A script may say in ``VARIANTS`` what a variant sets of its small sizes, or that it has none.
    """
    file_name = f"m{hashlib.sha256(program.name.encode()).hexdigest()[:6]}.py"
    yield replace(program, text=renamed(program.text), file_name=file_name, variant="renamed")
    own = _constant(program.text, "VARIANTS", {})
    for variant, given in (
        ("d=f", {"f": "d"}),
        ("e=d", {"e": "d"}),
        ("k=1", {"k": 1}),
    ):
        change = own.get(variant, given)
        is_there = change and set(given) <= set(program.sizes)
        if is_there and not (variant == "k=1" and program.sizes["k"] == 1):
            yield replace(
                program,
                variant=variant,
                sizes=_set(program.sizes, change),
                large=_set(program.large, given),
            )


def _set(sizes: Mapping[str, int], change: Mapping[str, Any]) -> dict[str, int]:
    """Sizes with some replaced, by a number or by another size of that name."""
    new = {key: sizes.get(value, value) for key, value in change.items()}
    return {**sizes, **{key: value for key, value in new.items() if isinstance(value, int)}}


def place(program: Program, kind: str, cache: Path) -> Path:
    """Where a program's profile (``cpu``) or HloProto (``h100``) lies, or will."""
    digest = _digest(kind, program, _sizes(program, kind))
    return cache / f"{program.name}-{program.variant or 'plain'}-{digest}{SUFFIXES[kind]}"


def recording(program: Program, kind: str, cache: Path) -> Path:
    """The file at `place`, made if it is not there.

    Raises:
        RecordError: it could not be made.
    """
    out = place(program, kind, cache)
    if not out.exists():
        script = cache / out.name.partition(".")[0] / program.file_name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(program.text, "utf-8")
        part = out.with_name(f".{os.getpid()}-{out.name}")
        _run(kind, script, part, program, _sizes(program, kind))
        part.rename(out)
    return out


def _sizes(program: Program, kind: str) -> dict[str, int]:
    return dict(program.large if kind == "h100" else program.sizes)


def _digest(kind: str, program: Program, sizes: Mapping[str, int]) -> str:
    recorder = (HERE / "record.py").read_text("utf-8")
    versions = [version(name) for name in ("jax", *program.needs)]
    parts = [untold(program.text), program.file_name, sizes, program.devices, recorder, versions]
    return hashlib.sha256(json.dumps([kind, *parts]).encode()).hexdigest()[:16]


def _run(kind: str, script: Path, out: Path, program: Program, sizes: Mapping[str, int]) -> None:
    devices = program.devices
    paths = [str(HERE.parents[1]), *filter(None, sys.path)]
    flags = f"--xla_force_host_platform_device_count={max(devices, 1)}"
    if kind == "h100":
        paths.insert(0, os.environ.get("CUDA_PLUGIN", str(Path(sys.prefix) / "cuda-plugin")))
        flags += " --xla_gpu_autotune_level=0"
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "PYTHONPATH": os.pathsep.join(paths),
        "SIZES": json.dumps(sizes),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    if program.variant == "renamed":
        env["FLAX_PROFILE"] = "0"  # flax's modules give no scopes
    command = [sys.executable, str(HERE / "record.py"), kind, str(script), str(out), str(devices)]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise RecordError(f"{program.name} {kind}: took more than {_LIMIT_S} s") from error
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise RecordError(f"{program.name} {program.variant} {kind}: {last}")


def _program(path: Path, half: str) -> Program:
    text = path.read_text("utf-8")
    return Program(
        name=path.stem,
        half=half,
        text=text,
        devices=_constant(text, "DEVICES", 1),
        needs=_constant(text, "NEEDS", ()),
        sizes=_constant(text, "SIZES", {}),
        large=_constant(text, "SIZES", {}) | _constant(text, "LARGE", {}),
        file_name=path.name,
    )


def _constant(text: str, name: str, default: Any) -> Any:
    """The literal that a script assigns to a name at its top; `default` where it does not."""
    found = default
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            found = ast.literal_eval(node.value)
        elif isinstance(node, ast.AugAssign) and getattr(node.target, "id", "") == name:
            if not isinstance(node.value, ast.Dict):
                break  # SIZES takes those of the environment last
            found = found | ast.literal_eval(node.value)
    return found
