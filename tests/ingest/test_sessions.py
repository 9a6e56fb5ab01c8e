from pathlib import Path

import pytest
from builders.sessions import profile, write

from moeprof.ingest.sources.sessions import Session, SessionFolder, joined_note, sessions_of

S = 10**9


def folder(root: Path, name: str, *hosts: str, window=None, written_s: float = 0.0, place="run"):
    """A session folder of the run with one profile per host, all with the same window in s."""
    span = window and (round(window[0] * S), round(window[1] * S))
    files = [write(root / name / f"{host}.xplane.pb", profile(span)) for host in hosts]
    return SessionFolder(root / name, Path(place), tuple(files), written_s)


def names(sessions: list[Session]) -> list[str]:
    return [session.name for session in sessions]


def test_hosts_whose_windows_overlap_are_one_session(tmp_path):
    a = folder(tmp_path, "S_36", "hostA", window=(0, 10))
    b = folder(tmp_path, "S_38", "hostB", window=(1, 11))  # 9 of 10 s in common
    (session,) = sessions_of([b, a])
    assert [file.name for file in session.files] == ["hostA.xplane.pb", "hostB.xplane.pb"]
    assert joined_note(session) == (
        "2 session folders read as one run of 2 hosts, their recorded windows overlap by 90.0 %: "
        "S_36 (hostA), S_38 (hostB)"
    )


def test_a_session_of_another_day_stands_alone_and_is_the_older(tmp_path):
    old = folder(tmp_path, "z", "hostA", window=(-86_400, -86_390), written_s=9)
    a = folder(tmp_path, "a", "hostA", window=(0, 10))
    b = folder(tmp_path, "b", "hostB", window=(1, 11))
    assert names(sessions_of([a, b, old])) == ["z", "a + b"]


@pytest.mark.parametrize(
    ("second", "are_one"),
    [
        ((5, 15), True),  # 5 of 10 s in common
        ((5.1, 15.1), False),
        ((8, 10), True),  # the shorter lies in the longer
        ((10, 20), False),
        ((4, 4), True),  # no length
        ((11, 11), False),
    ],
)
def test_half_of_the_shorter_window_must_be_common(tmp_path, second, are_one):
    a = folder(tmp_path, "a", "hostA", window=(0, 10))
    b = folder(tmp_path, "b", "hostB", window=second)
    assert len(sessions_of([a, b])) == (1 if are_one else 2)


def test_one_host_has_one_session_at_a_time(tmp_path):
    a = folder(tmp_path, "a", "hostA", window=(0, 10))
    b = folder(tmp_path, "b", "hostA", "hostB", window=(0, 10))
    assert names(sessions_of([a, b])) == ["a", "b"]


def test_other_runs_at_the_same_time_stay_apart(tmp_path):
    a = folder(tmp_path, "a", "hostA", window=(0, 10), place="run1")
    b = folder(tmp_path, "b", "hostB", window=(0, 10), place="run2")
    assert len(sessions_of([a, b])) == 2


def test_each_member_must_overlap_with_each_other(tmp_path):
    chain = [
        folder(tmp_path, "a", "hostA", window=(0, 10)),
        folder(tmp_path, "b", "hostB", window=(4, 14)),
        folder(tmp_path, "c", "hostC", window=(8, 18)),  # 6 s with b, 2 s with a
    ]
    assert names(sessions_of(chain)) == ["a + b", "c"]


def test_a_session_of_several_files_spans_them_all(tmp_path):
    a = folder(tmp_path, "a", "hostA", window=(0, 10))
    write(tmp_path / "a" / "hostB.xplane.pb", profile((8 * S, 20 * S)))
    a = SessionFolder(a.path, a.place, (*a.files, tmp_path / "a" / "hostB.xplane.pb"), 0)
    c = folder(tmp_path, "c", "hostC", window=(12, 20))
    assert names(sessions_of([a, c])) == ["a + c"]


@pytest.mark.parametrize(("second", "are_one"), [("41", True), ("42", False)])
def test_without_windows_the_names_decide(tmp_path, second, are_one):
    a = folder(tmp_path, "2026_11_28_12_00_36", "hostA", written_s=100)
    b = folder(tmp_path, f"2026_11_28_12_00_{second}", "hostB", written_s=900)
    sessions = sessions_of([a, b])
    assert len(sessions) == (1 if are_one else 2)
    if are_one:
        assert "their names lie within 5 s; a recorded window is lacking: 2026" in joined_note(
            sessions[0]
        )


@pytest.mark.parametrize(("second", "are_one"), [(105, True), (106, False)])
def test_without_windows_and_dates_the_file_times_decide(tmp_path, second, are_one):
    a = folder(tmp_path, "a", "hostA", window=(0, 10), written_s=100)
    b = folder(tmp_path, "b", "hostB", written_s=second)
    sessions = sessions_of([a, b])
    assert len(sessions) == (1 if are_one else 2)
    if are_one:
        assert "their file times lie within 5 s" in joined_note(sessions[0])


def test_a_name_that_is_no_date_is_a_name(tmp_path):
    a = folder(tmp_path, "2026_99_28_12_00_36", "hostA", written_s=100)
    b = folder(tmp_path, "2026_11_28_12_00_36", "hostB", written_s=200)
    assert len(sessions_of([a, b])) == 2


def test_no_file_is_opened_where_nothing_can_be_joined(tmp_path):
    gone = [
        SessionFolder(tmp_path / name, tmp_path, (tmp_path / name / "vm.xplane.pb",), age)
        for age, name in enumerate(["w2", "w10"])
    ]
    assert names(sessions_of(gone)) == ["w2", "w10"]


def test_one_folder_alone_has_nothing_to_say(tmp_path):
    (session,) = sessions_of([folder(tmp_path, "a", "hostA")])
    assert joined_note(session) == ""
