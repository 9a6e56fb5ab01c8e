"""Names: the parts of the step are named, not guessed."""

from __future__ import annotations

from moeprof.analyzers.breakdown import breakdown
from moeprof.tables.law import Law
from moeprof.tables.trace import Trace
from moeprof.units import format_percent

CHECK = "names"
_MOST = 0.05
"""Of op time: what may be guessed before a comparison of parts is one of guesses."""


def names(trace: Trace) -> Law:
    """Whether at most a twentieth of op time has a part that is a guess."""
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
    if guessed > _MOST:
        detail += "; `--names FILE` names what is guessed"
    verdict = "warn" if guessed > _MOST else "ok"
    return Law(CHECK, verdict, detail, (), _MOST, guessed, "share guessed at most")  # type: ignore[arg-type]


_TOLD = (
    *("named_by_program_share", "named_by_structure_share"),
    *("guessed_share", "unattributed_share"),
)
