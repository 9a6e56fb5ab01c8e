import json
from pathlib import Path

import pytest
from builders.sessions import profile, two_hosts, write
from builders.xspace import host, line, xspace
from click.testing import CliRunner, Result

from moeprof.analyzers.registry import all_names
from moeprof.cli.main import group
from moeprof.errors import TraceError
from moeprof.ingest import open_run
from moeprof.tables.trace import FRAMES


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments])


def answers(path: Path, *options: str) -> dict:
    """What `analyze` says of a run, but where it stands."""
    result = run("analyze", path, "--json", *options)
    assert result.exit_code == 0
    document = json.loads(result.stdout, parse_constant=pytest.fail)
    del document["run"]["path"], document["run"]["notes"]
    return document


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    assert run("export", two_hosts(tmp_path / "run"), "--tables", tmp_path / "t").exit_code == 0
    return tmp_path / "t"


def test_the_folder_goes_to_stdout_and_what_is_in_it_to_stderr(tmp_path):
    result = run("export", two_hosts(tmp_path / "run"), "--tables", tmp_path / "t")
    assert result.stdout == f"{tmp_path / 't'}\n"
    note = json.loads(result.stderr, parse_constant=pytest.fail)
    assert note["schema"] == "moeprof.export/1"
    assert note["path"] == str(tmp_path / "t")
    assert [table["name"] for table in note["tables"]] == list(FRAMES)
    assert {t["name"]: t["rows"] for t in note["tables"]}["events"] == 6  # 3 on each host
    sizes = [file.stat().st_size for file in (tmp_path / "t").glob("*.parquet")]
    assert note["bytes"] == sum(table["bytes"] for table in note["tables"]) == sum(sizes)


def test_tables_give_the_answers_of_their_run(tmp_path, tables):
    assert answers(tables) == answers(tmp_path / "run")


def test_an_exported_folder_is_exported_again(tmp_path, tables):
    assert run("export", tables, "--tables", tmp_path / "again").exit_code == 0
    assert answers(tmp_path / "again") == answers(tables)


def test_where_the_tables_came_from_is_a_note(tmp_path, tables):
    meta = open_run(tables).meta
    assert meta.path == str(tables)
    assert meta.notes[-1] == f"tables written from {tmp_path / 'run'}"


def test_a_session_and_a_host_are_exported_alone(tmp_path):
    run("export", two_hosts(tmp_path / "run"), "--tables", tmp_path / "b", "--host", "hostB")
    assert open_run(tmp_path / "b").meta.hosts == ("hostB",)
    run("export", tmp_path / "run", "--tables", tmp_path / "old", "--session", "S_old")
    assert len(open_run(tmp_path / "old").events) == 1


def test_damaged_input_is_exported_and_ends_with_3(tmp_path):
    file = write(tmp_path / "cut.xplane.pb", profile()[:-9])
    assert run("export", file, "--tables", tmp_path / "t").exit_code == 3
    assert run("analyze", tmp_path / "t").exit_code == 3


def test_tables_name_the_questions_that_fall_for_whoever_knows_no_needs(tmp_path):
    idle = write(tmp_path / "idle.xplane.pb", xspace(host(line("python"))))
    law = _stored_law(idle, "device_work", tmp_path / "a")
    assert law["breaks"] == ["DEVICE_TIMES", "PROGRAMS_THAT_RAN"]
    timed = {*all_names()} - {"memory", "expert_load"}
    assert law["withholds"] == [name for name in all_names() if name in timed]
    cut = write(tmp_path / "cut.xplane.pb", profile()[:-9])
    law = _stored_law(cut, "truncated", tmp_path / "b")
    assert [scope["question"] for scope in law["scopes"]] == ["sync_gaps", "launch"]


def _stored_law(profile: Path, name: str, folder: Path) -> dict:
    """A law in the tables of a profile, whose whole record is that of the profile."""
    assert run("export", profile, "--tables", folder).exit_code == 3
    found = [json.loads(run("analyze", p, "--json").stdout)["trust"] for p in (profile, folder)]
    assert found[0] == found[1]
    laws = json.loads((folder / "trace.json").read_text())["trust"]
    return next(law for law in laws if law["check"] == name)


def test_nothing_is_overwritten(tmp_path):
    two_hosts(tmp_path)
    result = run("export", tmp_path, "--tables", tmp_path)
    assert isinstance(result.exception, TraceError)
    assert "nothing is overwritten" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["plugins"]


def test_a_page_about_tables_is_not_put_among_them(tmp_path, monkeypatch):
    two_hosts(tmp_path / "run")
    (tmp_path / "run" / "meta.json").write_text('{"schema": "moeprof.run/1"}')
    run("export", tmp_path / "run", "--tables", tmp_path / "t")
    monkeypatch.chdir(tmp_path)
    assert run("report", tmp_path / "t").stdout.strip() == "moeprof-report.html"
    assert "record" in json.loads(run("analyze", tmp_path / "t", "--json").stdout)["run"]


def test_what_to_write_must_be_said():
    result = run("export", ".")
    assert result.exit_code == 2
    assert "--tables DIR, --perfetto FILE, or both" in result.stderr


def test_help_has_an_example():
    assert "Example:\n\n      moeprof export runs/" in run("export", "--help").stdout


def test_a_perfetto_trace_is_written_alone_or_beside_the_tables(tmp_path):
    source = two_hosts(tmp_path / "run")
    file = tmp_path / "run.pftrace"
    result = run("export", source, "--perfetto", file)
    assert (result.exit_code, result.stdout) == (0, f"{file}\n")
    note = json.loads(result.stderr)["perfetto"]
    # on each of two hosts 3 pieces of work, each a run of a component and in a step of its own
    assert (note["path"], note["slices"], note["flows"]) == (str(file), 18, 0)
    assert note["bytes"] == file.stat().st_size
    assert note["missing"][0].startswith("memory: ")
    result = run("export", source, "--perfetto", file, "--tables", tmp_path / "t")
    assert result.stdout.splitlines() == [str(tmp_path / "t"), str(file)]
    assert file.stat().st_size > 100


@pytest.mark.parametrize("name", ["h.xplane.pb", "x.json", "x"])
def test_no_profile_is_replaced_by_a_perfetto_trace(tmp_path, name):
    result = run("export", two_hosts(tmp_path / "run"), "--perfetto", tmp_path / name)
    assert result.exit_code == 2
    assert "ends in .pftrace" in result.stderr
