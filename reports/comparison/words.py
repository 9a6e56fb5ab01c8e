"""Question: how are the figures of a comparison said in words, and what does a change come from?

What is shared by the text and the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from moeprof.analyzers.comparison.changes import COMPONENT, OP, TOTAL
from moeprof.analyzers.comparison.noise import BEYOND, WITHIN
from moeprof.answers import story
from moeprof.answers.document import Document
from moeprof.answers.values import number, printable, signed
from moeprof.reports.comparison.document import ComparisonDocument, GateInfo, Row, SideInfo
from moeprof.units import format_bytes, format_ns, format_percent

Side = Literal["base", "new"]
SIDES: tuple[Side, ...] = ("base", "new")
_PEAK = {"base": "base_bytes", "new": "new_bytes"}

WORTH_A_LINE = 0.001
"""Share of base's op time from which on a change is worth a line: of 500 ops 25 seem to be beyond a
95 % noise by chance, and what is less than this is no reason for a step to be slower."""
_MANY = 10
"""From this many times base on, percent say little."""
_NO_OPTIONS = ("XLA_FLAGS ", "mesh ", "version ")
"""What the names of settings begin with that no option of the script sets."""
BASIS = "times are per device and step; memory is what the compiler plans for the step's program"
_WORTH_NAMING = 0.2
"""Share of the largest part of a change from which on another part is named too."""


def sentence(name: str, row: Row) -> str:
    """``step 412.3 → 371.9 ms  (−9.8 %, noise ±0.4 %: beyond it)``."""
    times = from_to(format_ns, row["base_ns"], row["new_ns"])
    return f"{name} {times}  ({signed_share(row)}, {noise(row)})"


def noise(row: Row) -> str:
    """``noise ±0.4 %: beyond it``, as a share of base."""
    half_width, base = row["noise_ns"], row["base_ns"]
    if not isinstance(half_width, float) or not isinstance(base, float) or not base:
        return "noise not known"
    word = "beyond it" if row["verdict"] == BEYOND else "within it"
    share = half_width / base
    size = format_percent(share) if share < _MANY else format_ns(half_width)
    return f"noise ±{size}: {word}"


def step_row(document: ComparisonDocument) -> Row | None:
    """The change of the whole step; None where it is not known."""
    return next(iter(document["step"]["rows"]), None)


def token_row(document: ComparisonDocument) -> Row | None:
    """The change of the time per token where steps read other numbers of tokens; else None."""
    row = next(iter(document["token"]["rows"]), None)
    return None if row is None or row["base_tokens"] == row["new_tokens"] else row


def tokens_sentence(row: Row) -> str:
    """``tokens per step 2,048 → 4,096  (× 2)``: of a `token_row`."""
    base, new = (number(row[f"{side}_tokens"]) for side in SIDES)
    return f"tokens per step {base:,.0f} → {new:,.0f}  (× {new / base:.3g})"


def step_parts(document: ComparisonDocument) -> list[Row]:
    """The times that add up to the step, the largest change first; none that neither run has."""
    rows = [row for row in document["step"]["rows"][1:] if row["base_ns"] or row["new_ns"]]
    return sorted(rows, key=lambda row: (-abs(number(row["change_ns"])), str(row["part"])))


def total(document: ComparisonDocument) -> Row | None:
    """The change of all op time; None where ops are not compared."""
    return next((row for row in document["rows"]["rows"] if row["level"] == TOTAL), None)


def components(document: ComparisonDocument) -> list[Row]:
    """Changes of the parts of the model, the largest first."""
    return [row for row in document["rows"]["rows"] if row["level"] == COMPONENT]


def ops(document: ComparisonDocument) -> list[Row]:
    """Changes of single ops, the largest first."""
    return [row for row in document["rows"]["rows"] if row["level"] == OP]


def clear(rows: list[Row], whole: Row) -> list[Row]:
    """The changes that are not within the noise and large enough to matter to ``whole``."""
    return [row for row in rows if row["verdict"] != WITHIN and is_worth(row, whole)]


def is_worth(row: Row, whole: Row) -> bool:
    """Whether a change is large enough to be a reason for a change of ``whole``."""
    change = abs(number(row["change_ns"]))
    return change > 0 and change >= WORTH_A_LINE * number(whole["base_ns"])


def unset(row: Row) -> str:
    """What stands for a setting that a run has not; a file of the script may set an option."""
    is_option = not str(row["setting"]).startswith(_NO_OPTIONS)
    return "not on the command line" if is_option else "not set"


def buffers(document: ComparisonDocument) -> list[Row]:
    """What lies in memory at the peak of one run and not of the other, the largest first."""
    rows = [row for row in document["buffers"]["rows"] if row["change_bytes"]]
    return sorted(rows, key=lambda row: -abs(number(row["change_bytes"])))


def memory_sentence(document: ComparisonDocument) -> str:
    """The change of the memory peak, or that it is not known."""
    row = next(iter(document["memory"]["rows"]), None)
    if row is None:
        return f"memory peak is not known of {_sides(_withheld(document, ('memory',)))}"
    if row["change_bytes"] is None:
        return f"memory peak is not known of {_sides([s for s in SIDES if row[_PEAK[s]] is None])}"
    if row["change_bytes"] == 0:
        return f"memory peak {format_bytes(number(row['base_bytes']))}, unchanged"
    sizes = from_to(format_bytes, row["base_bytes"], row["new_bytes"])
    change = signed(number(row["change_bytes"]), format_bytes)
    return f"memory peak {sizes}  ({change}, {signed_share(row)})"


def platforms(document: ComparisonDocument) -> str:
    """``platform: gpu in base, cpu in new``, which weighs more than any change.

    Empty where they are alike, or one is not known.
    """
    base, new = (document[side]["run"]["platform"] for side in SIDES)
    if base == new or "unknown" in (base, new):
        return ""
    return f"platform: {printable(base)} in base, {printable(new)} in new"


def step_unknown(document: ComparisonDocument) -> str:
    """Of which run the step time is not known: ``step time is not known of base``."""
    without = [s for s in SIDES if not any(step["used"] for step in document[s]["steps"])]
    missing = {*without, *_withheld(document, ("step_time", "timeline"))}
    return f"step time is not known of {_sides([s for s in SIDES if s in missing])}"


def _withheld(document: ComparisonDocument, names: Sequence[str]) -> list[Side]:
    """The runs a failed check of which falsifies one of these analyses."""
    return [
        side
        for side in SIDES
        if any(set(check["withholds"]) & set(names) for check in document[side]["trust"])
    ]


def _sides(names: Sequence[Side]) -> str:
    """``base``, ``new``, or ``either run``; where no fault names one, one of them."""
    if len(names) == 1:
        return names[0]
    return "either run" if names else "one of the runs"


def gate_sentence(gate: GateInfo) -> str:
    """``+1.2 ms, allowed +0.5 ms (beyond noise)``, or why it is not known."""
    write = format_bytes if gate["unit"] == "bytes" else format_ns
    if gate["change"] is None or gate["allowed"] is None:
        return gate["remark"]
    told = f"{signed(gate['change'], write)}, allowed {signed(gate['allowed'], write)}"
    return told + (f" ({gate['remark']})" if gate["remark"] else "")


def buffer_kind(row: Row) -> str:
    """``working set, attention``."""
    content, component = printable(str(row["content"])), str(row["component"])
    return f"{content}, {story.label(component)}" if component else content


def as_document(side: SideInfo) -> Document:
    """A side as the document of a run that no question was put to."""
    return {"schema": "", **side, "analyses": {}, "drawings": {}}


def from_to(write: Callable[[float], str], base: object, new: object) -> str:
    """``412.3 → 371.9 ms``: the unit once where both have the same."""
    first, second = (write(number(value)) for value in (base, new))
    figure, _, unit = first.partition(" ")
    return f"{figure if second.endswith(f' {unit}') else first} → {second}"


def signed_share(row: Row) -> str:
    """The change as a share of base; ``× 114`` where it is a multiple of it."""
    share = row["change_share"]
    if share is None:
        return "nothing in base"
    if number(share) >= _MANY:
        return f"× {multiple(number(share))}"
    return signed(number(share), format_percent)


def multiple(share: float) -> str:
    """How many times base a figure is that is larger by `share` of it: ``12.5``, ``114,423``."""
    times = share + 1
    return f"{times:.3g}" if times < 100 else f"{times:,.0f}"


def reasons(row: Row, ops: Sequence[Row]) -> str:
    """The parts of a component's change that matter, the largest first, each with its time."""
    parts = {name: number(row[name]) for name in ("wait_change_ns", "per_call_change_ns")}
    parts["other_shapes"] = sum(
        number(op["per_call_change_ns"])
        for op in ops
        if op["component"] == row["component"] and _is_of_other_shape(op)
    )
    parts["per_call_change_ns"] -= parts["other_shapes"]
    parts["calls_change_ns"] = number(row["calls_change_ns"])
    parts["ops"] = number(row["only_base_ns"]) + number(row["only_new_ns"])
    largest = max(map(abs, parts.values()), default=0.0)
    named = sorted(parts.items(), key=lambda item: -abs(item[1]))
    told = [
        f"{_cause(name, change, row, ops)} {signed(change, format_ns)}"
        for name, change in named
        if change and abs(change) >= _WORTH_NAMING * largest
    ]
    return ", ".join(told)


