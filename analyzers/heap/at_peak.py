"""Question: which tensors fill a program's memory on a device when it is fullest?

Rows add up to what the compiler states: arguments + results that reuse none + temporary buffers.
What it allocates beyond the live buffers (holes between them, rounding, a heap that is full at
another time) has a row of its own. What lies in the host's memory is no part of it: `on_host` sums
that up. Where the profile tells no buffer's life, as of an executable from a compilation cache, the
temporaries are one row, `UNTOLD`: how large they are is known, and nothing of what they hold.

Buffers of two programs are matched by what they are, never by the number of their instruction: kind
of tensor, part of the model, shape. So a program that was compiled again with another compiler, or
changed elsewhere, differs only where it holds other tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from moeprof.analyzers.attribution import programs_of
from moeprof.analyzers.heap.contents import INPUTS, OPTIMIZER, WEIGHTS, Contents, shape_of
from moeprof.analyzers.heap.places import Heap, heaps_of
from moeprof.columns import grouping
from moeprof.columns.table import Given, Table, isin
from moeprof.hlo.program import Op
from moeprof.tables.compiled_memory import on_device
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

AT_PEAK = Schema(
    "at_peak",
    (
        Column("content", "text", "", "kind of tensor"),
        Column("component", "text", "", "part of the step that writes it; empty for arguments"),
        Column("layer_kind", "text", "", "kind of layer"),
        Column("phase", "text", "", "forward, recompute, backward or other"),
        Column("op", "text", "", "HLO instruction that writes it"),
        Column("shape", "text", "", "result, as dtype[dims]"),
        Column("size_bytes", "int64", "bytes", "size"),
        Column("source", "text", "", "file:line of the user's program"),
    ),
)
GAPS = "gaps and rounding"
RESULTS = "results that reuse no argument"
UNTOLD = "temporaries, contents not recorded"
WHY_UNTOLD = (
    "the profile tells no life of a temporary buffer, as of an executable that came from a "
    "compilation cache"
)
TO_TELL = "capture once with JAX_ENABLE_COMPILATION_CACHE=false, or with an empty cache"
ARGUMENTS = "arguments not told apart"
_STAYING = (WEIGHTS, OPTIMIZER, INPUTS, ARGUMENTS, RESULTS)
"""Contents that are no temporaries."""


@dataclass(frozen=True)
class Peak:
    """`AT_PEAK` of one program; its heaps, the largest first; the op that runs at the peak."""

    module: int
    rows: Table
    heaps: tuple[Heap, ...]
    op: str
    total_bytes: int

    @property
    def table(self) -> pd.DataFrame:
        """The rows as a frame."""
        return self.rows.pandas()

    @property
    def is_untold(self) -> bool:
        """Whether it has temporaries of which nothing is known but their size."""
        return is_untold(self.rows)

    @property
    def staying_bytes(self) -> int:
        """What is there throughout: all of the peak but the largest heap's own buffers.

        What lies in another heap counts as the compiler allocates it, for the whole program.
        """
        return self.total_bytes - int(self.heaps[0].live_bytes.max() if self.heaps else 0)


@once
def peak_of(trace: Trace, module: int) -> Peak | None:
    """The peak of a program; None where the profile keeps no account of its buffers."""
    modules, buffers = trace.table("modules"), trace.table("buffers")
    rows, held = modules[modules["module"] == module], buffers[buffers["module"] == module]
    if not len(rows) or not len(held) or rows["argument_bytes"][0] < 0:
        return None
    if module not in programs_of(trace):  # its instructions are damaged, its buffers are not
        return None
    stated, buffers = rows[:1].dicts()[0], on_device(held)
    heaps = tuple(heaps_of(buffers))
    op = _op_at(heaps[0], programs_of(trace)[module].ops) if heaps else ""
    contents = Contents(trace, module, op)
    live = [described(contents, row) for heap in heaps for row in heap.at_peak.dicts()]
    arguments = buffers[(buffers["kind"] == "parameter") & buffers["is_at_peak"]]
    inputs = [_argument(contents, row) for row in arguments.dicts()]
    rest = {
        RESULTS: int(stated["output_bytes"]) - int(stated["alias_bytes"]),
        GAPS if heaps else UNTOLD: int(stated["temp_bytes"])
        - sum(int(str(row["size_bytes"])) for row in live),
        ARGUMENTS: int(stated["argument_bytes"])
        - sum(int(str(row["size_bytes"])) for row in inputs),
    }
    more = [_plain(content, size) for content, size in rest.items() if size]
    table = AT_PEAK.table([*inputs, *live, *more])
    total = int(table["size_bytes"].sum())
    return Peak(module, table, heaps, op, total)


def is_untold(table: Given) -> bool:
    """Whether `AT_PEAK` has temporaries of which nothing is known but their size."""
    return bool((table["content"] == UNTOLD).any())


@dataclass(frozen=True)
class HostMemory:
    """Bytes that a program holds in the host's memory for one device."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int

    @property
    def total_bytes(self) -> int:
        """What one execution holds there; a result that reuses an argument counts once."""
        return self.argument_bytes + self.output_bytes + self.temp_bytes - self.alias_bytes


