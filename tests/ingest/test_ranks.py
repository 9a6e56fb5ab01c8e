import json

import pytest
from builders import chrome
from builders.gpu_hosts import US, grouped_program, write_hosts
from builders.xspace import event, host, line, metadata, thunk, xspace

from moeprof.analyzers import analyze
from moeprof.analyzers.communication.calls import calls_of
from moeprof.analyzers.laws import laws_of
from moeprof.ingest import open_run

TRIPLES = ((0, 1, 2), (3, 4, 5))
WOODS = {"oak": [2, 3], "elm": [4, 5], "yew": [0, 1]}


@pytest.fixture
def session(tmp_path):
    return tmp_path / "run" / "plugins" / "profile" / "s"


def law(trace, name):
    return next(law for law in laws_of(trace) if law.check == name)


def ranks(trace):
    columns = (trace.devices[name].tolist() for name in ("host", "device", "rank"))
    return {(host, device): rank for host, device, rank in zip(*columns, strict=True)}


def waits_us(trace):
    """By rank; None where not known."""
    table = analyze(trace, ["stragglers"])["stragglers"].table
    waits = [wait / US if wait == wait else None for wait in table["waits_ns"].tolist()]
    return dict(zip(table["rank"].tolist(), waits, strict=True))


def groups_of(trace, op):
    return next(site.groups for site in calls_of(trace).sites if site.op == op)


def test_ranks_follow_the_ids_of_devices_not_the_names_of_files(session):
    """Rank 4 is 70 us late: 3 and 5 wait for it in their group, the others in the sum."""
    trace = open_run(write_hosts(session, WOODS, TRIPLES, {4: 70}))
    assert ranks(trace) == {
        ("yew", 0): 0, ("yew", 1): 1, ("oak", 0): 2, ("oak", 1): 3, ("elm", 0): 4, ("elm", 1): 5,
    }  # fmt: skip
    assert waits_us(trace) == {4: 0} | dict.fromkeys((0, 1, 2, 3, 5), 70)
    first = analyze(trace, ["stragglers"])["stragglers"].table.iloc[0]
    assert (first["rank"], first["host"], first["device"]) == (4, "elm", 0)
    assert {law(trace, name).verdict for name in ("ranks", "processes", "clocks")} == {"ok"}
    assert law(trace, "processes").expected == law(trace, "processes").found == 6


def test_clocks_are_told_from_the_right_groups(session):
    trace = open_run(write_hosts(session, WOODS, TRIPLES, {4: 70}, ahead_us={"oak": 400}))
    ahead = {clock.host: clock.offset_ns / US for clock in trace.meta.clocks}
    assert ahead == {"elm": 0, "oak": 400, "yew": 0}
    assert waits_us(trace)[3] == 70


def test_hosts_may_have_unequal_numbers_of_devices(session):
    hosts = {"b": [0], "a": [1, 2, 3]}
    trace = open_run(write_hosts(session, hosts, ((0, 1), (2, 3)), {1: 40}))
    assert ranks(trace) == {("b", 0): 0, ("a", 0): 1, ("a", 1): 2, ("a", 2): 3}
    assert waits_us(trace) == {0: 40, 1: 0, 2: 40, 3: 40}


def test_ids_may_be_in_another_order_than_the_devices_of_a_host(session):
    hosts = {"a": [1, 0], "b": [3, 2]}
    trace = open_run(write_hosts(session, hosts, ((0, 1), (2, 3)), {0: 40}))
    assert ranks(trace) == {("a", 1): 0, ("a", 0): 1, ("b", 1): 2, ("b", 0): 3}
    worst = analyze(trace, ["stragglers"])["stragglers"].table.iloc[0]
    assert (worst["host"], worst["device"]) == ("a", 1)


