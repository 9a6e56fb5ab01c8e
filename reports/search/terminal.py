"""Question: how does a search for plans read on a terminal?

The best plan in a sentence first, then the table, then why other plans were ruled out, then what to
do. Drawn from the document alone.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from typing import cast

from rich.text import Text

from moeprof.answers.values import printable
from moeprof.reports.memory.words import MARKS
from moeprof.reports.search import words
from moeprof.reports.search.document import EffectInfo, PlanInfo, SearchDocument
from moeprof.units import format_percent

WIDTH = 80


def drawn(document: SearchDocument, width: int = WIDTH) -> Text:
    """The whole answer in lines of at most `width` columns, 80 at most."""
    width = min(width, WIDTH)
    blocks = [
        _heading(document, width),
        _best(document, width),
        _table(document, width),
        _compiled(document, width),
        Text("\n").join(_wrapped(words.counts_line(document), width)),
        _what_if(document, width),
        _next(document, width),
    ]
    return Text("\n\n").join(block for block in blocks if block.plain)


def _heading(document: SearchDocument, width: int) -> Text:
    lines = _wrapped(words.facts(document), width, style="bold")
    for said in document["said"]:
        lines += _wrapped(f" - {said}", width, indent="   ", style="dim")
    return Text("\n").join(lines)


def _best(document: SearchDocument, width: int) -> Text:
    lines = _wrapped(words.best_line(document), width, style="bold")
    if document["plans"]:
        best = document["plans"][0]
        for text in (
            f"{words.time_line(best)} {words.parts_line(best)}",
            words.order_line(document),
            words.surest_line(document),
        ):
            lines += _wrapped(text, width) if text else []
    return Text("\n").join(lines)


def _table(document: SearchDocument, width: int) -> Text:
    """One line per plan; the plan itself goes below where it does not fit beside the figures."""
    if not document["plans"]:
        return Text("")
    has_remats = len(cast("list[str]", document["inputs"]["remats"])) > 1
    rows = [_cells(plan) for plan in document["plans"]]
    heads = ("", "tokens/s", "likely", "free", "strategy", "pdbs")
    columns = zip(heads, *rows, strict=True)
    widths = [max(least, *map(len, each)) for least, each in zip(_LEAST, columns, strict=True)]
    lines = [Text(_line(heads, widths) + "plan", style="bold")]
    for plan, cells in zip(document["plans"], rows, strict=True):
        left = _line(cells, widths)
        text = words.compact(plan) + (f", {plan['remat']}" if has_remats else "")
        if len(text) <= width - len(left):
            lines.append(Text(left + text))
        else:
            lines.append(Text(left.rstrip()))
            lines += _wrapped(text, width, indent=" " * 6, first=" " * 4)
    legend = (
        f" tokens/s per device: {'' if _ranks(document) else 'unranked '}estimates, and what "
        "they likely are. free: of the pool; ✓ fits, ~ borderline by the error of the account. "
        f"pdbs 3×4: 3 in each of 4 microbatches. {words.ORDERS[document['order']]}"
    )
    if has_remats:
        legend += " After the plan: remat."
    lines += _wrapped(legend, width, indent=" ", style="dim")
    return Text("\n").join(lines)


def _ranks(document: SearchDocument) -> bool:
    return document["order"] == "time"


_LEAST = (2, 8, 11, 8, 8, 5)
"""Columns of each cell at least, so that most answers are drawn alike."""


def _cells(plan: PlanInfo) -> tuple[str, ...]:
    return (
        str(plan["rank"]),
        words.speed(plan),
        words.speed_range(plan).replace(" to ", "–"),
        f"{MARKS[plan['verdict']]} {format_percent(plan['margin'])}",
        plan["strategy"],
        words.batch(plan),
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    rank, speed, likely, free, strategy, batch = (
        f"{cell:<{width}}" if place == 4 else f"{cell:>{width}}"
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"{rank} {speed} {likely} {free}  {strategy} {batch}  "


def _compiled(document: SearchDocument, width: int) -> Text:
    lines = words.compiled_lines(document)
    wrapped = _wrapped(lines[0], width, style="bold") if lines else []
    for text in lines[1:]:
        wrapped += _wrapped(f" {text}", width, indent="    ")
    return Text("\n").join(wrapped)


def _what_if(document: SearchDocument, width: int) -> Text:
    effects = document["what_if"]
    if not effects:
        return Text("")
    lines = [Text("What each optimisation would change of the best plan", style="bold")]
    for effect in effects:
        lines += _effect_lines(effect, width)
    best = document["plans"][0]
    lines += _wrapped(
        " Per step, or as many tokens; − is saved. Milliseconds are of the estimate: likely "
        f"{words.band_text(best['seconds_range'], best['seconds'])} times as many. ✓ then fits, "
        "~ then borderline, ✗ then out of memory; has: the plan has it, and this is what it saves.",
        width,
        indent=" ",
        style="dim",
    )
    return Text("\n").join(lines)


def _effect_lines(effect: EffectInfo, width: int) -> list[Text]:
    milliseconds = words.signed(-1000 * effect["saved_s"], 0)
    memory, then = words.effect_memory(effect), words.effect_then(effect)
    left = f" {milliseconds:>10} ms {memory:>12}  {then:<4} "
    price = f" ({effect['price']})" if effect["price"] else ""
    return _wrapped(effect["optimisation"] + price, width, first=left, indent=" " * len(left))


def _next(document: SearchDocument, width: int) -> Text:
    if not document["plans"]:
        return Text("\n").join(
            _wrapped("Next: more --devices, another --strategy, or --remat full.", width)
        )
    lines = [Text("Next: the account of the best plan")]
    options: list[str] = []
    for word in map(shlex.quote, shlex.split(words.next_command(document))):
        is_value = options and options[-1].startswith("--") and " " not in options[-1]
        if is_value and not word.startswith("--"):
            options[-1] += f" {word}"
        else:
            options.append(word)
    parts = [""]
    for option in options:
        longer = f"{parts[-1]} {option}".strip()
        if parts[-1] and len(longer) > width - 6:
            parts.append(option)
        else:
            parts[-1] = longer
    return Text("\n").join([*lines, Text("  " + " \\\n    ".join(parts))])


def _wrapped(
    text: str, width: int, *, first: str = "", indent: str = "", style: str = ""
) -> list[Text]:
    lines = textwrap.wrap(
        printable(text).replace(" %", "\u00a0%"),
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
        drop_whitespace=True,
    )
    return [Text(line.replace("\u00a0", " "), style=style) for line in lines]
