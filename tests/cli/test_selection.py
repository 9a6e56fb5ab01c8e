"""Which session and hosts of a run are read: the same options on every command that takes one."""

import json
import os
from pathlib import Path

import click
import pytest
from builders.sessions import profile, two_hosts, write

from moeprof.cli import main as command_line

ODD = "a b/rún:1/x"


def takes_a_run(name: str) -> bool:
    command = command_line.group.get_command(click.Context(command_line.group), name)
    arguments = (each for each in command.params if isinstance(each, click.Argument))
    return any(argument.name in ("run", "runs") for argument in arguments)


COMMANDS = [name for name in command_line.COMMANDS if takes_a_run(name)]


@pytest.fixture
def moeprof(monkeypatch, tmp_path, capsys):
    """Run a command in an empty folder as a shell would: exit code, stdout and stderr."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def call(command: str, *arguments: object) -> tuple[int, str, str]:
        needed = {
            "export": ["--tables", f"t{len(list(here.iterdir()))}"],
            "view": ["--no-browser"],
        }.get(command, [])
        # what is viewed is served until the user ends it
        monkeypatch.setattr("moeprof.viewer.server.ViewServer.serve_forever", lambda _: None)
        monkeypatch.setattr("sys.argv", ["moeprof", command, *map(str, arguments), *needed])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


def test_these_commands_take_a_run():
    assert {"analyze", "report", "export"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_several_hosts_need_no_option(moeprof, tmp_path, command):
    assert moeprof(command, two_hosts(tmp_path / "run"))[0] == 0


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("options", [["--host", "hostB"], ["--session", "S_38"]])
def test_a_host_or_a_session_can_be_named(moeprof, tmp_path, command, options):
    assert moeprof(command, two_hosts(tmp_path / "run"), *options)[0] == 0


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("option", "known"), [("--host", "hostA, hostB"), ("--session", "S_old, S_36, S_38")]
)
def test_a_name_that_is_not_there_is_wrong_usage(moeprof, tmp_path, command, option, known):
    code, out, err = moeprof(command, two_hosts(tmp_path / "run"), option, "nosuch")
    assert code == 2
    assert out == ""
    what = option.removeprefix("--")
    assert err == (
        f"moeprof: {tmp_path / 'run'}: no {what} is named 'nosuch'; there are: {known}\n"
    )
    assert not list(Path.cwd().iterdir())


def hosts(text: str) -> list[str]:
    return json.loads(text)["run"]["hosts"]


def test_the_hosts_named_are_those_that_are_read(moeprof, tmp_path):
    run = two_hosts(tmp_path / "run")
    assert hosts(moeprof("analyze", run, "--json")[1]) == ["hostA", "hostB"]
    assert hosts(moeprof("analyze", run, "--json", "--host", "hostB")[1]) == ["hostB"]
    both = ["--host", "hostB", "--host", "hostA"]
    assert hosts(moeprof("analyze", run, "--json", *both)[1]) == ["hostA", "hostB"]
    assert hosts(moeprof("analyze", run, "--json", "--session", "S_old")[1]) == ["hostA"]


def test_hosts_that_share_a_session_folder_are_read_without_a_json_trace(moeprof, tmp_path):
    for name in ("hostA", "hostB", "hostC"):
        write(tmp_path / "plugins" / "profile" / "S1" / f"{name}.xplane.pb", profile((0, 5)))
    assert hosts(moeprof("analyze", tmp_path, "--json")[1]) == ["hostA", "hostB", "hostC"]


def test_a_host_whose_name_is_no_utf_8_is_read(moeprof, tmp_path):
    file = write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.xplane.pb")), profile())
    assert hosts(moeprof("analyze", file, "--json")[1]) == ["\ufffd"]
    assert hosts(moeprof("analyze", file, "--json", "--host", "\ufffd")[1]) == ["\ufffd"]
    assert moeprof("export", file)[0] == 0


def test_the_options_hold_for_each_run_of_a_page(moeprof, tmp_path):
    runs = [two_hosts(tmp_path / "one"), two_hosts(tmp_path / "two")]
    assert moeprof("report", *runs, "--host", "hostB")[0] == 0
    write(tmp_path / "two/plugins/profile/S_99/hostC.xplane.pb", profile((10**12, 10**12 + 5)))
    code, _, err = moeprof("report", *runs, "--host", "hostB")
    assert code == 2
    assert err.endswith("two: no host is named 'hostB'; there are: hostC\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_tables_are_read_as_a_whole(moeprof, tmp_path, command):
    _, out, _ = moeprof("export", two_hosts(tmp_path / "run"))
    tables = out.strip()
    assert moeprof(command, tables)[0] == 0
    assert moeprof(command, tables, "--host", "hostA", "--host", "hostB")[0] == 0
    for options, text in [
        (
            ["--host", "hostB"],
            "all hosts of these tables or none to be named, found hostB",
        ),
        (["--host", "no"], "no host is named 'no'; there are: hostA, hostB"),
        (["--session", "S_36"], "no session is named 'S_36'; tables hold a single session"),
    ]:
        code, _, err = moeprof(command, tables, *options)
        assert code == 2
        assert text in err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "path",
    [f"{ODD}/", f"{ODD}/plugins/profile/S_36/hostA.xplane.pb"],
)
@pytest.mark.parametrize("is_absolute", [True, False])
def test_an_odd_path_is_a_path(moeprof, tmp_path, command, path, is_absolute):
    two_hosts(tmp_path / ODD)
    assert moeprof(command, f"{tmp_path}/{path}" if is_absolute else f"../{path}")[0] == 0


def test_recorded_routing_is_read_below_an_odd_path(moeprof, tmp_path, monkeypatch):
    from moeprof.ingest import open_run
    from moeprof.tables.routing import ROUTING

    run = two_hosts(tmp_path / "s3:" / "step=9")
    (run / "routing").mkdir()
    row = {"step": 0, "layer": 1, "expert": 2, "rank": 0, "tokens": 9}
    ROUTING.frame([row]).to_parquet(run / "routing" / "p0.parquet")
    monkeypatch.chdir(tmp_path)
    for path in (run, "s3:/step=9"):
        assert open_run(path).routing["step"].tolist() == [0]


def test_several_paths_are_folders_of_one_run(moeprof, tmp_path):
    sessions = two_hosts(tmp_path) / "plugins" / "profile"
    code, out, _ = moeprof("analyze", sessions / "S_36", sessions / "S_38", "--json")
    assert code in (0, 3)
    assert json.loads(out)["run"]["hosts"] == ["hostA", "hostB"]
