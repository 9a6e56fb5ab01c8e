"""Question: which known patterns make this run slow or large, and what would changing them gain?

Returns: one row per pattern that the trace shows, the largest gain of time first; then those that
         save memory alone, the most first; then those whose gain is not known.

Gains are the most that a change can save: what a pattern costs may be hidden under other work, and
what replaces it takes time too. They overlap, and must not be added up. Those of ops are of the
time in which one of the ops runs (`analyzers.gain`), and none is more than the step.
"""

from __future__ import annotations

from moeprof.analyzers.activity.account import mean_interval_ns
from moeprof.analyzers.question import Group, Hint, Pattern, Question
from moeprof.analyzers.registry import all_patterns
from moeprof.analyzers.window import PER_STEP, window
from moeprof.answers.document import Document, headline
from moeprof.answers.values import written
from moeprof.errors import NotByHostError
from moeprof.tables.analysis import Analysis, Metric
from moeprof.tables.law import Need
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_ns

SCHEMA = Schema(
    "hints",
    (
        Column("hint", "text", "", "name of the pattern"),
        Column("gain_ns", "float64", "ns", f"most that the change saves, {PER_STEP}", "saves"),
        Column(
            "gain_share",
            "float64",
            "share",
            "that of the mean interval, of the mean used step where no interval is known",
            "of step",
        ),
        Column("gain_bytes", "float64", "bytes", "most that it saves on one device", "memory"),
        Column("evidence", "text", "", "what shows it in this trace"),
        Column("change", "text", "", "what to change"),
        Column("look", "text", "", "finding with the details"),
        Column("source", "text", "", "where the limit behind it is documented; empty if nowhere"),
    ),
)
ASKS = "What should be changed, and what would it gain at most?"
WORTH_IT = 0.005
"""A pattern that costs less than this share of a step, and no memory, is passed over."""


def hints(trace: Trace) -> Analysis:
    """All known patterns that the trace shows."""
    step_ns = _step_ns(trace)
    shown, left_out = _shown(trace)
    found = [(each, hint) for each, hint in shown if _is_worth_it(hint, step_ns)]
    found.sort(key=lambda pair: _order(*pair))
    table = SCHEMA.table([_row(each.name, hint, step_ns) for each, hint in found])
    most = max((gain for gain in table["gain_ns"].tolist() if gain == gain), default=None)
    headline = (
        Metric("hints", len(found), "count"),
        Metric("largest_gain", most, "ns"),
    )
    whole = "used step" if mean_interval_ns(trace) is None else "interval from step to step"
    basis = f"shares are of the mean {whole}, {format_ns(step_ns)}"
    has_shares = bool((table["gain_share"] == table["gain_share"]).any())
    notes = (
        f"looked for: {', '.join(p.name for p in all_patterns() if p.name not in left_out)}",
        *([f"not looked for: {', '.join(left_out)}: {_WHY_LEFT_OUT}"] if left_out else []),
        *([basis] if has_shares else []),
        *window(trace).notes,
    )
    return Analysis("hints", ASKS, headline, window(trace).stated(SCHEMA), table, notes)


_WHY_LEFT_OUT = "the run was read host by host, and these look at all hosts' work at once"


def _shown(trace: Trace) -> tuple[list[tuple[Pattern, Hint]], list[str]]:
    """The patterns that show, and the names of those that a run read host by host cannot tell."""
    shown, left_out = [], []
    for each in all_patterns():
        try:
            hint = each.find(trace)
        except NotByHostError:
            left_out.append(each.name)
            continue
        if hint is not None:
            shown.append((each, hint))
    return shown, left_out


def _order(pattern: Pattern, hint: Hint) -> tuple[bool, float, float]:
    """A run that hangs is first.

    About equal gains of time, as one cause makes two patterns, stand in the patterns' order."""
    is_memory_alone = not hint.gain_ns and hint.gain_bytes
    gain_ns = float(f"{hint.gain_ns or 0.0:.1e}")
    return not pattern.comes_first, -gain_ns, -float(is_memory_alone or 0)


def _step_ns(trace: Trace) -> float:
    """Mean interval; mean length of the used steps where none is known, NaN without a step."""
    interval_ns = mean_interval_ns(trace)
    if interval_ns is not None:
        return interval_ns
    steps = trace.table("steps")
    used_ns = steps["duration_ns"][steps["used"]]
    return float(used_ns.mean()) if len(used_ns) else float("nan")


def _is_worth_it(hint: Hint, step_ns: float) -> bool:
    is_small = hint.gain_ns is not None and hint.gain_ns < WORTH_IT * step_ns
    return hint.gain_bytes is not None or not is_small


def _row(name: str, hint: Hint, step_ns: float) -> dict[str, object]:
    gain_ns = float("nan") if hint.gain_ns is None else hint.gain_ns
    if gain_ns > step_ns:  # waits for one rank, in several collectives at once
        gain_ns = step_ns
    return {
        "hint": name,
        "gain_ns": gain_ns,
        "gain_share": gain_ns / step_ns if step_ns else float("nan"),
        "gain_bytes": float("nan") if hint.gain_bytes is None else float(hint.gain_bytes),
        "evidence": hint.evidence,
        "change": hint.change,
        "look": hint.look,
        "source": hint.source,
    }


def sentence(document: Document) -> str:
    """How many patterns were found, and the largest gain of time."""
    found = headline(document, "hints")
    count, largest = found.get("hints"), found.get("largest_gain")
    if not count:
        return "None of the patterns that were looked for shows in this trace."
    told = f"{written(count, 'count')} pattern{'' if count == 1 else 's'} found"
    return (
        f"{told}; the largest saves at most {written(largest, 'ns')} a step."
        if (largest is not None)
        else f"{told}; what they cost in time is not known."
    )


QUESTION = Question(
    title="What to do",
    group=Group.FINDINGS,
    place=1,
    asks=ASKS,
    needs=frozenset({Need.DEVICE_TIMES, Need.PIECE_TIMES, Need.DEVICE_CLOCKS}),
    schema=SCHEMA,
    run=hints,
    sentence=sentence,
    on_first_screen=("hints", "largest_gain"),
)
