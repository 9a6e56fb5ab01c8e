"""Question: how far off is each account of memory, by everything that was committed about it?

    python benchmarks/error_bands.py [--check]

Writes moeprof/projector/frameworks/errors.csv, the table that verdicts are made with; with
``--check`` it compares with that file instead and exits with 1 where they differ. Of each line:

- what was measured: the arena that XLA lays out with its defaults (MaxText 0.2.5 and the bundled
  model, for H100), arenas that failed on MI355X, what PyTorch had allocated or a device showed;
- the error is measured / projected − 1, so that a band around a projection is what it says;
- the band holds at least nine of ten plans, in whole per cent, rounded up; with fewer than
  `LEAST_PLANS` plans all of them, and it is no narrower than `NOT_MEASURED`;
- only plans that take a quarter of the pool count, where `LEAST_PLANS` do: the error of a smaller
  arena, be it a larger part of it, is within the 5 % of the pool that are borderline anyway
  (tests/projector/test_error_bands.py counts how often it is not).

An arena that failed is what XLA could not make smaller still: where the projection is above it,
that is no error, and counts as none.

Lines of the end "libraries" are of the same plans compiled without Triton's products: a run times
both and takes the faster, product by product, so what takes less than the account's end for
libraries lies between both ends, and is no error either.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Literal, NamedTuple

import maxtext_grid_cases
import memory_closed_form
from published_rows import Family, read_published
from published_score import projected_gib

from moeprof.projector.framework import (
    LEAST_PLANS,
    NOT_MEASURED,
    ErrorBand,
    Measured,
    framework,
)
from moeprof.projector.memory import project
from moeprof.projector.setting import Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.strategy import parse_strategy

HERE = Path(__file__).parent
TABLE = HERE.parent / "moeprof" / "projector" / "frameworks" / "errors.csv"
COLUMNS = (
    *("framework", "build", "vendor", "strategy", "hosts", "kind", "end"),
    *("share", "of", "plans", "largest", "source"),
)
LARGE = 0.25
OUTSIDE = 0.1
"""Share of plans that may lie beyond a band."""
_METRICS = ("allocated", "reserved", "device")
_COMPILED = "MaxText's step compiled for H100: benchmarks/results/maxtext_grid.jsonl"
_BUNDLED = "the bundled step compiled for H100: benchmarks/results/"
_GIB = 2**30


class Error(NamedTuple):
    """One measured plan. ``size`` is the projection that erred, as a share of the pool."""

    error: float
    size: float


Key = tuple[str, ...]
"""The line that it is of: what `Measured` says of its plans, what erred, and the source."""
_NAMED = len(fields(Measured)) - 1


def all_errors() -> dict[Key, list[Error]]:
    """Every measured plan by its line, in the order of the table."""
    found: dict[Key, list[Error]] = defaultdict(list)
    for key, error in (
        *_of_maxtext(),
        *_of_deepseek(),
        *_of_bundled(),
        *of_published(read_published()),
    ):
        found[key].append(error)
    return found


def table(errors: dict[Key, list[Error]]) -> list[Measured]:
    """The lines of the table."""
    return [
        Measured(*key[:_NAMED], band_of(listed, *key[_NAMED:]))
        for key, listed in sorted(errors.items())
    ]


def band_of(errors: Sequence[Error], of: str, source: str) -> ErrorBand:
    """The band of some measured plans, as the module says."""
    large = [one for one in errors if one.size >= LARGE]
    counted = large if len(large) >= LEAST_PLANS else list(errors)
    sizes = sorted((abs(one.error) for one in counted), reverse=True)
    needed = sizes[math.floor(OUTSIDE * len(sizes))] if len(sizes) >= LEAST_PLANS else sizes[0]
    share = math.ceil(round(100 * needed, 6)) / 100
    if len(counted) < LEAST_PLANS:
        share = max(share, NOT_MEASURED)
    largest = max((one.error for one in counted), key=abs)
    erring: Literal["arena", "total"] = "total" if of == "total" else "arena"
    return ErrorBand(share, erring, len(counted), round(largest, 3), source)


def _of_maxtext() -> Iterator[tuple[Key, Error]]:
    text = maxtext_grid_cases.RESULT.read_text("utf-8")
    measured = {line["key"]: line for line in map(json.loads, text.splitlines())}
    for cases in maxtext_grid_cases.by_split().values():
        for case in cases:
            temp, setting = maxtext_grid_cases.projected_arena(case), case.setting
            hosts = "several" if case.devices > setting.hardware.slice_devices else "one"
            key = _line(setting, "0.2.5", hosts)
            error = measured[case.key]["temp_bytes"] / temp - 1
            yield (*key, "plain", "", "arena", _COMPILED), Error(error, temp / _pool(setting))


def _of_deepseek() -> Iterator[tuple[Key, Error]]:
    """DeepSeek-V3 for 64 devices of 288 GiB."""
    path = maxtext_grid_cases.RESULT.with_name("maxtext_compiled.json")
    card = replace(load_hardware(maxtext_grid_cases.HARDWARE), hbm_bytes=288 * _GIB)
    for row in json.loads(path.read_text("utf-8")):
        said = dict(option.split("=") for option in row["options"])
        factor = said.get("capacity_factor")
        setting = Setting(
            load_preset(said["model_name"]),
            ParallelPlan(
                fsdp=int(said["ici_fsdp_parallelism"]), expert=int(said["ici_expert_parallelism"])
            ),
            parse_strategy(f"dense-cf{factor}" if factor else "sparse-ragged-dot"),
            card,
            pdbs=int(said["per_device_batch_size"]),
        )
        temp = project(setting).temp_bytes or 0
        error = Error(row["temp_bytes"] / temp - 1, temp / _pool(setting))
        yield (*_line(setting, "0.2.5", "several"), "plain", "", "arena", _COMPILED), error


def _of_bundled() -> Iterator[tuple[Key, Error]]:
    for end, lines in memory_closed_form.ENDS.items():
        for one in memory_closed_form.read_lines(memory_closed_form.RESULTS / lines, end):
            temp, pool = one.projected_temp, one.projected.pool_bytes
            error = one.temp / temp - 1
            key = (*_line(one.projected.setting, "", ""), "plain", end, "arena", _BUNDLED + lines)
            yield key, Error(max(error, 0.0) if end else error, temp / pool)


def of_published(families: Sequence[Family]) -> Iterator[tuple[Key, Error]]:
    """Of Megatron what was allocated, reserved or shown; of AMD's container arenas that failed."""
    for family in families:
        for row in family.rows:
            if row.unknown or row.metric not in (*_METRICS, "temp arena"):
                continue
            setting = row.setting()
            breakdown, published = project(setting), row.values["gib"]
            projected = projected_gib(breakdown, row)
            if projected is None or setting.megatron.account != "megatron":
                continue
            error, pool = published / projected - 1, breakdown.pool_bytes / _GIB
            if row.metric == "temp arena":
                error = max(error, 0.0)
            yield key_of_published(setting), Error(error, projected / pool)


