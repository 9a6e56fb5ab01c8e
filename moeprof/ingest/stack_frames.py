"""Question: which lines of the user's program does an instruction come from?

Reads HloModuleProto.StackFrameIndexProto. All its ids count from 1; 0 means none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from moeprof.ingest.wire import BYTES, fields, text

_DEEPEST = 256  # JAX keeps far fewer; a longer chain is a loop in damaged bytes


@dataclass(frozen=True)
class StackFrames:
    """The tables of a module's stack frame index, and the chains looked up so far."""

    files: tuple[str, ...]
    functions: tuple[str, ...]
    locations: tuple[tuple[int, int, int], ...]  # (file id, function id, line)
    frames: tuple[tuple[int, int], ...]  # (location id, parent frame id)
    _chains: dict[int, str] = field(default_factory=dict, compare=False, repr=False)

    def chain(self, frame_id: int) -> str:
        """``file:line:function`` per line, innermost first; empty for frame 0 or unknown ids."""
        if frame_id not in self._chains:
            self._chains[frame_id] = "\n".join(self._walk(frame_id))
        return self._chains[frame_id]

    def _walk(self, frame_id: int) -> list[str]:
        found: list[str] = []
        while 0 < frame_id <= len(self.frames) and len(found) < _DEEPEST:
            location, frame_id = self.frames[frame_id - 1]
            if 0 < location <= len(self.locations):
                file, function, line = self.locations[location - 1]
                name = _entry(self.functions, function)
                found.append(f"{_entry(self.files, file)}:{line}:{name}")
        return found


def parse_stack_frames(data: bytes, start: int, end: int) -> StackFrames:
    """Read a StackFrameIndexProto."""
    files: list[str] = []
    functions: list[str] = []
    locations: list[tuple[int, int, int]] = []
    frames: list[tuple[int, int]] = []
    for number, kind, value, stop in fields(data, start, end):
        if kind != BYTES:
            continue
        if number == 1:
            files.append(text(data, value, stop))
        elif number == 2:
            functions.append(text(data, value, stop))
        elif number == 3:
            numbers = _numbers(data, value, stop)
            locations.append((numbers.get(1, 0), numbers.get(2, 0), numbers.get(3, 0)))
        elif number == 4:
            numbers = _numbers(data, value, stop)
            frames.append((numbers.get(1, 0), numbers.get(2, 0)))
    return StackFrames(tuple(files), tuple(functions), tuple(locations), tuple(frames))


def _numbers(data: bytes, start: int, end: int) -> dict[int, int]:
    return {number: value for number, _, value, _ in fields(data, start, end)}


def _entry(table: tuple[str, ...], identity: int) -> str:
    return table[identity - 1] if 0 < identity <= len(table) else ""
