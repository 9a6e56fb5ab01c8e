"""Which paths open as a run, what is refused in one line, and what damage leaves of a file."""

import gzip
import os
from contextlib import closing
from pathlib import Path

import pytest
from builders.big_xspace import cpu_profile
from builders.cpu_run import cpu_file, verdicts, write
from builders.xspace import Plane, line, xspace
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from moeprof.errors import TraceError
from moeprof.ingest import open_run
from moeprof.ingest.xspace.open_space import open_space
from moeprof.tables.trace import Trace


def test_a_truncated_file_gives_what_is_whole_and_says_so(tmp_path):
    data = cpu_file() + xspace(Plane("/device:GPU:0", (line("s"),)), hostnames=())[:-3]
    trace = open_run(write(tmp_path, data))
    assert len(trace.events) == 18
    assert verdicts(trace)["truncated"] == "warn"
    assert "recovered 18 events" in trace.trust[0].detail


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "found an empty file"),
        (b"<!DOCTYPE html><html></html>", "found an HTML or XML page"),
        (b'{"traceEvents": []}', "found JSON text"),
        (b"\xff\xff\xff", "found bytes that are none"),
        (b"hello, this is \xc3\xa4 note\n", "found plain text; give the"),
        (b"\n" + "ä".encode() * 40, "found plain text"),  # cut within a letter at 64 bytes
        (b"\x89PNG\r\n\x1a\n\0\0", "found a PNG picture"),
        (b"\x7fELF\2\1\1\0", r"found a program or library \(ELF\)"),
    ],
)
def test_what_is_no_profile_is_refused_in_one_line(tmp_path, content, text):
    file = write(tmp_path, content)
    with pytest.raises(TraceError, match=text) as caught:
        open_run(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(("content", "text"), [(b"", "an empty file"), (b'{"a": 1}', "no event")])
def test_json_that_is_no_trace_is_refused_in_words(tmp_path, content, text):
    file = write(tmp_path, content, "node0.trace.json")
    with pytest.raises(TraceError, match=f"JSON, found {text}; give"):
        open_run(file)


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(TraceError, match="nowhere: no such file or folder"):
        open_run(tmp_path / "nowhere")


def test_a_folder_without_a_profile_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"expected a profile \(\*.xplane.pb\)"):
        open_run(tmp_path)


def test_a_packed_profile_is_unpacked(tmp_path):
    file = write(tmp_path, gzip.compress(cpu_file()), "node0.xplane.pb.gz")
    assert len(open_run(file).events) == 18


def test_a_packed_profile_that_is_cut_gives_what_it_holds(tmp_path):
    packed = gzip.compress(cpu_file())
    trace = open_run(write(tmp_path, packed[:-9], "node0.xplane.pb.gz"))
    assert verdicts(trace)["truncated"] == "warn"


@pytest.mark.parametrize("depth", ["", "plugins", "plugins/profile", "plugins/profile/s1"])
def test_every_level_of_an_oddly_named_run_folder_opens(tmp_path, depth):
    root = tmp_path / "a b" / "rún:1" / "x"
    write(root / "plugins" / "profile" / "s1", cpu_file())
    assert len(open_run(f"{root / depth}/").events) == 18


def test_a_relative_path_opens(tmp_path, monkeypatch):
    write(tmp_path / "run", cpu_file())
    monkeypatch.chdir(tmp_path)
    assert open_run("run").meta.path == "run"


def test_of_two_sessions_the_newer_is_read_and_said(tmp_path):
    sessions = tmp_path / "plugins" / "profile"
    write(sessions / "2026_01_01_00_00_00", cpu_file(runs=1))
    write(sessions / "2026_01_02_00_00_00", cpu_file(runs=3))
    trace = open_run(tmp_path)
    assert len(trace.events) == 18
    assert trace.meta.notes[0] == (
        "2 sessions found; read the newest, 2026_01_02_00_00_00 (not: 2026_01_01_00_00_00)"
    )


def test_windows_of_one_capture_go_by_file_time_not_by_name(tmp_path):
    sessions = tmp_path / "plugins" / "profile"
    for age, name in enumerate(("run-w2", "run-w10")):
        os.utime(write(sessions / name, cpu_file()), (1000 + age, 1000 + age))
    assert "read the newest, run-w10" in open_run(tmp_path).meta.notes[0]


