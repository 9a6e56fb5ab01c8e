"""docs/assistants.md shows what the tools answer, and names every tool and argument."""

from __future__ import annotations

import json
import re
from pathlib import Path

from moeprof.assistant.answers import asked
from moeprof.assistant.fit import LIMIT
from moeprof.assistant.place import OpenRuns
from moeprof.assistant.tools import TOOLS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "assistants.md").read_text(encoding="utf-8")
RUN = "tests/data/gpu/dense-cf1.25"


def test_the_example_is_an_answer():
    shown = PAGE.partition("about a capture in `tests/data`")[2]
    example = json.loads(shown.partition("```json\n")[2].partition("```")[0])
    opened = OpenRuns(ROOT).run(RUN)
    answer = asked(opened, "ops", 2, 0, ["op", "component", "per_step_ns"])
    answer["run"]["path"] = RUN
    assert example == json.loads(json.dumps(answer))


def test_every_tool_and_argument_is_on_the_page():
    for tool in TOOLS:
        (row,) = re.findall(rf"^\| `{tool.name}` \| (.*?) \|", PAGE, re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == list(tool.arguments.model_fields)
        for name, field in tool.arguments.model_fields.items():
            if isinstance(field.default, int):
                assert f"`{name}` ({field.default})" in row


def test_the_limit_is_on_the_page():
    assert f"at most {LIMIT:,} bytes" in PAGE
