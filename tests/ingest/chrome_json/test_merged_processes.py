"""Several processes in one trace. A rank's figures are those of a file of its own."""

import json

import pytest
from builders.chrome import Rank, named, piece, write

from moeprof.analyzers.questions.timeline import timeline
from moeprof.ingest import open_run
from moeprof.tables.law import Need
from moeprof.tables.trace import Trace


def opened(tmp_path, events, name="run.trace.json", **others) -> Trace:
    return open_run(write(tmp_path / name, json.dumps({**others, "traceEvents": events})))


def check(trace, name):
    return next(check for check in trace.trust if check.check == name)


def per_step(trace) -> dict[tuple[str, int], tuple[set[int], set[int]]]:
    """(host, device) -> work and length of its steps, us."""
    table = timeline(trace).table
    return {
        (str(host), int(device)): (
            set((rows["compute_ns"] // 1000).tolist()),
            set((rows["duration_ns"] // 1000).tolist()),
        )
        for (host, device), rows in table.groupby(["host", "device"], observed=True)
    }


# 6 kernels, one every 20 us: a step lasts 5 · 20 us and the last kernel
FIRST = ({6 * 10}, {100 + 10})
SECOND = ({6 * 13}, {100 + 13})
THIRD = ({6 * 4}, {100 + 4})


def test_ranks_with_jax_s_numbers_share_neither_ids_nor_steps(tmp_path):
    ranks = [Rank(1, 701, 10), Rank(5001, 5701, 13, start_us=137), Rank(9001, 9701, 4)]
    trace = opened(tmp_path, [event for rank in ranks for event in rank.jax()])
    assert per_step(trace) == {
        ("part 0", 0): FIRST,
        ("part 1", 0): SECOND,
        ("part 2", 0): THIRD,
    }
    assert trace.steps["step"].tolist() == [0, 1, 2, 3]
    assert trace.steps["used"].all()
    assert check(trace, "merged").verdict == "ok"
    assert trace.meta.events == 3 * (4 + 2 * 4 * 6)


def test_names_of_hosts_stand_before_those_of_devices_and_hosts(tmp_path):
    one, beside = Rank(1001, 1701, 10), Rank(1002, 1701, 4, first_id=900)
    other = Rank(2004, 2701, 13)
    of_host = beside.jax("worker-3 /device:GPU:1", "worker-3 /host:CPU")
    events = [
        *one.jax("worker-3 /device:GPU:0", "worker-3 /host:CPU"),
        *(event for event in of_host if event["name"] != "train"),
        *other.jax("worker-11 /device:GPU:3", "worker-11 /host:CPU"),
    ]
    trace = opened(tmp_path, events)
    assert per_step(trace) == {  # a step of a host ends with the slower of its devices
        ("worker-3", 0): ({60}, {110}),
        ("worker-3", 1): ({24}, {110}),
        ("worker-11", 3): SECOND,
    }
    assert trace.meta.platform == "gpu"
    assert trace.events["device"].nunique() == 3


@pytest.mark.parametrize(
    ("pid", "told"),
    [("[rank{}] {}", {}), ("[TP0-PP{}] {}", {}), ("rank{}:{}", {}), ("{}_{}", {})],
)
def test_numbers_of_processes_that_are_texts(tmp_path, pid, told):
    ranks = [Rank(pid.format(r, 0), pid.format(r, 70 + r), us) for r, us in ((4, 10), (6, 13))]
    trace = opened(tmp_path, [event for rank in ranks for event in rank.pytorch(**told)])
    assert sorted(per_step(trace).values(), key=str) == sorted((FIRST, SECOND), key=str)
    assert "command buffer" not in check(trace, "resolved").detail
    assert len(trace.devices) == 2
    if "rank" in pid:
        found = trace.devices[["host", "rank"]].to_numpy().tolist()
        assert found == [["rank4", 4], ["rank6", 6]]


def test_the_rank_of_the_events_tells_whose_they_are(tmp_path):
    ranks = ((2, Rank(0, 900, 10)), (7, Rank(10**8, 10**8 + 901, 13, start_us=133)))
    events = [event for number, rank in ranks for event in rank.pytorch(rank=number)]
    trace = opened(tmp_path, events)
    assert per_step(trace) == {("rank2", 0): FIRST, ("rank7", 0): SECOND}
    assert trace.devices["rank"].tolist() == [2, 7]


def test_two_devices_of_one_rank_stay_together(tmp_path):
    one = Rank("[rank3] 0", "[rank3] 44", 10)
    beside = Rank("[rank3] 1", "[rank3] 44", 4, first_id=200)
    other = Rank("[rank5] 0", "[rank5] 45", 13)
    more = [e for e in beside.pytorch(1) if not str(e["name"]).startswith("ProfilerStep")]
    trace = opened(tmp_path, [*one.pytorch(), *more, *other.pytorch()])
    assert per_step(trace) == {
        ("rank3", 0): ({60}, {110}),
        ("rank3", 1): ({24}, {110}),
        ("rank5", 0): SECOND,
    }
    assert trace.steps["step"].tolist() == [0, 1, 2, 3]


def test_launches_tell_it_where_ids_are_of_one_rank_each(tmp_path):
    # by the order of the numbers the two hosts would be the wrong way round
    one, other = Rank(40, 90, 10), Rank(60, 80, 13, first_id=500, start_us=160)
    trace = opened(tmp_path, [*one.jax(), *other.jax()])
    assert per_step(trace) == {("part 0", 0): FIRST, ("part 1", 0): SECOND}


def test_the_order_of_the_processes_tells_it_where_it_can_be_read_in_one_way(tmp_path):
    one, other = Rank(200, 140, 10), Rank(400, 340, 13, start_us=160)  # hosts come first
    trace = opened(tmp_path, [*one.jax(), *other.jax()])
    assert per_step(trace) == {("part 0", 0): FIRST, ("part 1", 0): SECOND}


def test_a_kernel_does_not_run_before_its_launch(tmp_path):
    one, other = Rank(30, 31, 10, start_us=600), Rank(20, 41, 13, start_us=100)
    lost = [e for e in other.jax() if e["pid"] != 41]
    trace = opened(tmp_path, [*one.jax(), *lost])
    assert check(trace, "merged").detail.startswith("no host process launched work of")
    assert per_step(trace)["part 1", 0] == FIRST


def test_what_a_host_without_a_device_did_is_left_out_and_named(tmp_path):
    one, other = Rank(1, 701, 10), Rank(5001, 5701, 13, start_us=400)
    trace = opened(tmp_path, [*one.jax(), *(e for e in other.jax() if e["pid"] == 5701)])
    law = check(trace, "merged")
    assert law.verdict == "warn"
    assert "5701" in law.detail
    assert trace.steps["step"].tolist() == [0, 1, 2, 3]
    assert len(trace.markers) == 4
    assert per_step(trace) == {("run", 0): FIRST}


def test_devices_of_one_name_and_a_host_that_may_be_of_either(tmp_path):
    one, other = Rank(50, 99, 10), Rank(70, 199, 13)
    trace = opened(tmp_path, [*one.jax(), *(e for e in other.jax() if e["pid"] != 199)])
    law = check(trace, "merged")
    assert law.verdict == "warn"
    assert "told by neither numbers, order nor launches" in law.detail
    assert {work for works, _ in per_step(trace).values() for work in works} == {60, 78}


@pytest.mark.parametrize("host", [900, 901])
def test_ranks_under_one_number_are_refused_by_what_they_are(tmp_path, host):
    one, other = Rank(0, 900, 10), Rank(0, host, 13, start_us=160)
    trace = opened(tmp_path, [*one.pytorch(), *other.pytorch()])
    law = check(trace, "merged")
    assert law.verdict == "fail"
    assert law.breaks == (Need.DEVICE_TIMES,)
    assert "48 of 48 pieces of work (100.0 %) share the id of their launch" in law.detail
    assert "give the files of the ranks themselves" in law.detail


def test_a_process_of_two_names_is_refused(tmp_path):
    one, other = Rank(1, 701, 10), Rank(701, 1401, 13)  # moved by 700 a rank
    law = check(opened(tmp_path, [*one.jax(), *other.jax()]), "merged")
    assert law.verdict == "fail"
    assert "process 701 is called both '/host:CPU' and '/device:GPU:0'" in law.detail


def test_graphs_share_the_id_of_their_launch_and_are_of_one_process(tmp_path):
    rank = Rank(1, 701, 10)
    events = rank.jax()
    for number, event in enumerate(e for e in events if e["pid"] == 1 and e["ph"] == "X"):
        event["args"] |= {"correlation_id": str(number // 6), "cuda_graph_node_id": str(number)}
    assert check(opened(tmp_path, events), "merged").verdict == "ok"


@pytest.mark.parametrize(
    ("gpu", "host"), [(-3, -2), ("1.0", "701.0"), (1e4, "10700"), ("7", "0x7f"), (None, 5)]
)
def test_numbers_of_processes_of_any_type(tmp_path, gpu, host):
    events = Rank(gpu, host, 10).jax()
    # names carry whole numbers where the events have fractions, as after a table program
    for event in events:
        if event["ph"] == "M" and isinstance(event["pid"], (float, str)):
            event["pid"] = {"1.0": 1, "701.0": "701"}.get(str(event["pid"]), event["pid"])
    assert per_step(opened(tmp_path, events)) == {("run", 0): FIRST}


def test_a_name_that_was_not_understood_is_no_matter_of_the_driver(tmp_path):
    trace = opened(tmp_path, Rank(1, 701, 10).jax("Accelerator 0"))
    law = check(trace, "device_work")
    assert law.verdict == "fail"
    assert (
        "names no device that moeprof knows: it found the processes 'Accelerator 0'" in law.detail
    )
    assert "permission" not in law.detail
    assert "CUPTI" not in law.detail


def test_ops_of_a_process_without_a_name_are_told_and_change_nothing(tmp_path):
    events = [*Rank(1, 701, 10).jax(), piece(9, 1, "k", 100, 50, hlo_op="k", hlo_module="jit_f")]
    trace = opened(tmp_path, events)
    assert per_step(trace) == {("run", 0): FIRST}
    assert "1 op(s) are of a process that has no name" in check(trace, "truncated").detail
    assert check(trace, "merged").verdict == "ok"


def test_processes_without_names_are_devices_of_their_own_and_it_is_said(tmp_path):
    ranks = [Rank(1, 701, 10), Rank(5001, 5701, 13)]
    events = [e for rank in ranks for e in rank.jax() if e["name"] != "process_name"]
    trace = opened(tmp_path, events)
    assert trace.events.groupby("host", observed=True)["duration_ns"].sum().tolist() == [
        240_000,
        312_000,
    ]
    assert "process(es) 1, 5001 have no name" in check(trace, "merged").detail


def test_devices_of_unknown_name_beside_known_ones_are_named(tmp_path):
    events = [*Rank(1, 701, 10).jax(), named(9, "XPU 1"), piece(9, 1, "k", 100, 50)]
    trace = opened(tmp_path, events)
    assert per_step(trace) == {("run", 0): FIRST}
    assert "events of 'XPU 1'" in check(trace, "merged").detail


def test_calls_of_the_host_that_carry_an_op_are_no_work_where_there_is_a_device(tmp_path):
    events = Rank(1, 701, 10).jax()
    for event in events:
        if event["name"] == "cuLaunchKernel":
            event["name"] = "hipModuleLaunchKernel"
            event["args"] |= {"hlo_op": "fusion.0", "hlo_module": "jit_step"}
    trace = opened(tmp_path, events)
    assert per_step(trace) == {("run", 0): FIRST}
    assert trace.meta.platform == "gpu"


def test_a_cut_file_of_several_ranks_gives_what_each_has(tmp_path):
    events = [*Rank(1, 701, 10).jax(), *Rank(5001, 5701, 13).jax()]
    content = json.dumps({"traceEvents": events})
    trace = open_run(write(tmp_path / "run.trace.json", content[: int(0.9 * len(content))]))
    assert check(trace, "truncated").verdict == "warn"
    assert trace.meta.hosts == ("part 0", "part 1")
    assert len(trace.events[trace.events["host"] == "part 0"]) == 24
    assert 0 < len(trace.events[trace.events["host"] == "part 1"]) < 24


def test_files_are_placed_by_what_their_stamps_count_from(tmp_path):
    base = 1_751_410_836_000_000_000
    for rank, ns in ((0, base + 5_000_000), (1, base)):
        told = {"baseTimeNanoseconds": ns, "distributedInfo": {"rank": rank}}
        events = Rank(0, 90 + rank, 10 + rank).pytorch()
        write(tmp_path / f"r{rank}.trace.json", json.dumps({**told, "traceEvents": events}))
    trace = open_run(tmp_path)
    starts = trace.events.groupby("host", observed=True)["start_ns"].min().to_dict()
    assert starts == {"r0": 5_110_000, "r1": 110_000}
    assert any("r0 counts from 5.000 ms after the first" in note for note in trace.meta.notes)


@pytest.mark.parametrize("apart_s", [1, 60])
def test_files_that_were_recorded_minutes_apart_are_of_no_one_run(tmp_path, apart_s):
    base = 1_751_410_836_000_000_000
    for rank in (0, 1):
        told = {"baseTimeNanoseconds": base + rank * apart_s * 10**9}
        events = Rank(0, 90 + rank, 10).pytorch()
        write(tmp_path / f"r{rank}.trace.json", json.dumps({**told, "traceEvents": events}))
    assert check(open_run(tmp_path), "one_run").verdict == ("ok" if apart_s == 1 else "fail")


def test_stamps_that_are_dates_are_not_moved(tmp_path):
    for rank in (0, 1):
        told = {"baseTimeNanoseconds": 10**18 + rank}
        events = Rank(0, 90, 10, start_us=1_751_410_836_000_000).pytorch()
        write(tmp_path / f"r{rank}.trace.json", json.dumps({**told, "traceEvents": events}))
    assert open_run(tmp_path).events["start_ns"].min() == 1_751_410_836_000_010_000


def test_hosts_of_one_name_in_two_files_carry_the_file_s_name(tmp_path):
    for file in ("a", "b"):
        events = [
            *Rank("[rank0] 0", "[rank0] 70", 10).pytorch(),
            *Rank("[rank1] 0", "[rank1] 71", 13).pytorch(),
        ]
        write(tmp_path / f"{file}.trace.json", json.dumps({"traceEvents": events}))
    assert open_run(tmp_path).meta.hosts == ("a rank0", "a rank1", "b rank0", "b rank1")
