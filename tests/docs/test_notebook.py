"""The notebook runs from its first cell to its last, and shows tables and figures in Jupyter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NOTEBOOK = EXAMPLES / "first_questions.ipynb"
HTML, FIGURE = "text/html", "application/vnd.plotly.v1+json"


# In a process of its own: sockets to a kernel warn as they are let go.
EXECUTE = """
import sys, nbformat, nbclient
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What each cell of code showed, by its code: the data of its outputs."""
    at = tmp_path_factory.mktemp("jupyter")
    folders = ("HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR")
    environment = os.environ | {name: str(at) for name in folders}
    executed = at / "executed.ipynb"
    command = [sys.executable, "-c", EXECUTE, str(NOTEBOOK), str(executed)]
    done = subprocess.run(
        command, cwd=EXAMPLES, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return {
        cell.source: [output for output in cell.outputs if "data" in output]
        for cell in nbformat.read(executed, as_version=4).cells
        if cell.cell_type == "code"
    }


def _data(shown, code: str) -> dict:
    (output,) = shown[code]
    return output["data"]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("run.trust", "35 of 35 checks passed"),
        ("run.step_time()", "16.78 ms from start to start"),
        ("run.breakdown()", "weight gather"),
        ("run.hints()", "→ copy metrics to the host"),
        ("run.stragglers()", "Rank 0: others wait"),
        ("run.memory()", "157.0 MiB"),
    ],
)
def test_answers_are_shown_as_html(shown, code, text):
    data = _data(shown, code)
    assert text in data[HTML]
    assert data["text/plain"].startswith("<moeprof ")


def test_figures_are_shown_by_plotly(shown):
    figures = [code for code in shown if ".figure(" in code]
    assert len(figures) == 5
    for code in figures:
        figure = _data(shown, code)[FIGURE]
        assert figure["data"]
        assert figure["layout"]["template"]["layout"]["paper_bgcolor"] == "rgba(0,0,0,0)"


def test_the_run_and_the_comparison_are_shown_as_html(shown):
    found = {code.splitlines()[-1]: outputs for code, outputs in shown.items()}
    for last in ("run", "change"):
        (output,) = found[last]
        assert "<pre" in output["data"][HTML]


def test_tables_are_those_of_pandas(shown):
    assert (
        'class="dataframe"'
        in _data(shown, 'change.step[["part", "base_ns", "new_ns", "change_ns"]]')[HTML]
    )


def test_it_lies_here_without_outputs_which_would_be_stale_and_large():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in codes)
    assert NOTEBOOK.stat().st_size < 20_000
    nbformat.validate(nbformat.from_dict(notebook))