def test_names_count_as_numbers_where_copying_made_the_times_equal(tmp_path):
    for name in ("run", "run-w2", "run-w10"):
        os.utime(write(tmp_path / "plugins" / "profile" / name, cpu_file()), (1000, 1000))
    assert "read the newest, run-w10 (not: run, run-w2)" in open_run(tmp_path).meta.notes[0]


def test_a_folder_of_several_runs_is_refused_with_their_names(tmp_path):
    for run in ("a", "b"):
        write(tmp_path / run / "plugins" / "profile" / "s1", cpu_file())
    with pytest.raises(TraceError, match="expected one run, found 2: a, b; give one of them"):
        open_run(tmp_path)


def test_the_session_that_was_read_is_said(tmp_path):
    write(tmp_path / "a" / "plugins" / "profile" / "s1", cpu_file())
    assert open_run(tmp_path).meta.notes[0] == "session read: a/plugins/profile/s1"


@pytest.mark.parametrize("depth", ["", "plugins", "plugins/profile/s1", "plugins/profile/s1/f"])
def test_the_run_folder_is_known_from_every_level(tmp_path, depth):
    write(tmp_path / "plugins" / "profile" / "s1", cpu_file())
    path = tmp_path / depth.replace("/f", "/node0.xplane.pb")
    assert open_run(path).meta.run_folder == str(tmp_path)


def test_the_run_folder_is_known_behind_a_link(tmp_path):
    write(tmp_path / "run" / "plugins" / "profile" / "s1", cpu_file())
    (tmp_path / "link").symlink_to(tmp_path / "run" / "plugins" / "profile" / "s1")
    assert open_run(tmp_path / "link").meta.run_folder == str(tmp_path / "run")


@pytest.mark.parametrize("method", ["open", "read_text", "stat", "rglob"])
def test_what_may_not_be_read_is_one_clear_error(tmp_path, monkeypatch, method):
    write(tmp_path / "plugins" / "profile" / "s1", cpu_file())
    (tmp_path / "meta.json").write_text('{"schema": "moeprof.run/1"}')

    def refuse(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(TraceError, match="found: Permission denied") as caught:
        open_run(tmp_path)
    assert "\n" not in str(caught.value)


def test_nothing_is_written_beside_the_input(tmp_path):
    write(tmp_path / "s1", cpu_file())
    open_run(tmp_path)
    assert [p.name for p in sorted(tmp_path.rglob("*"))] == ["s1", "node0.xplane.pb"]


WHOLE = cpu_file(runs=1)


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
@example(at=303, byte=188)  # an error that holds a view of the file
def test_a_changed_byte_gives_a_trace_or_one_clear_error(tmp_path, at, byte):
    file = write(tmp_path, WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :])
    try:
        assert isinstance(open_run(file), Trace)
    except TraceError as error:
        assert str(file) in str(error)  # noqa: PT017


def test_a_damaged_record_of_capture_leaves_the_profile_and_a_warning(tmp_path):
    write(tmp_path / "plugins" / "profile" / "s1", cpu_file())
    (tmp_path / "meta.json").write_text("{bad")
    trace = open_run(tmp_path)
    assert len(trace.events) == 18
    (check,) = (c for c in trace.trust if "meta.json is not JSON" in c.detail)
    assert check.verdict == "warn"


def _resident_bytes(file: Path) -> int:
    """How much of this process's memory is the file's, as the system counts it."""
    found = 0
    is_it = False
    for entry in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in entry.split(" ", 1)[0]:
            is_it = entry.endswith(str(file))
        elif is_it and entry.startswith("Rss:"):
            found += int(entry.split()[1]) * 1024
    return found


def test_a_file_that_was_read_through_takes_no_memory_and_reads_the_same_again(tmp_path):
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(cpu_profile(devices=4, steps=40, ops=303))
    size = file.stat().st_size
    assert size > 5_000_000

    def starts(space):
        host = next(plane for plane in space.head.planes if plane.name == "/host:CPU")
        return space.events(host, texts=("hlo_op",)).start_ns

    with closing(open_space(file)) as mapped, closing(open_space(file.read_bytes())) as held:
        first = starts(mapped)
        assert _resident_bytes(file) < size / 4
        for again in (starts(mapped), starts(held), starts(held)):
            assert again.tolist() == first.tolist()
