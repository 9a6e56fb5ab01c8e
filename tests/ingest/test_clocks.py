import json

import numpy as np
import pandas as pd
import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, event, host, line, metadata, thunk, xspace
from hypothesis import given
from hypothesis import strategies as st

from moeprof.analyzers import analyze
from moeprof.errors import TableError
from moeprof.ingest import open_run
from moeprof.ingest.joining.common_clock import fit_clock
from moeprof.tables.clock import comparable_stamps, is_comparable, to_common
from moeprof.tables.trace import HostClock, TraceMeta

US, S = 1000, 10**9
STEP_NS = 10_000 * US


def program() -> bytes:
    exchanges = [op(f"a2a.{i}", "all-to-all", "f32[8]") for i in range(4)]
    return hlo_proto(computation("main", *exchanges))


def calls(late_ns: int, skew_ns: int, steps=range(3), module: int = 7, noise=(), uneven=True):
    """4 all-to-alls of each step: entered at t + late, over at t + 550 us, on a skewed clock.

    Steps last 10.1 ms, 10.3 ms, ..., as steps do; 10 ms each where they are not uneven.
    """
    noise = iter(noise)
    for step in steps:
        for i in range(4):
            longer_ns = 100 * US * step**2 if uneven else 0
            at = 1 * S + step * STEP_NS + longer_ns + i * 2000 * US
            end = at + 550 * US + next(noise, 0)
            yield thunk(
                f"a2a.{i}",
                at + late_ns + skew_ns,
                end - at - late_ns,
                run_id=step,
                program_id=module,
            )


def write(folder, name, work, module=7, proto=None, started=None):
    folder.mkdir(parents=True, exist_ok=True)
    planes = [metadata(**{f"p{module}": proto or program()}), host(line("pool", *work))]
    if started is not None:
        stamps = {"profile_start_time": started, "profile_stop_time": started + 10 * S}
        planes.append(Plane("Task Environment", stats=stamps))
    (folder / f"{name}.xplane.pb").write_bytes(xspace(*planes, hostnames=(name,)))


def check(trace, name):
    return next(c for c in trace.trust if c.check == name)


@pytest.fixture
def session(tmp_path):
    return tmp_path / "plugins" / "profile" / "s"


def test_a_skewed_clock_is_found_on_the_ends_of_collectives(session):
    write(session, "a", calls(0, 0))
    write(session, "b", calls(400 * US, 3_200_000 * US))
    trace = open_run(session)
    a, b = trace.meta.clocks
    assert (a.host, a.offset_ns, b.host, b.pairs) == ("a", 0, "b", 12)
    assert abs(b.offset_ns - 3_200_000 * US) <= 10 * US
    assert check(trace, "clocks").verdict == "ok"
    assert "b +3.200 s (residual 0 ns)" in check(trace, "clocks").detail
    # a step lasts from a's first start to the common end, whatever the clocks say
    assert trace.steps["duration_ns"].tolist() == [6550 * US] * 3


def test_the_late_host_is_the_straggler_whatever_its_clock_says(session):
    write(session, "a", calls(0, 0))
    write(session, "b", calls(400 * US, 3_200_000 * US))
    findings = analyze(open_run(session), ["stragglers", "step_time"])
    worst = findings["stragglers"].table.iloc[0]
    assert (worst["host"], worst["waited_for_ns"]) == ("b", 4 * 400 * US)  # 4 calls a step
    assert not any("not aligned" in note for note in findings["step_time"].notes)


def test_collectives_of_programs_with_other_ids_are_matched_by_name(session):
    write(session, "a", calls(0, 0))
    write(session, "b", calls(0, 5 * S, module=9), module=9)
    trace = open_run(session)
    assert trace.meta.clocks[1].offset_ns == 5 * S
    assert set(trace.events["module"]) == {7}  # one program, one id


def test_programs_that_share_an_id_by_accident_are_kept_apart(session):
    other = hlo_proto(computation("main", op("a2a.0", "add", "f32[8]")))
    write(session, "a", calls(0, 0))
    write(session, "b", [thunk("a2a.0", 100, 50)], proto=other)
    trace = open_run(session)
    assert set(trace.events["module"]) == {7, 8}
    assert trace.modules.set_index("module")["instructions"].to_dict() == {7: 4, 8: 1}
    assert any("1 program(s) carry ids of other programs" in note for note in trace.meta.notes)


