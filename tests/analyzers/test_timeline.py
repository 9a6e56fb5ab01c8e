import numpy as np
import pytest
from builders.work import hlo, kernel, traced
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprof.analyzers.questions.timeline import timeline

OPS = (hlo("dot", "dot"), hlo("sum", "all-reduce"), hlo("moved", "copy"), hlo("loop", "while"))
PARTS = ["compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns"]


def parts(*events, steps=None):
    """(compute, exposed communication, exposed copies, idle) of the only device and step."""
    (row,) = timeline(traced(events, OPS, steps)).table[PARTS].to_numpy().tolist()
    return tuple(row)


def only_row(*events):
    return timeline(traced(events, OPS)).table.iloc[0]


def test_waits_for_streams_and_events_hide_no_communication():
    row = only_row(
        kernel("sum", 0, 100, line="5"),
        kernel("", 0, 100, name="Stream Sync", kind="sync"),
        kernel("", 20, 80, name="Event Sync", kind="sync"),
        kernel("dot", 60, 20, line="7"),
    )
    assert row["hidden_communication_ns"] == 20
    assert row["exposed_communication_ns"] == 80
    assert row["compute_ns"] == 20
    assert row["events"] == 2


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("MemcpyD2D", "copy"),
        ("memcpy32_post", "kernel"),  # NVIDIA's driver runs a copy of a graph as a kernel
        ("__amd_rocclr_copyBuffer.kd", "copy"),
    ],
)
def test_a_copy_is_none_of_compute_however_it_was_launched(name, kind):
    copied = kernel("dot", 30, 20, name=name, kind=kind)
    assert parts(kernel("dot", 0, 30), copied) == (30, 0, 20, 0)


def test_a_stream_that_is_idle_under_another_leaves_the_device_busy():
    assert parts(kernel("dot", 0, 100, line="1"), kernel("dot", 40, 10, line="2"))[3] == 0


def test_idle_is_what_no_stream_covers():
    work = (kernel("dot", 0, 30), kernel("dot", 60, 40), kernel("dot", 25, 25, line="2"))
    assert parts(*work) == (90, 0, 0, 10)


def test_an_event_of_zero_length_counts_and_costs_nothing():
    row = only_row(kernel("dot", 0, 10), kernel("dot", 10, 0), kernel("dot", 10, 10))
    assert (row["compute_ns"], row["idle_ns"], row["events"]) == (20, 0, 3)


def test_events_of_zero_length_alone_are_no_busy_time():
    row = only_row(kernel("dot", 5, 0), kernel("sum", 5, 0))
    assert (row["duration_ns"], row["compute_ns"], row["events"]) == (0, 0, 2)


def test_copies_are_exposed_where_neither_compute_nor_communication_runs():
    work = (
        kernel("dot", 0, 10),
        kernel("sum", 5, 10, line="2"),
        kernel("", 0, 20, name="MemcpyD2D", kind="copy", line="3"),
        kernel("", 25, 5, name="Memset", kind="memset", line="3"),
    )
    assert parts(*work) == (10, 5, 5 + 5, 5)


def test_a_collective_by_its_op_is_communication_whatever_its_kernel_is_called():
    assert parts(kernel("sum", 0, 7, name="loop_add_fusion")) == (0, 7, 0, 0)
    assert parts(kernel("sum", 0, 7, name="MemcpyP2P", kind="copy")) == (0, 7, 0, 0)


def test_a_kernel_of_a_communication_library_needs_no_op():
    assert parts(kernel("", 0, 7, name="ncclDevKernel_AllGather_RING_LL")) == (0, 7, 0, 0)


def test_a_copy_op_that_runs_as_a_kernel_is_a_copy():
    assert parts(kernel("moved", 0, 7, name="memcpy32_post")) == (0, 0, 7, 0)


def test_a_loop_does_not_hide_the_collective_in_its_body():
    work = (kernel("loop", 0, 100, self_ns=30), kernel("dot", 0, 40), kernel("sum", 50, 30))
    assert parts(*work, steps={0: (0, 100)}) == (40, 30, 0, 30)


def test_work_that_runs_over_into_the_next_step_counts_where_it_runs():
    work = (kernel("dot", 0, 130, step=0), kernel("dot", 150, 50, step=1))
    table = timeline(traced(work, OPS, {0: (0, 100), 1: (100, 100)})).table
    assert table["compute_ns"].tolist() == [100, 30 + 50]
    assert table["idle_ns"].tolist() == [0, 20]


def test_every_device_has_a_row_for_each_step():
    work = [kernel("dot", 100 * s, 10 + d, step=s, device=d) for s in (0, 1) for d in (0, 1)]
    table = timeline(traced(work, OPS, {0: (0, 20), 1: (100, 20)})).table
    assert table[["rank", "step", "compute_ns"]].to_numpy().tolist() == [
        [0, 0, 10],
        [0, 1, 10],
        [1, 0, 11],
        [1, 1, 11],
    ]


