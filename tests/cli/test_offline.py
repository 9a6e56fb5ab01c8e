"""A profile opens where there is no network, no home folder and no JAX."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders.sessions import two_hosts

# every attempt to reach out ends the process, whatever catches the error
GUARD = """
import os, socket, sys

def refuse(*_):
    os.write(2, b"reached for the network")
    os._exit(99)

for name in ("connect", "connect_ex", "sendto", "bind"):
    setattr(socket.socket, name, refuse)
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = refuse
sys.argv[0] = "moeprof"
from moeprof.cli.main import main
main()
"""
FOREIGN = ("jax", "jaxlib", "tensorflow", "xprof", "tensorboard", "tensorboard_plugin_profile",
           "google.protobuf")  # fmt: skip


def alone() -> list[str]:
    """How to start a program without any network, where this machine lets a user do so."""
    prefix = ["unshare", "--map-root-user", "--net", "--"]
    if shutil.which("unshare") is None:
        return []
    return prefix if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0 else []


def surroundings(home: Path) -> dict[str, str]:
    """The environment with an empty home; where moeprof is imported from stays."""
    home.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**kept, "HOME": str(home), "PYTHONPATH": paths}


@pytest.mark.parametrize(
    "arguments",
    [
        ["analyze", "run"],
        ["analyze", "run", "--json"],
        ["report", "run", "-o", "page.html"],
        ["export", "run", "--tables", "tables"],
        ["analyze", "stored"],
    ],
    ids=" ".join,
)
def test_no_network_and_no_home_are_needed(tmp_path, arguments):
    two_hosts(tmp_path / "run")
    environment = surroundings(tmp_path / "home")
    if "stored" in arguments:
        export = [sys.executable, "-m", "moeprof", "export", "run", "--tables", "stored"]
        subprocess.run(export, cwd=tmp_path, env=environment, check=True, capture_output=True)
    done = subprocess.run(
        [*alone(), sys.executable, "-c", GUARD, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert not any((tmp_path / "home").iterdir())


def test_the_guard_sees_an_attempt(tmp_path):
    code = GUARD.replace("main()", "socket.create_connection(('127.0.0.1', 9))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (99, "reached for the network")


@pytest.mark.parametrize("command", ["analyze", "report", "export"])
def test_no_other_profiler_is_imported(tmp_path, command):
    run = two_hosts(tmp_path / "run")
    more = {"report": ["-o", "page.html"], "export": ["--tables", "tables"]}.get(command, [])
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "moeprof", command, str(run), *more],
        cwd=tmp_path,
        env=surroundings(tmp_path / "home"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert "moeprof.ingest.run" in imported
    assert not [m for m in imported if any(m == f or m.startswith(f"{f}.") for f in FOREIGN)]


def test_whatever_protobuf_is_installed_the_answer_is_the_same_to_the_byte(tmp_path):
    """Versions that quarrel with TensorBoard's plugins, one that cannot be imported, and none."""
    run = two_hosts(tmp_path / "run")
    answers = set()
    for version in ("3.20.3", "4.25.8", "6.33.0", "broken", "none"):
        home = tmp_path / version
        environment = surroundings(home)
        package = home / "site" / "google" / "protobuf"
        if version != "none":
            package.mkdir(parents=True)
            says = "raise SystemError" if version == "broken" else f"__version__ = '{version}'"
            (package / "__init__.py").write_text(says)
            paths = os.pathsep.join([str(home / "site"), environment["PYTHONPATH"]])
            environment["PYTHONPATH"] = paths
        done = subprocess.run(
            [sys.executable, "-m", "moeprof", "analyze", str(run), "--json"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        answers.add(done.stdout)
    assert len(answers) == 1
