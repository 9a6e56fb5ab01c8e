"""Question: how are a search's figures put in words?

What is shared by the text and the page.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import cast

from moeprof.projector.breakdown import STEP
from moeprof.projector.framework import DEFAULT
from moeprof.reports.memory.phases import GIB, OF_PHASE, gib, is_too_much_outside
from moeprof.reports.memory.words import MARKS, billions, program
from moeprof.reports.search.document import (
    EffectInfo,
    PlanInfo,
    Rejected,
    SearchDocument,
    is_refuted,
)
from moeprof.specs.plan import ALL_AXES, SHORT
from moeprof.specs.presets import preset_names
from moeprof.units import format_ns, format_percent

ORDERS = {
    "time": "In the order of estimated time; speeds that agree to a thousandth in that of what is "
    "free. Borderline plans come last.",
    "fit": "Order: least recomputation, fewest devices that wait for each other, most tokens at a "
    "time, most free. Borderline plans come last.",
}
"""What plans are in the order of, by the document's ``order``."""


def model_name(document: SearchDocument) -> str:
    """The model's name."""
    return str(cast("dict[str, object]", document["inputs"]["model"])["name"])


def facts(document: SearchDocument) -> str:
    """Whose program; model, devices, sequence, what is recomputed, the batch."""
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
    return " · ".join(parts)


def plan_text(plan: PlanInfo) -> str:
    """Degrees above 1: ``fsdp 8 × ep 8``."""
    degrees = [
        f"{short} {plan['plan'][axis]}" for short, axis in SHORT.items() if plan["plan"][axis] > 1
    ]
    return " × ".join(degrees) or "one device"


def compact(plan: PlanInfo) -> str:
    """The same in less room: ``fsdp8 ep8``."""
    return plan_text(plan).replace(" × ", "×").replace(" ", "").replace("×", " ")


def whole_plan(plan: PlanInfo) -> str:
    """Strategy, degrees, rematerialisation, batch."""
    microbatches = f" in {plan['microbatches']} microbatches" if plan["microbatches"] > 1 else ""
    return (
        f"{plan['strategy']} on {plan_text(plan)}, remat {plan['remat']}, "
        f"pdbs {plan['pdbs']}{microbatches}"
    )


def best_line(document: SearchDocument) -> str:
    """The best plan, whether it fits, by how much; where none fits, which misses by least."""
    if document["plans"]:
        best = document["plans"][0]
        return f"Best: {whole_plan(best)}: {room(best)}."
    text = f"None of {document['considered']:,} plans fits."
    near = document["nearest"]
    if near is not None:
        phase = near["decides"]
        inside = (phase["args_bytes"] or 0) + (phase["temp_bytes"] or 0)
        needs = f"{gib(inside)} of the pool's {gib(phase['pool_bytes'])} GiB"
        is_of_host = near["margin"] > 0 and not is_too_much_outside(phase)
        if is_of_host:
            needs = "more memory of a host than there is"
        elif is_too_much_outside(phase):
            needs = (
                f"{gib(phase['outside_bytes'] or 0)} GiB beside the pool, more than is left there"
            )
        elif phase["name"] != STEP:
            needs += f" {OF_PHASE[phase['name']]}"
        most = "" if is_of_host else f", most of it for {near['largest']}"
        text += f" {whole_plan(near)}, misses by least: it needs {needs}{most}."
    return text


def room(plan: PlanInfo) -> str:
    """Whether a plan fits, what of the pool stays free, and what the compiler says."""
    size = gib(plan["margin"] * plan["pool_bytes"])
    free = f"{format_percent(plan['margin'])} of the pool ({size} GiB) free"
    said = f"{'borderline' if plan['verdict'] == 'borderline' else 'fits'}, {free}"
    if "compiled" in plan:
        said += f"; by XLA's compiler {_THEN[plan['compiled']['verdict']]}"
    return said


_THEN = {
    "fits": "it fits too",
    "borderline": "borderline",
    "oom": "out of memory",
    "unknown": "not known",
}


