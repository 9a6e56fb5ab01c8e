"""The table of docs/hosts.md has the figures of the benchmark."""

import json
import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_is_that_of_the_benchmark():
    page = (DOCS / "hosts.md").read_text("utf-8")
    assert "<!-- hosts.json -->" in page
    assert runpy.run_path(str(DOCS / "write_hosts.py"))["written"](page) == page


def test_answers_were_equal_whoever_read():
    document = json.loads(
        (DOCS.parent / "benchmarks" / "results" / "hosts.json").read_text("utf-8")
    )
    assert document["are_equal"]
