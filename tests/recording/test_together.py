"""What processes agree on through the store of their job; here each is a few lines of a test."""

from __future__ import annotations

import json
import os
import threading

import pytest

from moeprof.recording import claim, together
from moeprof.recording.options import RUN_DIR_VARIABLE, CaptureOptions
from moeprof.recording.run_folder import claim_free
from moeprof.recording.together import (
    AHEAD,
    MOST_MEETING_S,
    MOST_WAIT_S,
    PATIENCE,
    Job,
    Together,
    Vigil,
)


class Keys:
    """A store that all processes of a test share."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    def put(self, key: str, value: str) -> bool:
        is_new = key not in self.told
        self.told.setdefault(key, value)
        return is_new

    def tell(self, key: str, value: str) -> None:
        self.told[key] = value

    def under(self, folder: str) -> dict[str, str]:
        known = self.told.items()
        return {k.removeprefix(f"{folder}/"): v for k, v in known if k.startswith(f"{folder}/")}


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    monkeypatch.setenv(RUN_DIR_VARIABLE, "")


def claimed(tmp_path, name, **options):
    run_dir = claim_free(tmp_path / name, {}, lambda line: None)
    return CaptureOptions(run_dir=run_dir, **options)


def joined(store, tmp_path, count, **options):
    """The processes of a job, each with a run folder of its own before they met."""
    found = []
    for index in range(count):
        one = Together(wait=lambda: None)
        folder, why = one.join(Job(index, count, store), claimed(tmp_path, f"r{index}", **options))
        assert not why
        found.append((one, folder))
    return found


def test_all_go_to_the_folder_of_the_first(tmp_path):
    found = joined(Keys(), tmp_path, 3)
    assert {options.run_dir for _, options in found} == {tmp_path / "r0"}
    assert len({one.capture for one, _ in found}) == 1
    assert os.environ[RUN_DIR_VARIABLE] == str(tmp_path / "r0")


def test_one_that_was_told_another_folder_keeps_it(tmp_path):
    store, asked = Keys(), [str(tmp_path / name) for name in ("a", "b", "a")]
    folders = []
    for index, name in enumerate(["a", "b", "a-2"]):
        options = claimed(tmp_path, name, asked_for=asked[index])
        folders.append(Together(wait=int).join(Job(index, 3, store), options)[0].run_dir.name)
    assert folders == ["a", "b", "a"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_all_that_were_told_one_folder_go_to_it_whoever_had_it_before_they_joined(
    tmp_path, monkeypatch, order
):
    """Each has a claim of its own in one folder beside the other."""
    started = iter(range(1, 9))
    monkeypatch.setattr(claim, "_started", lambda pid: str(next(started)))
    monkeypatch.setattr(claim.Claim, "is_over", False)
    own = [claimed(tmp_path, "run", asked_for=str(tmp_path / "run")) for _ in order]
    assert [options.run_dir.name for options in own] == ["run", "run-2", "run-3"]
    store, folders = Keys(), {}

    def meet(index):
        together = Together(wait=int)
        folders[index] = together.join(Job(index, 3, store), own[index])[0].run_dir.name

    threads = [threading.Thread(target=meet, args=(index,)) for index in order]
    for thread in threads:
        thread.start()
        thread.join(0.2)
    for thread in threads:
        thread.join()
    assert folders == {0: "run", 1: "run", 2: "run"}


def test_a_folder_that_another_capture_has_is_left_to_it(tmp_path):
    claim_free(tmp_path / "run", {}, lambda line: None)
    waits, store = [], Keys()
    options = claimed(tmp_path, "run")
    (options.run_dir / claim.NAME).unlink()
    (options.run_dir / claim.NAME).symlink_to("machine 1 1 ")
    found, why = Together(wait=int, pause=waits.append).join(Job(0, 2, store), options)
    assert (found.run_dir, why) == (tmp_path / "run-2", "")
    assert 0 < sum(waits) <= MOST_MEETING_S + 0.1


def test_files_of_another_run_in_a_folder_of_that_name_are_left_alone(tmp_path):
    """As on a machine whose disk is its own."""
    store = Keys()
    first = json.dumps({"capture": "c1", "run_dir": str(tmp_path / "old"), "asked_for": ""})
    store.put("moeprof/command/folder", first)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "meta.json").write_text("of another run")
    options, why = Together(wait=int).join(Job(1, 2, store), claimed(tmp_path, "own"))
    assert options.run_dir == tmp_path / "own"
    assert "not in one run folder with the other processes: run folder" in why
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["meta.json"]


def opened(processes, ready_from, steps=60):
    """Each process's first step of its window, where all begin each step together."""
    found: dict[int, int] = {}
    for step in range(steps):
        for index, one in enumerate(processes):
            asks = index not in found
            if asks and one.may_open(step, "calls of f", step >= ready_from[index]):
                found[index] = step
    return [found[index] for index in range(len(processes))]