def time_line(plan: PlanInfo) -> str:
    """Estimated speed, step and MFU, each with its range."""
    seconds, (low, high) = plan["seconds"], plan["seconds_range"]
    shares = " to ".join(format_percent(share) for share in plan["mfu_range"])
    return (
        f"Estimated {speed(plan)} tokens/s per device (likely {speed_range(plan)}), a step of "
        f"{format_ns(seconds * 1e9)} ({format_ns(low * 1e9)} to {format_ns(high * 1e9)}), MFU "
        f"{format_percent(plan['mfu'])} ({shares})."
    )


def parts_line(plan: PlanInfo) -> str:
    """What takes most of a step."""
    parts = sorted(plan["time"], key=lambda row: -row["seconds"])[:4]
    shares = ", ".join(
        f"{row['name']} {format_percent(row['seconds'] / plan['seconds'])}" for row in parts
    )
    return f"Its step: {shares}."


def order_line(document: SearchDocument) -> str:
    """What plans are in the order of, by what evidence, and how sure that order is."""
    basis, plans = document["basis"], document["plans"]
    evidence = "; ".join(dict.fromkeys(one["basis"]["evidence"] for one in plans))
    if document["order"] == "fit":
        if basis["source"] != "assumed":
            return f"In the order of fit, as asked; times are {basis['source']}: {evidence}."
        return (
            f"In the order of fit, not of time: {evidence}, so times rank nothing. A run of yours "
            "calibrates them: moeprof memory --calibrate RUN --correction FILE."
        )
    if basis["source"] == "assumed":
        return f"In the order of time, as asked, which nothing supports: {evidence}."
    overlapping = sum(
        plan["tokens_per_s_per_device_range"][1] >= plans[0]["tokens_per_s_per_device_range"][0]
        for plan in plans[1:]
    )
    sure = "none of the others may be as fast"
    if overlapping:
        count = "all" if overlapping == len(plans) - 1 else str(overlapping)
        sure = f"{count} of the other {len(plans) - 1} may be as fast, by their ranges"
    return f"In the order of time, {basis['source']}: {evidence}; {sure}."


def surest_line(document: SearchDocument) -> str:
    """The plan that is fastest at the slow end of its range; empty where that is the first."""
    plan = document["surest"]
    if plan is None:
        return ""
    return (
        f"Surest: {whole_plan(plan)}: {speed(plan)} tokens/s per device, likely "
        f"{speed_range(plan)}."
    )


def compiled_lines(document: SearchDocument) -> list[str]:
    """What the compiler says of each plan that it was asked about; empty where it was not."""
    checked = [plan for plan in document["plans"] if "compiled" in plan]
    if not checked:
        return []
    refuted = sum(map(is_refuted, checked))
    said = "none of them is out of memory by it"
    if refuted == len(checked):
        said = "all of them are out of memory by it: the best now was not checked"
        if len(document["plans"]) == refuted:
            said = "all of them are out of memory by it"
    elif refuted:
        said = f"{refuted} of them out of memory by it, so moved behind the others"
    lines = [f"XLA's compiler laid out the best {len(checked)}; {said}."]
    for plan in sorted(checked, key=lambda plan: plan["closed_form_rank"] or 0):
        check = plan["compiled"]
        ours = gib(plan["args_bytes"] + plan["temp_bytes"])
        was = plan["closed_form_rank"]
        moved = f", before {was}" if was != plan["rank"] else ""
        head = f"{plan['rank']}{moved}. {plan['strategy']} on {plan_text(plan)}"
        pool = gib(plan["pool_bytes"])
        if check["peak_range_bytes"] is None:
            lines.append(f"{head}: not compiled: {'; '.join(check['notes'])}")
            continue
        lines.append(
            f"{head}: {ours} GiB in closed form, {compiled_size(plan)} compiled, of {pool} GiB: "
            f"{MARKS[check['verdict']]} {check['verdict']}"
        )
    return lines


def compiled_size(plan: PlanInfo) -> str:
    """The compiler's peak: one size, or the least and the most; empty where it was not asked."""
    ends = plan["compiled"]["peak_range_bytes"] if "compiled" in plan else None
    if ends is None:
        return ""
    low, high = map(gib, ends)
    beyond = "" if plan["compiled"]["is_range_known"] else " or more"
    return f"{low} GiB{beyond}" if low == high else f"{low} to {high} GiB{beyond}"


