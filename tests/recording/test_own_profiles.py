"""A script that profiles itself is never disturbed, and its profile is taken over."""

from __future__ import annotations


def test_its_profile_inside_the_window_ends_the_window(capture, tmp_path):
    run = capture("profiles_itself.py", str(tmp_path / "logs"), "start_trace")
    assert run.exit_code == 0
    assert run.stdout.startswith("finished")
    assert "steps aside" in run.stderr
    (own,) = (tmp_path / "logs").rglob("*.xplane.pb")
    assert own.read_bytes() in [path.read_bytes() for path in run.profiles]


def test_its_profile_before_the_window_is_the_only_one(capture, tmp_path):
    run = capture("profiles_itself.py", str(tmp_path / "logs"), "early")
    assert run.exit_code == 0
    assert run.window is None
    assert run.meta["status"] == "complete"
    (own,) = (tmp_path / "logs").rglob("*.xplane.pb")
    (kept,) = run.profiles
    assert kept.read_bytes() == own.read_bytes()


def test_its_profile_after_the_window_leaves_both(capture, tmp_path):
    run = capture("profiles_itself.py", str(tmp_path / "logs"), "trace")
    assert run.exit_code == 0
    assert run.window["closed_because"] == "complete"
    assert len(run.profiles) == 1
    assert list((tmp_path / "logs").rglob("*.xplane.pb"))


def test_a_run_that_has_only_its_profile_knows_its_mesh(capture, tmp_path):
    run = capture("lets_go_of_its_mesh.py", "4", str(tmp_path / "logs"))
    assert (run.window, len(run.profiles)) == (None, 1)
    assert run.meta["mesh"] == {"expert": 2, "fsdp": 2}