@pytest.mark.parametrize("ready_from", [(4, 4, 4), (4, 9, 5), (9, 4, 4)])
def test_windows_open_with_the_process_that_is_ready_last(tmp_path, ready_from):
    processes = [one for one, _ in joined(Keys(), tmp_path, 3)]
    start = max(ready_from) + AHEAD
    assert opened(processes, ready_from) == [start] * 3
    assert [one.facts() for one in processes] == [{"common_start": start, "apart": ""}] * 3


def test_a_process_that_is_ready_far_too_late_says_so(tmp_path):
    one, late = (each for each, _ in joined(Keys(), tmp_path, 2))
    first, second = opened([one, late], (4, 50))
    assert (first, second) == (4 + PATIENCE + AHEAD, 50)
    assert one.apart == ""
    assert late.apart == f"it was at step 50 when the others began with step {first}"


def test_nobody_waits_for_one_that_steps_aside(tmp_path):
    one, other, aside = (each for each, _ in joined(Keys(), tmp_path, 3))
    aside.withdraw()
    assert opened([one, other], (4, 4)) == [6, 6]


def test_nobody_waits_for_those_that_do_not_record(tmp_path):
    one, silent = (each for each, _ in joined(Keys(), tmp_path, 2, hosts=(0,)))
    assert opened([one, silent], (4, 4)) == [4, 4]
    assert silent.facts() == {}


def test_steps_that_are_counted_by_other_things_have_no_common_number(tmp_path):
    one, other = (each for each, _ in joined(Keys(), tmp_path, 2))
    assert not other.may_open(4, "annotation train", False)
    assert not one.may_open(4, "calls of f", True)
    assert other.may_open(5, "annotation train", True)
    assert one.may_open(5, "calls of f", True)
    assert one.apart == "it counts calls of f, others count annotation train"


def test_a_store_that_is_gone_holds_up_no_window(tmp_path):
    class Gone(Keys):
        def under(self, folder):
            raise RuntimeError("UNAVAILABLE: the coordinator\nis gone")

    one = Together(wait=int)
    options, why = one.join(Job(0, 2, Gone()), claimed(tmp_path, "own"))
    assert options.run_dir == tmp_path / "own"
    assert "RuntimeError: UNAVAILABLE" in why
    assert one.may_open(4, "calls of f", True)
    assert one.apart == "RuntimeError: UNAVAILABLE: the coordinator"


def test_windows_hold_as_many_steps_as_the_first_to_open_says(tmp_path):
    """A step of 2.5 s may fit into the limit eight times by one clock and seven by another."""
    store = Keys()
    one, other, late = (each for each, _ in joined(store, tmp_path, 3))
    assert one.agreed(8, 6) == 8  # before there is a common window: what is known here
    first, _, _ = opened([one, other, late], (4, 4, 4))
    assert [each.agreed(steps, first) for each, steps in ((one, 3), (other, 8), (late, 8))] == [
        3
    ] * 3
    assert other.agreed(8, first + 20) == one.agreed(3, first + 20) == 8  # each window anew
    late.apart = "it came late"
    assert late.agreed(5, first) == 5


