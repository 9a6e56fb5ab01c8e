"""Answers of an earlier call: used for the very same run, question and program alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from moeprof.cli import kept
from moeprof.cli.doctor import kept_check
from moeprof.cli.main import group

RUN = Path(__file__).parents[1] / "data" / "gpu" / "dense-cf1.25"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for what is kept."""
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with a profile and a record."""
    profile = tmp_path / "run" / "plugins" / "profile" / "w1" / "host.xplane.pb"
    profile.parent.mkdir(parents=True)
    profile.write_bytes(bytes(range(256)) * 1024)
    (tmp_path / "run" / "meta.json").write_text("{}")
    return tmp_path / "run"


class Counted:
    """Answers with the number of times that it was asked."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.times = 0
        self._meanwhile = meanwhile

    def __call__(self) -> dict[str, int]:
        self.times += 1
        self._meanwhile()
        return {"times": self.times}


def asked(run: Path, make: Counted, options: object = (), *, is_kept: bool = True) -> int:
    return kept.answered([run], options, make, is_kept=is_kept)["times"]


def profile_of(run: Path) -> Path:
    return next(run.rglob("*.xplane.pb"))


def test_the_same_question_about_the_same_files_is_answered_once(run: Path) -> None:
    make = Counted()
    assert [asked(run, make) for _ in range(3)] == [1, 1, 1]


def test_other_options_and_other_paths_are_other_questions(run: Path) -> None:
    make = Counted()
    found = [asked(run, make, "a"), asked(run, make, "b"), asked(profile_of(run), make, "a")]
    assert found == [1, 2, 3]


