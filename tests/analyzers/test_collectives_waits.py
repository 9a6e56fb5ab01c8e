import dataclasses

import pandas as pd
import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers.communication.calls import calls_of
from moeprof.analyzers.communication.waits import waits_of
from moeprof.analyzers.questions.collectives import collectives
from moeprof.analyzers.questions.stragglers import stragglers
from moeprof.tables.trace import HostClock

US = 1000
SKEW = 3_200_000 * US
ALIGNED = (HostClock("a", 0, 0.0, 0, 12), HostClock("b", SKEW, 0.0, 4 * US, 12))
OPS = (hlo("x", "parameter", size_bytes=8, shape="f32[2]"), hlo("sent", "all-to-all", "x"))


def two_hosts(clocks):
    """3 steps × 4 exchanges: a enters at t, b 400 µs later, both end at t + 550 µs."""
    work = []
    for step in range(3):
        for call in range(4):
            at = (10_000 * step + 1000 * call) * US
            work.append(kernel("sent", at, 550 * US, step=step))
            late = at + 400 * US + SKEW
            work.append(kernel("sent", late, 150 * US, step=step, host="b"))
    return traced(work, OPS, {s: (10_000 * s * US, 4000 * US) for s in range(3)}, clocks)


def waits(trace):
    return waits_of(calls_of(trace), trace.meta).pandas()


def test_on_a_common_clock_a_call_is_divided_into_waiting_and_transfer():
    found = waits(two_hosts(ALIGNED)).groupby("host")
    assert found["wait_ns"].unique().map(list).to_dict() == {"a": [400 * US], "b": [0]}
    assert found["transfer_ns"].unique().map(list).to_dict() == {"a": [150 * US], "b": [150 * US]}


def test_the_straggler_of_two_hosts_is_named_with_what_the_clocks_can_tell():
    analysis = stragglers(two_hosts(ALIGNED))
    first = analysis.table.iloc[0]
    assert (first["host"], first["waited_for_ns"], first["worst_steps"]) == ("b", 1600 * US, 3)
    assert analysis.headline[0].value == "rank 1"
    assert any("known to within 4.000 µs" in note for note in analysis.notes)


def test_without_alignment_nothing_is_said_across_hosts():
    trace = two_hosts(())
    assert waits(trace)["wait_ns"].isna().all()
    assert stragglers(trace).table.empty
    assert stragglers(trace).headline == ()
    row = collectives(trace).table.iloc[0]
    assert pd.isna(row["wait_ns"])
    for analysis in (stragglers(trace), collectives(trace)):
        assert any("not aligned" in note for note in analysis.notes)


def test_starts_closer_than_the_clocks_are_known_name_no_straggler():
    work = [kernel("sent", 0, 100), kernel("sent", 3 * US, 100, host="b")]
    clocks = (HostClock("a", 0, 0.0, 0, 12), HostClock("b", 0, 0.0, 4 * US, 12))
    assert waits(traced(work, OPS, None, clocks))["last_rank"].tolist() == [-1, -1]


def test_waits_are_taken_on_the_common_clock_drift_and_all():
    """b's stamp of 1 s is 500 ns and 2 ppm of 1 s, 2000 ns, ahead: true start 999,997,500."""
    second = 1_000_000_000
    work = [kernel("sent", second - 5000, 9000), kernel("sent", second, 9000, host="b")]
    clocks = (HostClock("a", 0, 0.0, 0, 2), HostClock("b", 500, 2000.0, 0, 2))
    assert waits(traced(work, OPS, None, clocks))["wait_ns"].tolist() == [2500, 0]


def test_without_a_common_clock_numbered_steps_still_tell_the_transfer():
    """The shortest of a call is the transfer, whosever it is; unpaired, it is a host's own."""
    trace = two_hosts(())
    assert collectives(trace).table["transfer_ns"].tolist() == [350 * US]  # of 550 and 150
    numbered = dataclasses.replace(trace.meta, are_steps_numbered_by_script=True)
    trace = dataclasses.replace(trace, meta=numbered)
    assert collectives(trace).table["transfer_ns"].tolist() == [150 * US]
    assert collectives(trace).table["wait_ns"].isna().all()


