"""Question: what do exchanges and waits cost, in one sentence per question?"""

from __future__ import annotations

from moeprof.answers.document import Document, headline
from moeprof.answers.story import basis
from moeprof.answers.values import NONE, written


def dispatch_combine(document: Document) -> str:
    """Time of both, how much of it is exposed, how much is waiting for others."""
    found = headline(document, "dispatch_combine")
    if found.get("exchange_time") is None:
        return NONE
    time = {name: written(value, "ns") for name, value in found.items() if name.endswith("_time")}
    told = (
        f"Dispatch and combine take {time['exchange_time']} {basis(document)}, "
        f"{time['exposed_exchange_time']} of it exposed"
    )
    waiting = found["exchange_wait_share"]
    if waiting is None:
        return f"{told}; how much of it is waiting for other devices is not known."
    return f"{told}; {written(waiting, 'share')} is waiting for other devices."


def collectives(document: Document) -> str:
    """Time in collectives, the waiting in it, and how many sites are conspicuous."""
    found = headline(document, "collectives")
    if not found.get("call_sites"):
        return NONE
    waiting = written(found["collective_wait_share"], "share")
    return (
        f"Collectives take {written(found['collective_time'], 'ns')} {basis(document)}, waiting "
        f"for the last device: {waiting}. Conspicuous: {found['conspicuous_call_sites']} of "
        f"{found['call_sites']} call sites."
    )


def stragglers(document: Document) -> str:
    """The rank that is waited for, and what that costs."""
    found = headline(document, "stragglers")
    if not found:
        has_any = bool(headline(document, "collectives").get("call_sites", 1))
        return "Not known: the notes say why." if has_any else NONE
    who = written(found["straggler"], "")
    if who.startswith(("none", "no fixed")):
        return f"{who.capitalize()}."
    share, time = written(found["waited_for_share"], "share"), written(found["waited_for"], "ns")
    return (
        f"{who[:1].upper()}{who[1:]}: others wait {time} per step for it, {share} of the step "
        "without that waiting."
    )