def sized(rows: int) -> bytes:
    return hlo_proto(computation("main", op("a2a.0", "all-to-all", f"f32[{rows}]")))


def ran(folder, name, programs, order):
    """One op of each program, in that order, 1 us apart."""
    work = [thunk("a2a.0", 1000 * i + 10, 50, program_id=m, run_id=i) for i, m in enumerate(order)]
    planes = metadata(**{f"p{m}": proto for m, proto in programs.items()}), host(line("l", *work))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.xplane.pb").write_bytes(xspace(*planes, hostnames=(name,)))


def test_programs_of_one_name_are_told_apart_by_their_shapes(session):
    # both call it jit_step; batch 8 is program 7 on a and 8 on b, batch 16 the other way round
    ran(session, "a", {7: sized(8), 8: sized(16)}, [7, 8])
    ran(session, "b", {7: sized(16), 8: sized(8)}, [7, 8])
    trace = open_run(session)
    shapes = trace.hlo_ops["shape"].reindex(trace.events["instruction"]).tolist()
    found = trace.events.assign(shape=shapes).sort_values(["host", "start_ns"])
    assert found["shape"].tolist() == ["f32[8]", "f32[16]", "f32[16]", "f32[8]"]
    assert found["module"].tolist() == [7, 8, 8, 7]


def test_work_without_its_program_is_not_resolved_by_another_hosts(session):
    write(session, "a", calls(0, 0))
    work = host(line("pool", *calls(0, 0)))
    (session / "b.xplane.pb").write_bytes(xspace(work, hostnames=("b",)))
    trace = open_run(session)
    by_host = trace.events.groupby("host", observed=True)
    assert by_host["confidence"].max().to_dict() == {"a": 1.0, "b": 0.0}
    assert by_host["module"].unique().map(list).to_dict() == {"a": [7], "b": [8]}
    assert trace.modules.set_index("module")["name"].to_dict() == {7: "jit_step", 8: ""}
    assert any("b: its file lacks 1 program(s) that it ran" in n for n in trace.meta.notes)
    assert check(trace, "programs").verdict == "warn"
    assert "none of the work of b" in check(trace, "programs").detail


def test_a_program_whose_id_is_a_hash_is_the_same_on_all_hosts(session):
    hashed = 2**40 + 7
    write(session, "a", calls(0, 0, module=hashed), module=hashed)
    work = host(line("pool", *calls(0, 0, module=hashed)))
    (session / "b.xplane.pb").write_bytes(xspace(work, hostnames=("b",)))
    trace = open_run(session)
    assert set(trace.events["module"]) == {hashed}
    assert (trace.events["confidence"] == 1.0).all()
    assert check(trace, "programs").verdict == "ok"


def test_without_common_collectives_nothing_is_aligned_and_it_is_said(session):
    write(session, "a", calls(0, 0, steps=range(3)))
    write(session, "b", calls(0, 5 * S, steps=range(2)))  # which two of the three is not known
    trace = open_run(session)
    assert trace.meta.clocks == ()
    assert check(trace, "clocks").verdict == "warn"
    assert "no statement across hosts" in check(trace, "clocks").detail


def test_hosts_that_began_a_step_apart_are_not_aligned_by_the_order_of_their_steps(session):
    # one true clock; b recorded steps 1 to 10 where a recorded 0 to 9, and all last 10 ms
    write(session, "a", calls(0, 0, range(10), uneven=False))
    write(session, "b", calls(0, 0, range(1, 11), uneven=False))
    trace = open_run(session)
    assert trace.meta.clocks == ()
    told = "steps are numbered by their place in the capture, and pairing with those 1 execution(s)"
    assert f"b: {told} earlier fits as well" in check(trace, "clocks").detail


def test_steps_of_uneven_length_tell_which_execution_is_which(session):
    write(session, "a", calls(0, 0, range(10)))
    write(session, "b", calls(0, 7 * US, range(10)))
    assert [c.offset_ns for c in open_run(session).meta.clocks] == [0, 7 * US]


