"""Question: what do all reports say in the same words: titles, commands, how far to trust a run?"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from moeprof.answers.document import Document, TrustInfo
from moeprof.answers.names import printable

TITLES = {
    "step_time": "Step time",
    "breakdown": "Where the step goes",
    "dispatch_combine": "Dispatch and combine",
    "grouped_gemm": "Grouped GEMM",
    "sync_gaps": "Why devices wait",
    "launch": "Kernels and their launch",
    "receive_buffers": "Receive buffers",
    "memory": "Memory at the peak",
    "expert_load": "Expert load",
    "roofline": "Roofline",
    "ops": "Costliest operations",
    "timeline": "What each device does",
    "collectives": "Collectives",
    "stragglers": "Who the others wait for",
    "pipeline": "Pipeline stages",
    "hints": "What to do",
}
GROUPS = {
    "Findings": ("hints",),
    "Time": ("step_time", "breakdown", "timeline", "ops"),
    "Communication": ("dispatch_combine", "collectives", "stragglers"),
    "Experts": ("expert_load", "grouped_gemm"),
    "Memory": ("memory", "receive_buffers"),
    "Devices": ("roofline", "sync_gaps", "launch", "pipeline"),
}
"""Sections of a page in their order; what is in no group comes last."""


def title(name: str) -> str:
    """The heading of an analysis."""
    return TITLES.get(name, name.replace("_", " ").capitalize())


def grouped(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Analyses by the group in which a page shows them; groups without any are left out."""
    left = list(names)
    found = []
    for group, members in GROUPS.items():
        found.append((group, [name for name in members if name in left]))
        left = [name for name in left if name not in members]
    return [(group, members) for group, members in [*found, ("More", left)] if members]


def command(document: Document, verb: str, *options: str) -> str:
    """The `moeprof` command line that reproduces a part of the report."""
    return command_line(verb, document["run"]["path"], *options)


def command_line(*words: str) -> str:
    """`moeprof` with `words`, quoted for a shell."""
    return printable(shlex.join(["moeprof", *words]))


def worst_verdict(document: Document) -> str:
    """Fail, warn or ok: the worst of all checks; ``unchecked`` where none was made."""
    found = {check["verdict"] for check in document["trust"]}
    return next((v for v in ("fail", "warn", "ok") if v in found), "unchecked")


def described_trust(document: Document) -> str:
    """The trust record in words: the verdict, then what spoils it."""
    spoilt = troubles(document)
    verdict = worst_verdict(document)
    if verdict == "unchecked":
        return "not checked"
    unchecked = sum(check["verdict"] == "unchecked" for check in document["trust"])
    checked = len(document["trust"]) - unchecked
    rest = f", {unchecked} could not be checked" if unchecked else ""
    if not spoilt:
        return f"good: {checked} of {checked} checks passed{rest}"
    word = "with care"
    is_any = any(withholds_any(check) for check in spoilt)
    if is_any and verdict == "warn":
        word = "some figures are withheld"
    if verdict == "fail":
        word = "figures are withheld" if is_any else "do not trust these figures"
    return f"{word}: {len(spoilt)} of {checked} checks failed or warned{rest}"


def troubles(document: Document) -> list[TrustInfo]:
    """The checks that did not pass: a cut input first, then failed ones."""
    spoilt = [c for c in document["trust"] if c["verdict"] not in ("ok", "unchecked")]
    return sorted(spoilt, key=lambda c: (c["check"] != "truncated", c["verdict"] != "fail"))


def withholds_any(check: TrustInfo) -> bool:
    """Whether figures are not shown because of it."""
    return bool(check.get("withholds") or check.get("scopes"))


def withheld_by(document: Document, name: str) -> list[str]:
    """The failed checks that withhold the figures of an analysis."""
    return [check["check"] for check in document["trust"] if name in check.get("withholds", ())]


def is_cut(document: Document) -> TrustInfo | None:
    """The check that says that the input is cut or damaged, if it is: it leads every report."""
    return next((c for c in troubles(document) if c["check"] == "truncated"), None)


def passed(document: Document) -> list[TrustInfo]:
    """The checks that found nothing wrong."""
    return [check for check in document["trust"] if check["verdict"] == "ok"]