def test_hosts_keep_their_own_clocks():
    far = 3_200_000_000
    work = (kernel("dot", 0, 60), kernel("sum", 60, 40), kernel("dot", far, 70, host="b"))
    table = timeline(traced(work, OPS, {0: (0, 100)})).table.set_index("host")
    assert table["duration_ns"].to_dict() == {"a": 100, "b": 70}
    assert table["idle_ns"].to_dict() == {"a": 0, "b": 0}


def test_without_a_used_step_the_whole_capture_is_told_as_such():
    analysis = timeline(traced((kernel("dot", 10, 5), kernel("dot", 20, 5)), OPS, steps={}))
    assert analysis.table[["step", "compute_ns", "idle_ns"]].to_numpy().tolist() == [[-1, 10, 5]]
    assert "no whole step" in analysis.notes[0]


def test_what_a_trace_lacks_is_named():
    assert timeline(traced((kernel("dot", 0, 5),), OPS)).notes == (
        "communication: none in this trace",
        "copies and memory sets: none in this trace",
    )
    assert timeline(traced(())).notes == ("none in this trace: no device work",)


def test_the_headline_has_the_shares_of_all_devices_and_steps():
    analysis = timeline(traced((kernel("dot", 0, 60), kernel("sum", 50, 30)), OPS, {0: (0, 100)}))
    assert {m.metric: m.value for m in analysis.headline} == {
        "compute_share": pytest.approx(0.6),
        "exposed_communication_share": pytest.approx(0.2),
        "exposed_copy_share": 0.0,
        "idle_share": pytest.approx(0.2),
        "hidden_communication_share": pytest.approx(10 / 30),
    }


KINDS = {"dot": 0, "sum": 1, "moved": 2}
WORK = st.lists(
    st.tuples(
        st.sampled_from(sorted(KINDS)),
        st.integers(-20, 90),
        st.integers(0, 60),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(WORK, st.lists(st.tuples(st.integers(-10, 60), st.integers(1, 40)), min_size=1, max_size=3))
def test_agrees_with_painting_every_nanosecond(work, steps):
    """The first kind that covers a nanosecond owns it; no step outlasts the start of the next."""
    spans = dict(enumerate(steps))
    events = [kernel(op, start, length, device=device) for op, start, length, device in work]
    table = timeline(traced(events, OPS, spans)).table
    for row in table.itertuples():
        begin, length = spans[row.step]
        after = spans.get(row.step + 1, (begin - 1, 0))[0]
        if after >= begin:
            length = min(length, after - begin)
        owner = np.full(length, 3)
        for op, start, duration, device in work:
            if device == row.device:
                lo, hi = np.clip([start - begin, start + duration - begin], 0, length)
                owner[lo:hi] = np.minimum(owner[lo:hi], KINDS[op])
        expected = np.bincount(owner, minlength=4).tolist()
        assert [getattr(row, part) for part in PARTS] == expected
        assert sum(expected) == length
        assert row.duration_ns == spans[row.step][1]
        if after < begin:
            assert np.isnan([row.interval_ns, row.between_idle_ns, row.between_other_ns]).all()
            continue
        assert row.interval_ns == after - begin
        free = np.ones(after - begin - length, dtype=bool)
        for _op, start, duration, device in work:
            if device == row.device:
                lo, hi = np.clip(np.array([start, start + duration]) - begin - length, 0, len(free))
                free[lo:hi] = False
        assert (row.between_idle_ns, row.between_other_ns) == (free.sum(), (~free).sum())
        assert sum(expected) + row.between_idle_ns + row.between_other_ns == row.interval_ns


def test_devices_may_have_large_ordinals_as_those_of_a_second_cpu_process():
    table = timeline(
        traced((kernel("dot", 0, 30, device=2049), kernel("dot", 0, 10, device=0)), OPS)
    ).table
    assert table["device"].tolist() == [0, 2049]
    assert table["compute_ns"].tolist() == [10, 30]


def test_a_guessed_op_does_not_say_what_a_kernel_does():
    """A product that may be a collective or a copy computes; NCCL's kernels tell themselves."""
    assert parts(kernel("sum", 0, 10, name="gemm", confidence=0.3)) == (10, 0, 0, 0)
    assert parts(kernel("moved", 0, 10, name="gemm", confidence=0.3)) == (10, 0, 0, 0)
    assert parts(kernel("dot", 0, 10, name="ncclDevKernel_X", confidence=0.3)) == (0, 10, 0, 0)


def test_work_at_the_border_of_two_steps_counts_in_the_one_that_it_begins():
    """5 products of 10 ns in 5 steps back to back; the last step ends with an instant of work."""
    work = [kernel("dot", 10 * n, 10, step=n) for n in range(5)]
    steps = {n: (10 * n, 10) for n in range(5)}
    assert timeline(traced(work, OPS, steps)).table["events"].tolist() == [1] * 5
    work.append(kernel("dot", 50, 0, step=4))
    work.append(kernel("dot", 20, 0, step=2))
    assert timeline(traced(work, OPS, steps)).table["events"].tolist() == [1, 1, 2, 1, 2]
