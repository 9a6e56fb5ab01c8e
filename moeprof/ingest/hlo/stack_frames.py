"""Question: which lines of the user's program does an instruction come from?

Reads HloModuleProto.StackFrameIndexProto. All its ids count from 1; 0 means none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from moeprof.hlo.instruction import Frame, Frames
from moeprof.ingest.hlo.messages import read_message
from moeprof.ingest.xspace.wire import text

_DEEPEST = 256  # JAX keeps far fewer; a longer chain is a loop in damaged bytes
_FILES, _FUNCTIONS, _LOCATIONS, _FRAMES = 1, 2, 3, 4
_ALL = frozenset({_FILES, _FUNCTIONS, _LOCATIONS, _FRAMES})


@dataclass(frozen=True)
class StackFrames:
    """The tables of a module's stack frame index, and the chains looked up so far."""

    files: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    locations: tuple[tuple[int, int, int], ...] = ()  # (file id, function id, line)
    frames: tuple[tuple[int, int], ...] = ()  # (location id, parent frame id)
    _chains: dict[int, Frames] = field(default_factory=dict, compare=False, repr=False)
    _lines: dict[int, Frame] = field(default_factory=dict, compare=False, repr=False)

    def chain(self, frame_id: int) -> Frames:
        """The lines that lead to a frame, innermost first; none for frame 0 or unknown ids."""
        if frame_id not in self._chains:
            self._chains[frame_id] = tuple(self._walk(frame_id))
        return self._chains[frame_id]

    def _walk(self, frame_id: int) -> Iterator[Frame]:
        for _ in range(_DEEPEST):
            if not 0 < frame_id <= len(self.frames):
                break
            location, frame_id = self.frames[frame_id - 1]
            if 0 < location <= len(self.locations):
                yield self._line(location)

    def _line(self, location: int) -> Frame:
        if location not in self._lines:
            file, function, line = self.locations[location - 1]
            names = _entry(self.files, file), _entry(self.functions, function)
            self._lines[location] = Frame(names[0], line, names[1])
        return self._lines[location]


def parse_stack_frames(data: bytes, start: int, end: int) -> StackFrames:
    """Read a StackFrameIndexProto.

    Raises:
        WireError: the bytes are damaged.
    """
    lists = read_message(data, start, end, _ALL).lists
    texts = {n: [text(data, *s) for s in lists.get(n, []) if s[1] >= 0] for n in (1, 2)}
    locations, frames = (
        [read_message(data, *stretch).numbers for stretch in lists.get(n, []) if stretch[1] >= 0]
        for n in (_LOCATIONS, _FRAMES)
    )
    return StackFrames(
        tuple(texts[_FILES]),
        tuple(texts[_FUNCTIONS]),
        tuple((n.get(1, 0), n.get(2, 0), n.get(3, 0)) for n in locations),
        tuple((n.get(1, 0), n.get(2, 0)) for n in frames),
    )


def _entry(table: tuple[str, ...], identity: int) -> str:
    return table[identity - 1] if 0 < identity <= len(table) else ""
