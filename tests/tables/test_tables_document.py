"""docs/tables.md is what the schemas say, and misses none of them."""

import runpy
from pathlib import Path

from moeprof.analyzers.registry import all_names
from moeprof.tables import host_side, routing, trace
from moeprof.tables.schema import Schema

DOCS = Path(__file__).parents[2] / "docs"


def test_the_committed_document_is_current():
    written = runpy.run_path(str(DOCS / "write_tables.py"))["document"]()
    assert (DOCS / "tables.md").read_text(encoding="utf-8") == written + "\n", (
        "run: python docs/write_tables.py > docs/tables.md"
    )


def test_every_table_has_a_section():
    text = (DOCS / "tables.md").read_text(encoding="utf-8")
    schemas = [
        s for m in (trace, host_side, routing) for s in vars(m).values() if isinstance(s, Schema)
    ]
    for name in [*(schema.name for schema in schemas), *all_names(is_drawn=True)]:
        assert f"### {name}\n" in text
