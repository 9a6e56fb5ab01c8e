"""A run that is read host by host says what the same run says that is read at once, or nothing."""

import functools
import gzip
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from builders import gpu_hosts
from builders.gpu_hosts import STEP_US, US, write_hosts
from builders.xspace import Ref
from click.testing import CliRunner

from moeprof.analyzers.activity.account import account_of
from moeprof.analyzers.window import NO_STEP, window
from moeprof.answers.document import Document
from moeprof.cli.main import group
from moeprof.ingest import one_host
from moeprof.ingest.by_host import HERE, Readers, Reading
from moeprof.ingest.one_host import Held, InSteps, Shared, one_by_one
from moeprof.ingest.program_frames import hlo_frame
from moeprof.ingest.run import located
from moeprof.ingest.sources.locate import locate
from moeprof.session.by_host import _ASKED, ask_hosts, read_by_host, with_answers
from moeprof.session.run import Run, load
from moeprof.tables.name_rule import NameRules
from moeprof.tables.trace import Trace

GROUPS = [[0, 2, 4, 6], [1, 3, 5, 7]]
HOSTS = {"a": [0, 1], "b": [2, 3], "c": [4, 5], "d": [6, 7]}
NEED_ALL_WORK = {"sync_gaps", "launch", "one_step", "flame", "allocated", "heap"}
"""What is withheld where it has anything to say."""
PARTLY = {"hints"}
"""Patterns that need all work are not looked for."""
DATA = Path(__file__).parents[1] / "data"


def by_host(*folders: Path, only: tuple[str, ...] = (), readers: Readers = HERE) -> Run:
    found = located(folders, None, ())
    trace = read_by_host(found, folders, only, readers=nullcontext(readers))
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


# What sets a host apart from the others: how its events and programs are changed.

Stats = dict[str, Any]
EVENTS: Mapping[str, Callable[[str, float, Stats], tuple[str, Stats]]] = {
    "no annotations": lambda name, _, stats: (
        "other" if name == "train" else name,
        without(stats, "step_num"),
    ),
    "no executions": lambda name, _, stats: (name, without(stats, "hlo_op", "program_id")),
    "other numbers": lambda name, _, stats: (
        name,
        {**stats, "step_num": stats["step_num"] + 10} if "step_num" in stats else stats,
    ),
    "no numbers": lambda name, _, stats: (name, without(stats, "step_num")),
    "other id": lambda name, _, stats: (
        name,
        {**stats, "program_id": 9} if "program_id" in stats else stats,
    ),
    "its twin runs": lambda name, _, stats: (name, of_twin(name, stats, 7)),
    "both run": lambda name, at, stats: (
        name,
        of_twin(name, stats, 8) if at >= (5000 + STEP_US) * US else stats,
    ),
    "as ever": lambda name, _, stats: (name, stats),
}
PROGRAMS: Mapping[str, Callable[[bytes], Mapping[str, bytes]]] = {
    "other id": lambda program: {"p9": program},
    "its twin runs": lambda program: {"p7": twin(program)},
    "both run": lambda program: {"p7": program, "p8": twin(program)},
    "a twin": lambda program: {"p7": program, "p8": twin(program)},
    "no program": lambda _: {},
}


def without(stats: Stats, *names: str) -> Stats:
    return {key: value for key, value in stats.items() if key not in names}


def twin(program: bytes) -> bytes:
    """A program that looks like it: one instruction has another name."""
    return program.replace(b"work", b"wark")


def of_twin(name: str, stats: Stats, program: int) -> Stats:
    if "program_id" not in stats:
        return stats
    op = Ref("wark") if name == "work_kernel" else stats["hlo_op"]
    return {**stats, "hlo_op": op, "program_id": program}


