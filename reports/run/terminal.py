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
from moeprof.answers.story import described_interval_parts, described_outside, described_rate
from moeprof.answers.values import printable, shortened
from moeprof.reports.parts import phrases
from moeprof.reports.parts.terminal import drawn_grid, listed, wrapped
from moeprof.reports.run import words
from moeprof.reports.run.words import described_metric, sentence, told_by_figures
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
FEW_NOTES = 8
"""Notes after a capture."""
_TO_DO = "What to do, largest gain first (gains overlap: do not add them)"


@dataclass(frozen=True)
class Ways:
    """How a reader gets to another answer, to all rows of this one, and to those of a picture."""

    to_answer: str
    to_rows: str
    to_picture: str


ON_COMMAND_LINE = Ways("--only {}", "--only {}", "the page draws it, --json has every row")
IN_PYTHON = Ways(".{}()", ".table has all", ".table has every row")


def summary(document: Document, height: int | None = None) -> Text:
    """What is said after a capture: the overview, the first notes, and the next command.

    A note that several questions have is told once; `answers` has all, each with its question.
    ``.plain`` of the result is the text without colour. ``height`` as in `answers`.
    """
    notes = [
        note
        for name, finding in document["analyses"].items()
        if not phrases.withheld_by(document, name)
        for note in _untold(document, finding)
    ]
    blocks = [overview(document), listed(list(dict.fromkeys(notes)), FEW_NOTES)]
    return _ended(document, blocks, _next(document, "analyze"), height)


def answers(
    document: Document,
    only: Sequence[str] = (),
    width: int = WIDTH,
    most: int | None = None,
    height: int | None = None,
) -> Text:
    """All that `moeprof analyze` says: the overview, then every finding as `tables` has it.

    ``height`` are the lines of the terminal. Text that is longer ends with what matters most, as
    its beginning is out of sight; without a terminal (None) the first lines are read first.
    """
    if is_unrecorded(document):
        return _joined([overview(document, width=width), _lead(document)])
    blocks = [overview(document, width=width), *_findings(document, only, width, most)]
    return _ended(document, blocks, _next(document, "report"), height)


def _ended(
    document: Document, blocks: Sequence[Text], next_command: Text, height: int | None
) -> Text:
    whole = _joined([*blocks, next_command])
    if height is None or is_unrecorded(document) or _lines(whole) < height:  # a prompt follows
        return whole
    room = height - _lines(next_command) - 2
    return _joined([*blocks, _closing(document, room), next_command])


def _closing(document: Document, room: int) -> Text:
    """Trust, step and what to do once more, in at most `room` lines if they can be."""
    known = [*_entries("Trust", phrases.described_trust(document))]
    known += _entries("Step", story.described_step(document))
    hints = rows(document, "hints")[:FEW]
    heading = [Text(""), Text(_TO_DO, style="bold")] if hints else []
    for has_change in (True, False):
        told = [_brief(place, hint, has_change) for place, hint in enumerate(hints, 1)]
        text = Text("\n").join([*known, *heading, *(line for lines in told for line in lines)])
        if _lines(text) <= room:
            break
    return text


def _lines(text: Text) -> int:
    return text.plain.count("\n") + 1


def overview(document: Document, ways: Ways = ON_COMMAND_LINE, width: int = WIDTH) -> Text:
    """Run, trust, step, a bar per component, what to do; in lines of at most 80 columns.

    The names of run and components take as much of `width` as they need.
    """
    hints = advice(document, WIDTH, FEW, ways)
    heading = Text(f"{_TO_DO}\n", style="bold") if hints.plain else Text("")
    told = hints or _nothing(document, ways)
    return _joined([_heading(document, width), _bars(document, width), heading + told])


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
    return _joined([*_findings(document, only, width, most), _next(document, "report")])


def _findings(document: Document, only: Sequence[str], width: int, most: int | None) -> list[Text]:
    """A text per finding and picture; those that the same laws withhold have one together."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in document["analyses"]:
        laws = tuple(phrases.withheld_by(document, name))
        alike.setdefault(laws or ("", name), []).append(name)
    told = [
        _withheld(laws, names)
        if len(names) > 1
        else section(document, names[0], width, most or (None if names[0] in only else _FEW_ROWS))
        for laws, names in alike.items()
    ]
    return told + [picture(each) for name, each in document["drawings"].items() if name in only]


def _withheld(laws: Sequence[str], names: Sequence[str]) -> Text:
    """Several questions without an answer, told once."""
    why = f"Withheld: {' and '.join(laws)} failed, so no figure of these can be trusted:"
    lines = wrapped(printable(f"{why} {', '.join(names)}."), WIDTH)
    heading = Text(f"{len(names)} questions without an answer", style="bold")
    return Text("\n").join([heading, *map(Text, lines)])


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


def _heading(document: Document, width: int) -> Text:
    path = shortened(printable(document["run"]["path"]), width - _INDENT)
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


def _bars(document: Document, width: int) -> Text:
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
    labels = [story.label(part.component) for part in parts]
    wide = min(max(_LABEL_WIDTH, *map(len, labels)), width - WIDTH + _LABEL_WIDTH)
    lines = []
    for part, name in zip(parts, labels, strict=True):
        label = shortened(name, wide)
        bar = _bar(part.share / longest if longest else 0.0)
        lines.append(
            Text.assemble(
                f"  {label:<{wide}} ",
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


def _untold(document: Document, finding: Finding) -> list[str]:
    """Notes without that on the user's rules, which stands below the bars where there are any."""
    above = words.told_of_names(document) if story.parts(document) else ""
    return [note for note in finding["notes"] if note != above]


def picture(drawing: Drawing, ways: Ways = ON_COMMAND_LINE) -> Text:
    """A picture was asked for: what it shows, and where it can be seen."""
    rows = max((len(drawn_column(drawing, name)) for name in drawing["data"]), default=0)
    told = f"A picture of {story.count_of(rows)}: {ways.to_picture}."
    question = wrapped(drawing["question"], WIDTH)
    notes = [listed(drawing["notes"])] if drawing["notes"] else []
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
        lines += [Text(""), advice(document, WIDTH, most, ways)]
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
        lines += [Text(""), listed(notes)]
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
    lines = _hint_title(place, hint, width)
    lines += [Text(line) for line in _wrapped(str(hint["evidence"]), "", width)]
    lines += [Text(line) for line in _wrapped(str(hint["change"]), "→ ", width)]
    more = f"details: {ways.to_answer.format(hint['look'])}"
    source = f"; source: {hint['source']}" if hint["source"] else ""
    lines += [Text(line, style="dim") for line in _wrapped(more + source, "", width)]
    return lines


def _hint_title(place: int, hint: Mapping[str, Value], width: int) -> list[Text]:
    name = printable(str(hint["hint"])).replace("_", " ").capitalize()
    title = f"{place:>2}. {name}{_saved(hint)}"
    lines = [Text(line) for line in wrapped(title, width, indent=" " * _HINT_INDENT)]
    lines[0].stylize("bold", _HINT_INDENT, _HINT_INDENT + len(name))
    return lines


def _brief(place: int, hint: Mapping[str, Value], has_change: bool) -> list[Text]:
    """A hint without its evidence, and without the change where there is no room for it."""
    lines = _hint_title(place, hint, WIDTH)
    change = _wrapped(str(hint["change"]), "→ ", WIDTH) if has_change else []
    return lines + [Text(line) for line in change]


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
