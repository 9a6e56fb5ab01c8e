"""Writes the table of docs/trust.md from the registry of laws:

python docs/write_trust.py
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from moeprof.tables.laws import OF_THE_ANSWER, OF_THE_INPUT, LawInfo

PAGE = Path(__file__).parent / "trust.md"
_TABLE = re.compile(r"(<!-- laws of the (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_LAWS = {"input": OF_THE_INPUT, "answer": OF_THE_ANSWER}


def written(page: str) -> str:
    """The page with its tables as the registry has them."""
    return _TABLE.sub(lambda found: f"{found[1]}{_table(_LAWS[found[2]])}\n{found[3]}", page)


def _table(laws: Sequence[LawInfo]) -> str:
    rows = [f"| `{law.name}` | {law.compares} | {law.withholds or '–'} |" for law in laws]
    return "\n".join(["| law | compares | withholds |", "|---|---|---|", *rows])


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