def key_of_published(setting: Setting) -> Key:
    """The line that a published run is of: Megatron's is one."""
    source = "published runs: benchmarks/results/memory_published.json"
    if not setting.program.has_pool:
        return (setting.framework, "", "", "", "", "", "", "total", source)
    return (*_line(setting, setting.build or "", ""), "", "", "arena", source)


def _line(setting: Setting, build: str, hosts: str) -> Key:
    kind = setting.strategy.kind if setting.model.experts else "no experts"
    return setting.framework, build, setting.hardware.vendor, kind, hosts


def _pool(setting: Setting) -> float:
    return setting.hardware.hbm_bytes * setting.mem_fraction


_NAMES = {
    "dense": "capacity",
    "sparse-ragged-dot": "ragged_dot",
    "sparse-gmm": "grouped GEMM",
    "sparse-gmm-deepep": "grouped GEMM, DeepEP",
    "no experts": "no experts",
    "": "all",
}


def as_markdown(lines: Sequence[Measured]) -> str:
    """The table as the documentation has it."""
    head = "| account | strategy | plans | n | band | of | largest |"
    rows = [head, "|---" * 7 + "|"]
    for line in lines:
        band = line.band
        name = f"{framework(line.framework).title} {line.build}".strip()
        hosts = {"one": "one host", "several": "several hosts", "": "all"}[line.hosts]
        width = f"{'+' if line.end else '±'}{100 * band.share:.0f} %"
        name += ", libraries' products" if line.end else ""
        of = "the arena" if band.of == "arena" else "arguments and arena"
        largest = f"{100 * (band.largest or 0):+.1f} %".replace("-", "−")
        cells = (name, _NAMES[line.strategy], hosts, str(band.plans), width, of, largest)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def as_text(lines: Sequence[Measured]) -> str:
    """The file."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in lines:
        named = replace(line, band=ErrorBand(0.0))
        writer.writerow([*astuple(named)[:_NAMED], *astuple(line.band)])
    return out.getvalue()


def main() -> int:
    """Print, and write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the table")
    options = parser.parse_args()
    lines = table(all_errors())
    text = as_text(lines)
    print(as_markdown(lines))
    if options.check:
        return 0 if TABLE.read_text(encoding="utf-8") == text else 1
    TABLE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