def test_groups_count_devices_as_the_program_assigns_them(session):
    """The mesh is 3, 1, 0, 2: group {0,1} of the program is devices 3 and 1."""
    trace = open_run(
        write_hosts(
            session,
            {"a": [0, 1], "b": [2, 3]},
            ((0, 1), (2, 3)),
            {3: 60},
            assigned=(3, 1, 0, 2),
            members={3: 0, 1: 1, 0: 2, 2: 3},
        )
    )
    assert groups_of(trace, "gather") == ((3, 1), (0, 2))
    assert trace.modules["ranks"].tolist() == ["3,1,0,2"]
    calls = analyze(trace, ["collectives"])["collectives"].table.set_index("op")
    assert calls.at["gather", "wait_ns"] == 60 * US / 4  # rank 1 alone of the four
    assert calls.at["gather", "transfer_ns"] == 50 * US


def test_an_assignment_to_devices_on_which_a_program_did_not_run_is_not_believed(session):
    hosts = {"a": [0, 1], "b": [2, 3]}
    trace = open_run(write_hosts(session, hosts, ((0, 1), (2, 3)), assigned=(4, 5, 6, 7)))
    assert trace.modules["ranks"].tolist() == [""]
    assert groups_of(trace, "gather") == ((0, 1), (2, 3))
    assert law(trace, "processes").verdict == "ok"


def test_a_program_of_devices_that_do_not_begin_at_0_is_whole(session):
    """A stage of a pipeline on devices 4 to 7: its groups count from 0."""
    hosts = {"b": [4, 5], "a": [6, 7]}
    members = {4: 0, 5: 1, 6: 2, 7: 3}
    trace = open_run(write_hosts(session, hosts, ((0, 1), (2, 3)), {6: 20}, members=members))
    assert groups_of(trace, "gather") == ((4, 5), (6, 7))
    found = law(trace, "processes")
    assert (found.verdict, found.expected, found.found) == ("ok", 4, 4)
    assert waits_us(trace) == {4: 20, 5: 20, 6: 0, 7: 20}


def test_a_host_of_some_alone_keeps_its_ranks_and_the_others_are_missed(session):
    trace = open_run(write_hosts(session, {"z": [4, 5]}, TRIPLES))
    assert ranks(trace) == {("z", 0): 4, ("z", 1): 5}
    found = law(trace, "processes")
    assert (found.verdict, found.expected, found.found, found.unit) == ("warn", 6, 2, "devices")
    assert waits_us(trace) == {} or set(waits_us(trace).values()) == {None}


def test_hosts_that_were_chosen_are_partial_and_no_fault(session):
    write_hosts(session, WOODS, TRIPLES)
    trace = open_run(session.parents[2], hosts=["elm"])
    assert ranks(trace) == {("elm", 0): 4, ("elm", 1): 5}
    found = law(trace, "processes")
    assert (found.verdict, found.expected, found.found) == ("ok", 6, 2)
    assert "these hosts were chosen" in found.detail


def test_a_missing_process_is_named_and_costs_groups_without_it_nothing(session):
    """Devices 2 and 3 are absent: groups {0,1,2,3} lacks them, {4,5,6,7} has all."""
    hosts = {"n7": [0, 1], "n9": [4, 5], "n10": [6, 7]}
    groups = ((0, 1, 2, 3), (4, 5, 6, 7))
    trace = open_run(write_hosts(session, hosts, groups, {6: 30}, members={i: i for i in range(8)}))
    found = law(trace, "processes")
    assert (found.verdict, found.expected, found.found) == ("warn", 8, 6)
    assert "devices 2 and 3 are missing (process 1 of 4, between n7 and n9)" in found.detail
    assert waits_us(trace) == {0: None, 1: None, 4: 30, 5: 30, 6: 0, 7: 30}
    assert analyze(trace, ["stragglers"])["stragglers"].headline[0].value == "rank 6"


def test_without_ids_record_or_names_no_rank_is_known(session):
    trace = open_run(write_hosts(session, WOODS, TRIPLES, {4: 70}, has_ids=False))
    assert max(ranks(trace).values()) < -1
    assert len(set(ranks(trace).values())) == 6
    found = law(trace, "ranks")
    assert (found.verdict, found.expected, found.found) == ("warn", 6, 0)
    assert found.withholds == ("stragglers",)
    calls = analyze(trace, ["collectives"])["collectives"].table.set_index("op")
    assert calls["wait_ns"].isna().to_dict() == {"gather": True, "sum": False}
    assert calls.at["sum", "wait_ns"] == 70 * US / 2  # a group of all needs no rank


