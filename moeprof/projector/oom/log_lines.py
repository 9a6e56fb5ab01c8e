"""Question: what does a line of a log say: which process, which size, what of the pool and program?

Launchers label lines (``[rank3]:``, ``3: `` of ``srun -l``, ``[1,3]<stderr>:``, ``(Worker
pid=7)``), and loggers write date, level, file and line before them. XLA writes sizes as
``226.26GiB`` or ``6291456 bytes``, TPU's compiler as ``36.59G``, where G is 2^30; with both forms
side by side the exact one counts.

Around the failure itself (`moeprof.projector.oom.failures`) lines add what the pool and the program
were like. Of the pool: the dump of the BFC allocator (``Sum Total of in-use chunks``, ``Stats:``,
``Bin (256):``), TPU's heap status, and what other allocators state in the failure. Of the program:
``BufferAssignment stats`` and ``Peak buffers`` (GPU, CPU), ``Total hbm usage`` and ``Largest
program allocations`` (TPU), and what rematerialization could not save.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from moeprof.hlo.shape import parse_shape
from moeprof.ingest.dump.instruction_text import metadata, parse_instruction
from moeprof.projector.oom import ListedBuffer, PoolText, ProgramText

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\[(?:\d{1,2};)*\d{1,2}m")
_RANKS = (
    re.compile(r"\[(?:default|rank|Rank )?(\d+)\]:\s?"),
    re.compile(r"\[(?:rank|Rank )\s?(\d+)\]\s?"),
    re.compile(r"(?:rank|Rank)[ =]?(\d+)\s?[:|]\s?"),
    re.compile(r"\[\d+,(\d+)\]<std(?:err|out)>:\s?"),
    re.compile(r"(\d+): "),
    re.compile(r"\(\w+ (?:rank|pid)=(\d+)(?:, ip=[\d.]+)?\)\s?"),
    re.compile(r"[\w.\-]+:\d+:\d+ \[(\d+)\] "),
)
_LOGGERS = (
    re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?\s+"),
    re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ [\w./+\-]+:\d+\]\s?"),
    re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+(?::\d+)?\s+\d+ [\w./+\-]+:\d+\]\s?"),
    re.compile(r"[IWEF]\s+(?:\d+ )?[\w./+\-]+:\d+\]\s?"),
    re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)(?::[\w.]+)?:\s?"),
    re.compile(r"> "),
)


class Line(NamedTuple):
    """A line: its number in the log from 1, who says it (empty where not told), and what."""

    number: int
    rank: str
    text: str


def lines_of(log: Iterable[tuple[int, str]]) -> Iterator[Line]:
    """Numbered lines that say anything, without escape sequences, labels and outer spaces."""
    for number, raw in log:
        text, rank = _ESCAPES.sub("", raw).strip(), ""
        while True:
            found = next((m for p in _RANKS if (m := p.match(text))), None)
            if found is not None:
                rank, text = rank or found[1], text[found.end() :].lstrip()
                continue
            found = next((m for p in _LOGGERS if (m := p.match(text))), None)
            if found is None:
                break
            text = text[found.end() :].lstrip()
        if text:
            yield Line(number, rank, text)


SIZE = r"-?[\d,]+(?:\.\d+)?\s?(?:[KMGTPE]i?B?|B|bytes?)\b"
"""One size, as a part of other patterns."""

_SIZE = re.compile(r"(-?)([\d,]+(?:\.\d+)?)\s?([KMGTPE]?)(i?)(B|bytes?)?\b")
_EXACT = re.compile(r"\(\s*([\d,]+)\s?(?:bytes|B)\)")
_POWERS = "KMGTPE"
_MOST_BYTES = 1 << 60


def size_bytes(text: str) -> int | None:
    """The first size in `text`; None where there is none, or none that a memory could have.

    ``KB`` and ``GB`` are decimal.
    """
    size = _size(text)
    return size if size is not None and abs(size) < _MOST_BYTES else None


def _size(text: str) -> int | None:
    if exact := _EXACT.search(text):
        return int(exact[1].replace(",", ""))
    found = _SIZE.search(text)
    if found is None:
        return None
    sign, number, prefix, binary, unit = found.groups()
    is_decimal = prefix and unit and not binary
    base = 1000 if is_decimal else 1024
    power = _POWERS.index(prefix) + 1 if prefix else 0
    return round(float(number.replace(",", "")) * float(base**power)) * (-1 if sign else 1)


_PLAIN = rf"({SIZE}|[\d,]+)"
_FIGURES = (
    (re.compile(rf"Limit:\s+{_PLAIN}$"), "limit_bytes"),
    (re.compile(rf"InUse:\s+{_PLAIN}$"), "in_use_bytes"),
    (re.compile(rf"MaxInUse:\s+{_PLAIN}$"), "peak_bytes"),
    (re.compile(rf"LargestFreeBlock:\s+{_PLAIN}$"), "largest_free_bytes"),
    (re.compile(rf"Sum Total of in-use chunks:\s+{_PLAIN}$"), "in_use_bytes"),
    (re.compile(rf"HBM capacity {_PLAIN}"), "limit_bytes"),
    (re.compile(rf"Currently allocated:\s+{_PLAIN}"), "in_use_bytes"),
    (re.compile(rf"Max free chunk\s+{_PLAIN}"), "largest_free_bytes"),
    (re.compile(rf"heap allocations[^\d]*{_PLAIN}"), "in_use_bytes"),
)
_OF = re.compile(r"(?i).*\bin[ -]use:?\s+([\d.]+)\s?(\w*?)\s?(?:of|/)\s?([\d.]+)\s?([KMGT]i?B?)\b")
_LIMIT = re.compile(
    r"(?:(?:Total bytes in pool|total_region_allocated_bytes_):\s+(\d+)\s+)?memory_limit_:\s+(\d+)"
)
_SUMMARY = re.compile(
    rf"Allocator memory summary: .*largest free chunk usable by \w+ end (?P<piece>{SIZE}).*"
    rf"pool size (?P<taken>{SIZE}), pool limit (?P<limit>{SIZE})"
)
_OF_DRIVER = re.compile(r"(?:Reported by CUDA: )?Free memory/Total memory: (\d+)/(\d+)")
_FREE_CHUNK = re.compile(r"Free\s+at [0-9a-fx]+ (?:next \d+ )?of size (\d+)")


@dataclass
class PoolReader:
    """Takes line by line; `pool` is what they told so far."""

    pool: PoolText = field(default_factory=PoolText)

    def take(self, text: str) -> bool:
        """Read a line; whether it told anything of the pool."""
        told: dict[str, int | None] = {}
        for pattern, name in _FIGURES:
            if found := pattern.match(text):
                told[name] = _bytes(found[1], text)
                break
        if found := _OF.match(text):
            unit = found[4]
            told["in_use_bytes"] = size_bytes(f"{found[1]}{found[2] or unit}")
            told["limit_bytes"] = size_bytes(f"{found[3]}{unit}")
        if found := _LIMIT.search(text):
            told["taken_bytes"] = size_bytes(f"{found[1]} B") if found[1] else None
            told["limit_bytes"] = size_bytes(f"{found[2]} B")
        if found := _SUMMARY.match(text):
            told["largest_free_bytes"] = size_bytes(found["piece"])
            told["taken_bytes"] = size_bytes(found["taken"])
            told["limit_bytes"] = size_bytes(found["limit"])
        if found := _OF_DRIVER.match(text):
            told["driver_free_bytes"] = size_bytes(f"{found[1]} B")
        if found := _FREE_CHUNK.match(text):
            known = self.pool.largest_free_bytes or 0
            told["largest_free_bytes"] = max(known, size_bytes(f"{found[1]} B") or 0)
        if told.get("largest_free_bytes") == 0:
            del told["largest_free_bytes"]  # allocators that do not count it write 0
        if told:
            self.pool = replace(self.pool, **told)  # type: ignore[arg-type]
        return bool(told) or text.startswith(("Bin (", "InUse at", "Next region", "Stats:"))


def _bytes(text: str, line: str) -> int | None:
    """A size, or a plain number, which are bytes; the exact form of the line counts."""
    if re.search(r"\([\s\d,]+bytes\)", line):
        return size_bytes(line)
    plain = text.replace(",", "")
    return size_bytes(f"{plain} B" if plain.isdecimal() else text)


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
