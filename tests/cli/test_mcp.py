"""`moeprof mcp` without its extra, with an older one, and what starting moeprof does not import."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest


@pytest.fixture
def version(monkeypatch):
    """Say that this version of the package is installed, or none."""

    def say(found: str | None) -> None:
        def told(name: str) -> str:
            if found is None:
                raise metadata.PackageNotFoundError(name)
            return found

        monkeypatch.setattr(metadata, "version", told)

    return say


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (None, "expected the package mcp, found none"),
        ("1.30.0", "expected mcp 2, found mcp 1.30.0"),
        ("3.0.0", "expected mcp 2, found mcp 3.0.0"),
    ],
)
def test_without_the_extra_one_line_names_it(ran, version, found, told):
    version(found)
    code, out, error = ran("mcp")
    assert (code, out) == (1, "")
    assert error == f"moeprof: mcp: {told}; pip install 'moeprof[mcp]'\n"


@pytest.mark.parametrize("name", ["mcp.server", "pydantic"])
def test_a_package_that_cannot_be_imported_is_one_line_too(ran, monkeypatch, name):
    for module in [each for each in sys.modules if each.startswith("moeprof.assistant")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    code, out, error = ran("mcp")
    assert (code, out) == (1, "")
    (line,) = error.splitlines()
    assert line.startswith("moeprof: mcp: the package mcp cannot be used (")
    assert line.endswith("pip install 'moeprof[mcp]'")


def test_a_root_that_is_no_folder_is_wrong_usage(ran, tmp_path):
    (tmp_path / "file").touch()
    assert ran("mcp", "--root", tmp_path / "none")[0] == 2
    assert ran("mcp", "--root", tmp_path / "file")[0] == 2


@pytest.mark.parametrize("words", [["--help"], ["mcp", "--help"]], ids=" ".join)
def test_help_imports_nothing_of_it(words):
    code = (
        "import sys; from moeprof.cli.main import group\n"
        "try: group(sys.argv[1:], prog_name='moeprof')\n"
        "finally: assert not {'mcp', 'anyio', 'pydantic', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
