import gzip
import os
from pathlib import Path

import pytest
from builders.protobuf import message
from builders.sessions import profile, two_hosts, write

from moeprof.errors import SelectionError, TraceError
from moeprof.ingest.sources.locate import locate
from moeprof.ingest.xspace.open_space import open_space, read_bytes


def read(path, session=None, hosts=()) -> list[str]:
    """Session folder and host of each file that is read."""
    files = locate(path, session, hosts).files
    return [f"{f.parent.name}/{f.name.removesuffix('.xplane.pb')}" for f in files]


def test_hosts_with_sessions_of_their_own_are_one_run(tmp_path):
    found = locate(two_hosts(tmp_path))
    assert read(tmp_path) == ["S_36/hostA", "S_38/hostB"]
    assert found.run == tmp_path
    assert found.notes == (
        "2 sessions found; read the newest, S_36 + S_38 (not: S_old)",
        "2 session folders read as one run of 2 hosts, their recorded windows overlap by 90.0 %: "
        "S_36 (hostA), S_38 (hostB)",
    )


@pytest.mark.parametrize("name", ["S_36", "S_38"])
def test_each_member_of_a_joined_session_names_it(tmp_path, name):
    assert read(two_hosts(tmp_path), name) == ["S_36/hostA", "S_38/hostB"]


def test_an_older_session_can_be_named(tmp_path):
    found = locate(two_hosts(tmp_path), "S_old")
    assert [file.parent.name for file in found.files] == ["S_old"]
    assert found.notes == ("2 sessions found; read S_old (not: S_36 + S_38)",)


def test_a_session_that_is_not_there_is_told_with_those_that_are(tmp_path):
    with pytest.raises(SelectionError, match=r"no session is named 'x'; there are: S_old, S_36, "):
        locate(two_hosts(tmp_path), "x")


def test_of_a_run_single_hosts_can_be_read(tmp_path):
    two_hosts(tmp_path)
    assert read(tmp_path, hosts=["hostB"]) == ["S_38/hostB"]
    assert read(tmp_path, hosts=["hostB", "hostA"]) == ["S_36/hostA", "S_38/hostB"]
    assert locate(tmp_path, hosts=["hostB"]).notes[-1] == "hosts read: hostB (not: hostA)"


def test_a_host_that_is_not_there_is_told_with_those_that_are(tmp_path):
    with pytest.raises(SelectionError, match=r"no host is named 'no'; there are: hostA, hostB$"):
        locate(two_hosts(tmp_path), hosts=["hostA", "no"])


def test_a_host_stands_for_all_of_its_processes(tmp_path):
    for name in ("n1-p0", "n1-p1", "n11-p2"):
        write(tmp_path / f"{name}.xplane.pb", profile())
    assert len(locate(tmp_path, hosts=["n1"]).files) == 2
    assert len(locate(tmp_path, hosts=["n1-p1"]).files) == 1


def test_three_hosts_of_one_folder_are_read_without_a_json_beside_them(tmp_path):
    for name in ("hostA", "hostB", "hostC"):
        write(tmp_path / "plugins" / "profile" / "S1" / f"{name}.xplane.pb", profile())
    assert read(tmp_path) == ["S1/hostA", "S1/hostB", "S1/hostC"]


def test_a_packed_copy_beside_a_profile_is_not_read_twice(tmp_path):
    file = write(tmp_path / "a.xplane.pb", profile())
    copy = write(tmp_path / "a.xplane.pb.gz", gzip.compress(profile()))
    found = locate(tmp_path)
    assert found.files == (file,)
    assert found.notes == (f"{copy} passed over: it is there unpacked too",)


def test_session_folders_outside_of_a_run_folder_are_joined_too(tmp_path):
    write(tmp_path / "S_36" / "hostA.xplane.pb", profile((0, 10)))
    write(tmp_path / "S_38" / "hostB.xplane.pb", profile((1, 11)))
    assert read(tmp_path) == ["S_36/hostA", "S_38/hostB"]