def test_groups_of_all_are_told_by_host_where_no_rank_is_known(session):
    hosts = {"p": [0], "q": [1]}
    trace = open_run(write_hosts(session, hosts, ((0, 1),), {1: 25}, has_ids=False))
    found = analyze(trace, ["stragglers"])["stragglers"]
    assert found.headline[0].value == "q device 0"
    assert law(trace, "ranks").withholds == ()


def test_without_ids_numbers_in_names_count(session):
    hosts = {"x-p1": [2, 3], "y-p0": [0, 1], "w-p2": [4, 5]}
    trace = open_run(write_hosts(session, hosts, TRIPLES, {4: 70}, has_ids=False))
    assert ranks(trace)["y-p0", 1] == 1
    assert ranks(trace)["w-p2", 0] == 4
    assert "file names" in law(trace, "ranks").detail
    assert waits_us(trace)[4] == 0


def recorded(session, places):
    processes = [
        {"process_index": place, "windows": [{"file": f"plugins/profile/s/{name}.xplane.pb"}]}
        for name, place in places.items()
    ]
    meta = {"schema": "moeprof.run/1", "expected_processes": len(places), "processes": processes}
    (session.parents[2] / "meta.json").write_text(json.dumps(meta))


def test_without_ids_the_run_record_counts(session):
    write_hosts(session, WOODS, TRIPLES, {4: 70}, has_ids=False)
    recorded(session, {"yew": 0, "oak": 1, "elm": 2})
    trace = open_run(session)
    assert ranks(trace)["elm", 0] == 4
    assert "run record" in law(trace, "ranks").detail


def test_ids_that_contradict_the_run_record_are_no_ranks(session):
    write_hosts(session, WOODS, TRIPLES, {4: 70})
    recorded(session, {"yew": 0, "oak": 2, "elm": 1})
    found = law(open_run(session), "ranks")
    assert (found.verdict, found.found, found.withholds) == ("fail", 0, ("stragglers",))
    assert "process 1 (elm) has device 4, process 2 (oak) has device 2" in found.detail


def test_ids_win_over_numbers_in_names(session):
    hosts = {"x-p0": [2, 3], "y-p1": [0, 1]}
    trace = open_run(write_hosts(session, hosts, ((0, 1, 2, 3),)))
    assert ranks(trace)["x-p0", 0] == 2
    assert law(trace, "ranks").verdict == "warn"


def test_an_id_on_two_hosts_is_a_conflict(session):
    write_hosts(session, {"a": [0, 1], "b": [2, 3]}, ((0, 1, 2, 3),))
    write_hosts(session, {"c": [1, 3]}, ((0, 1, 2, 3),))
    trace = open_run(session)
    found = law(trace, "ranks")
    assert found.verdict == "fail"
    assert "global device id 1 and 1 more is stated for several devices: a device 1" in found.detail
    assert max(ranks(trace).values()) < -1


def test_a_cut_host_is_named_and_joined_with_the_others(session):
    """s lacks its host plane: 8 steps as on the others, whose numbers begin at 0 too."""
    hosts = {"r": [0], "s": [1], "t": [2]}
    write_hosts(session, hosts, ((0, 1, 2),), {2: 80}, steps=8)
    file = session / "s.xplane.pb"
    data = file.read_bytes()
    file.write_bytes(data[: data.index(b"/host:CPU") + 40])
    trace = open_run(session)
    assert ranks(trace)["s", 0] == 1
    assert len(trace.meta.clocks) == 3
    assert waits_us(trace) == {0: 80, 1: 80, 2: 0}
    assert trace.steps["used"].sum() == 8
    assert "the rest of s is unreadable" in law(trace, "truncated").detail