def write_kinds(folder: Path, kinds: str) -> Path:
    """A file per host, of what sets it apart, and how many steps fewer than three it has."""
    words = [kind.partition(" -") for kind in kinds.split(", ")]
    count = 2 * len(words)
    for at, (kind, _, fewer) in enumerate(words):
        change = EVENTS.get(kind, EVENTS["as ever"])
        programs = PROGRAMS.get(kind, lambda program: {"p7": program})

        def event(name, at, duration, *, change=change, **stats):
            name, stats = change(name, at, stats)
            return EVENT(name, at, duration, **stats)

        def metadata(p7, *, programs=programs):
            return METADATA(**programs(p7))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_hosts, "event", event)
            patch.setattr(gpu_hosts, "metadata", metadata)
            write_hosts(
                folder,
                {"abc"[at]: [2 * at, 2 * at + 1]},
                [list(range(0, count, 2)), list(range(1, count, 2))],
                {3: 40},
                members={number: number for number in range(count)},
                steps=3 - int(fewer or 0),
            )
    return folder


EVENT, METADATA = gpu_hosts.event, gpu_hosts.metadata
KINDS = {
    "a program that looks like another and did not run": "a twin, a twin",
    "programs that look alike, of which all, one or the other ran": "a twin, both run, as ever",
    "both ran on the first": "both run, its twin runs, other id",
    "the same programs under other ids": "other id, both run",
    "no annotations and a step fewer, another without executions": (
        "as ever, no annotations -1, no executions"
    ),
    "no executions, no program": "no executions, no annotations, no program",
    "no executions on any": "no executions, no executions",
    "steps of other numbers, and none": "other numbers, as ever, as ever -3",
}
UNSAID = "; in what the others stand is not looked for host by host"
ASKED = ("timeline", "breakdown", "ops", "collectives")


@pytest.mark.parametrize("kind", KINDS)
def test_so_are_those_of_hosts_that_differ(tmp_path, kind):
    folder = write_kinds(tmp_path / "run", KINDS[kind])
    one = by_host(folder, only=ASKED).document(ASKED)
    whole = load(folder).document(ASKED)
    assert one["analyses"] == whole["analyses"]
    laws = laws_of(one)
    early = laws["hosts_end_together"]
    laws["hosts_end_together"] = {**early, "detail": early["detail"].removesuffix(UNSAID)}
    assert laws == laws_of(whole)
    assert (one["run"], one["steps"]) == (whole["run"], whole["steps"])


def test_so_are_those_of_another_run_of_this_process(tmp_path):
    """Its program looks like that of the run before, under the same id."""
    for kind in ("as ever", "its twin runs"):
        folder = write_kinds(tmp_path / kind, f"{kind}, {kind}")
        assert text_of(by_host(folder, only=("ops",)), ["ops"]) == text_of(load(folder), ["ops"])


def test_without_work_in_used_steps_the_window_is_the_capture(tmp_path):
    whole = load(write_kinds(tmp_path / "run", "as ever, as ever")).trace
    nowhere = {name: getattr(whole, name).assign(step=-1) for name in ("events", "executions")}
    whole = Trace(**{**vars(whole), **nowhere})
    ask = functools.partial(ask_hosts, ("timeline",), NameRules())
    told = []
    for host in whole.meta.hosts:
        rows = {name: frame[frame["host"] == host] for name, frame in nowhere.items()}
        told.append(ask(Trace(**{**vars(whole), **rows}), InSteps(False, False)))
    joined = with_answers(Trace(**vars(whole)), told)
    known = [(found.steps, found.devices, found.notes) for found in map(window, (joined, whole))]
    assert known[0] == known[1] == (0, 4, NO_STEP)
    assert account_of(joined)["step"].tolist() == account_of(whole)["step"].tolist()


def test_what_one_thread_places_hosts_with_is_not_that_of_another(monkeypatch):
    """A worker may read hosts of two runs at once."""
    monkeypatch.setattr(one_host, "bodies", lambda ops: {})
    monkeypatch.setattr(one_host, "Programs", lambda ops: {})
    runs = [
        Shared(((number, Held("look", str(number))),), ops=hlo_frame({})) for number in range(2)
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(one_host._lookups, runs * 300))
    finally:
        sys.setswitchinterval(interval)
    assert all(each.ops is run.ops for each, run in zip(found, runs * 300, strict=True))


