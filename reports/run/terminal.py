"""Question: how does a document read on a terminal of 80 columns, and how do its hints?

Colour only repeats what the words say; without a terminal there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from moeprof.answers import story
from moeprof.answers.document import (
    Document,
    Drawing,
    Finding,
    Value,
    drawn_column,
    is_unrecorded,
    rows,
)
from moeprof.answers.names import printable, shortened
from moeprof.answers.story import described_interval_parts, described_outside, described_rate
from moeprof.reports.parts import phrases
from moeprof.reports.parts.terminal import drawn_grid, wrapped
from moeprof.reports.run import words
from moeprof.reports.run.sentences import described_metric, sentence, told_by_figures
from moeprof.units import format_bytes, format_ns, format_percent

WIDTH = 80
_BAR_WIDTH = 26
_LABEL_WIDTH = 22
_INDENT = 7
_FEW_ROWS = 12
_MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "red")}
_HINT_INDENT = 4
FEW = 3
"""Hints in an overview."""


@dataclass(frozen=True)
class Ways:
    """How a reader gets to another answer, to all rows of this one, and to those of a picture."""

    to_answer: str
    to_rows: str
    to_picture: str


ON_COMMAND_LINE = Ways("--only {}", "--only {}", "the page draws it, --json has every row")
IN_PYTHON = Ways(".{}()", ".table has all", ".table has every row")


def summary(document: Document) -> Text:
    """What is said after a capture: the overview, every note once, and the next command.

    ``.plain`` of the result is the text without colour.
    """
    notes = [
        note
        for name, finding in document["analyses"].items()
        if not phrases.withheld_by(document, name)
        for note in _untold(document, finding)
    ]
    next_command = _next(document, "analyze")
    return _joined([overview(document), _notes(list(dict.fromkeys(notes))), next_command])


def overview(document: Document, ways: Ways = ON_COMMAND_LINE) -> Text:
    """Run, trust, step, a bar per component, what to do; in lines of at most 80 columns."""
    hints = advice(document, WIDTH, FEW, ways)
    heading = Text("What to do, largest gain first\n", style="bold") if hints.plain else Text("")
    told = hints or _nothing(document, ways)
    return _joined([_heading(document), _bars(document), heading + told])


def _nothing(document: Document, ways: Ways) -> Text:
    """That no pattern shows, where they were looked for and could be found."""
    is_asked = "hints" in document["analyses"] and story.parts(document)
    if not is_asked or phrases.withheld_by(document, "hints"):
        return Text("")
    where = ways.to_answer.format("hints")
    return Text(f"No known pattern shows in this run; {where} says which were looked for")


def tables(
    document: Document, only: Sequence[str] = (), width: int = WIDTH, most: int | None = None
) -> Text:
    """Every finding with its table; all rows of those named in `only`, else the first 12.

    Tables take `width` columns, prose 80 at most. ``most`` is how many rows each of them has.
    """
    if is_unrecorded(document):
        return _lead(document)
    findings = [
        section(document, name, width, most or (None if name in only else _FEW_ROWS))
        for name in document["analyses"]
    ]
    pictures = [picture(drawing) for name, drawing in document["drawings"].items() if name in only]
    return _joined([*findings, *pictures, _next(document, "report")])


def _next(document: Document, verb: str) -> Text:
    """The next command; one that is too long for a line goes on behind a shell's backslash."""
    command = phrases.command(document, verb)
    if len(command) > WIDTH - _INDENT:
        begin = f"moeprof {verb} "
        command = f"{begin}\\\n{'':<{_INDENT + 2}}{command.removeprefix(begin)}"
    return Text.assemble((f"{'Next':<{_INDENT}}", "bold"), command)


def _lead(document: Document) -> Text:
    """What to do where nothing was recorded: read why memory ran out, or what the script said."""
    told = words.lead(document)
    return Text("\n").join([_entry("Next", told[0]), *(_entry("", word) for word in told[1:])])


def _joined(blocks: Sequence[Text]) -> Text:
    return Text("\n\n").join([block for block in blocks if block.plain])


