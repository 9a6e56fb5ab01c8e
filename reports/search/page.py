"""Question: what stands where on the page of a search for plans, one HTML file on its own?"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from moeprof.answers.bars import Figure, Json, plotly_text
from moeprof.projector.framework import BORDERLINE
from moeprof.reports.memory.words import MARKS, THEN, gib
from moeprof.reports.parts.templating import rendered, write
from moeprof.reports.parts.views import Cell, Column, TableView, cell
from moeprof.reports.search import words
from moeprof.reports.search.document import (
    EffectInfo,
    PlanInfo,
    SearchDocument,
    is_refuted,
    to_json,
)
from moeprof.units import format_ns, format_percent

_KINDS = {"fits": "ok", "borderline": "warn"}
_FIT, _BORDERLINE, _REFUTED, _SUREST = "#0a6fb5", "#b7770d", "#c0392b", "#1b7447"


_Made: TypeAlias = tuple[Column, Callable[[PlanInfo], Cell]]
"""A column, and how a plan's cell of it is made."""


@dataclass(frozen=True)
class SearchView:
    """The page, top to bottom."""

    title: str
    facts: str
    said: tuple[str, ...]
    verdict: str
    verdict_kind: str
    lines: tuple[str, ...]
    plans: TableView | None
    order: str
    figure: Figure | None
    compiled: TableView | None
    compiler: str
    counts: str
    rejected: TableView | None
    effects: TableView | None
    effects_band: str
    parts: TableView | None
    notes: tuple[str, ...]
    next_command: str
    command: str


def write_page(document: SearchDocument, out: Path) -> None:
    """Write the page to `out`.

    Raises:
        MoeprofError: `out` cannot be written.
    """
    write(render(document), out, "--html")


def render(document: SearchDocument) -> str:
    """The page as text: UTF-8 safe, no reference to the network."""
    return rendered("search.html", [to_json(document)], page=search_view(document))


def search_view(document: SearchDocument) -> SearchView:
    """All that the template shows."""
    plans = document["plans"]
    best = plans[0] if plans else None
    kind = "fail"
    if best is not None:
        kind = "fail" if is_refuted(best) else _KINDS.get(best["verdict"], "warn")
    lines: tuple[str, ...] = ()
    band = ""
    if best is not None:
        lines = (words.time_line(best), words.order_line(document), words.surest_line(document))
        band = words.band_text(best["seconds_range"], best["seconds"])
    compiled = words.compiled_lines(document)
    return SearchView(
        title=f"Which plan: {words.model_name(document)}",
        facts=words.facts(document),
        said=tuple(document["said"]),
        verdict=words.best_line(document),
        verdict_kind=kind,
        lines=tuple(line for line in lines if line),
        plans=_plans(plans) if plans else None,
        order=words.ORDERS[document["order"]],
        figure=_figure(document) if plans else None,
        compiled=_compiled(plans) if compiled else None,
        compiler=compiled[0] if compiled else "",
        counts=words.counts_line(document),
        rejected=_rejected(document) if document["rejected"] else None,
        effects=_effects(document["what_if"]) if document["what_if"] else None,
        effects_band=band,
        parts=_parts(best) if best else None,
        notes=tuple(document["notes"]),
        next_command=words.next_command(document) if plans else "",
        command=shlex.join(
            ["moeprof", "memory", "search", *document["arguments"], "--html", "search.html"]
        ),
    )


def _plans(plans: list[PlanInfo]) -> TableView:
    """One row per plan; what is the same of all, or was not asked, has no column."""
    cells: dict[str, _Made] = {
        "remat": (Column("remat", "what the backward pass recomputes", False), _remat),
        "compiled": (Column("compiled", "verdict of XLA's compiler, of the best", False), _verdict),
    }
    columns: list[_Made] = [
        (Column("rank", "place in the order", True), lambda plan: cell(plan["rank"])),
        (Column("plan", "degrees above 1", False), _degrees),
        (Column("strategy", "how tokens reach experts", False), lambda p: cell(p["strategy"])),
        cells["remat"],
        (Column("pdbs", "sequences of a device; 3×4: 3 in each of 4 microbatches", True), _batch),
        (Column("free", "what stays of the pool: ✓ fits, ~ borderline", True), _free),
        cells["compiled"],
        (Column("tokens/s", "per device, estimated", True), _speed),
        (Column("likely", "tokens/s per device, by the band of the estimate", True), _speed_range),
        (Column("step", "estimated", True), _step),
        (Column("likely step", "by the band of the estimate", True), _step_range),
        (Column("likely MFU", "model FLOP utilisation, by the band of the estimate", True), _mfu),
    ]
    if len({plan["remat"] for plan in plans}) == 1:
        columns.remove(cells["remat"])
    if not any("compiled" in plan for plan in plans):
        columns.remove(cells["compiled"])
    rows = tuple(tuple(made(plan) for _, made in columns) for plan in plans)
    return TableView("plans-table", "Plans", tuple(column for column, _ in columns), rows)


