"""Only what lies below the root is read, also where links lead elsewhere."""

from __future__ import annotations

import os

import pytest
from builders.ended import write_record
from builders.sessions import profile, two_hosts, write

from moeprof.assistant.place import OpenRuns, place_of, runs_below
from moeprof.errors import SelectionError


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    two_hosts(folder / "run")
    write(folder / "one.xplane.pb", profile())
    write(tmp_path / "outside" / "secret.xplane.pb", profile())
    return folder.resolve()


@pytest.mark.parametrize("given", ["run", "./run", "run/../run", "one.xplane.pb"])
def test_a_path_is_taken_from_the_root(root, given):
    assert place_of(root, given).path.is_relative_to(root)
    assert place_of(root, str(root / given)) == place_of(root, given)


@pytest.mark.parametrize("given", ["..", "../outside", "/", "run/../../outside"])
def test_a_path_out_of_the_root_is_refused(root, given):
    with pytest.raises(SelectionError, match="expected a path below"):
        place_of(root, given)


def test_a_folder_whose_name_only_begins_like_the_root_is_outside(root):
    write(root.parent / "root2" / "x.xplane.pb", profile())
    with pytest.raises(SelectionError, match="expected a path below"):
        place_of(root, str(root.parent / "root2"))


def test_a_link_out_of_the_root_is_refused(root):
    (root / "link").symlink_to(root.parent / "outside")
    with pytest.raises(SelectionError, match=r"leads to .*outside"):
        place_of(root, "link")


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("link", "outside"),
        ("link.xplane.pb", "outside/secret.xplane.pb"),
        ("link.json", "outside/none"),
    ],
)
def test_a_link_inside_of_a_run_is_refused_too(root, name, target):
    (root / "run" / "inner").mkdir()
    (root / "run" / "inner" / name).symlink_to(root.parent / target)
    with pytest.raises(SelectionError, match=f"inner/{name}: expected a path below"):
        place_of(root, "run")


def test_links_within_the_root_are_followed_to_their_end(root):
    (root / "alias").symlink_to(root / "run")
    assert place_of(root, "alias") == place_of(root, "run")
    (root / "other").mkdir()
    (root / "run" / "more").symlink_to(root / "other")
    (root / "other" / "circle").symlink_to(root / "run")
    (root / "other" / "gone").symlink_to(root / "none")
    place_of(root, "run")
    (root / "other" / "out").symlink_to(root.parent / "outside")
    with pytest.raises(SelectionError, match="other/out: expected a path below"):
        place_of(root, "run")


def test_a_run_whose_record_lies_above_the_root_is_refused(tmp_path):
    session = tmp_path / "run" / "plugins" / "profile" / "s"
    write(session / "a.xplane.pb", profile())
    inner = session.resolve()
    with pytest.raises(SelectionError, match=r"run: expected a path below .*profile"):
        place_of(inner.parent, "s")
    assert place_of(tmp_path.resolve(), "run/plugins/profile/s").path == inner


def test_a_loop_of_links_is_no_run(root):
    (root / "loop").symlink_to(root / "loop")
    with pytest.raises(SelectionError, match="loop"):
        place_of(root, "loop")


def test_what_may_not_be_read_is_one_line(root, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SelectionError, match=r"run: cannot be read \(Permission denied\)"):
        place_of(root, "run")


def test_runs_that_there_are_are_listed(root):
    write_record(root / "ended", problems=[[]], codes=[1], seconds=3.0)
    assert sorted(runs_below(root)) == ["ended", "one.xplane.pb", "run"]
    with pytest.raises(SelectionError, match=r"there are: .*one\.xplane\.pb"):
        place_of(root, "nothing")


def test_only_the_first_runs_are_listed(root):
    for k in range(40):
        write(root / "many" / f"{k:02}.xplane.pb", profile())
    with pytest.raises(SelectionError, match="…") as caught:
        place_of(root, "nothing")
    assert len(str(caught.value)) < 1_500


def test_an_empty_root_says_so(tmp_path):
    with pytest.raises(SelectionError, match="no run was found there"):
        place_of(tmp_path.resolve(), "run")


def test_a_run_that_ended_without_a_profile_is_open_too(root):
    write_record(root / "ended", problems=[["ended early"]], codes=[1], seconds=3.0)
    assert OpenRuns(root).run("ended").run.path == str(root / "ended")


def test_links_to_what_is_never_read_are_left_alone(root):
    """A virtual environment beside a run leads to its interpreter."""
    (root / "run" / "bin").mkdir()
    (root / "run" / "bin" / "python3.12").symlink_to(root.parent / "outside" / "secret.xplane.pb")
    assert place_of(root, "run").path == root / "run"
