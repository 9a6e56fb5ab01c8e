"""Runs in object stores are read as those of a folder, of stores that answer on loopback."""

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from builders.gpu_hosts import write_hosts
from click.testing import CliRunner

from moeprof import compare, load
from moeprof.cli.main import group
from moeprof.errors import TraceError
from moeprof.ingest.sources.locate import locate
from moeprof.ingest.sources.store import fetched, mirrored, run_at

GROUPS = [[0, 2], [1, 3]]
HOSTS = {"a": [0, 1], "b": [2, 3]}
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("remote") / "run"
    return write_hosts(root / "plugins/profile/2026", HOSTS, GROUPS, {3: 40}).parents[2]


def said(path: str, *options: str) -> dict:
    asked = ["--only", "breakdown", "--only", "stragglers", "--json"]
    found = CliRunner().invoke(group, ["analyze", path, *asked, *options])
    assert found.exit_code in (0, 3), found.output
    return json.loads(found.stdout)


def same(path: str, folder: Path, *options: str) -> bool:
    """All but the names of the folders."""
    mine, known = said(path, *options), said(str(folder))
    assert mine["run"]["path"] == path
    for document in (mine, known):
        document["run"] |= {"path": "", "notes": []}
    return mine == known


@pytest.fixture
def bucket(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of moto's server with the run."""
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    secrets = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    for name, value in {**secrets, "AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    store = boto3.client("s3", endpoint_url=url, region_name="us-east-1")
    store.create_bucket(Bucket="bucket")
    for file in folder.rglob("*.pb"):
        store.upload_file(str(file), "bucket", f"run/{file.relative_to(folder)}")
    yield "s3://bucket/run"
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("way", [["--at-once"], ["--by-host", "--workers", "0"]])
def test_a_bucket_of_s3_says_what_the_folder_says(bucket, folder, way):
    assert same(bucket, folder, *way)


def test_a_bucket_without_a_profile_is_one_line(bucket):
    found = CliRunner().invoke(group, ["analyze", "s3://bucket/nothing"])
    assert found.exit_code == 1
    assert isinstance(found.exception, SystemExit) or "s3://bucket/nothing" in str(found.exception)


@pytest.fixture
def google(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a Google store on loopback with the run."""
    import gcsfs
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    server.start()
    host, port = server._api._httpd.socket.getsockname()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{host}:{port}")
    gcsfs.GCSFileSystem.clear_instance_cache()
    for file in folder.rglob("*.pb"):
        name = quote(f"run/{file.relative_to(folder)}", safe="")
        place = f"/upload/storage/v1/b/bucket/o?uploadType=media&name={name}"
        urlopen(Request(f"http://{host}:{port}{place}", file.read_bytes(), method="POST")).close()
    yield "gs://bucket/run"
    server.stop()
    gcsfs.GCSFileSystem.clear_instance_cache()


@pytest.mark.parametrize("way", [["--at-once"], ["--by-host", "--workers", "0"]])
def test_a_bucket_of_google_says_what_the_folder_says(google, folder, way):
    assert same(google, folder, *way)


@pytest.mark.parametrize("address", ["zip://run", "nosuch://run"])
def test_an_address_that_no_store_has_is_one_line(address):
    found = CliRunner().invoke(group, ["report", address])
    assert str(found.exception).startswith(f"{address}: expected a ")


def test_without_fsspec_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    found = CliRunner().invoke(group, ["analyze", "s3://bucket/run"])
    assert found.exit_code == 1
    assert "moeprof[cluster]" in str(found.exception) + found.output


def test_whoever_reads_a_run_reads_a_store(bucket, folder, tmp_path, monkeypatch):
    """One run gives the same from its bucket and from its folder, and leaves no copy."""
    made = tmp_path / "made"
    (tmp_path / "copies").mkdir()
    made.mkdir()
    monkeypatch.chdir(made)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
    for command in (
        ["report", bucket],
        ["compare", bucket, str(folder), "--html", "compare.html"],
        ["export", bucket, "--tables", "tables"],
        ["pipeline", "--run", bucket],
    ):
        found = CliRunner().invoke(group, command)
        assert found.exit_code in (0, 3), (command, found.output, found.exception)
        assert "moeprof-run-" not in found.output
    assert os.listdir(tmp_path / "copies") == []
    pages = [made / name for name in ("moeprof-report.html", "compare.html")]
    assert all(bucket in page.read_text() for page in pages)
    assert not any("moeprof-run-" in page.read_text() for page in pages)
    assert said("tables")["analyses"] == said(str(folder))["analyses"]


@pytest.mark.parametrize("command", [["replay", "--op", "x"], ["view"]])
def test_a_run_of_a_store_that_is_to_be_replayed_or_viewed_is_found_there(memory, command):
    found = CliRunner().invoke(group, [*command, "--session", "no", "memory://run"])
    assert found.exit_code == 1
    assert str(found.exception).startswith("memory://run: no session is named 'no'")


def test_a_run_of_a_store_is_asked_from_python(memory, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run, known = load("memory://run"), load(folder)
    assert run.path == "memory://run"
    assert run.breakdown().table.equals(known.breakdown().table)
    changed = compare("memory://run", known)
    assert changed.to_json() == compare(run, known).to_json()
    assert len(os.listdir(tmp_path)) == 2
    del run, changed
    assert os.listdir(tmp_path) == []


def test_tables_of_a_store_are_there_as_long_as_the_trace(memory, folder, tmp_path, monkeypatch):
    """They are read at the first look at each."""
    tables = tmp_path / "tables"
    CliRunner().invoke(group, ["export", str(folder), "--tables", str(tables)])
    for file in tables.iterdir():
        memory[f"/tables/{file.name}"] = file.read_bytes()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trace = load("memory://tables").trace
    assert len(trace.events) == len(load(folder).trace.events)
    del trace
    assert os.listdir(tmp_path) == ["tables"]


def test_a_run_of_a_store_without_a_profile_says_what_is_known(memory):
    memory["/dead/meta.json"] = b'{"schema": "moeprof.run/1", "exit_code": 1}'
    memory["/dead/oom.txt"] = b"RESOURCE_EXHAUSTED"
    found = CliRunner().invoke(group, ["compare", "memory://dead", "memory://run"])
    assert found.exit_code == 1
    told = str(found.exception)
    assert told.startswith("memory://dead: expected a profile")
    assert "`moeprof memory explain-oom oom.txt` explains a copy of it" in told
    assert load("memory://dead").trust.verdict == "fail"


def test_nothing_is_left_behind(bucket, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert same(bucket, folder, "--by-host", "--workers", "0")
    assert os.listdir(tmp_path) == []


@pytest.fixture
def memory(folder: Path) -> Iterator[dict[str, bytes]]:
    """The run as a store in memory, ``memory://run``: what is put into it is in the store."""
    from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

    class Files(dict):
        def __setitem__(self, name: str, content: bytes) -> None:
            file = MemoryFile(MemoryFileSystem(), name, content)
            file.commit()
            MemoryFileSystem.store[name] = file

    files = Files()
    for file in folder.rglob("*.pb"):
        files[f"/run/{file.relative_to(folder)}"] = file.read_bytes()
    yield files
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def mirror(url: str, folder: Path) -> list[str]:
    mirrored(url, folder)
    files = (file for file in folder.rglob("*") if file.is_file())
    return sorted(str(file.relative_to(folder / "run")) for file in files)


PROFILES = ["plugins/profile/2026/a.xplane.pb", "plugins/profile/2026/b.xplane.pb"]


def test_no_name_leads_out_of_the_copy(memory, tmp_path):
    memory["/run/x/../../../escaped.txt"] = b"out"
    assert mirror("memory://run", tmp_path / "a/b") == PROFILES
    memory["/run/plugins/../../../escaped.xplane.pb"] = b"out"
    with pytest.raises(TraceError, match=r"found '\.\.' in its name"):
        mirrored("memory://run", tmp_path / "a/b")
    assert not list(tmp_path.rglob("escaped*"))


def test_of_what_is_no_profile_only_what_is_read_is_copied(memory, tmp_path):
    read = ["host/p0.json", "memory/p0.json", "meta.json", "oom.txt", "routing/p0.parquet"]
    for name in (*read, "checkpoints/100/params.bin", "checkpoints/meta.json", "log.txt"):
        memory[f"/run/{name}"] = b"{}"
    assert mirror("memory://run", tmp_path) == sorted([*read, *PROFILES])


def test_markers_of_folders_are_no_files(bucket, tmp_path):
    import boto3

    store = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1")
    store.put_object(Bucket="bucket", Key="run/plugins/", Body=b"")
    assert mirror(bucket, tmp_path) == PROFILES


@pytest.mark.parametrize("place", ["plugins", "plugins/profile/2026", PROFILES[0]])
def test_a_part_of_a_run_has_the_record_of_the_whole(memory, tmp_path, place):
    """As where it lies in a folder; nothing else of the run is looked at."""
    memory["/run/meta.json"] = memory["/run/host/p0.json"] = b"{}"
    memory["/run/checkpoints/meta.json"] = b"{}"
    found = mirrored(f"memory://run/{place}", tmp_path)
    tmp_path = tmp_path / "run"
    assert found.place == tmp_path / place
    assert {str(file.relative_to(tmp_path)) for file in found.urls} == {
        name for name in PROFILES if name.startswith(place)
    }
    assert {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.json")} == {
        "meta.json",
        "host/p0.json",
    }


def test_a_session_in_a_store_is_chosen_by_its_name(memory, folder):
    assert same("memory://run/plugins/profile/2026", folder, "--session", "2026")


def test_a_scheme_is_one_in_capitals_too(folder, memory):
    assert same("MEMORY://run", folder)
    assert same(f"FILE://{folder}", folder)


def test_what_only_looks_like_an_address_is_a_path(folder, tmp_path, monkeypatch):
    (tmp_path / "run_1:").mkdir()
    (tmp_path / "run_1:/a").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    assert said("run_1://a")["run"]["path"] == "run_1:/a"


@pytest.mark.parametrize("way", [["--at-once"], ["--workers", "0"]])
def test_messages_have_the_address_that_was_given(memory, folder, tmp_path, way):
    other = write_hosts(tmp_path / "c", {"a": [0, 1], "b": [2, 3]}, GROUPS) / "a.xplane.pb"
    memory["/run/broken/plugins/profile/1/x.xplane.pb"] = b"x"
    memory["/other/a.xplane.pb"] = other.read_bytes()
    for asked, told in (
        (["memory://run/plugins", "--session", "no"], "memory://run/plugins: no session is named"),
        (
            ["memory://other/", "--session", "no"],
            "memory://other: no session is named 'no'; there are: other",
        ),
        (["memory://run/plugins/", "--host", "no"], "memory://run/plugins: no host is named"),
        (["memory://run/broken"], "memory://run/broken/plugins/profile/1/x.xplane.pb: "),
    ):
        error = str(CliRunner().invoke(group, ["analyze", *asked, *way]).exception)
        assert error.startswith(told)
        assert "moeprof-" not in error


def test_hosts_of_one_name_carry_their_address(memory, folder):
    for name in PROFILES:
        memory[f"/run2/{name}"] = (folder / name).read_bytes()
    asked = ["analyze", "memory://run2/plugins", f"memory://run/{PROFILES[0]}", "--json"]
    text = CliRunner().invoke(group, asked).stdout
    assert "memory://run/" in text
    assert "memory://run2/" in text
    assert "moeprof-" not in text


def test_what_a_killed_worker_fetched_goes_with_the_run(memory, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = []
    with run_at(["memory://run"]) as here:
        for place, url in here.urls.items():
            left.append(fetched(url, place))  # as of workers that were killed
            assert left[-1].__enter__().parts[-2:] == place.parts[-2:]
        assert len(locate(here.places[0]).files) == 2
        (home,) = tmp_path.iterdir()
        assert len(list(home.rglob("*.pb"))) == 4
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("way", [["--at-once"], ["--workers", "0"]])
def test_a_host_that_cannot_be_fetched_is_left_out(memory, tmp_path, monkeypatch, way):
    from fsspec.implementations.memory import MemoryFileSystem

    get_file = MemoryFileSystem.get_file

    def refusing(self, name, *more, **also):
        if name.endswith("b.xplane.pb"):
            raise PermissionError("forbidden")
        return get_file(self, name, *more, **also)

    monkeypatch.setattr(MemoryFileSystem, "get_file", refusing)
    ids = {"a": [0, 1], "b": [2, 3], "c": [4, 5]}
    for file in write_hosts(tmp_path / "c", ids, [[0, 2, 4], [1, 3, 5]]).iterdir():
        memory[f"/three/{file.name}"] = file.read_bytes()
    found = said("memory://three", *way)
    assert found["run"]["hosts"] == ["a", "c"]
    told = "a host is left out: memory:///three/b.xplane.pb: expected a run that can be read, found"
    assert any(told in law["detail"] for law in found["trust"])


def test_a_run_that_left_its_record_alone_is_told_as_of_a_folder(memory, tmp_path):
    meta = json.dumps({"schema": "moeprof.run/1", "exit_code": 1, "processes": [{"host": "a"}]})
    (tmp_path / "meta.json").write_text(meta)
    memory["/dead/meta.json"] = meta.encode()
    found, known = (
        CliRunner().invoke(group, ["analyze", path, "--json"])
        for path in ("memory://dead", str(tmp_path))
    )
    assert (found.exit_code, known.exit_code) == (3, 3)
    assert found.stdout == known.stdout.replace(str(tmp_path), "memory://dead")


@pytest.mark.parametrize("way", [["--at-once"], ["--workers", "0"]])
def test_no_folder_is_given_twice(memory, folder, tmp_path, way):
    memory["/silent/meta.json"] = b'{"schema": "moeprof.run/1"}'
    (tmp_path / "silent").mkdir()
    (tmp_path / "silent/meta.json").write_text('{"schema": "moeprof.run/1"}')
    for twice in ([f"{tmp_path}/silent", f"{tmp_path}/./silent"], ["memory://silent"] * 2):
        found = CliRunner().invoke(group, ["analyze", str(folder), *twice, *way])
        assert f"{twice[0]}: expected each folder once, found it twice" == str(found.exception)


def test_a_folder_without_a_profile_of_a_run_in_several_is_noted(memory, folder):
    memory["/silent/meta.json"] = b'{"schema": "moeprof.run/1"}'
    notes = json.loads(
        CliRunner().invoke(group, ["analyze", "memory://run", "memory://silent", "--json"]).stdout
    )["run"]["notes"]
    assert any(note.startswith("memory://silent: no profile in it: ") for note in notes)


def test_tables_in_a_store_are_read(memory, folder, tmp_path):
    tables = tmp_path / "tables"
    CliRunner().invoke(group, ["export", str(folder), "--tables", str(tables)])
    for file in tables.iterdir():
        memory[f"/tables/{file.name}"] = file.read_bytes()
    assert same("memory://tables", folder)


@pytest.mark.parametrize("name", ["LastModified", "last_modified", "updated", "mtime"])
def test_when_a_file_was_written_is_known_of_each_store(memory, tmp_path, monkeypatch, name):
    from fsspec.implementations.memory import MemoryFileSystem

    facts = {"size": 3, name: datetime(2026, 3, 4, tzinfo=UTC)}
    monkeypatch.setattr(MemoryFileSystem, "find", lambda *of, **also: {"/run/a.xplane.pb": facts})
    mirrored("memory://run", tmp_path)
    written = (tmp_path / "run/a.xplane.pb").stat()
    assert (written.st_mtime, written.st_size) == (facts[name].timestamp(), 3)
