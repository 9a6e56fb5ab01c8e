"""Writes the tables of docs/trust.md from the registry of laws and what questions need:

python docs/write_trust.py
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from moeprof.analyzers.registry import questions_that_need
from moeprof.tables.law import OF_THE_ANSWER, OF_THE_INPUT, LawInfo, Need

PAGE = Path(__file__).parent / "trust.md"
_TABLE = re.compile(r"(<!-- laws of the (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_NEEDS = re.compile(r"(<!-- what questions need -->\n).*?(<!-- end -->)", re.DOTALL)
_LAWS = {"input": OF_THE_INPUT, "answer": OF_THE_ANSWER}


def written(page: str) -> str:
    """The page with its tables as the registry has them."""
    page = _NEEDS.sub(lambda found: f"{found[1]}{_needs()}\n{found[2]}", page)
    return _TABLE.sub(lambda found: f"{found[1]}{_table(_LAWS[found[2]])}\n{found[3]}", page)


def _needs() -> str:
    rows = [f"| {need} | {', '.join(questions_that_need([need]))} |" for need in Need]
    return "\n".join(["| need | questions that fall where it is broken |", "|---|---|", *rows])


def _table(laws: Sequence[LawInfo]) -> str:
    rows = [f"| `{law.name}` | {law.compares} | {_falls(law)} |" for law in laws]
    return "\n".join(["| law | compares | breaks, withholds |", "|---|---|---|", *rows])


def _falls(law: LawInfo) -> str:
    """The needs that break, in italics, when, and what else falls."""
    if law.breaks == tuple(Need):
        return "every need"
    needs = "; ".join(f"*{need}*" for need in law.breaks)
    needs += f" ({law.when})" if law.when else ""
    return "; ".join(filter(None, (needs, law.figures))) or "–"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