def test_a_host_whose_steps_cannot_be_joined_costs_the_others_nothing(session):
    """s has 5 of 8 steps and no numbers: which ones is not known."""
    hosts = {"r": [0], "s": [1], "t": [2]}
    write_hosts(session, hosts, ((0, 1, 2),), steps=8)
    write_hosts(session, {"s": [1]}, ((0, 1, 2),), steps=5)
    file = session / "s.xplane.pb"
    data = file.read_bytes()
    file.write_bytes(data[: data.index(b"/host:CPU") + 40])
    trace = open_run(session)
    assert trace.steps["used"].sum() == 8
    assert {clock.host for clock in trace.meta.clocks} == {"r", "t"}
    found = law(trace, "clocks")
    assert found.verdict == "warn"
    assert "not aligned: s" in found.detail
    assert any("s: its 5 step(s) are not numbered" in note for note in trace.meta.notes)


def test_a_host_that_stops_is_named_with_what_the_others_stand_in(session):
    """Steps are 1 ms apart; g's last work ends 1 ms after step 2 began, less the gap."""
    hosts = {"e": [0], "f": [1], "g": [2]}
    trace = open_run(
        write_hosts(session, hosts, ((0, 1, 2),), steps=4, last_step={"g": 2}, stands_us=7000)
    )
    # step 2 ends at 180 us after its start, step 3 begins 1 ms after that of step 2
    found = law(trace, "hosts_end_together")
    assert (found.verdict, found.found) == ("warn", (1000 + 100 + 7000 - 180) * US)
    assert "the last device work of g ends 7.920 ms before" in found.detail
    assert "stand 7.000 ms in gather of step 3, which lacks rank 2" in found.detail
    assert trace.steps["used"].tolist() == [True, True, True, False]
    hints = analyze(trace, ["hints"])["hints"].table
    assert "unfinished_collective" in hints["hint"].tolist()


def test_hosts_that_end_together_are_no_finding(session):
    trace = open_run(write_hosts(session, WOODS, TRIPLES, {4: 70}))
    found = law(trace, "hosts_end_together")
    assert (found.verdict, found.found) == ("ok", 0)


def test_json_traces_of_several_hosts_have_ids_too(session):
    """JAX writes the ids as text; quince is the first by name and the second by id."""
    for name, identity in (("rowan", 0), ("quince", 1)):
        launch = chrome.on_host(
            "[0] CommonPjRtLoadedExecutable::Execute (jit_step)", 5, global_device_id=str(identity)
        )
        trace = chrome.text([launch, chrome.kernel("add", 10), chrome.kernel("mul", 12)])
        chrome.write(session / f"{name}.trace.json.gz", trace)
    trace = open_run(session)
    assert ranks(trace) == {("rowan", 0): 0, ("quince", 0): 1}
    assert law(trace, "ranks").verdict == "ok"


def cpu_process(folder, name, devices, ids):
    """XLA:CPU numbers devices 2048 apart by process, in its work too."""
    work = [
        thunk("sum", 1000 * step + 10, 100, run_id=step, device_ordinal=device)
        for step in range(3)
        for device in devices
    ]
    title = "[0] CommonPjRtLoadedExecutable::Execute (jit_step)"
    spans = [event(title, 5 + at, 1, global_device_id=identity) for at, identity in enumerate(ids)]
    planes = metadata(p7=grouped_program(((0, 1), (2, 3)))), host(line("pool", *work, *spans))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.xplane.pb").write_bytes(xspace(*planes))


@pytest.mark.parametrize("stride", [2048, 131072])
def test_cpu_devices_have_places_as_ranks_as_their_ids_leave_gaps(session, stride):
    own = [stride, stride + 1]
    cpu_process(session, "a", own, own)
    cpu_process(session, "b", [0, 1], [0, 1])
    trace = open_run(session)
    assert ranks(trace) == {("b", 0): 0, ("b", 1): 1, ("a", own[0]): 2, ("a", own[1]): 3}
    assert law(trace, "processes").verdict == "ok"


def test_a_lone_cpu_process_has_the_ranks_that_it_has_among_all(session):
    cpu_process(session, "a", [2048, 2049], [2048, 2049])
    assert sorted(ranks(open_run(session)).values()) == [2, 3]
