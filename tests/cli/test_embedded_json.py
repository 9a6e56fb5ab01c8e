"""The page carries what `analyze --json` prints, value for value."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner

from moeprof.cli.main import group

GPU_RUN = Path(__file__).parent.parent / "data" / "gpu" / "dense-cf1.25"


def printed(*arguments: object) -> str:
    result = CliRunner().invoke(group, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_page_of_a_run_holds_the_json_of_analyze(tmp_path: Path):
    out = tmp_path / "report.html"
    printed("report", GPU_RUN, "-o", out)
    page = out.read_text(encoding="utf-8")
    (embedded,) = re.findall(
        r'<script type="application/json" class="document">(.*?)</script>', page, re.DOTALL
    )
    document = json.loads(embedded)
    assert document == json.loads(printed("analyze", GPU_RUN, "--json"))
    # Rows of tables and columns of pictures are both in it.
    assert document["analyses"]["ops"]["rows"]
    assert document["drawings"]
