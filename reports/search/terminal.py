"""Question: how does a search for plans read on a terminal?

The best plan in a sentence first, then the table, then why other plans were ruled out, then what to
do. Drawn from the document alone.
"""

from __future__ import annotations

import shlex
import textwrap
from typing import cast

from rich.text import Text

from moeprof.answers.names import printable
from moeprof.projector.framework import DEFAULT
from moeprof.reports.memory.words import billions, program
from moeprof.reports.search.document import EffectInfo, PlanInfo, Rejected, SearchDocument
from moeprof.units import format_ns, format_percent

WIDTH = 80
_AXES = (
    ("data", "dp"),
    ("fsdp", "fsdp"),
    ("expert", "ep"),
    ("tensor", "tp"),
    ("context", "cp"),
    ("pipeline", "pp"),
    ("virtual", "vpp"),
    ("expert_tensor", "etp"),
)
_MARKS = {"fits": "✓", "borderline": "~", "oom": "✗", "unknown": "?"}
_GIB = 2**30


def drawn(document: SearchDocument, width: int = WIDTH) -> Text:
    """The whole answer in lines of at most `width` columns, 80 at most."""
    width = min(width, WIDTH)
    blocks = [
        _heading(document, width),
        _best(document, width),
        _table(document, width),
        _counts(document, width),
        _what_if(document, width),
        _next(document, width),
    ]
    return Text("\n\n").join(block for block in blocks if block.plain)


def plan_text(plan: PlanInfo) -> str:
    """Degrees above 1: ``fsdp 8 × ep 8``."""
    degrees = [f"{short} {plan['plan'][axis]}" for axis, short in _AXES if plan["plan"][axis] > 1]
    return " × ".join(degrees) or "one device"


def _compact(plan: PlanInfo) -> str:
    """The same in less room: ``fsdp8 ep8``."""
    return plan_text(plan).replace(" × ", "×").replace(" ", "").replace("×", " ")


def _heading(document: SearchDocument, width: int) -> Text:
    inputs = document["inputs"]
    model = cast("dict[str, object]", inputs["model"])
    hardware = cast("dict[str, str]", inputs["hardware"])
    parts = [
        program(inputs),
        f"{model['name']} {billions(model['parameters'])} "
        f"({billions(model['active_parameters'])} active)",
        f"{inputs['devices']} × {hardware['name']}",
        f"seq {inputs['sequence']}",
        f"remat {' or '.join(cast('list[str]', inputs['remats']))}",
    ]
    batch = inputs["global_batch"]
    if batch is not None:
        parts.append(f"global batch {batch}")
    elif inputs["pdbs"] is not None:
        parts.append(f"pdbs {inputs['pdbs']}")
    else:
        parts.append("the largest pdbs that fits")
    lines = _wrapped(" · ".join(parts), width, style="bold")
    for said in document["said"]:
        lines += _wrapped(f" - {said}", width, indent="   ", style="dim")
    return Text("\n").join(lines)


def _best(document: SearchDocument, width: int) -> Text:
    if not document["plans"]:
        text = f"None of {document['considered']:,} plans fits."
        near = document["nearest"]
        if near is not None:
            text += (
                f" {near['strategy']} on {plan_text(near)}, remat {near['remat']}, pdbs "
                f"{near['pdbs']}, misses by least: it needs {format_percent(-near['margin'])} more "
                f"than the pool of {near['pool_bytes'] / _GIB:.1f} GiB, most of it for "
                f"{near['largest']}."
            )
        return Text("\n").join(_wrapped(text, width, style="bold"))
    best = document["plans"][0]
    low, high = (format_ns(seconds * 1e9) for seconds in best["seconds_range"])
    microbatches = f" in {best['microbatches']} microbatches" if best["microbatches"] > 1 else ""
    text = (
        f"Best: {best['strategy']} on {plan_text(best)}, remat {best['remat']}, "
        f"pdbs {best['pdbs']}{microbatches}: about {_speed(best)} tokens/s per device, a step of "
        f"{format_ns(best['seconds'] * 1e9)} (estimated; likely {low} to {high}), "
        f"{_room(best)}."
    )
    lines = _wrapped(text, width, style="bold")
    parts = sorted(best["time"], key=lambda row: -row["seconds"])[:4]
    shares = ", ".join(
        f"{row['name']} {format_percent(row['seconds'] / best['seconds'])}" for row in parts
    )
    lines += _wrapped(f"Its step: {shares}. MFU {format_percent(best['mfu'])}.", width)
    return Text("\n").join(lines)


def _room(plan: PlanInfo) -> str:
    if plan["verdict"] == "borderline":
        return f"borderline: {format_percent(plan['margin'])} of the pool free"
    return f"{format_percent(plan['margin'])} of the pool free"


def _speed(plan: PlanInfo) -> str:
    return f"{plan['tokens_per_s_per_device']:,.0f}"


