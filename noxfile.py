"""Question: on which Pythons and with which versions of JAX does moeprof hold?

`nox` asks on each Python with the newest JAX, and on the oldest Python with the oldest JAX;
`nox -l` lists the sessions. What is run is listed in tests/depends_on_jax.txt: the rest of the
suite does not meet JAX, and `make test` runs it once.
"""

from __future__ import annotations

from pathlib import Path

import nox

ROOT = Path(__file__).parent
PYTHONS = ("3.11", "3.12", "3.13")
OLDEST_JAX = "0.7.0"
"""The bound in pyproject.toml, which tests/packaging/test_versions.py compares."""

nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True


def tests() -> list[str]:
    """The tests that depend on JAX."""
    lines = (ROOT / "tests/depends_on_jax.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def install(session: nox.Session, jax: str) -> None:
    """Install moeprof, its native library built against the headers of this JAX."""
    session.install("scikit-build-core>=0.11", "cmake", "ninja", jax, "scipy-openblas32")
    folder = f"build/nox-{session.name.replace('(', '-').replace(')', '')}"
    session.install(
        "--no-build-isolation", "-C", f"build-dir={folder}", "--editable", ".[jax,test]", jax
    )
    session.install("--no-deps", "xprof>=2.24")


def run(session: nox.Session) -> None:
    """Say what is tested, and test it; arguments of the session go to pytest."""
    session.run("python", "-c", "import jax, sys; print('jax', jax.__version__, 'on', sys.version)")
    session.run("python", "-m", "pytest", "-q", *(session.posargs or tests()))


@nox.session(python=PYTHONS)
def newest(session: nox.Session) -> None:
    """With the newest JAX that this Python can have."""
    install(session, "jax>=0.7")
    run(session)


@nox.session(python=PYTHONS[0])
def oldest(session: nox.Session) -> None:
    """With the oldest JAX that is supported."""
    install(session, f"jax=={OLDEST_JAX}")
    run(session)