def test_unrelated_folders_are_several_runs_of_which_one_can_be_named(tmp_path):
    write(tmp_path / "a" / "vm.xplane.pb", profile((0, 10)))
    write(tmp_path / "b" / "vm.xplane.pb", profile((0, 10)))
    with pytest.raises(TraceError, match="expected one run, found 2: a, b; give one of them"):
        locate(tmp_path)
    assert read(tmp_path, "a") == ["a/vm"]


def test_a_name_that_two_runs_use_is_not_enough(tmp_path):
    for run in ("a", "b"):
        write(tmp_path / run / "plugins" / "profile" / "s" / "vm.xplane.pb", profile())
    with pytest.raises(TraceError, match="expected one run, found 2: a, b"):
        locate(tmp_path, "s")


def test_one_file_is_one_host_of_the_session_that_it_stands_in(tmp_path):
    file = two_hosts(tmp_path) / "plugins/profile/S_36/hostA.xplane.pb"
    assert read(file) == read(file, "S_36", ["hostA"]) == ["S_36/hostA"]
    with pytest.raises(SelectionError, match=r"there are: hostA$"):
        locate(file, hosts=["hostB"])


def test_of_many_runs_some_are_named(tmp_path):
    for run in range(15):
        write(tmp_path / f"r{run:02}" / "vm.xplane.pb", profile())
    with pytest.raises(TraceError, match=r"found 15: r00, .*, r11, and 3 more; give one"):
        locate(tmp_path)


ODD = "a b/rún:1/x"


@pytest.mark.parametrize(
    "path",
    [
        ODD,
        f"{ODD}/",
        f"./{ODD}",
        f"{ODD}/plugins",
        f"{ODD}/plugins/profile",
        f"{ODD}/plugins/profile/S_36",
        f"{ODD}/plugins/profile/S_36/hostA.xplane.pb",
        "a b/rún:1",
        "a b",
        ".",
        "",
    ],
)
@pytest.mark.parametrize("is_absolute", [False, True])
def test_every_form_of_an_odd_path_is_a_path(tmp_path, monkeypatch, path, is_absolute):
    two_hosts(tmp_path / ODD)
    monkeypatch.chdir(tmp_path)
    given = f"{tmp_path}{os.sep}{path}" if is_absolute else path
    found = locate(given)
    assert found.run == Path(tmp_path / ODD)
    assert found.files[0].name == "hostA.xplane.pb"


@pytest.mark.parametrize("length", [ord("<"), ord("{"), ord("[")])
def test_a_profile_whose_first_plane_has_the_length_of_a_bracket_is_one(tmp_path, length):
    # an XSpace begins with a newline (field 1) and the length of its first plane
    name = "/device:GPU:0".ljust(length - 2, "x")
    plane = message((2, name))
    assert len(plane) == length
    file = tmp_path / "a.xplane.pb"
    file.write_bytes(message((1, plane)))
    assert read_bytes(file) == (message((1, plane)), "")
    assert open_space(file).head.planes[0].name == name


def test_a_host_of_which_only_a_json_trace_is_there_is_named(tmp_path):
    write(tmp_path / "hostA.xplane.pb", profile())
    write(tmp_path / "hostA.trace.json.gz", b"{}")
    write(tmp_path / "hostB.trace.json", b"{}")
    found = locate(tmp_path)
    assert [file.name for file in found.files] == ["hostA.xplane.pb"]
    told = "not read, as other hosts have an .xplane.pb and these a JSON trace alone"
    assert found.notes == (f"{told}: {tmp_path / 'hostB.trace.json'}",)
    assert locate(tmp_path, hosts=["hostA"]).notes == ()


def test_a_folder_that_may_not_be_read_is_not_taken_for_a_run_without_a_profile(
    tmp_path, monkeypatch
):
    (tmp_path / "meta.json").write_text("{}")
    closed = tmp_path / "plugins" / "profile" / "run"
    closed.mkdir(parents=True)
    listed = os.scandir

    def refused(path="."):
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(TraceError, match="found: Permission denied; check its permissions") as told:
        locate(tmp_path)
    assert str(told.value).startswith(f"{closed}: ")