def _table(document: SearchDocument, width: int) -> Text:
    """One line per plan; the plan itself goes below where it does not fit beside the figures."""
    if not document["plans"]:
        return Text("")
    has_remats = len(cast("list[str]", document["inputs"]["remats"])) > 1
    first = max(len("strategy"), *(len(plan["strategy"]) for plan in document["plans"]))
    head = _line(("", "tokens/s", "step", "free", "strategy", "pdbs"), first) + "plan"
    lines = [Text(head, style="bold")]
    for plan in document["plans"]:
        many = plan["microbatches"] > 1
        cells = (
            str(plan["rank"]),
            _speed(plan),
            format_ns(plan["seconds"] * 1e9),
            f"{_MARKS[plan['verdict']]} {format_percent(plan['margin'])}",
            plan["strategy"],
            f"{plan['pdbs']}×{plan['microbatches']}" if many else str(plan["pdbs"]),
        )
        left = _line(cells, first)
        words = _compact(plan) + (f", {plan['remat']}" if has_remats else "")
        if len(words) <= width - len(left):
            lines.append(Text(left + words))
        else:
            lines.append(Text(left.rstrip()))
            lines += _wrapped(words, width, indent=" " * 6, first=" " * 4)
    legend = (
        " tokens/s per device and step: estimates. free: of the pool; ✓ fits, ~ borderline by "
        "the account's error. pdbs 3×4: 3 in each of 4 microbatches. Speeds that agree to a "
        "thousandth are in the order of what is free."
    )
    if has_remats:
        legend += " After the plan: remat."
    lines += _wrapped(legend, width, indent=" ", style="dim")
    return Text("\n").join(lines)


def _line(cells: tuple[str, ...], strategy_width: int) -> str:
    rank, speed, step, free, strategy, batch = cells
    return f"{rank:>2} {speed:>8} {step:>8} {free:>8}  {strategy:<{strategy_width}} {batch:>5}  "


def _counts(document: SearchDocument, width: int) -> Text:
    reasons = sorted(document["rejected"], key=lambda one: -one["plans"])
    parts = [f"{one['plans']:,} {_verb(one)}" for one in reasons]
    fitting = f"{document['fitting']:,} fit"
    if document["borderline"]:
        fitting += f", {document['borderline']:,} of them borderline"
    text = f"{document['considered']:,} plans: {'; '.join([fitting, *parts])}."
    return Text("\n").join(_wrapped(text, width))


def _verb(rejected: Rejected) -> str:
    """The reason, of one plan in the singular."""
    first, _, rest = rejected["reason"].partition(" ")
    if rejected["plans"] == 1:
        first = {"have": "has", "do": "does", "need": "needs", "are": "is", "send": "sends"}[first]
    return f"{first} {rest}"


def _what_if(document: SearchDocument, width: int) -> Text:
    effects = document["what_if"]
    if not effects:
        return Text("")
    lines = [Text("What each optimisation would change of the best plan", style="bold")]
    for effect in effects:
        lines += _effect_lines(effect, width)
    lines += _wrapped(
        " Per step, or as many tokens; − is saved. ✓ then fits, ~ then borderline, ✗ then out of "
        "memory; has: the plan has it, and this is what it saves.",
        width,
        indent=" ",
        style="dim",
    )
    return Text("\n").join(lines)


def _effect_lines(effect: EffectInfo, width: int) -> list[Text]:
    saved = effect["saved_bytes"]
    memory = "not known" if saved is None else f"{_signed(-saved / _GIB)} GiB"
    then = "has" if effect["is_used"] else _MARKS[effect["verdict"]]
    left = f" {_signed(-1000 * effect['saved_s'], 0):>10} ms {memory:>12}  {then:<4} "
    price = f" ({effect['price']})" if effect["price"] else ""
    return _wrapped(effect["optimisation"] + price, width, first=left, indent=" " * len(left))


def _signed(value: float, digits: int = 1) -> str:
    """With a sign; zero has none."""
    text = f"{abs(value):,.{digits}f}"
    if float(text.replace(",", "")) == 0:
        return text
    return ("−" if value < 0 else "+") + text


def _next(document: SearchDocument, width: int) -> Text:
    if not document["plans"]:
        return Text("\n").join(
            _wrapped("Next: more --devices, another --strategy, or --remat full.", width)
        )
    lines = [Text("Next: the account of the best plan")]
    words = next_command(document).replace(" --", "\n--").split("\n")
    parts = [""]
    for word in words:
        longer = f"{parts[-1]} {word}".strip()
        if parts[-1] and len(longer) > width - 6:
            parts.append(word)
        else:
            parts[-1] = longer
    return Text("\n").join([*lines, Text("  " + " \\\n    ".join(parts))])


def next_command(document: SearchDocument) -> str:
    """The command that projects the best plan."""
    best, inputs = document["plans"][0], document["inputs"]
    model = cast("dict[str, str]", inputs["model"])
    hardware = cast("dict[str, str]", inputs["hardware"])
    words = ["moeprof", "memory", "--model", model["key"], "--hardware", hardware["key"]]
    for axis, short in _AXES:
        if best["plan"][axis] > 1:
            words += [f"--{short}", str(best["plan"][axis])]
    words += ["--pdbs", str(best["pdbs"]), "--strategy", best["strategy"]]
    if best["microbatches"] > 1:
        words += ["--microbatches", str(best["microbatches"])]
    if best["remat"] != "full":
        words += ["--remat", best["remat"]]
    if inputs["framework"] != DEFAULT:
        words += ["--framework", str(inputs["framework"])]
    if inputs["sequence"] != 4096:
        words += ["--seq", str(inputs["sequence"])]
    return shlex.join(words)


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
