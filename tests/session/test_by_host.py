"""A run that is read host by host says what the same run says that is read at once, or nothing."""

import functools
import gzip
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders.gpu_hosts import write_hosts
from click.testing import CliRunner

from moeprof.answers.document import Document
from moeprof.cli.main import group
from moeprof.ingest.by_host import Reading
from moeprof.ingest.one_host import one_by_one
from moeprof.ingest.run import located
from moeprof.ingest.sources.locate import locate
from moeprof.session.by_host import _ASKED, ask_host, read_by_host
from moeprof.session.run import Run, load
from moeprof.tables.name_rule import NameRules

GROUPS = [[0, 2, 4, 6], [1, 3, 5, 7]]
HOSTS = {"a": [0, 1], "b": [2, 3], "c": [4, 5], "d": [6, 7]}
NEED_ALL_WORK = {"sync_gaps", "launch", "one_step", "flame", "allocated", "heap"}
"""What is withheld where it has anything to say."""
PARTLY = {"hints"}
"""Patterns that need all work are not looked for."""
DATA = Path(__file__).parents[1] / "data"


def by_host(*folders: Path, only: tuple[str, ...] = ()) -> Run:
    trace = read_by_host(located(folders, None, ()), folders, only)
    assert trace is not None
    return Run(trace)


def text_of(run: Run, names: Sequence[str]) -> str:
    return json.dumps(run.document(names))


def answers_of(document: Document) -> dict[str, Any]:
    return {**document["analyses"], **document["drawings"]}


def laws_of(document: Document) -> dict[str, Any]:
    """The trust record, without the law that counts the shares of what was asked."""
    return {law["check"]: law for law in document["trust"] if law["check"] != "shares"}


def assert_same(*folders: Path, differs: str = "") -> None:
    """Every answer, the trust record and all else, but for what says that it is withheld."""
    one, whole = (run.document(is_drawn=True) for run in (by_host(*folders), load(folders)))
    mine, known = answers_of(one), answers_of(whole)
    for name in known:
        if json.dumps(mine[name]) == json.dumps(known[name]):
            continue
        assert name in NEED_ALL_WORK | PARTLY, name
        told = " ".join(mine[name]["notes"][:1])
        assert name in PARTLY or told.startswith("withheld: this needs all"), name
    assert one["run"] == whole["run"]
    assert one["steps"] == whole["steps"]
    laws, others = laws_of(one), laws_of(whole)
    assert {name for name in others if laws[name] != others[name]} == set(differs.split())


CASES = {
    "no ids of devices, a late rank": {"late_us": {3: 40}, "has_ids": False},
    "clocks apart": {"ahead_us": {"b": 1234, "d": -77}, "late_us": {6: 25}},
    "a host that stops": {"last_step": {"c": 1}, "stands_us": 90_000, "steps": 5},
    "programs name their devices": {"assigned": range(8), "steps": 3},
}


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_the_run_read_at_once(tmp_path, case):
    differs = "hosts_end_together" if "last_step" in CASES[case] else ""
    assert_same(write_hosts(tmp_path / "run", HOSTS, GROUPS, **CASES[case]), differs=differs)


def test_so_are_those_of_a_captured_profile_on_several_hosts(tmp_path):
    (file,) = (DATA / "gpu" / "sparse-gmm-deepep-graphs").rglob("*.xplane.pb.gz")
    for host in ("h0", "h1"):
        shutil.copy(file, tmp_path / f"{host}.xplane.pb.gz")
    assert_same(tmp_path)


def recorded(run: Path, processes: dict[int, str]) -> Path:
    """The record of processes, of three of one machine, that left profiles; and what one waited."""
    session = run / "plugins/profile/s"
    files = {k: [f"plugins/profile/s/{name}.xplane.pb"] for k, name in processes.items() if name}
    rows = [
        {
            "process_index": k,
            "machine": "m",
            "job": "j",
            "host": name or "killed",
            "files": files.get(k, []),
            "problems": [] if name else ["it was killed"],
        }
        for k, name in processes.items()
    ]
    meta = {"schema": "moeprof.run/1", "expected_processes": 4, "processes": rows}
    session.mkdir(parents=True, exist_ok=True)
    (run / "meta.json").write_text(json.dumps(meta))
    (run / "host").mkdir(exist_ok=True)
    for k in processes:
        told = {"schema": "moeprof.host/1", "environment": {"XLA_FLAGS": f"--n={k}"}}
        (run / "host" / f"p{k}.json").write_text(json.dumps(told))
    return session