def _cause(name: str, change: float, row: Row, ops: Sequence[Row]) -> str:
    if name == "wait_change_ns":
        return "waiting for other devices"
    if name in ("per_call_change_ns", "other_shapes"):
        which = "the same calls" if name == "per_call_change_ns" else "calls of other shapes"
        return f"{which} take {'longer' if change > 0 else 'less'}"
    if name == "calls_change_ns":
        return f"{_calls(row)}{_phase(row, ops, ('calls_change_ns',), change)}"
    if row["replaced"]:
        return f"{printable(str(row['replaced']))} (op changed)"
    side = "new" if number(row["only_new_ns"]) > -number(row["only_base_ns"]) else "base"
    columns = ("only_base_ns", "only_new_ns")
    return f"ops that only {side} has{_phase(row, ops, columns, change)}"


def _is_of_other_shape(op: Row) -> bool:
    """Whether the calls of an op differ in the shapes that they work on."""
    return "shape" in str(op["match"]) or " → " in str(op["shape"])


def _calls(row: Row) -> str:
    """``64 more calls``: of the component as a whole, per device and step."""
    more = number(row["new_calls"]) - number(row["base_calls"])
    if not more:
        return "other ops are called"
    return f"{abs(more):,.4g} {'more' if more > 0 else 'fewer'} calls"


def _phase(row: Row, ops: Sequence[Row], columns: Sequence[str], change: float) -> str:
    """The phase that most of a part is in, where one has nearly all of it."""
    sums: dict[str, float] = {}
    for op in ops:
        if op["component"] == row["component"]:
            phase = str(op["phase"])
            sums[phase] = sums.get(phase, 0.0) + sum(number(op[name]) for name in columns)
    found = max(sums, key=lambda phase: sums[phase] / change, default="other")
    is_most = found != "other" and sums[found] / change >= 1 - _WORTH_NAMING
    return f" in {found}" if is_most else ""