@pytest.mark.parametrize(
    ("steps", "start_later_ns", "skew_ns", "offset_ns"),
    [
        # b's capture began 3 ms later, so its stamps are 3 ms less; NTP is 1 ms off
        (range(10), 3000 * US, 1000 * US, -2000 * US),
        # the same, but b recorded from step 1 on: the ends would be 10 ms apart on true clocks
        (range(1, 11), 13_000 * US, 1000 * US, None),
        # clocks that are half a step off decide nothing
        (range(10), 3000 * US, 5000 * US, None),
    ],
)
def test_where_all_steps_last_as_long_the_clocks_of_the_hosts_decide(
    session, steps, start_later_ns, skew_ns, offset_ns
):
    noon = 1_795_867_200_000_000_000
    mine = calls(0, skew_ns - start_later_ns, steps, uneven=False)
    write(session, "a", calls(0, 0, range(10), uneven=False), started=noon)
    write(session, "b", mine, started=noon + start_later_ns)
    found = [c.offset_ns for c in open_run(session).meta.clocks]
    assert found == ([] if offset_ns is None else [0, offset_ns])


@pytest.mark.parametrize(("started", "count"), [(None, 0), (1_795_867_200_000_000_000, 2)])
def test_one_execution_on_each_host_is_the_same_only_by_the_clocks(session, started, count):
    write(session, "a", calls(0, 0, [0]), started=started)
    write(session, "b", calls(0, 9 * US, [0]), started=started)
    trace = open_run(session)
    assert len(trace.meta.clocks) == count
    told = "one execution on each host, and nothing tells that it is the same step"
    assert (told in check(trace, "clocks").detail) == (not count)


def test_steps_that_the_script_numbers_are_matched_by_their_number(session):
    def markers(steps, skew_ns):
        for step in steps:
            at = 1 * S + step * STEP_NS + skew_ns
            yield event("train", at - 90, 80, step_num=step, _r=1)
            yield event("X::Execute (jit_step)", at - 50, 2, run_id=step)

    write(session, "a", [*calls(0, 0, range(3)), *markers(range(3), 0)])
    write(session, "b", [*calls(0, 5 * S, range(1, 3)), *markers(range(1, 3), 5 * S)])
    clocks = open_run(session).meta.clocks
    assert [(c.offset_ns, c.pairs) for c in clocks] == [(0, 0), (5 * S, 8)]


def test_ends_that_scatter_as_much_as_the_collectives_last_align_nothing(session):
    noise = np.random.default_rng(0).integers(-500, 500, 12) * US
    write(session, "a", calls(0, 0))
    write(session, "b", calls(0, 5 * S, noise=noise.tolist()))
    trace = open_run(session)
    assert trace.meta.clocks == ()
    assert "collectives last" in check(trace, "clocks").detail


def test_one_host_has_one_clock(session):
    write(session, "a", calls(0, 0))
    assert check(open_run(session), "clocks").detail == "one host, one clock"