def on_host(trace: Trace, module: int) -> HostMemory | None:
    """What a program keeps in the host's memory; None where that is not known."""
    modules = trace.table("modules")
    rows = modules[modules["module"] == module]
    names = [field.name for field in fields(HostMemory)]
    sizes = [int(rows[f"host_{name}"][0]) for name in names] if len(rows) else [-1]
    return HostMemory(*sizes) if min(sizes) >= 0 else None


def _op_at(heap: Heap, known: Mapping[str, Op]) -> str:
    """The known op that writes the largest of the buffers which fill the heap to its peak."""
    there = heap.at_peak[isin(heap.at_peak["op"], known)]
    if not len(there):
        return ""
    born = there[there["live_from"] == there["live_from"].max()]
    return str(born["op"][born["size_bytes"].argmax()])


def described(contents: Contents, row: Mapping[str, Any]) -> dict[str, object]:
    """A temporary buffer, a row of `BUFFERS`, as a row of `AT_PEAK`."""
    name, index = row["op"], row["shape_index"]
    shape = shape_of(contents.program.ops.get(name), index)
    label = contents.classes.get(name, {})
    return {
        "content": contents.of_temporary(name, shape),
        "component": label.get("component", ""),
        "layer_kind": label.get("layer_kind", ""),
        "phase": label.get("phase", ""),
        "op": name,
        "shape": shape,
        "size_bytes": row["size_bytes"],
        "source": label.get("source", ""),
    }


def _argument(contents: Contents, row: Mapping[str, Any]) -> dict[str, object]:
    name = row["op"]
    op = contents.program.ops.get(name)
    known = _plain(contents.of_argument(name), row["size_bytes"])
    return {**known, "op": op.op_name if op and op.op_name else name, "shape": shape_of(op, "")}


def _plain(content: str, size_bytes: int) -> dict[str, object]:
    texts = dict.fromkeys(("component", "layer_kind", "phase", "op", "shape", "source"), "")
    return {**texts, "content": content, "size_bytes": size_bytes}


def grouped(table: Given, keys: Sequence[str]) -> Table:
    """`AT_PEAK` summed by `keys`: bytes, how many buffers, and the largest of them."""
    ordered = Table.of(table).sorted("size_bytes", falling=["size_bytes"])
    groups = grouping.grouped(ordered, *keys, is_sorted=False)
    first = ordered[groups.first]
    sums = first.select(*keys).assign(
        bytes=groups.sum(ordered["size_bytes"]),
        buffers=groups.size,
        largest_bytes=first["size_bytes"],
        largest_op=first["op"],
        largest_shape=first["shape"],
        source=first["source"],
    )
    return sums.sorted("bytes", falling=["bytes"])


BUFFER_CHANGES = Schema(
    "buffer_changes",
    (
        Column("content", "text", "", "kind of tensor"),
        Column("component", "text", "", "part of the step that writes it; empty for arguments"),
        Column("shape", "text", "", "as dtype[dims]"),
        Column("change_bytes", "int64", "bytes", "at the peak of new less that of base"),
        Column("base_buffers", "int64", "count", "of this kind at the peak of base"),
        Column("new_buffers", "int64", "count", "of this kind at the peak of new"),
        Column("op", "text", "", "largest of them in new, else in base"),
        Column("source", "text", "", "its file:line"),
    ),
)
_KEYS = ["content", "component", "shape"]
_NO_COMPONENT = ""