def test_hardware_that_is_named_is_known_of_a_run_that_is_read_host_by_host(tmp_path):
    folder = write_kinds(tmp_path / "run", "as ever, as ever")
    command = ["analyze", str(folder), "--hardware", "h100_sxm", "--only", "roofline", "--csv"]
    ways = (["--by-host", "--workers", "0"], ["--at-once"])
    said = [CliRunner().invoke(group, [*command, *way]) for way in ways]
    assert said[0].stdout == said[1].stdout
    assert said[0].exit_code == said[1].exit_code
    assert said[0].stdout


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
    ways = (["--by-host", "--workers", "0"], ["--at-once"])
    said = [CliRunner().invoke(group, [*command, *way]) for way in ways]
    assert said[0].stdout == said[1].stdout
    assert said[0].stdout.startswith("rank,")


def test_a_question_that_is_asked_alone_reads_less_and_says_the_same(tmp_path):
    hosts = {"a": [0, 1], "b": [2, 3]}
    folder = write_hosts(tmp_path / "run", hosts, [[0, 2], [1, 3]], {3: 40}, steps=3)
    whole = load(folder)
    for name in _ASKED:
        assert text_of(by_host(folder, only=(name,)), [name]) == text_of(whole, [name]), name


def test_a_file_that_cannot_be_read_is_named_and_the_rest_goes_on(tmp_path):
    folder = write_hosts(
        tmp_path / "run", {"a": [0, 1], "b": [2, 3], "d": [4, 5]}, [[0, 2, 4], [1, 3, 5]]
    )
    whole = (folder / "d.xplane.pb").read_bytes()
    (folder / "d.xplane.pb").write_bytes(whole[: len(whole) // 2])
    (folder / "e.xplane.pb.gz").write_bytes(gzip.compress(whole)[:200])
    assert_same(folder)
    (folder / "e.xplane.pb.gz").unlink()
    (folder / "d.xplane.pb").write_bytes(b"no profile")
    law = next(
        law for law in by_host(folder, only=("timeline",)).trust.laws if law["check"] == "truncated"
    )
    assert "a host is left out" in law["detail"]
    assert "d.xplane.pb" in law["detail"]


def test_what_needs_all_work_says_what_to_do(tmp_path):
    folder = write_hosts(tmp_path / "run", {"a": [0, 1], "d": [2, 3]}, [[0, 2], [1, 3]])
    run = by_host(folder)
    told = run.ask("launch").notes[0]
    assert "--host" in told
    assert "--at-once" in told
    assert "not looked for: unfinished_collective" in str(run.ask("hints").notes)


def test_hosts_that_have_other_steps_are_read_again_under_those_that_all_have(tmp_path):
    folder = write_hosts(tmp_path / "run", HOSTS, GROUPS, steps=5, last_step={"d": 2})
    reads = []

    def counted(batches):
        for batch, read in one_by_one(batches):
            reads.extend(batch.files)
            yield batch, read

    ask = functools.partial(ask_hosts, ("timeline",), NameRules())
    Reading(locate(folder), [str(folder)], ask, are_chosen=False).read(Readers(counted))
    assert len(reads) > len(HOSTS) + 1


def test_one_host_is_read_at_once(tmp_path):
    folder = write_hosts(tmp_path / "run", {"a": [0, 1]}, [[0, 1]])
    assert read_by_host(locate(folder), [str(folder)]) is None
    write_hosts(tmp_path / "run", {"b": [2, 3]}, [[2, 3]])
    (folder / "b.xplane.pb").write_bytes(b"")
    assert read_by_host(locate(folder), [str(folder)]) is None