def test_drift_is_found_with_late_ends_among_the_moments():
    at = np.arange(0, 60 * S, 60 * S // 600)
    rng = np.random.default_rng(1)
    ahead = 3_200_000_000 + (at * 50e-6).astype(np.int64) + rng.normal(0, 2000, 600).astype(int)
    ahead[::10] += rng.integers(0, 10**6, 60)
    fit = fit_clock(at, ahead)
    assert fit.drift_ppb == pytest.approx(50_000, rel=1e-3)
    assert abs(fit.offset_ns - 3_200_000_000) <= 10 * US


def test_noise_alone_is_no_drift():
    at = np.arange(12) * 10**6
    ahead = 5000 + np.array([0, 3, -2, 1, 0, -3, 2, 0, 1, -1, 0, 2])
    fit = fit_clock(at, ahead)
    assert fit.drift_ppb == 0.0
    assert abs(fit.offset_ns - 5000) <= 1


def test_too_few_moments_tell_nothing():
    assert fit_clock(np.arange(2), np.arange(2)) is None


@given(
    st.integers(-(10**15), 10**15),
    st.integers(-100_000, 100_000),
    st.integers(8, 40),
    st.integers(10**3, S),
)
def test_an_exact_line_is_found_to_rounding(offset, drift_ppb, moments, apart):
    at = np.arange(moments, dtype=np.int64) * apart
    ahead = offset + np.rint(drift_ppb * 1e-9 * at).astype(np.int64)
    fit = fit_clock(at, ahead)
    line = fit.offset_ns + fit.drift_ppb * 1e-9 * at.astype(float)
    assert np.abs(line - ahead).max() <= 4 + fit.residual_ns


def meta(*clocks):
    return TraceMeta("r", "gpu", ("a", "b"), 2, "", 0, clocks=clocks)


def test_stamps_are_put_on_the_common_clock():
    aligned = meta(HostClock("a", 0, 0.0, 0, 0), HostClock("b", 500, 2000.0, 0, 2))
    at = np.array([1_000_000_000], np.int64)
    assert to_common(aligned, "a", at).tolist() == [1_000_000_000]
    assert to_common(aligned, "b", at).tolist() == [1_000_000_000 - 500 - 2000]


def test_stamps_of_several_hosts_are_each_put_on_it_or_left_as_they_are():
    aligned = meta(HostClock("a", 0, 0.0, 0, 0), HostClock("b", 500, 2000.0, 0, 2))
    at, hosts = np.array([10, 1_000_000_000, 30], np.int64), pd.Series(["a", "b", "a"])
    assert comparable_stamps(aligned, hosts, at).tolist() == [10, 1_000_000_000 - 2500, 30]
    assert comparable_stamps(meta(), hosts, at).tolist() == at.tolist()


def test_clocks_that_are_not_aligned_give_no_common_time():
    assert not is_comparable(meta())
    with pytest.raises(TableError, match="clocks of a, b are not aligned"):
        to_common(meta(), "a", np.zeros(1, np.int64))
    with pytest.raises(TableError, match="no host is named 'c'; the trace has: a, b"):
        to_common(meta(), "c", np.zeros(1, np.int64))


def on_machines(session, machines):
    """The record of a run whose processes, in the order of their names, ran on these machines."""
    rows = [
        {
            "process_index": k,
            "machine": machine,
            "windows": [{"file": f"plugins/profile/s/{name}.xplane.pb"}],
        }
        for k, (name, machine) in enumerate(machines.items())
    ]
    meta = {"schema": "moeprof.run/1", "expected_processes": len(rows), "processes": rows}
    (session.parents[2] / "meta.json").write_text(json.dumps(meta))
    return session


DAY = 1_700_000_000 * S


def test_processes_of_one_machine_have_one_clock_without_any_collective(session):
    plain = hlo_proto(computation("main", op("a2a.0", "add", "f32[8]")))
    work = [thunk("a2a.0", 1000, 500)]
    write(session, "a", work, proto=plain, started=DAY)
    write(session, "b", work, proto=plain, started=DAY + 300)
    trace = open_run(on_machines(session, {"a": "m", "b": "m"}))
    a, b = trace.meta.clocks
    assert (a.offset_ns, b.offset_ns, b.pairs) == (0, -300, 0)
    assert to_common(trace.meta, "b", np.array([1000])).tolist() == [1300]
    assert check(trace, "clocks").detail == "b is a process of a's machine and has its clock"


@pytest.mark.parametrize("machines", [{"a": "m", "b": "n"}, {"a": "", "b": ""}])
def test_processes_of_machines_that_are_not_known_to_be_one_have_their_own_clocks(
    session, machines
):
    plain = hlo_proto(computation("main", op("a2a.0", "add", "f32[8]")))
    for name in "ab":
        write(session, name, [thunk("a2a.0", 1000, 500)], proto=plain, started=DAY)
    trace = open_run(on_machines(session, machines))
    assert trace.meta.clocks == ()
    assert "not aligned" in check(trace, "clocks").detail


def test_a_second_process_of_a_machine_that_is_aligned_by_collectives_goes_with_the_first(session):
    """c's clock is 7 s ahead of a's, and d began 2 ms after c on the same machine."""
    ahead_ns, later_ns = 7 * S, 2000 * US
    write(session, "a", calls(0, 0), started=DAY)
    write(session, "c", calls(0, 0), started=DAY + ahead_ns)
    plain = hlo_proto(computation("main", op("a2a.0", "add", "f32[8]")))
    lone = [thunk("a2a.0", 1000, 500, program_id=9)]
    write(session, "d", lone, module=9, proto=plain, started=DAY + ahead_ns + later_ns)
    trace = open_run(on_machines(session, {"a": "m", "c": "n", "d": "n"}))
    offsets = {clock.host: clock.offset_ns for clock in trace.meta.clocks}
    assert offsets["d"] == offsets["c"] - later_ns
    assert check(trace, "clocks").verdict == "ok"
