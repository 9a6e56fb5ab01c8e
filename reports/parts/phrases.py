"""Question: what do all reports say in the same words: titles, commands, how far to trust a run?"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from moeprof.analyzers.question import Group
from moeprof.analyzers.registry import all_questions, is_question, question
from moeprof.answers.document import Document, TrustInfo
from moeprof.answers.values import printable


def title(name: str) -> str:
    """The heading of a question."""
    return question(name).title if is_question(name) else name.replace("_", " ").capitalize()


def first_columns(name: str) -> tuple[str, ...]:
    """Columns of a question's table that are read first, and left out last."""
    return question(name).first if is_question(name) else ()


def grouped(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Questions by the group in which a page shows them, what to do first.

    What is no question of this version comes last.
    """
    left = list(names)
    found: dict[str, list[str]] = {Group.FINDINGS.value: []}
    for each in all_questions():
        if each.name in left:
            found.setdefault(each.group.value, []).append(each.name)
    more = [name for name in left if not is_question(name)]
    return [(group, members) for group, members in (*found.items(), ("More", more)) if members]


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
    unchecked = [c["check"] for c in document["trust"] if c["verdict"] == "unchecked"]
    checked = len(document["trust"]) - len(unchecked)
    names = ", ".join(name.replace("_", " ") for name in unchecked)
    rest = f", {len(unchecked)} could not be checked ({names})" if unchecked else ""
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
    """The failed checks that withhold an analysis: by its name, or every figure that it has."""
    named = [check["check"] for check in document["trust"] if name in check.get("withholds", ())]
    found = document["analyses"].get(name)
    if named or found is None or found["rows"]:
        return named
    laws = [metric.get("withheld") for metric in found["headline"]]
    return [law for law in dict.fromkeys(laws) if law] if all(laws) else []


def is_cut(document: Document) -> TrustInfo | None:
    """The check that says that the input is cut or damaged, if it is: it leads every report."""
    return next((c for c in troubles(document) if c["check"] == "truncated"), None)


def passed(document: Document) -> list[TrustInfo]:
    """The checks that found nothing wrong."""
    return [check for check in document["trust"] if check["verdict"] == "ok"]
