"""Question: what did the ranks of a Megatron pipeline write down about their work?

Reads the folder that Primus' ``dump_pp_data`` leaves and its ``pp_vis`` draws: ``config.json``
(pp_size, vp_size, num_mbs) and one ``pp_rank_N.json`` per rank, which holds for each iteration
``total`` (ms), ``memory`` (GB) and lists of starts and ends (ms) of forward (``fwd``), backward
(``bwd``) and, where it runs apart, weight gradient (``wgrad``) work.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from moeprof.errors import SpecError, TraceError
from moeprof.ingest.xspace.space import number_in
from moeprof.specs.schedule import Schedule
from moeprof.tables.pipeline import STAGE_TIME, STAGE_WORK, PipelineWork

_KINDS = {"fwd": "forward", "bwd": "backward", "wgrad": "weight_gradient"}
_MS = 1_000_000
_MOST_MS = 1e12  # 30 years: nanoseconds beyond that do not fit into a table
_MOST_GB = 1e9
_MOST_COUNT = 1_000_000  # of stages, chunks or microbatches
_GB = 2**30  # the dump divides torch's bytes by 1024 three times


def is_pp_dump(path: Path) -> bool:
    """Whether a folder looks like such a dump."""
    return (path / "config.json").is_file() and (path / "pp_rank_0.json").is_file()


def read_pp_dump(path: Path) -> PipelineWork:
    """Read a dump. Times become whole nanoseconds.

    Raises:
        TraceError: a file is missing, is no JSON, or does not hold what the format promises.
    """
    schedule = _schedule(path / "config.json")
    work: list[dict[str, object]] = []
    times: list[dict[str, object]] = []
    for stage in range(schedule.stages):
        file = path / f"pp_rank_{stage}.json"
        for name, record in _object(file).items():
            where = f"{file}, iteration {name}"
            if number_in(name) < 0 or not isinstance(record, dict):
                raise TraceError(f"{where}: expected an object by number, found something else")
            times.append(
                {
                    "iteration": int(name),
                    "stage": stage,
                    "duration_ns": round(_number(record, "total", where, 0, _MOST_MS) * _MS),
                    "memory_bytes": _memory_gb(record, where) * _GB,
                }
            )
            work += _work(record, where, int(name), stage)
    return PipelineWork(
        source=str(path),
        schedule=schedule.name,
        stages=schedule.stages,
        microbatches=schedule.microbatches,
        chunks=schedule.chunks,
        work=STAGE_WORK.frame(work),
        times=STAGE_TIME.frame(times),
    )


def _schedule(file: Path) -> Schedule:
    config = _object(file)
    stages, chunks, microbatches = (
        _count(config, name, str(file)) for name in ("pp_size", "vp_size", "num_mbs")
    )
    name = "1f1b" if chunks <= 1 else "interleaved"
    try:
        return Schedule(name, stages, microbatches, max(chunks, 1))
    except SpecError as error:
        raise TraceError(f"{file}: {error}") from error


def _work(
    record: Mapping[str, object], where: str, iteration: int, stage: int
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for prefix, kind in _KINDS.items():
        starts, ends = (_numbers(record, f"{prefix}_{edge}", where) for edge in ("start", "end"))
        if len(starts) != len(ends):
            raise TraceError(
                f"{where}: expected as many {prefix}_end as {prefix}_start, "
                f"found {len(ends)} and {len(starts)}"
            )
        for slot, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if end < start:
                raise TraceError(f"{where}: {prefix} work {slot} ends before it starts")
            begin = round(start * _MS)
            place = {"iteration": iteration, "stage": stage, "kind": kind, "slot": slot}
            rows.append({**place, "start_ns": begin, "duration_ns": round(end * _MS) - begin})
    return rows


def _object(file: Path) -> dict[str, object]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"{file}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{file}: expected JSON, found {error}") from error
    if not isinstance(found, dict):
        raise TraceError(f"{file}: expected a JSON object, found {type(found).__name__}")
    return found


def _count(config: Mapping[str, object], name: str, where: str) -> int:
    number = _number(config, name, where, -1, _MOST_COUNT)
    if not number.is_integer():
        raise TraceError(f"{where}: expected a whole number as {name!r}, found {number}")
    return int(number)


def _memory_gb(record: Mapping[str, object], where: str) -> float:
    """NaN where the dump does not say."""
    stated = record.get("memory", math.nan)
    if isinstance(stated, float) and math.isnan(stated):
        return math.nan
    return _number(record, "memory", where, 0, _MOST_GB)


def _number(
    record: Mapping[str, object], name: str, where: str, least: float, most: float
) -> float:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TraceError(f"{where}: expected a number as {name!r}, found {value!r}")
    if not least <= value <= most:  # nor is NaN
        found = "one far beyond" if abs(value) >= 1e300 else f"{value:.6g}"
        raise TraceError(
            f"{where}: expected a number from {least:g} to {most:g} as {name!r}, found {found}"
        )
    return float(value)


def _numbers(record: Mapping[str, object], name: str, where: str) -> list[float]:
    values = record.get(name, [])
    if not isinstance(values, list):
        raise TraceError(f"{where}: expected a list as {name!r}, found {type(values).__name__}")
    return [_number({name: value}, name, where, -_MOST_MS, _MOST_MS) for value in values]
