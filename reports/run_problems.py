"""What went wrong with a run, in sentences: how its processes ended, and memory that ran out."""

from __future__ import annotations

from moeprof.ingest.sources.run_record import Ending, described_exit, described_seconds, told
from moeprof.reports.document import Document, RunInfo
from moeprof.reports.out_of_memory import OutOfMemory
from moeprof.reports.record import RunRecord
from moeprof.units import format_bytes

_UNRECORDED = "profile"


def is_unrecorded(document: Document) -> bool:
    """Whether the run ended before its profile was written: there is nothing but this to say."""
    return any(
        law["check"] == _UNRECORDED and law["verdict"] == "fail" for law in document["trust"]
    )


def problems_of(run: RunInfo) -> list[str]:
    """All that is known to have gone wrong; empty where nothing did."""
    record = run.get("record")
    memory = run.get("out_of_memory", [])
    found = [_of_memory(one) for one in memory]
    return [*found, *(_of_record(record, has_message=bool(memory)) if record is not None else [])]


def _of_record(record: RunRecord, *, has_message: bool) -> list[str]:
    found = []
    if record["exit_code"]:
        seconds = record.get("duration_s")
        found.append(f"the script ended with {described_exit(record['exit_code'])}")
        if seconds is not None:
            found.append(f"the command ran {described_seconds(seconds)}")
    if record["status"] == "partial":
        found.append("the capture is partial: it holds less than was asked for")
    rows = record.get("processes", [])
    if len(rows) > 1:
        endings = [
            Ending(row["process"], row["host"], row["exit_code"], tuple(row["problems"]))
            for row in rows
        ]
        texts = told(endings)
    else:
        texts = record["problems"]
    told_before = f"exit code {record['exit_code']}"
    texts = [t for t in texts if len(rows) > 1 or not t.startswith(f"ended with {told_before}")]
    return [*found, *(text for text in texts if not (has_message and "explain-oom" in text))]


def _of_memory(one: OutOfMemory) -> str:
    """What was asked, in use, free and too much, as far as the message tells."""
    sizes = (
        (one["request_bytes"], "asked for"),
        (one["in_use_bytes"], "in use"),
        (one["free_bytes"], "free"),
        (one["excess_bytes"], "too much"),
    )
    parts = [f"{_text(size)} {what}" for size, what in sizes if size is not None]
    if one["limit_bytes"] is not None and one["in_use_bytes"] is not None:
        of = f"{_text(one['in_use_bytes'])} of a pool of {_text(one['limit_bytes'])} in use"
        parts = [of if part.endswith("in use") else part for part in parts]
    where = f" of device {', '.join(one['devices'])}" if one["devices"] else ""
    return f"out of memory: {', '.join(parts) or one['sentence']} ({one['memory']}{where})"


def _text(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else format_bytes(size)
