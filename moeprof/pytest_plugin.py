"""Question: did training become slower or larger than the kept run? A fixture of pytest asks.

Loaded by every pytest of an environment that has moeprof, so nothing else of moeprof is imported
before a test asks for the fixture.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from moeprof.session.comparison import Comparison

FAIL_ON = ("step>+5%",)
"""What fails a test that names no limits of its own, nor finds any in ``moeprof_fail_on``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and the setting of the gate."""
    group = parser.getgroup("moeprof", "gate on the time and memory of training steps")
    group.addoption(
        "--moeprof-baseline",
        metavar="DIR",
        help="Folder of kept runs, one for each test with moeprof_gate; without it they are "
        "skipped.",
    )
    group.addoption(
        "--moeprof-update",
        action="store_true",
        help="Keep the runs of now as the baseline, in the place of comparing them.",
    )
    parser.addini(
        "moeprof_fail_on",
        "Limits of moeprof_gate, one a line, as --fail-on of `moeprof compare`: step>+5%",
        type="linelist",
        default=list(FAIL_ON),
    )


@pytest.fixture
def moeprof_gate(request: pytest.FixtureRequest, tmp_path: Path) -> Gate:
    """Record training and fail where it is slower or larger than the kept run allows."""
    kept = request.config.getoption("--moeprof-baseline")
    if kept is None:
        pytest.skip("moeprof_gate: no --moeprof-baseline DIR to compare with")
    return Gate(
        Path(request.config.rootpath, kept),
        "".join(c if c.isalnum() or c in "-._" else "_" for c in request.node.name),
        tmp_path / "moeprof",
        tuple(request.config.getini("moeprof_fail_on")),
        is_update=request.config.getoption("--moeprof-update"),
    )


class Gate:
    """What the fixture gives: call it with what trains."""

    def __init__(
        self, kept: Path, name: str, folder: Path, fail_on: Sequence[str], *, is_update: bool
    ) -> None:
        """Compare with ``kept/name``; runs of now go below `folder`."""
        self._kept = kept
        self._name = name
        self._folder = folder
        self._fail_on = fail_on
        self._is_update = is_update

    def __call__(
        self,
        train: Callable[[], object] | str | Path,
        *arguments: str | Path,
        fail_on: str | Sequence[str] = (),
        name: str = "",
        **options: Any,
    ) -> Comparison | None:
        """Record `train` and compare it with the kept run.

        Args:
            train: a function whose steps are recorded as it runs, or a script.
            arguments: of the script.
            fail_on: limits, as ``step>+5%`` or ``memory>+1GiB``. Default: those of
                ``moeprof_fail_on`` in the settings of pytest.
            name: of the kept run. Default: the test's.
            options: ``steps`` and ``skip`` of the recording.

        Returns:
            The comparison, to be asked for more; None where the run was kept.
        """
        limits = (fail_on,) if isinstance(fail_on, str) and fail_on else fail_on or self._fail_on
        with _failing_in_words():
            return self._asked(train, arguments, limits, name, options)

    def _asked(
        self,
        train: Callable[[], object] | str | Path,
        arguments: Sequence[str | Path],
        limits: Sequence[str],
        name: str,
        options: dict[str, Any],
    ) -> Comparison | None:
        from moeprof.analyzers.comparison.gates import parse_gate

        gates = [parse_gate(limit) for limit in limits]
        base = self._kept / (name or self._name)
        if not self._is_update and not base.is_dir():
            pytest.fail(f"{base}: expected a kept run, found none. {_KEEP}", pytrace=False)
        run = self._folder / (name or self._name)
        _record(run, train, arguments, options)
        if self._is_update:
            _keep(run, base)
            return None
        return _compared(base, run, gates)


@contextlib.contextmanager
def _failing_in_words() -> Iterator[None]:
    """A mistake of the user fails the test by what it says, without a traceback of ours."""
    from moeprof.errors import MoeprofError

    try:
        yield
    except MoeprofError as error:
        pytest.fail(f"moeprof_gate: {error}", pytrace=False)


_KEEP = "`pytest --moeprof-baseline DIR --moeprof-update` keeps one."


def _record(
    run: Path,
    train: Callable[[], object] | str | Path,
    arguments: Sequence[str | Path],
    options: dict[str, Any],
) -> None:
    """Train, recorded into `run`; without a profile of it the test fails in its last line."""
    run.parent.mkdir(parents=True, exist_ok=True)
    said: list[str] = []
    if callable(train):
        from moeprof.recording.in_process import capture

        with capture(run, say=said.append, **options):
            train()
    else:
        said = _record_script(run, [str(train), *map(str, arguments)], options)
    if not any((run / "plugins").rglob("*.xplane.pb")):
        lines = [line for line in said if line.startswith("moeprof: ")] or said or ["nothing"]
        pytest.fail("\n".join(["nothing was recorded:", *lines[-3:]]), pytrace=False)


def _record_script(run: Path, command: list[str], options: dict[str, Any]) -> list[str]:
    """What `moeprof capture` said; the test fails with the script."""
    asked = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    words = ["capture", "--no-report", "--out", str(run), *asked, *command]
    code = "from moeprof.cli.main import main; main()"
    # -P: a folder here that is called moeprof is another package
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *words], stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        said = "\n".join(done.stderr.splitlines()[-20:])
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}:\n{said}", pytrace=False)
    return done.stderr.splitlines()


def _keep(run: Path, base: Path) -> None:
    """Put `run` in the place of the kept one, which stays until then."""
    if base.exists() and not (base / "meta.json").is_file():
        pytest.fail(f"{base}: expected a kept run or nothing, found other files.", pytrace=False)
    base.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(base, ignore_errors=True)
    shutil.move(run, base)


def _compared(base: Path, run: Path, gates: Sequence[Any]) -> Comparison:
    """The comparison; the test fails where a limit is passed, or is of what is not known."""
    from moeprof.analyzers.comparison.gates import PASSED
    from moeprof.reports.comparison.words import gate_sentence
    from moeprof.session.comparison import compare

    comparison = compare(base, run)
    found = comparison.document(gates)["gates"]
    if any(gate["verdict"] != PASSED for gate in found):
        lines = [f"{g['verdict']} {g['expression']}: {gate_sentence(g)}" for g in found]
        lines.append(f"moeprof compare {base} {run}")
        pytest.fail("\n".join(lines), pytrace=False)
    return comparison