def test_so_are_those_of_one_run_in_several_folders(tmp_path):
    """One process recorded a step less, one none; each folder has the record of its own."""
    parts = {"one": {0: "a", 1: "b"}, "two": {2: "c"}, "three": {3: ""}}
    members = {number: number for number in range(6)}
    for part, processes in parts.items():
        session = recorded(tmp_path / part, processes)
        hosts = {name: HOSTS[name] for name in processes.values() if name}
        steps = 3 if part == "two" else 4
        write_hosts(session, hosts, [[0, 2, 4], [1, 3, 5]], steps=steps, members=members)
    folders = [tmp_path / part for part in parts]
    assert_same(*folders)
    run = by_host(*folders, only=("timeline",))
    notes = " ".join(run.trace.meta.notes)
    assert "no profile in it: it was killed" in notes
    assert "step 3: not on all hosts" in notes
    assert run.trace.host_facts.equals(load(folders).trace.host_facts)
    assert len(run.trace.host_facts) == 3


def test_several_folders_are_read_host_by_host_by_the_command_too(tmp_path):
    for part, ids in {"a": [0, 1], "b": [2, 3]}.items():
        write_hosts(
            tmp_path / part, {part: ids}, [[0, 2], [1, 3]], members=dict(enumerate(range(4)))
        )
    folders = [str(tmp_path / part) for part in "ab"]
    command = ["analyze", *folders, "--only", "stragglers", "--csv"]
    said = [CliRunner().invoke(group, [*command, way]) for way in ("--by-host", "--at-once")]
    assert said[0].stdout == said[1].stdout
    assert said[0].stdout.startswith("rank,")


def test_a_question_that_is_asked_alone_reads_less_and_says_the_same(tmp_path):
    hosts = {"a": [0, 1], "b": [2, 3]}
    folder = write_hosts(tmp_path / "run", hosts, [[0, 2], [1, 3]], {3: 40}, steps=3)
    whole = load(folder)
    for name in _ASKED:
        assert text_of(by_host(folder, only=(name,)), [name]) == text_of(whole, [name]), name


def test_a_file_that_cannot_be_read_is_named_and_the_rest_goes_on(tmp_path):
    folder = write_hosts(tmp_path / "run", HOSTS, GROUPS)
    whole = (folder / "d.xplane.pb").read_bytes()
    (folder / "d.xplane.pb").write_bytes(whole[: len(whole) // 2])
    (folder / "e.xplane.pb.gz").write_bytes(gzip.compress(whole)[:200])
    assert_same(folder)
    (folder / "e.xplane.pb.gz").unlink()
    (folder / "d.xplane.pb").write_bytes(b"no profile")
    law = next(law for law in by_host(folder).trust.laws if law["check"] == "truncated")
    assert "a host is left out" in law["detail"]
    assert "d.xplane.pb" in law["detail"]


def test_what_needs_all_work_says_what_to_do(tmp_path):
    folder = write_hosts(tmp_path / "run", HOSTS, GROUPS)
    run = by_host(folder)
    told = run.ask("launch").notes[0]
    assert "--host" in told
    assert "--at-once" in told
    assert "not looked for: unfinished_collective" in str(run.ask("hints").notes)


def test_hosts_that_have_other_steps_are_read_again_under_those_that_all_have(tmp_path):
    folder = write_hosts(tmp_path / "run", HOSTS, GROUPS, steps=5, last_step={"d": 2})
    reads = []

    def counted(tasks):
        for task, part in one_by_one(tasks):
            reads.append(task.file.name)
            yield task, part

    ask = functools.partial(ask_host, (), NameRules())
    Reading(locate(folder), [str(folder)], ask, are_chosen=False).read(counted)
    assert len(reads) > len(HOSTS) + 1


def test_one_host_is_read_at_once(tmp_path):
    folder = write_hosts(tmp_path / "run", {"a": [0, 1]}, [[0, 1]])
    assert read_by_host(locate(folder), [str(folder)]) is None
    write_hosts(tmp_path / "run", {"b": [2, 3]}, [[2, 3]])
    (folder / "b.xplane.pb").write_bytes(b"")
    assert read_by_host(locate(folder), [str(folder)]) is None
