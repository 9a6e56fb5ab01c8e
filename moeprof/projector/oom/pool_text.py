"""Question: what does a line add about the state of XLA's pool when it ran out of memory?

The dump of the BFC allocator (``Sum Total of in-use chunks``, ``Stats:``, ``Bin (256):``), TPU's
heap status, and what other allocators state in the failure itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from moeprof.projector.oom.message import PoolText
from moeprof.projector.oom.sizes import SIZE, size_bytes

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
