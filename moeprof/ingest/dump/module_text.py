"""Question: which instructions does a program consist of that was written as HLO text?

``…after_optimizations.txt``, which the compiler writes unless it is told otherwise: tables of
source locations, then computations. What an instruction says is read by `instruction_text`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from moeprof.hlo.instruction import Frame, Frames, Instruction
from moeprof.ingest.dump.instruction_text import parse_instruction

MARK = "HloModule "
_MODULE = re.compile(r"HloModule ([\w.\-]+)")
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{\s*$")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ENTRY = re.compile(r"(\d{1,18}) (.*)")
_NUMBER = re.compile(r"(\w+)=(\d{1,18})")
_FRAME = re.compile(r"\bstack_frame_id=(\d{1,18})")
_MOST_FRAMES = 200


@dataclass
class _Sources:
    """The tables of source locations, by number."""

    tables: dict[str, dict[int, str]] = field(default_factory=dict)

    def frames(self, number: int) -> Frames:
        """The lines that lead to a frame, innermost first; none where unknown."""
        frames = self.tables.get("StackFrames", {})
        # some versions print a parent as its number plus one, so that the outermost is its own
        is_shifted = dict(_NUMBER.findall(frames.get(1, ""))).get("parent_frame_id") == "1"
        lines: list[Frame | None] = []
        while number in frames and len(lines) < _MOST_FRAMES:
            told = dict(_NUMBER.findall(frames[number]))
            lines.append(self._line(int(told.get("file_location_id", 0))))
            parent = int(told.get("parent_frame_id", 0)) - is_shifted
            if parent == number:
                break
            number = parent
        return tuple(line for line in lines if line is not None)

    def _line(self, location: int) -> Frame | None:
        told = dict(_NUMBER.findall(self.tables.get("FileLocations", {}).get(location, "")))
        names = (("FileNames", "file_name_id"), ("FunctionNames", "function_name_id"))
        file, function = (
            self.tables.get(table, {}).get(int(told.get(key, 0)), "").strip('"')
            for table, key in names
        )
        return Frame(file, int(told.get("line", 0)), function) if file else None


def module_name(text: str) -> str:
    """The name of the module; empty where the text is none."""
    found = _MODULE.match(text)
    return found[1] if found else ""


def parse_module_text(text: str) -> Iterator[Instruction]:
    """Instructions of all computations, in the order of the text."""
    sources, table, computation = _Sources(), "", ""
    for line in text.splitlines():
        if line in _TABLES:
            table = line
        elif table and (entry := _ENTRY.fullmatch(line)):
            sources.tables.setdefault(table, {})[int(entry[1])] = entry[2]
        elif head := _COMPUTATION.match(line):
            table, computation = "", head[1]
        elif computation and line.startswith("  "):
            found = parse_instruction(line, computation)
            if found is not None:
                frame = _FRAME.search(line)
                frames = sources.frames(int(frame[1])) if frame else ()
                yield found if found.frames else found._replace(frames=frames)