def test_devices_of_one_host_need_no_alignment():
    work = [kernel("sent", 0, 100, device=0), kernel("sent", 30, 70, device=1)]
    found = waits(traced(work, OPS))
    assert found[["wait_ns", "transfer_ns"]].to_numpy().tolist() == [[30, 70], [0, 70]]
    assert found["last_rank"].tolist() == [1, 1]


def test_what_is_no_waiting_is_transfer_as_long_as_the_quickest_device_needs_it():
    """Of 100 + 90 ns are 30 waiting and 2 × 70 transfer; 20 of the last device are neither."""
    work = [kernel("sent", 0, 100, device=0), kernel("sent", 30, 90, device=1)]
    row = collectives(traced(work, OPS)).table.iloc[0]
    assert row[["per_step_ns", "wait_ns", "moved_ns"]].tolist() == [95, 15, 70]


def test_groups_wait_among_themselves():
    ops = (OPS[0], hlo("sent", "all-to-all", "x", replica_groups="{{0,2},{1,3}}"))
    starts = {0: 0, 2: 10, 1: 50, 3: 20}
    work = [kernel("sent", at, 100 - at, device=d) for d, at in starts.items()]
    assert waits(traced(work, ops)).set_index("rank")["wait_ns"].to_dict() == {
        0: 10.0,
        1: 0.0,
        2: 0.0,
        3: 30.0,
    }


def test_transposed_groups_join_devices_of_equal_name_on_two_hosts():
    """[4,2]<=[2,4]T(1,0) of 2 hosts × 4 devices, all named 0 to 3: {0,4}, {1,5}, {2,6}, {3,7}."""
    ops = (OPS[0], hlo("sent", "all-to-all", "x", replica_groups="{{0,4},{1,5},{2,6},{3,7}}"))
    both = (HostClock("a", 0, 0.0, 0, 12), HostClock("b", 0, 0.0, 0, 12))
    work = [
        kernel("sent", 10 * device + 100 * at, 1000 - 10 * device - 100 * at, device=device, host=h)
        for at, h in enumerate("ab")
        for device in range(4)
    ]
    found = waits(traced(work, ops, clocks=both)).set_index("rank")
    assert found["wait_ns"].to_dict() == {
        **dict.fromkeys(range(4), 100.0),
        **dict.fromkeys(range(4, 8), 0.0),
    }
    assert found["last_rank"].to_dict() == {rank: rank % 4 + 4 for rank in range(8)}


def test_calls_that_cannot_be_paired_have_no_wait():
    work = [kernel("sent", 0, 9, device=0), kernel("sent", 20, 9, device=0)]
    work.append(kernel("sent", 2, 7, device=1))
    assert waits(traced(work, OPS))["wait_ns"].isna().all()


def test_a_group_with_a_missing_device_has_no_wait():
    ops = (OPS[0], hlo("sent", "all-to-all", "x", replica_groups="{{0,1,2}}"))
    work = [kernel("sent", 0, 9, device=0), kernel("sent", 2, 7, device=1)]
    analysis = collectives(traced(work, ops))
    assert analysis.table["wait_ns"].isna().all()
    assert any("waits of 2 of 2 calls are not known" in note for note in analysis.notes)


def eight_ranks(slow_rank):
    """Every rank computes 1000 µs, the slow one of each step 1120; then all meet for 1 µs."""
    work = []
    for step in range(6):
        at = 2000 * step * US
        for rank in range(8):
            length = (1120 if rank == slow_rank(step) else 1000) * US
            work.append(kernel("dot", at, length, device=rank, step=step))
            wait = at + 1120 * US - at - length
            work.append(kernel("sent", at + length, wait + US, device=rank, step=step))
    return traced(work, (*OPS, hlo("dot", "dot")))


def test_a_rank_that_is_slow_in_every_step_comes_first():
    analysis = stragglers(eight_ranks(lambda step: 5))
    assert analysis.table["rank"].iloc[0] == 5
    assert analysis.table["waited_for_ns"].iloc[0] == 120 * US
    assert analysis.table["waited_for_share"].iloc[0] == pytest.approx(120 / 1001)
    assert analysis.headline[0].value == "rank 5"
    assert analysis.notes[0] == (
        "rank 5: others wait 120.0 µs for it, 12.0 % of the step without that; the worst in 6 of 6 "
        "steps"
    )
    assert analysis.table["waits_ns"].tolist() == [0.0] + [120.0 * US] * 7
    first = analysis.table.iloc[0]
    assert (first["more_op"], first["more_ns"]) == ("dot", 120 * US)
    assert first["all_more_ns"] == 120 * US


