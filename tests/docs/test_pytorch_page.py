"""The output that docs/pytorch.md shows is what the command prints."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_example_is_what_the_command_prints():
    page = (DOCS / "pytorch.md").read_text(encoding="utf-8")
    written = runpy.run_path(str(DOCS / "write_memory.py"))["written"]
    assert written(page) == page, "run: python docs/write_memory.py"