def _heading(document: Document) -> Text:
    path = shortened(printable(document["run"]["path"]), WIDTH - _INDENT)
    lines = []
    if cut := phrases.is_cut(document):
        lines += _entries("Cut", printable(cut["detail"]), "yellow")
    lines += [_entry("Run", path), *_entries("", words.described_run(document))]
    for note in document["run"]["notes"]:
        lines += _entries("", printable(note))
    record = document["run"].get("record")
    if record and record["command"]:
        lines += _entries("", f"command: {printable(record['command'])}")
    for problem in words.problems(document):
        lines += _entries("", printable(problem), "yellow")
    lines += _entries("Trust", phrases.described_trust(document))
    for check in phrases.troubles(document):
        mark, colour = _MARKS[check["verdict"]]
        text = f"{mark.strip()} {printable(check['check'])}: {printable(check['detail'])}"
        lines += _entries("", text, colour)
    if not is_unrecorded(document):
        lines += _entries("Step", story.described_step(document))
        for tell in (described_rate, described_interval_parts, described_outside):
            text = tell(document)
            lines += _entries("", text) if text else []
    return Text("\n").join(lines)


def _entry(name: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"{name:<{_INDENT}}", "bold"), (text, style))


def _entries(name: str, text: str, style: str = "") -> list[Text]:
    """`text` wrapped behind a column of names."""
    lines = wrapped(text, WIDTH - _INDENT)
    return [_entry(name if place == 0 else "", line, style) for place, line in enumerate(lines)]


def _bars(document: Document) -> Text:
    parts = story.parts(document)
    if not parts:
        if is_unrecorded(document):
            return Text("")
        if "breakdown" in document["analyses"]:
            failed = phrases.withheld_by(document, "breakdown")
            why = (
                f"withheld, as {failed[0]} failed." if failed else "no device work in the capture."
            )
            return Text(f"  Where the step goes is not known: {why}")
        return Text("")
    longest = parts[0].share
    lines = []
    for part in parts:
        label = shortened(story.label(part.component), _LABEL_WIDTH)
        bar = _bar(part.share / longest if longest else 0.0)
        lines.append(
            Text.assemble(
                f"  {label:<{_LABEL_WIDTH}} ",
                (f"{bar:<{_BAR_WIDTH}}", "cyan"),
                f" {format_percent(part.share):>7} {format_ns(part.duration_ns):>10}",
            )
        )
    lines += _indented(", ".join(filter(None, _whole(document))), "dim")
    for told in (words.named_by(document), words.unexplained(document)):
        lines += _indented(told, "dim") if told else []
    if names := words.told_of_names(document):
        lines += _indented(printable(words.with_titles(names)))
    return Text("\n").join(lines)


def _whole(document: Document) -> tuple[str, str]:
    """What the bars are parts of, and why that is more than the step where it is."""
    return story.described_parts(document), words.overlap(document)


def _indented(text: str, style: str = "") -> list[Text]:
    return [Text(line, style=style) for line in wrapped(text, WIDTH, first="  ", indent="  ")]


