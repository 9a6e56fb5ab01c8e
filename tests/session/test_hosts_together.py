"""Which hosts of a run are asked together changes no answer: neighbours, of whatever names."""

from contextlib import nullcontext
from pathlib import Path

from builders.gpu_hosts import write_hosts
from session.test_by_host import by_host, text_of, write_kinds

from moeprof.ingest.by_host import Readers
from moeprof.ingest.one_host import one_by_one
from moeprof.ingest.run import located
from moeprof.session.by_host import read_by_host
from moeprof.session.run import load

GROUPS = [[*range(0, 16, 2)], [*range(1, 16, 2)]]
MEMBERS = dict(enumerate(range(16)))
READERS = (Readers(one_by_one), Readers(one_by_one, 3), Readers(one_by_one, 1, 0))


def in_pieces(batches):
    """Hosts of a batch by themselves, the last first, as where a worker died."""
    for batch in reversed(batches):
        yield from one_by_one(batch.singly()[::-1])


def test_which_hosts_are_asked_together_changes_nothing(tmp_path):
    """The folder of the last ones by name is given first."""
    for part, numbers in {"second": range(4, 8), "first": range(4)}.items():
        hosts = {f"{part}{at}": [2 * at, 2 * at + 1] for at in numbers}
        write_hosts(tmp_path / part, hosts, GROUPS, members=MEMBERS)
    folders = [tmp_path / "second", tmp_path / "first"]
    asked, sizes = ("timeline", "step_time", "collectives"), []

    def counted(batches):
        sizes.extend(len(batch.tasks) for batch in batches)
        return one_by_one(batches)

    whole = text_of(load(folders), asked)
    for readers, most in (
        (Readers(counted), 4),
        (Readers(counted, 3), 2),
        (Readers(counted, 1, 0), 1),
    ):
        sizes.clear()
        run = by_host(*folders, only=asked, readers=readers)
        assert list(run.trace.meta.hosts) != sorted(run.trace.meta.hosts)
        assert text_of(run, asked) == whole
        assert max(sizes) == most
    assert text_of(by_host(*folders, only=asked, readers=Readers(in_pieces)), asked) == whole


def test_hosts_of_one_name_are_told_apart_before_they_are_asked(tmp_path):
    """Containers call themselves localhost."""
    folders = [tmp_path / f"r{at}" for at in range(4)]
    for at, folder in enumerate(folders):
        write_hosts(folder, {"localhost": [2 * at, 2 * at + 1]}, GROUPS, members=MEMBERS)
    for some in (folders, folders[:3]):  # the last one is read with another, and alone
        whole = text_of(load(some), ["collectives"])
        assert text_of(by_host(*some, only=("collectives",)), ["collectives"]) == whole


def test_what_one_host_calls_its_steps_is_not_looked_for_on_its_neighbours(tmp_path):
    folder = write_kinds(tmp_path / "run", "as ever, no numbers, no numbers")
    whole = text_of(load(folder), ["step_time"])
    for readers in READERS[::2]:
        assert (
            text_of(by_host(folder, only=("step_time",), readers=readers), ["step_time"]) == whole
        )


def test_a_file_that_is_gone_by_its_turn_is_a_host_left_out(tmp_path):
    hosts = {name: [2 * at, 2 * at + 1] for at, name in enumerate("abcd")}
    folder = write_hosts(tmp_path / "run", hosts, GROUPS, members=MEMBERS)
    found = located([folder], None, ())

    def losing(batches):
        Path(folder / "d.xplane.pb").unlink(missing_ok=True)
        return one_by_one(batches)

    trace = read_by_host(found, [folder], ("timeline",), readers=nullcontext(Readers(losing)))
    assert trace is not None
    assert trace.meta.hosts == ("a", "b", "c")
    assert "d.xplane.pb" in str(trace.trust)
