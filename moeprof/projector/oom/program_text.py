"""Question: what does a line add about the program that ran out of memory?

``BufferAssignment stats`` and ``Peak buffers`` (GPU, CPU), ``Total hbm usage`` and ``Largest
program allocations`` (TPU), and what rematerialization could not save.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from moeprof.hlo.shape import parse_shape
from moeprof.ingest.dump.instruction_text import metadata, parse_instruction
from moeprof.projector.oom.message import ListedBuffer, ProgramText
from moeprof.projector.oom.sizes import SIZE, size_bytes

_STATS = re.compile(
    rf"(parameter|constant|maybe_live_out|preallocated temp|total) allocation:\s+({SIZE})"
)
_STAT_FIELDS = {
    "parameter": "argument_bytes",
    "constant": "constant_bytes",
    "maybe_live_out": "output_bytes",
    "preallocated temp": "temp_bytes",
    "total": "total_bytes",
}
_FRAGMENTS = re.compile(rf"(?:preallocated temp|total) fragmentation:\s+({SIZE})")
_HBM = (
    (re.compile(rf"reserved(?:\([^)]*\))?\s+({SIZE})$"), "reserved_bytes"),
    (re.compile(rf"arguments\s+({SIZE})"), "argument_bytes"),
    (re.compile(rf"HLO temp\s+({SIZE})"), "temp_bytes"),
    (re.compile(rf"Output size ({SIZE})"), "output_bytes"),
)
_SHARES = re.compile(rf"shares ({SIZE}) with arguments")
_REMAT = re.compile(
    r"Can't reduce memory use below (?P<budget>.*?) by rematerialization; only reduced to "
    r"(?P<after>.*?), down from (?P<before>.*?) originally"
)
_LIST = re.compile(r"Peak buffers:|Largest program allocations in \w+:")
_BUFFER = re.compile(r"Buffer \d+:$")
_FIRST = re.compile(rf"(?:\d+\.\s+)?Size:\s+({SIZE})")
_PADDING = re.compile(rf"Extra memory due to padding:\s+({SIZE})")
_FIELD = re.compile(
    r"(Operator|XLA [Ll]abel|Shape|Entry Parameter Subshape|Allocation type):\s+(.*)"
)


@dataclass
class ProgramReader:
    """Takes line by line; `program` is what they told so far."""

    program: ProgramText = field(default_factory=ProgramText)
    _open: ListedBuffer | None = None
    _is_listing: bool = False

    def take(self, text: str) -> bool:
        """Read a line; whether it told anything of the program."""
        return self._buffer(text) or self._figure(text)

    def finished(self) -> ProgramText:
        """All that was told."""
        self._close()
        return self.program

    def _figure(self, text: str) -> bool:
        told: dict[str, int | None] = {}
        if found := _STATS.match(text):
            told[_STAT_FIELDS[found[1]]] = size_bytes(found[2])
        elif found := _FRAGMENTS.match(text):
            told["fragmentation_bytes"] = size_bytes(found[1])
        elif found := _REMAT.search(text):
            told = {
                "budget_bytes": size_bytes(found["budget"]),
                "after_remat_bytes": size_bytes(found["after"]),
                "before_remat_bytes": size_bytes(found["before"]),
            }
        else:
            for pattern, name in _HBM:
                found = pattern.match(text)
                if found and getattr(self.program, name) is None:  # parts repeat a sum's name
                    told[name] = size_bytes(found[1])
            if shared := _SHARES.search(text):
                told["alias_bytes"] = size_bytes(shared[1])
        if told:
            self.program = replace(self.program, **told)  # type: ignore[arg-type]
        return bool(told)

    def _buffer(self, text: str) -> bool:
        if _LIST.match(text):  # a message that is told again lists its buffers again
            self._open, self._is_listing = None, True
            self.program = replace(self.program, buffers=())
            return True
        if not self._is_listing:
            return False
        if _BUFFER.match(text) or text.startswith("====="):
            self._close()
            return True
        if size := _FIRST.match(text):
            self._close()
            self._open = ListedBuffer(size_bytes(size[1]) or 0)
            return True
        if self._open is None:
            return False
        if padded := _PADDING.match(text):
            self._open = replace(self._open, padding_bytes=size_bytes(padded[1]) or 0)
            return True
        if named := _FIELD.match(text):
            self._open = _with(self._open, named[1], named[2])
            return True
        return text.startswith("Unpadded size:")

    def _close(self) -> None:
        if self._open is not None:
            self.program = replace(self.program, buffers=(*self.program.buffers, self._open))
            self._open = None


def _with(buffer: ListedBuffer, name: str, value: str) -> ListedBuffer:
    """The buffer with one more field of its description."""
    if name == "Operator":
        told = metadata(value)
        line = f":{told['source_line']}" if told["source_line"] else ""
        source = f"{told['source_file']}{line}" if told["source_file"] else ""
        return replace(buffer, op_name=told["op_name"], source=source)
    if name == "Shape":
        return replace(buffer, shape=parse_shape(value).text)
    if name == "Entry Parameter Subshape":
        return replace(buffer, shape=parse_shape(value).text, label="parameter", is_argument=True)
    if name == "Allocation type":
        return replace(buffer, is_argument=buffer.is_argument or "parameter" in value.lower())
    instruction = parse_instruction(value)
    label = instruction.opcode if instruction else value.strip()
    op_name = buffer.op_name or (instruction.op_name if instruction else "")
    return replace(buffer, label=label, op_name=op_name)
