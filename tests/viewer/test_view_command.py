"""`moeprof view`: what it prints and opens, which files it makes and keeps, and how it ends."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from builders.sessions import two_hosts

from moeprof.cli import main as command_line
from moeprof.cli import view as view_command
from moeprof.cli.view import Viewed, Wanted

RECORD = '{"schema": "moeprof.run/1"}'


@pytest.fixture
def run(tmp_path) -> Path:
    """A folder that capture made, of two hosts."""
    folder = two_hosts(tmp_path / "run")
    (folder / "meta.json").write_text(RECORD)
    return folder


@pytest.fixture
def view(monkeypatch, capsys):
    """Run the command; while it serves, `during(table)` is called, then it ends.

    Returns exit code, stdout and stderr.
    """

    def call(*arguments: object, during=lambda table: None) -> tuple[int, str, str]:
        monkeypatch.setattr(
            "moeprof.viewer.server.ViewServer.serve_forever", lambda server: during(server.table)
        )
        monkeypatch.setattr("sys.argv", ["moeprof", "view", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    return call


@pytest.fixture
def quick(monkeypatch):
    """Files are made at once, with nothing in them: for what is not about what they hold."""

    def make(wanted: Wanted, folder: Path) -> Viewed:
        for name in ("report.html", "run.pftrace"):
            (folder / name).write_text(name)
        return Viewed(folder / "report.html", folder / "run.pftrace", is_partial=False)

    monkeypatch.setattr("moeprof.cli.view._make", make)


def states(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.stat().st_ino)
        for p in folder.rglob("*")
        if p.is_file()
    }


def test_the_addresses_are_printed_and_files_kept_in_a_run_folder(view, run):
    code, out, err = view(run, "--no-browser")
    report, timeline = out.splitlines()
    assert code == 0
    assert report.startswith("Report    http://127.0.0.1:")
    assert report.endswith("/report.html")
    assert timeline.startswith("Timeline  http://127.0.0.1:")
    assert timeline.endswith("/timeline.html")
    assert err == "Ctrl-C ends.\n"
    kept = {"report.html", "run.pftrace", "view.json"}
    assert kept | {"meta.json", "plugins"} == {path.name for path in run.iterdir()}
    assert all((run / name).stat().st_mode & 0o044 for name in kept)


def test_what_is_unchanged_is_not_made_again(view, run):
    view(run, "--no-browser")
    before = states(run)
    view(run, "--no-browser")
    assert states(run) == before


def test_what_was_changed_is_made_again(view, run, quick, tmp_path):
    view(run, "--no-browser")
    names = tmp_path / "names.yml"
    rule = "- {component: router, op: gate}\n"
    changes = {
        "the run has more": lambda: (run / "oom.txt").write_text("RESOURCE_EXHAUSTED"),
        "another report lies there": lambda: (run / "report.html").write_text("of one host"),
        "the trace is gone": lambda: (run / "run.pftrace").unlink(),
        "the record is damaged": lambda: (run / "view.json").write_text("["),
        "one host is asked for": lambda: ["--host", "hostB"],
        "a device is named": lambda: ["--hardware", "mi300x"],
        "parts are named": lambda: names.write_text(rule) and ["--names", names],
        "others are named": lambda: names.write_text(2 * rule) and ["--names", names],
    }
    for what, change in changes.items():
        before = (run / "report.html").stat().st_ino
        options = change()
        code, _, _ = view(run, "--no-browser", *(options if isinstance(options, list) else ()))
        assert code == 0
        assert (run / "report.html").stat().st_ino != before, what
        assert (run / "run.pftrace").is_file()


def test_nothing_is_written_beside_another_tools_profile(view, tmp_path):
    run = two_hosts(tmp_path / "run")
    before, places = states(run), []

    def during(table):
        places.append(table["report.html"].body)
        assert places[0].is_file()
        assert table["run.pftrace"].body.is_file()

    assert view(run, "--no-browser", during=during)[0] == 0
    assert states(run) == before
    assert not places[0].parent.exists()


def test_a_kept_place_that_leads_elsewhere_is_not_written(view, run, quick, tmp_path):
    elsewhere = tmp_path / "elsewhere.html"
    elsewhere.write_text("mine")
    (run / "report.html").symlink_to(elsewhere)
    assert view(run, "--no-browser")[0] == 0
    assert elsewhere.read_text() == "mine"
    assert not (run / "view.json").exists()


def test_without_perfettos_builder_there_is_the_report_alone(view, run, monkeypatch):
    monkeypatch.setattr("moeprof.cli.view.can_trace", lambda: False)
    served = []
    code, out, err = view(run, "--no-browser", during=lambda table: served.extend(table))
    assert code == 0
    assert len(out.splitlines()) == 1
    assert served == ["report.html"]
    assert "no timeline: pip install 'moeprof[perfetto]'" in err


def test_withheld_figures_are_told_by_the_exit_code_each_time(view, run):
    profile = next(run.rglob("*.xplane.pb"))
    profile.write_bytes(profile.read_bytes() + b"\x0a\xff\xff\x03")  # a plane that is cut
    assert [view(run, "--no-browser")[0] for _ in range(2)] == [3, 3]


def test_a_port_that_is_taken_is_one_line_and_no_work(view, run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = view(run, "--port", port, "--no-browser")
    assert (code, out) == (1, "")
    assert err == (
        f"moeprof: port {port}: another program listens there; give another --port, or none for "
        "a free one\n"
    )
    assert not (run / "report.html").exists()


def test_through_ssh_the_way_to_forward_is_said(view, run, quick, monkeypatch):
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22")
    _, out, err = view(run, "--no-browser")
    port = urlsplit(out.split()[1]).port
    assert f"ssh -L {port}:127.0.0.1:{port} HOST" in err


@pytest.mark.parametrize("is_opened", [True, False])
def test_the_browser_is_opened_where_there_is_a_screen(view, run, quick, monkeypatch, is_opened):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    if is_opened:
        monkeypatch.setenv("DISPLAY", ":9")
    opened, both = [], threading.Event()

    def browse(address: str) -> None:
        opened.append(address)
        if len(opened) == 2:
            both.set()

    monkeypatch.setattr(view_command.webbrowser, "open", browse)
    _, out, _ = view(run, during=lambda table: both.wait(20) if is_opened else None)
    report, timeline = (line.split()[1] for line in out.splitlines())
    assert opened == ([timeline, report] if is_opened else [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_what_is_temporary_is_gone(tmp_path, number):
    run = two_hosts(tmp_path / "profiles")
    made = tmp_path / "tmp"
    made.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "moeprof", "view", "--no-browser", str(run)],
        env={**os.environ, "TMPDIR": str(made)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        report, timeline = (process.stdout.readline().split()[1] for _ in range(2))
        assert list(made.iterdir())
        for address in (report, timeline):
            place = urlsplit(address)
            connection = http.client.HTTPConnection(place.hostname, place.port, timeout=20)
            with closing(connection):
                connection.request("GET", place.path)
                answer = connection.getresponse()
                assert (answer.status, b"<!doctype html>" in answer.read()) == (200, True)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (0, "", "Ctrl-C ends.")
    assert not list(made.iterdir())


def test_what_is_kept_says_what_it_is_made_from(view, run, quick):
    view(run, "--no-browser")
    record = json.loads((run / "view.json").read_text())
    assert record["schema"] == "moeprof.view/1"
    assert [name for name, _, _ in record["files"]] == ["report.html", "run.pftrace"]