def test_steps_of_a_window_need_no_store(tmp_path, monkeypatch):
    store = Keys()
    processes = [each for each, _ in joined(store, tmp_path, 2)]
    first, _ = opened(processes, (4, 4))
    monkeypatch.setattr(Keys, "put", lambda *_: 1 / 0)
    assert processes[0].agreed(8, first) == 8


def test_a_process_alone_agrees_with_itself():
    alone = Together(wait=int)
    assert alone.may_open(4, "calls of f", True)
    assert alone.facts() == {}
    alone.withdraw()


def test_where_steps_have_nothing_in_common_the_first_waits_for_the_last(tmp_path):
    """One is ready while the other is a step on: it comes up while the first one waits."""
    store = Keys()
    one, other = (each for each, _ in joined(store, tmp_path, 2))
    steps = iter(range(1, 10))

    def other_goes_on(seconds):
        step = next(steps)
        assert not other.may_open(step, "calls of f", step >= 4)

    one._pause = other_goes_on
    assert not one.may_open(4, "calls of f", True)
    assert next(steps) == 4  # no more than a step behind
    assert other.may_open(4, "calls of f", True) is False
    assert not one.may_open(5, "calls of f", True)
    assert one.may_open(6, "calls of f", True)
    assert not other.may_open(5, "calls of f", True)
    assert other.may_open(6, "calls of f", True)


def test_one_that_never_comes_is_not_waited_for_for_long(tmp_path):
    waited = []
    one, _ = (each for each, _ in joined(Keys(), tmp_path, 2))
    one._pause = waited.append
    assert not any(one.may_open(step, "calls of f", True) for step in range(4, 10))
    assert sum(waited) == pytest.approx(MOST_WAIT_S, abs=0.1)


@pytest.fixture
def _often(monkeypatch):
    monkeypatch.setattr(together, "EVERY_S", 0.01)


@pytest.mark.usefixtures("_often")
def test_a_process_that_ended_by_a_fault_is_told_once_while_the_window_is_open(tmp_path):
    one, _ = (each for each, _ in joined(Keys(), tmp_path, 2))
    told, is_told = [], threading.Event()
    vigil = one.watch(tmp_path, lambda: (0, 0), lambda why: (told.append(why), is_told.set()))
    rows = [
        {"job": one.capture, "process_index": 0, "exit_code": 1},  # this one
        {"job": "another", "process_index": 5, "exit_code": 1},
        {"job": one.capture, "process_index": 2, "exit_code": 0},
        {"job": one.capture, "process_index": 1, "exit_code": 137},
    ]
    (tmp_path / "meta.json").write_text(json.dumps({"processes": rows}))
    assert is_told.wait(10)
    assert told == ["process 1 ended with exit code 137"]
    assert not vigil.wait_for(threading.Event().wait)  # devices that will not finish any more
    vigil.end()


@pytest.mark.usefixtures("_often")
def test_devices_that_finish_are_waited_for():
    vigil = Vigil(lambda: "", lambda why: None)
    assert vigil.wait_for(lambda: None)
    vigil.end()


@pytest.mark.parametrize(
    ("running_s", "longest_s", "is_told"),
    [(59, 0.01, False), (61, 0.01, True), (61, 20, False), (101, 20, True)],
)
def test_a_step_stands_where_it_lasts_out_of_proportion(running_s, longest_s, is_told):
    why = together._what_stands(int(running_s * 1e9), int(longest_s * 1e9))
    assert bool(why) == is_told


def test_a_process_alone_is_not_watched(tmp_path):
    assert Together(wait=int).watch(tmp_path, lambda: (0, 0), print) is None
