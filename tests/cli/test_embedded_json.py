"""The page carries what `analyze --json` prints, value for value."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from moeprof.analyzers import analyze
from moeprof.cli.main import group

GPU_RUN = Path(__file__).parent.parent / "data" / "gpu" / "dense-cf1.25"


@pytest.fixture
def answered(monkeypatch) -> dict[tuple[object, ...], object]:
    """What was asked of the run, each but once: answers take most of the time."""
    known: dict[tuple[object, ...], object] = {}

    def analyze_once(trace, only=(), *, is_drawn=False, tell):
        asked = (*only, is_drawn)
        if asked not in known:
            known[asked] = analyze(trace, only, is_drawn=is_drawn, tell=tell)
        return known[asked]

    monkeypatch.setattr("moeprof.session.run.analyze", analyze_once)
    return known


def printed(*arguments: object) -> str:
    result = CliRunner().invoke(group, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_page_of_a_run_holds_the_json_of_analyze(tmp_path: Path, answered):
    out = tmp_path / "report.html"
    printed("report", GPU_RUN, "-o", out)
    page = out.read_text(encoding="utf-8")
    (embedded,) = re.findall(
        r'<script type="application/json" class="document">(.*?)</script>', page, re.DOTALL
    )
    document = json.loads(embedded)
    assert document == json.loads(printed("analyze", GPU_RUN, "--json"))
    assert list(answered) == [(True,)]
    # Rows of tables and columns of pictures are both in it.
    assert document["analyses"]["ops"]["rows"]
    assert document["drawings"]