def _bar(share: float) -> str:
    """A bar of `share` of the full width, in eighths of a column."""
    eighths = round(share * _BAR_WIDTH * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _notes(notes: Sequence[str]) -> Text:
    told = (wrapped(printable(note), WIDTH, first=" - ", indent="   ") for note in notes)
    return Text("\n".join(line for lines in told for line in lines))


def _untold(document: Document, finding: Finding) -> list[str]:
    """Notes without that on the user's rules, which stands below the bars where there are any."""
    above = words.told_of_names(document) if story.parts(document) else ""
    return [note for note in finding["notes"] if note != above]


def picture(drawing: Drawing, ways: Ways = ON_COMMAND_LINE) -> Text:
    """A picture was asked for: what it shows, and where it can be seen."""
    rows = max((len(drawn_column(drawing, name)) for name in drawing["data"]), default=0)
    told = f"A picture of {story.count_of(rows)}: {ways.to_picture}."
    question = wrapped(drawing["question"], WIDTH)
    notes = [_notes(drawing["notes"])] if drawing["notes"] else []
    shown = [Text("\n".join([*question, *wrapped(told, WIDTH)])), *notes]
    return Text("\n\n").join(shown)


def _figures(finding: Finding) -> str:
    """The headline figures that are known, in one line."""
    known = [metric for metric in finding["headline"] if metric["value"] is not None]
    return " · ".join(map(described_metric, known))


def section(
    document: Document,
    name: str,
    width: int = WIDTH,
    most: int | None = _FEW_ROWS,
    ways: Ways = ON_COMMAND_LINE,
) -> Text:
    """One question: what it asks, its answer, at most ``most`` rows (None for all), its notes."""
    finding = document["analyses"][name]
    rows = finding["rows"][:most]
    lines = [
        Text(phrases.title(name), style="bold"),
        *map(Text, wrapped(finding["question"], 80)),
    ]
    lines += [Text(line) for line in wrapped(sentence(document, name), WIDTH)]
    if told_by_figures(document, name) and (figures := _figures(finding)):
        lines += [Text(line, style="dim") for line in wrapped(figures, WIDTH)]
    if rows and name == "hints":  # sentences, which no column holds
        lines += [Text(""), advice(document, width, most, ways)]
    elif rows:
        lines += [
            Text(""),
            *drawn_grid(finding["columns"], rows, width, phrases.first_columns(name)),
        ]
    left = len(finding["rows"]) - len(rows) + finding.get("rows_left_out", 0)
    if left and name != "hints":
        lines.append(Text(f"… and {story.count_of(left)} more: {ways.to_rows.format(name)}"))
    notes = _untold(document, finding)
    if notes and not phrases.withheld_by(document, name):  # why stands under Trust
        lines += [Text(""), _notes(notes)]
    return Text("\n").join(lines)


def advice(
    document: Document, width: int, most: int | None = None, ways: Ways = ON_COMMAND_LINE
) -> Text:
    """Hints as a numbered list of at most `width` columns; empty where there is none.

    Args:
        document: the findings.
        width: columns.
        most: how many hints to show, by default all.
        ways: how a reader gets to more.
    """
    hints = rows(document, "hints")
    shown = hints[:most]
    numbered = enumerate(shown, 1)
    lines = [line for place, hint in numbered for line in _hint(place, hint, width, ways)]
    if len(shown) < len(hints):
        more = ways.to_answer.format("hints")
        lines.append(Text(f"… and {len(hints) - len(shown)} more: {more}"))
    return Text("\n").join(lines)


def _hint(place: int, hint: Mapping[str, Value], width: int, ways: Ways) -> list[Text]:
    name = printable(str(hint["hint"])).replace("_", " ").capitalize()
    title = f"{place:>2}. {name}{_saved(hint)}"
    lines = [Text(line) for line in wrapped(title, width, indent=" " * _HINT_INDENT)]
    lines[0].stylize("bold", _HINT_INDENT, _HINT_INDENT + len(name))
    lines += [Text(line) for line in _wrapped(str(hint["evidence"]), "", width)]
    lines += [Text(line) for line in _wrapped(str(hint["change"]), "→ ", width)]
    more = f"details: {ways.to_answer.format(hint['look'])}"
    source = f"; source: {hint['source']}" if hint["source"] else ""
    lines += [Text(line, style="dim") for line in _wrapped(more + source, "", width)]
    return lines


def _saved(hint: Mapping[str, Value]) -> str:
    parts = []
    if isinstance(gain := hint["gain_ns"], int | float):
        share = hint["gain_share"]  # of a step: none where no step could be measured
        of_what = (
            f"a step ({format_percent(share)})"
            if isinstance(share, int | float)
            else "in the capture"
        )
        parts.append(f"{format_ns(gain)} {of_what}")
    if isinstance(gain := hint["gain_bytes"], int | float):
        parts.append(f"{format_bytes(gain)} a device")
    return f": saves at most {' and '.join(parts)}" if parts else ""


def _wrapped(text: str, lead: str, width: int) -> list[str]:
    indent = " " * _HINT_INDENT
    below = indent + " " * len(lead)
    return wrapped(printable(text), width, first=indent + lead, indent=below)
