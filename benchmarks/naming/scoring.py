"""How much of the op time of one program is named right, of a capture or a compiled program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from cost_model import costs
from op_flow import Graph
from op_truth import Truth, truths
from source_truth import NONE, SourceTruth

from moeprof.analyzers.attribution import attribute, classes_of, is_guess
from moeprof.analyzers.classify.components import GUESS
from moeprof.analyzers.window import window
from moeprof.ingest import open_run
from moeprof.ingest.dump import open_dump
from moeprof.tables.trace import Trace

BUCKETS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
_NOT_THERE = Truth(NONE, "none")


@dataclass(frozen=True)
class Score:
    """Shares of all op time, 0 to 1.

    ``ops`` has a row per instruction: weight, component, evidence, confidence (NaN where the
    classifier states none), right, by (rule of `op_truth`), want, line, op, op_name.
    """

    ops: pd.DataFrame

    def share(self, rows: pd.Series) -> float:
        """Part of all op time."""
        total = float(self.ops["weight"].sum())
        return float(self.ops["weight"][rows].sum()) / total if total else 0.0

    @property
    def right(self) -> float:
        """Named right."""
        return self.share(self.ops["right"])

    @property
    def guessed(self) -> float:
        """Stated with less confidence than `GUESS`; by a neighbour where none is stated."""
        stated = self.ops["confidence"]
        guess = stated.lt(GUESS) | (stated.isna() & self.ops["evidence"].eq("neighbour"))
        return self.share(guess & self.ops["component"].ne("unattributed"))

    @property
    def unattributed(self) -> float:
        """Not named."""
        return self.share(self.ops["component"].eq("unattributed"))

    @property
    def inherited(self) -> float:
        """Judged by what uses it or made its operands."""
        return self.share(self.ops["by"].eq("neighbour"))

    @property
    def untold(self) -> float:
        """Without any truth, so counted as wrong, copies apart."""
        return self.share(self.ops["by"].eq("none"))

    def row(self) -> dict[str, float]:
        """The shares by name, in percent."""
        names = ("right", "guessed", "unattributed", "inherited", "untold")
        return {name: round(100 * getattr(self, name), 2) for name in names}


def of_capture(path: Path, source: SourceTruth, *, least: bool = False) -> Score:
    """Score a profile: op time is self time in the used steps, all devices together.

    With `least` an op counts with the shortest of its steps: what a thread waits for a core of a
    busy machine is no op's time.
    """
    return of_trace(open_run(path), source, least=least)


def of_program(path: Path, source: SourceTruth) -> Score:
    """Score a compiled program by the cost model."""
    trace = open_dump(path)
    return _scored(trace, costs(trace), source)


def of_trace(trace: Trace, source: SourceTruth, *, least: bool = False) -> Score:
    """The same as `of_capture` of a trace that is open."""
    work = attribute(trace, window(trace).events).pandas()
    work = work.assign(op=work["op"].astype("str").where(~is_guess(work), ""))
    keys = ["module", "op", "component", "evidence", "host", "device"]
    by_step = work.groupby([*keys, "step"], observed=True)["self_ns"].sum().unstack()
    times = by_step.min(axis=1) if least else by_step.sum(axis=1)
    table = times.rename("weight").reset_index()
    table = table.astype({"op": "str", "component": "str", "evidence": "str"})
    return _scored(trace, table.groupby(keys[:4])["weight"].sum().reset_index(), source)


def _scored(trace: Trace, work: pd.DataFrame, source: SourceTruth) -> Score:
    """`work` has module, op, weight, and what work without a sure op is called.

    Such work is right where the device copied outside of any program; it has no truth else.
    """
    classes = classes_of(trace).pandas()
    stated = [name for name in ("component", "evidence", "confidence") if name in classes]
    work = work.merge(
        classes[["module", "op", *stated]], "left", ["module", "op"], suffixes=("_", "")
    )
    for name in ("component", "evidence"):
        if f"{name}_" in work:
            work[name] = work[name].fillna(work[f"{name}_"])
    known: dict[tuple[int, str], Truth] = {}
    for module, rows in trace.hlo_ops.groupby("module"):
        if module in set(work["module"]):
            found = truths(Graph(rows), source)
            known |= {(int(str(module)), name): truth for name, truth in found.items()}
    told = [
        known.get((int(module), str(op)), _NOT_THERE)
        for module, op in zip(work["module"], work["op"], strict=True)
    ]
    is_known = pd.Series([t is not _NOT_THERE for t in told], index=work.index)
    is_copied = ~is_known & work["component"].eq("copies")  # of a copy engine, outside of programs
    is_in = [c in t.components for c, t in zip(work["component"], told, strict=True)]
    table = work.assign(
        component=work["component"].fillna("unattributed"),
        confidence=work.get("confidence", pd.Series(float("nan"), index=work.index)),
        right=pd.Series(is_in, index=work.index) | is_copied,
        by=["copy" if copied else t.by for t, copied in zip(told, is_copied, strict=True)],
        want=["|".join(sorted(t.components)) for t in told],
    )
    table = table.merge(
        trace.hlo_ops[["module", "op", "op_name", "frames", "opcode", "shape"]], "left"
    )
    table["line"] = [source.line_of(str(frames)) for frames in table["frames"].fillna("")]
    return Score(table)


def calibration(scores: Sequence[Score]) -> dict[str, object]:
    """Time named right by stated confidence, each program with the same weight.

    Empty where the classifier states none.
    """
    parts = [s.ops.assign(weight=s.ops["weight"] / s.ops["weight"].sum()) for s in scores]
    ops = pd.concat(parts) if parts else pd.DataFrame(columns=["confidence"])
    ops = ops[ops["confidence"].notna()]
    if ops.empty:
        return {}
    total, p, is_right = ops["weight"].sum(), ops["confidence"], ops["right"].astype("float64")
    right = float((ops["weight"] * is_right).sum() / total)
    brier = float((ops["weight"] * (p - is_right) ** 2).sum() / total)
    places = pd.cut(p, list(BUCKETS), right=False).astype("str").where(p < 1.0, "1.0")
    buckets = []
    for name, rows in ops.groupby(places.to_numpy()):
        weight = rows["weight"].sum()
        buckets.append(
            {
                "stated": str(name),
                "mean": round(float((rows["weight"] * rows["confidence"]).sum() / weight), 4),
                "right": round(float(rows["weight"][rows["right"]].sum() / weight), 4),
                "share": round(float(weight / total), 4),
            }
        )
    sure = float(ops["weight"][p >= 0.9].sum() / total)
    return {
        "buckets": buckets,
        "brier": round(brier, 4),
        "brier_of_a_constant": round(right * (1 - right), 4),
        "share_at_least_0.9": round(sure, 4),
    }


def largest_wrong(score: Score, texts: Mapping[str, str], most: int = 12) -> list[str]:
    """The largest wrong entries: share, line, what it is called and what it is."""
    wrong = score.ops[~score.ops["right"] & score.ops["weight"].gt(0)]
    keys = ["line", "component", "want", "evidence", "opcode"]
    sums = wrong.fillna({"line": "", "opcode": ""}).groupby(keys)["weight"].sum().nlargest(most)
    total = score.ops["weight"].sum()
    return [
        f"{100 * weight / total:6.2f} %  {line or '(no line)'} {opcode}: called {called} "
        f"({evidence}), is {want or 'not told'}   {texts.get(line, '')}"
        for (line, called, want, evidence, opcode), weight in sums.items()
    ]