def _degrees(plan: PlanInfo) -> Cell:
    return Cell(words.plan_text(plan), words.plan_text(plan))


def _remat(plan: PlanInfo) -> Cell:
    return cell(plan["remat"])


def _batch(plan: PlanInfo) -> Cell:
    return Cell(words.batch(plan), plan["pdbs"] * plan["microbatches"])


def _free(plan: PlanInfo) -> Cell:
    size = gib(plan["margin"] * plan["pool_bytes"])
    text = f"{MARKS[plan['verdict']]} {format_percent(plan['margin'])}, {size} GiB"
    return Cell(text, plan["margin"])


def _verdict(plan: PlanInfo) -> Cell:
    if "compiled" not in plan:
        return cell("")
    verdict = plan["compiled"]["verdict"]
    return cell(f"{MARKS[verdict]} {verdict}")


def _speed(plan: PlanInfo) -> Cell:
    return Cell(words.speed(plan), plan["tokens_per_s_per_device"])


def _speed_range(plan: PlanInfo) -> Cell:
    return Cell(
        words.speed_range(plan).replace(" to ", "–"), plan["tokens_per_s_per_device_range"][0]
    )


def _step(plan: PlanInfo) -> Cell:
    return Cell(format_ns(plan["seconds"] * 1e9), plan["seconds"])


def _step_range(plan: PlanInfo) -> Cell:
    low, high = plan["seconds_range"]
    return Cell(f"{low:,.4g}–{high:,.4g} s", high)


def _mfu(plan: PlanInfo) -> Cell:
    low, high = plan["mfu_range"]
    return Cell(f"{100 * low:.1f}–{100 * high:.1f} %", low)


def _compiled(plans: list[PlanInfo]) -> TableView:
    """Closed form beside the compiler, for the plans that it laid out."""
    columns = (
        Column("rank", "place in the order now", True),
        Column("before", "place by the closed form", True),
        Column("plan", "degrees above 1", False),
        Column("pool", "what XLA may take of the device, GiB", True),
        Column("closed form", "arguments and arena, GiB", True),
        Column("compiled", "the least and the most, whatever kernels a run chooses", True),
        Column("verdict", "of the compiler's", False),
        Column("notes", "what the compiler's plan leaves open", False),
    )
    rows = []
    for plan in sorted(plans, key=lambda plan: plan["closed_form_rank"] or 0):
        if "compiled" not in plan:
            continue
        check = plan["compiled"]
        ours = plan["args_bytes"] + plan["temp_bytes"]
        ends = check["peak_range_bytes"]
        rows.append(
            (
                cell(plan["rank"]),
                cell(plan["closed_form_rank"]),
                Cell(words.plan_text(plan), words.plan_text(plan)),
                Cell(gib(plan["pool_bytes"]), plan["pool_bytes"]),
                Cell(gib(ours), ours),
                Cell(words.compiled_size(plan) or "not known", ends[1] if ends else None),
                cell(f"{MARKS[check['verdict']]} {check['verdict']}"),
                Cell("; ".join(check["notes"]), "; ".join(check["notes"])),
            )
        )
    return TableView("compiled-table", "The compiler's plans", columns, tuple(rows))


def _rejected(document: SearchDocument) -> TableView:
    columns = (
        Column("plans", "how many", True),
        Column("why", "the first reason that rules a plan out", False),
    )
    reasons = sorted(document["rejected"], key=lambda one: -one["plans"])
    rows = tuple(
        (Cell(f"{one['plans']:,}", one["plans"]), cell(words.verb(one))) for one in reasons
    )
    return TableView("rejected-table", "Why the others do not fit", columns, rows)


def _effects(effects: list[EffectInfo]) -> TableView:
    columns = (
        Column("change", "alone; where the plan has it, what it saves", False),
        Column("step", "milliseconds of as many tokens, estimated; − is saved", True),
        Column("likely step", "the band of the estimate", True),
        Column("memory", "of one device; − is saved", True),
        Column("then", "verdict with that change alone", False),
        Column("price", "what it costs", False),
    )
    return TableView("effects-table", "What if", columns, tuple(map(_effect, effects)))