def memory_difference(base: Trace, new: Trace, *, by_component: bool = True) -> pd.DataFrame:
    """`BUFFER_CHANGES` of the step's programs, what grew most first; empty where one is unknown.

    Of a compiler's dump it is the program that needs most memory. The rows sum to the change of
    the programs' peaks. Where the parts of the two have names of different rules they are matched
    without ``by_component``, and none is told.
    """
    before, after = (peak_of(trace, main_module(trace)) for trace in (base, new))
    if before is None or after is None:
        return BUFFER_CHANGES.frame()
    if by_component:
        return difference_of_peaks(before.table, after.table)
    return difference_of_peaks(*(p.table.assign(component=_NO_COMPONENT) for p in (before, after)))


def difference_of_peaks(base: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """`BUFFER_CHANGES` between two tables `AT_PEAK`, what grew most first.

    Where one does not tell its temporaries, those of the other are one row too: a buffer that one
    side does not name has not come or gone.
    """
    if is_untold(base) or is_untold(new):
        base, new = _without_contents(base), _without_contents(new)
    before, after = (grouped(table, _KEYS).pandas() for table in (base, new))
    joint = before.merge(after, how="outer", on=_KEYS, suffixes=("_base", "_new"))
    counts = {side: joint[f"buffers_{side}"].fillna(0).astype("int64") for side in ("base", "new")}
    sizes = {side: joint[f"bytes_{side}"].fillna(0).astype("int64") for side in ("base", "new")}
    texts = {
        name: joint[f"{name}_new"].fillna(joint[f"{name}_base"]).fillna("")
        for name in ("largest_op", "source")
    }
    table = joint[_KEYS].assign(
        change_bytes=sizes["new"] - sizes["base"],
        base_buffers=counts["base"],
        new_buffers=counts["new"],
        op=texts["largest_op"],
        source=texts["source"],
    )
    changed = table[table["change_bytes"].ne(0) | counts["base"].ne(counts["new"])]
    ordered = changed.sort_values(["change_bytes", *_KEYS], ascending=[False, True, True, True])
    return BUFFER_CHANGES.frame({name: ordered[name] for name in BUFFER_CHANGES.names})


def _without_contents(table: pd.DataFrame) -> pd.DataFrame:
    """`AT_PEAK` with its temporaries as one row, `UNTOLD`; none where it has none."""
    import pandas as pd

    stays = table["content"].isin(_STAYING)
    size = int(table["size_bytes"][~stays].sum())
    told = table[stays]
    return pd.concat([told, AT_PEAK.frame([_plain(UNTOLD, size)])]) if size else told


def untold_on(base: Trace, new: Trace) -> str:
    """Why contents at the peak are not compared, and what to do; empty where they are."""
    peaks = {
        side: peak_of(trace, main_module(trace)) for side, trace in (("base", base), ("new", new))
    }
    which = [side for side, peak in peaks.items() if peak is not None and peak.is_untold]
    if not which or None in peaks.values():
        return ""
    return (
        "what lies in temporary memory is not compared, only its size: of "
        f"{' and '.join(which)} {WHY_UNTOLD}; {TO_TELL}"
    )


def step_module(trace: Trace) -> int:
    """The program that most used steps run, of several the one with the most work; -1 for none."""
    steps, modules = trace.table("steps"), trace.table("modules")
    ran = steps["module"][steps["used"] & (steps["module"] != -1)]
    known = modules[isin(modules["module"], ran)]
    if not len(known):
        return -1
    counts = (known["module"][:, None] == ran[None, :]).sum(axis=1)
    order = ("steps", "device_ns")
    return int(known.assign(steps=counts).sorted(*order, falling=order)["module"][0])


def main_module(trace: Trace) -> int:
    """`step_module`; of a dump, where nothing ran, the program that needs most memory.

    Of programs that need the same, the one with most instructions; -1 for none.
    """
    known = trace.table("modules")
    if trace.meta.hosts or not len(known):
        return step_module(trace)
    needs = known["argument_bytes"] + known["output_bytes"] + known["temp_bytes"]
    needs = needs - np.maximum(known["alias_bytes"], 0)
    order = ("needs", "instructions")
    return int(known.assign(needs=needs).sorted(*order, falling=order)["module"][0])