def test_a_rank_that_is_late_by_changing_times_is_told_with_the_least_and_the_most():
    """137 ns late in one step, 2419 ns in the next: 1278 ns on the mean."""
    work = []
    for step, late in enumerate((137, 2419)):
        at = step * 10_000
        for rank in range(2):
            waited = 0 if rank else late
            work.append(kernel("dot", at, 1000 + waited, device=rank, step=step))
            work.append(kernel("sent", at + 1000 + waited, 3000 - waited, device=rank, step=step))
    found = stragglers(traced(work, (*OPS, hlo("dot", "dot"))))
    first = found.table.iloc[0]
    assert (first["rank"], first["waited_for_ns"]) == (0, 1278)
    assert (first["least_waited_for_ns"], first["most_waited_for_ns"]) == (137, 2419)
    assert found.notes[0].endswith("the worst in 2 of 2 steps, 137 ns to 2.419 µs")


def test_the_longest_waited_for_rank_is_no_fixed_straggler_where_another_leads_most_steps():
    """Rank 0 is 500 ns late in one step of three, rank 1 100 ns in the two others."""
    late = [(0, 500), (1, 100), (1, 100)]
    work = []
    for step, (slow, by) in enumerate(late):
        for rank in range(2):
            at = 10_000 * step + (by if rank == slow else 0)
            work.append(kernel("sent", at, 10_000 * step + 1000 - at, device=rank, step=step))
    analysis = stragglers(traced(work, OPS))
    assert analysis.table["rank"].tolist() == [0, 1]
    assert analysis.headline[0].value == "no fixed straggler"
    assert analysis.notes[0] == (
        "rank 1 is the most waited-for in 2 of 3 steps, yet over all of them rank 0 is waited for "
        "longer"
    )


def test_a_slow_rank_that_changes_is_no_fixed_straggler():
    analysis = stragglers(eight_ranks(lambda step: step))
    assert analysis.headline[0].value == "no fixed straggler"
    assert "none is it in more than 1 of 6 steps" in analysis.notes[0]


def test_stragglers_are_told_by_what_their_groups_carry():
    """Rank 0 is 30 ns late for the sum, in both calls; rank 1 40 ns for the tokens, in one of 2."""
    ops = (
        *(OPS[0], hlo("y", "multiply", "x x", op_name="jit(s)/jvp()/moe/dispatch/mul")),
        hlo("tokens", "all-to-all", "y", op_name="jit(s)/jvp()/moe/dispatch/all"),
        hlo("sum", "all-reduce", "x"),
    )
    late = {
        ("tokens", 0): (0, 40),
        ("tokens", 1): (10, 0),
        ("sum", 0): (30, 0),
        ("sum", 1): (30, 0),
    }
    work = [
        kernel(op, 1000 * call + at + after, 100 - after, device=device)
        for (op, call), times in late.items()
        for at in (0 if op == "tokens" else 500,)
        for device, after in enumerate(times)
    ]
    found = stragglers(traced(work, ops, {0: (0, 2000)}))
    said = [note for note in found.notes if "is waited for most" in note]
    assert said == [
        "sums (DP: sums over replicas): rank 0 is waited for most, 60 ns per step; last in 2 of 2 "
        "calls",
        "tokens (EP: dispatch and combine): rank 1 is waited for most, 40 ns per step; last in 1 "
        "of 2 calls",
    ]
    assert found.table.set_index("rank")["mostly"].to_dict() == {0: "sums", 1: "tokens"}


def test_ranks_that_arrive_together_have_no_straggler():
    assert stragglers(eight_ranks(lambda step: -1)).headline[0].value == (
        "none: ranks arrive together"
    )


def test_a_trace_of_compute_alone_has_no_straggler():
    analysis = stragglers(traced([kernel("dot", 0, 5)], (hlo("dot", "dot"),)))
    assert analysis.notes == ("none in this trace: no collective",)