def _effect(effect: EffectInfo) -> tuple[Cell, ...]:
    ends = sorted(-1000 * end for end in effect["saved_s_range"])
    saved = effect["saved_bytes"]
    return (
        cell(effect["optimisation"]),
        Cell(f"{words.signed(-1000 * effect['saved_s'], 0)} ms", -effect["saved_s"]),
        Cell(f"{words.signed(ends[0], 0)} to {words.signed(ends[1], 0)} ms", ends[0]),
        Cell(words.effect_memory(effect), None if saved is None else -saved),
        cell("the plan has it" if effect["is_used"] else THEN[effect["verdict"]]),
        Cell(effect["price"], effect["price"]),
    )


def _parts(plan: PlanInfo) -> TableView:
    """What a step of a plan takes, part by part."""
    columns = (
        Column("part", "of a step on the slowest stage", False),
        Column("time", "estimated, hidden behind nothing", True),
        Column("share", "of the step", True),
        Column("hidden", "what runs beside other work", True),
        Column("confidence", "of the rates", False),
        Column("formula", "how it is computed", False),
        Column("source", "where its rates are from", False),
    )
    rows = tuple(
        (
            cell(row["name"]),
            Cell(format_ns(row["seconds"] * 1e9), row["seconds"]),
            Cell(
                format_percent(row["seconds"] / plan["seconds"]),
                row["seconds"] / plan["seconds"],
                None,
                row["seconds"] / plan["seconds"],
            ),
            Cell(format_ns(row["hidden_s"] * 1e9) if row["hidden_s"] else "", row["hidden_s"]),
            cell(row["confidence"]),
            Cell(row["formula"], row["formula"]),
            Cell(row["source"], row["source"]),
        )
        for row in sorted(plan["time"], key=lambda row: -row["seconds"])
    )
    return TableView("parts-table", f"Step of {words.whole_plan(plan)}", columns, rows)


def _figure(document: SearchDocument) -> Figure:
    """A point per plan: what stays free over the estimated speed, with its band."""
    plans, surest = document["plans"], document["surest"]
    held = [plan for plan in plans if not is_refuted(plan)]
    kinds = (
        ("fits", _FIT, [plan for plan in held if plan["verdict"] == "fits"]),
        ("borderline", _BORDERLINE, [plan for plan in held if plan["verdict"] != "fits"]),
        ("out of memory by the compiler", _REFUTED, [p for p in plans if is_refuted(p)]),
        ("surest", _SUREST, [] if surest is None else [surest]),
    )
    shown = [(name, colour, found) for name, colour, found in kinds if found]
    margins = [100 * plan["margin"] for _, _, found in shown for plan in found]
    limit = 100 * BORDERLINE
    line: dict[str, Json] = {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": limit, "y1": limit,
        "line": {"color": _REFUTED, "width": 1.5, "dash": "dash"},
    }  # fmt: skip
    layout: dict[str, Json] = {
        "height": 420,
        "showlegend": len(shown) > 1,
        "legend": {"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"},
        "margin": {"l": 56, "r": 16, "t": 36 if len(shown) > 1 else 12, "b": 48},
        "xaxis": {"title": {"text": "tokens/s per device, estimated"}, "rangemode": "tozero"},
        "yaxis": {
            "title": {"text": "% of the pool free"},
            "range": [min(limit, *margins) - 1, max(limit, *margins) + 1],
        },
        "shapes": [line],
    }
    return {"data": [_points(*kind) for kind in shown], "layout": layout}


def _points(name: str, colour: str, plans: list[PlanInfo]) -> Json:
    speeds = [plan["tokens_per_s_per_device"] for plan in plans]
    ranges = [plan["tokens_per_s_per_device_range"] for plan in plans]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": name,
        "x": speeds,
        "y": [100 * plan["margin"] for plan in plans],
        "text": [str(plan["rank"] or "") for plan in plans],
        "textposition": "top center",
        "customdata": [
            plotly_text(
                f"{plan['rank'] or name}. {plan['strategy']}, {words.compact(plan)}, "
                f"pdbs {words.batch(plan)}",
                80,
            )
            + f"<br>{words.speed(plan)} tokens/s, likely {words.speed_range(plan)}"
            + f"<br>{gib(plan['margin'] * plan['pool_bytes'])} GiB free"
            for plan in plans
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {"color": colour, "size": 10},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [high - speed for speed, (_, high) in zip(speeds, ranges, strict=True)],
            "arrayminus": [speed - low for speed, (low, _) in zip(speeds, ranges, strict=True)],
            "color": colour,
            "thickness": 1.2,
            "width": 4,
        },
    }
