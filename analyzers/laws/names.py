"""Names: the parts of the step are named, neither guessed nor unknown."""

from __future__ import annotations

from moeprof.analyzers.questions.breakdown import breakdown
from moeprof.tables.law import Law
from moeprof.tables.trace import Trace
from moeprof.units import format_percent

CHECK = "names"
_MOST = 0.05
"""Of op time: what may be guessed or unknown before a comparison of parts is one of guesses."""


def names(trace: Trace) -> Law:
    """Whether at most a twentieth of op time has a part that is a guess, or none."""
    known = {metric.metric: metric.value for metric in breakdown(trace).headline}
    shares = [known.get(name) for name in _TOLD]
    if any(not isinstance(share, float) for share in shares):
        return Law(CHECK, "unchecked", "no device work to name")
    program, structure, guessed, none = (float(str(share)) for share in shares)
    detail = (
        f"by the program {format_percent(program)}, by structure "
        f"{format_percent(structure)}, guessed {format_percent(guessed)}, "
        f"not known {format_percent(none)}"
    )
    by_rules = known.get("named_by_rules_share")
    if isinstance(by_rules, float):
        detail = f"by your rules {format_percent(by_rules)}, {detail}"
    detail = f"named {detail}"
    unsure = guessed + none
    compared = (_MOST, unsure, "share guessed or not known at most")
    if unsure <= _MOST:
        return Law(CHECK, "ok", detail, (), *compared)
    told = {"is not known": none, "is guessed": guessed}
    lead = " and ".join(f"{format_percent(s)} of op time {what}" for what, s in told.items() if s)
    detail = f"{lead}: {detail}; `--names FILE` names it"
    return Law(CHECK, "warn", detail, (), *compared)


_TOLD = (
    *("named_by_program_share", "named_by_structure_share"),
    *("guessed_share", "unattributed_share"),
)