def speed(plan: PlanInfo) -> str:
    """Tokens per second and device."""
    return f"{plan['tokens_per_s_per_device']:,.0f}"


def speed_range(plan: PlanInfo) -> str:
    """Within which that likely is."""
    low, high = plan["tokens_per_s_per_device_range"]
    return f"{low:,.0f} to {high:,.0f}"


def batch(plan: PlanInfo) -> str:
    """Sequences of a device; ``3×4``: 3 in each of 4 microbatches."""
    return str(plan["pdbs"]) + (f"×{plan['microbatches']}" if plan["microbatches"] > 1 else "")


def counts_line(document: SearchDocument) -> str:
    """How many plans fit, and why the others do not."""
    reasons = sorted(document["rejected"], key=lambda one: -one["plans"])
    parts = [f"{one['plans']:,} {verb(one)}" for one in reasons]
    fitting = f"{document['fitting']:,} fit"
    if document["borderline"]:
        fitting += f", {document['borderline']:,} of them borderline"
    return f"{document['considered']:,} plans: {'; '.join([fitting, *parts])}."


def verb(rejected: Rejected) -> str:
    """The reason, of one plan in the singular."""
    first, _, rest = rejected["reason"].partition(" ")
    if rejected["plans"] == 1:
        first = {"have": "has", "do": "does", "need": "needs", "are": "is", "send": "sends"}[first]
    return f"{first} {rest}"


def effect_memory(effect: EffectInfo) -> str:
    """What an optimisation changes of the memory."""
    saved = effect["saved_bytes"]
    return "not known" if saved is None else f"{signed(-saved / GIB)} GiB"


def effect_then(effect: EffectInfo) -> str:
    """The verdict then, or that the plan has it."""
    return "has" if effect["is_used"] else MARKS[effect["verdict"]]


def signed(value: float, digits: int = 1) -> str:
    """With a sign; zero has none."""
    text = f"{abs(value):,.{digits}f}"
    if float(text.replace(",", "")) == 0:
        return text
    return ("−" if value < 0 else "+") + text


def band_text(ends: Sequence[float], estimate: float) -> str:
    """How far a range goes: ``0.9 to 2.1``, multiples of an estimate."""
    low, high = (f"{end / estimate:.2g}" for end in ends)
    return f"{low} to {high}"


def next_command(document: SearchDocument) -> str:
    """The command that projects the best plan."""
    best, inputs = document["plans"][0], document["inputs"]
    model = cast("dict[str, str]", inputs["model"])
    hardware = cast("dict[str, str]", inputs["hardware"])
    of_maxtext = cast("list[str]", inputs["maxtext"])
    named = ["--maxtext", *of_maxtext] if of_maxtext else ["--model", model["key"]]
    words = ["moeprof", "memory", *named, "--hardware", hardware["key"]]
    is_file = model["key"] not in preset_names()  # it may say what a plan does not: options win
    for short, axis in SHORT.items():
        if best["plan"][axis] > 1 or (is_file and axis in ALL_AXES):
            words += [f"--{short}", str(best["plan"][axis])]
    words += ["--pdbs", str(best["pdbs"]), "--strategy", best["strategy"]]
    if best["microbatches"] > 1 or is_file:
        words += ["--microbatches", str(best["microbatches"])]
    if best["remat"] != "full" or is_file:
        words += ["--remat", best["remat"]]
    if inputs["framework"] != DEFAULT:
        words += ["--framework", str(inputs["framework"])]
    if inputs["sequence"] != 4096 or is_file:
        words += ["--seq", str(inputs["sequence"])]
    words += cast("list[str]", inputs["options"])
    if best["mem_fraction"] != inputs["mem_fraction"]:
        words += ["--mem-fraction", f"{best['mem_fraction']:g}"]
    if inputs["correction"] is not None:
        words += ["--correction", str(inputs["correction"])]
    return shlex.join(words)