def test_a_changed_byte_is_seen_behind_the_same_size_and_times(run: Path) -> None:
    make, profile = Counted(), profile_of(run)
    asked(run, make)
    seen = profile.stat()
    changed = bytearray(profile.read_bytes())
    changed[len(changed) // 2] ^= 1  # in the middle, which is not looked at
    profile.write_bytes(changed)
    os.utime(profile, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert asked(run, make) == 2


@pytest.mark.parametrize("name", ["meta.json", "routing/p0.parquet", "oom.txt"])
def test_what_lies_beside_the_profile_belongs_to_it(run: Path, name: str) -> None:
    make, profile = Counted(), profile_of(run)
    assert (asked(run, make), asked(profile, make)) == (1, 2)
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_text('{"other": 1}')
    assert (asked(run, make), asked(profile, make)) == (3, 4)


def test_a_further_recording_beside_the_run_is_seen(run: Path) -> None:
    make = Counted()
    asked(run, make)
    run.with_name("run-2").mkdir()
    assert asked(run, make) == 2


def test_a_page_in_the_run_folder_changes_nothing(run: Path) -> None:
    make = Counted()
    asked(run, make)
    (run / "report.html").write_text("a page")
    assert asked(run, make) == 1


def test_another_moeprof_answers_anew(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Counted()
    asked(run, make)
    monkeypatch.setattr(kept, "_program", lambda: "another")
    assert asked(run, make) == 2


def test_every_file_of_moeprof_is_looked_at() -> None:
    known = kept._program()
    for name in ("analyzers/questions/breakdown.py", "cli/kept.py", "reports/templates/page.html"):
        assert f"moeprof/{name}:" in known
    assert "libmoeprof_xspace.so:" in known


def test_variables_of_moeprof_belong_to_the_question(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Counted()
    asked(run, make)
    monkeypatch.setenv("MOEPROF_READER", "python")
    assert asked(run, make) == 2


def test_a_run_that_grows_while_it_is_read_is_not_kept(run: Path, cache: Path) -> None:
    make = Counted(lambda: (run / f"{time.monotonic_ns()}.json").write_text("{}"))
    assert [asked(run, make), asked(run, make)] == [1, 2]
    assert not cache.exists()


@pytest.mark.parametrize("damage", [b"", b"nothing", None])
def test_a_damaged_answer_is_given_anew(run: Path, cache: Path, damage: bytes | None) -> None:
    make = Counted()
    asked(run, make)
    (file,) = cache.iterdir()
    known = bytearray(file.read_bytes())
    known[-3] ^= 1
    file.write_bytes(bytes(known) if damage is None else damage)
    assert [asked(run, make), asked(run, make)] == [2, 2]


def test_nothing_is_kept_where_it_is_not_wanted(
    run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Counted()
    assert [asked(run, make, is_kept=False) for _ in range(2)] == [1, 2]
    monkeypatch.setenv(kept.VARIABLE, "off")
    assert [asked(run, make) for _ in range(2)] == [3, 4]
    assert not cache.exists()


def test_a_folder_that_others_may_write_into_is_not_used(run: Path, cache: Path) -> None:
    make = Counted()
    asked(run, make)
    cache.chmod(0o777)
    assert asked(run, make) == 2


def test_what_was_used_longest_ago_is_given_up(
    run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Counted()
    for option in "abc":
        asked(run, make, option)
        time.sleep(0.01)
    asked(run, make, "a")  # used again
    sizes = sum(file.stat().st_size for file in cache.iterdir())
    monkeypatch.setattr(kept, "_MOST_BYTES", sizes)
    asked(run, make, "d")
    assert kept.kept()[0] == 3
    assert [asked(run, make, option) for option in "acd"] == [1, 3, 4]
    assert asked(run, make, "b") == 5


def test_a_folder_that_cannot_be_made_keeps_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "file" / "cache"))
    make = Counted()
    assert [asked(run, make), asked(run, make)] == [1, 2]


def test_the_users_folder_is_the_one_that_the_desktop_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(kept.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kept.folder() == tmp_path / "moeprof"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert kept.folder() == Path("/home/someone/.cache/moeprof")


def test_commands_print_the_same_from_what_was_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, before = tmp_path / "page.html", sorted(RUN.rglob("*"))
    commands = [
        ["analyze", "--only", "step_time", str(RUN)],
        ["analyze", "--only", "step_time", "--json", str(RUN)],
        ["report", str(RUN), "-o", str(page)],
    ]

    def outputs(*more: str) -> list[object]:
        results = [CliRunner().invoke(group, [*command, *more]) for command in commands]
        shown: list[object] = [(r.exit_code, r.stdout, r.stderr) for r in results]
        return [*shown, page.read_bytes()]

    first = outputs()
    assert kept.kept()[0] == 3

    def unread(*_: object, **__: object) -> None:
        raise AssertionError("the run is read again")

    with monkeypatch.context() as patched:
        patched.setattr("moeprof.session.run.open_session", unread)
        assert outputs() == first
    assert outputs("--no-cache") == first
    assert kept.kept()[0] == 3
    assert sorted(RUN.rglob("*")) == before


def test_a_profile_behind_a_link_is_read_anew(run: Path, tmp_path: Path) -> None:
    """What it lies beside is of the run that the link leads to."""
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "host.xplane.pb").symlink_to(profile_of(run))
    make = Counted()
    assert [asked(tmp_path / "links", make) for _ in range(2)] == [1, 2]
    assert [asked(tmp_path / "links" / "host.xplane.pb", make) for _ in range(2)] == [3, 3]
    (run / "meta.json").write_text('{"other": 1}')
    assert asked(tmp_path / "links" / "host.xplane.pb", make) == 4


def test_a_folder_of_very_many_files_is_read_anew_without_looking_at_all(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_MOST_FILES", 4)
    make = Counted()
    for place in range(3):
        (run / f"{place}.ckpt").write_bytes(b"x")
    assert [asked(run, make) for _ in range(2)] == [1, 2]


def test_an_answer_of_a_part_of_the_files_is_not_kept(run: Path) -> None:
    make = Counted()
    for times in (1, 2):
        found = kept.answered([run], (), make, is_kept=True, is_whole=lambda value: False)
        assert found["times"] == times


def test_files_of_others_in_the_folder_stay(
    run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir(mode=0o700)
    theirs = [cache / name for name in ("tmp.csv", "results.answers", ".moeprof-x.part")]
    begun = cache / ".moeprof-abcd1234.part"
    for file in (*theirs, begun):
        file.write_text("x")
        os.utime(file, (0, 0))
    monkeypatch.setattr(kept, "_MOST_BYTES", 0)
    make = Counted()
    assert [asked(run, make, option) for option in "ab"] == [1, 2]
    assert all(file.exists() for file in theirs)
    assert not begun.exists()
    assert kept.kept()[0] == 1


@pytest.mark.parametrize("value", ["off", "OFF", "0", "no", "false", "relative/folder"])
def test_values_that_name_no_folder_keep_nothing(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kept.VARIABLE, value)
    assert kept.folder() is None


@pytest.mark.parametrize(
    ("value", "state", "found"),
    [
        ("{folder}", "ok", "0 in {folder}"),
        ("{file}", "warning", "none: {file}: no folder"),
        ("{open}", "warning", "none: {open}: others may write into it"),
        ("off", "absent", "none: MOEPROF_CACHE is 'off'"),
        ("relative", "absent", "none: MOEPROF_CACHE is 'relative'"),
        ("/" + "x" * 300, "ok", "0 in /"),  # not there yet
    ],
)
def test_doctor_says_where_answers_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, state: str, found: str
) -> None:
    places = {name: str(tmp_path / name) for name in ("folder", "file", "open")}
    (tmp_path / "folder").mkdir(mode=0o700)
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv(kept.VARIABLE, value.format(**places))
    check = kept_check()
    assert (check.state, check.found[: len(found.format(**places))]) == (
        state,
        found.format(**places),
    )
