"""Question: which compiled programs does a path stand for that is no profile?

A folder that ``--xla_dump_to`` filled, one ``.hlo.pb`` (with gzip or not), or one buffer assignment
as text. Of each program of a folder the form is read that was written last by the compiler and
tells most: the proto after optimizations, else the texts of its buffer assignment.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moeprof.errors import TraceError
from moeprof.hlo.instruction import Instruction
from moeprof.ingest.dump.assignment_text import (
    MARK,
    Assignment,
    buffers_of,
    parse_assignment,
    totals_of,
)
from moeprof.ingest.dump.instruction_text import module_name, parse_module_text
from moeprof.ingest.hlo.programs import Program, parse_program
from moeprof.ingest.program_frames import ListedProgram, trace_of_lists, trace_of_programs
from moeprof.ingest.xspace.open_space import unreadable
from moeprof.ingest.xspace.wire import WireError
from moeprof.tables.trace import Trace

PROTO = re.compile(r"\.hlo\.pb(\.gz)?$")
_BEFORE, _AFTER = "before_optimizations", "after_optimizations"
_TEXTS = re.compile(r"(?P<stem>.*?)-(buffer-assignment|buffer-assignment-values|live-range)\.txt$")
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class _Texts:
    """The texts of a program: its buffers, and its instructions where they are beside them."""

    stem: str
    files: tuple[Path, ...]
    module: Path | None = None


def is_dump(path: Path) -> bool:
    """Whether `open_dump` reads what is at a path: told by names, of a text by its first line."""
    try:
        if path.is_dir():
            return bool(_protos(path) or _texts(path))
        return bool(PROTO.search(path.name)) or _is_assignment(path)
    except OSError:
        return False


def open_dump(path: str | Path) -> Trace:
    """Read compiled programs as a trace in which nothing ran; ids are their order by file name.

    Raises:
        TraceError: there is nothing to read, or what there is cannot be read.
    """
    root = Path(path)
    try:
        return _open(root)
    except OSError as error:
        raise unreadable(error.filename or root, error) from error


def _open(root: Path) -> Trace:
    if not root.exists():
        raise TraceError(f"{root}: no such file or folder; give an XLA dump folder or an .hlo.pb")
    protos = _protos(root) if root.is_dir() else [root] if PROTO.search(root.name) else []
    if protos:
        return _of_protos(root, protos)
    texts = _texts(root) if root.is_dir() else _beside(root)
    if not texts:
        raise TraceError(
            f"{root}: expected compiled programs (*after_optimizations.hlo.pb or "
            "*buffer-assignment.txt), found none; compile with XLA_FLAGS=--xla_dump_to=FOLDER "
            "and give FOLDER"
        )
    return _of_texts(root, texts)


def _of_protos(root: Path, files: Sequence[Path]) -> Trace:
    programs: dict[int, Program] = {}
    notes: list[str] = []
    for file in files:
        try:
            programs[len(programs)] = parse_program(_bytes(file), notes)
        except (WireError, EOFError, gzip.BadGzipFile) as error:
            notes.append(f"{file.name} left out: {error}")
    if not programs or not any(program.module.instructions for program in programs.values()):
        raise TraceError(
            f"{root}: expected an HloProto, found none that can be read ({'; '.join(notes)}); "
            "write it again with --xla_dump_hlo_as_proto"
        )
    return trace_of_programs(str(root), programs, notes)


def _of_texts(root: Path, texts: Sequence[_Texts]) -> Trace:
    programs: dict[int, ListedProgram] = {}
    notes: list[str] = []
    for part in texts:
        found = parse_assignment([file.read_text("utf-8", "replace") for file in part.files])
        if not found.allocations:
            notes.append(f"{part.files[0].name} left out: it lists no allocation")
            continue
        if not found.lives:
            notes.append(
                f"{part.stem}: no live ranges beside it, so of the buffers that share memory the "
                "largest are taken to be there at the peak"
            )
        name, instructions = _instructions(part, found)
        programs[len(programs)] = ListedProgram(
            name,
            instructions,
            buffers_of(found),
            totals_of(found),
        )
    if not programs:
        raise TraceError(
            f"{root}: expected a buffer assignment ({MARK} allocation 0: size …), found none; "
            "give a *buffer-assignment.txt of --xla_dump_to"
        )
    return trace_of_lists(str(root), programs, notes)


def _instructions(part: _Texts, found: Assignment) -> tuple[str, list[Instruction]]:
    """Name of the program, and its instructions: all of them, else those that make a buffer."""
    if part.module is not None:
        text = part.module.read_text("utf-8", "replace")
        every = list(parse_module_text(text))
        if every:
            return module_name(text) or part.stem, every
    shapes = {
        value.op: Instruction(value.op, "", value.shape, computation="main")
        for value in found.values
    }
    return part.stem, list({**shapes, **found.instructions}.values())


def _protos(folder: Path) -> list[Path]:
    """Protos of compiled programs; the compiler may write others between its passes."""
    every = sorted(p for p in folder.iterdir() if PROTO.search(p.name) and p.is_file())
    compiled = [p for p in every if _AFTER in p.name]
    return compiled or [p for p in every if _BEFORE not in p.name]


def _texts(folder: Path) -> list[_Texts]:
    by_stem: dict[str, list[Path]] = {}
    for file in sorted(folder.iterdir()):
        if (name := _TEXTS.match(file.name)) and file.is_file():
            by_stem.setdefault(name["stem"], []).append(file)
    return [_family(folder, stem, files) for stem, files in by_stem.items()]


def _family(folder: Path, stem: str, files: Sequence[Path]) -> _Texts:
    module = folder / f"{stem}.txt"
    return _Texts(stem, tuple(files), module if module.is_file() else None)


def _beside(file: Path) -> list[_Texts]:
    """The text itself, with those of the same program beside it."""
    name = _TEXTS.match(file.name)
    if name is None:
        return [_Texts(file.name.removesuffix(".txt"), (file,))] if _is_assignment(file) else []
    family = next(part for part in _texts(file.parent) if part.stem == name["stem"])
    return [family]


def _is_assignment(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return MARK.encode() in stream.read(_HEAD_BYTES)


def _bytes(file: Path) -> bytes:
    data = file.read_bytes()
    return gzip.decompress(data) if file.name.endswith(".gz") else data
