import json
import os

import pytest
from builders.chrome import GPU, STREAM, kernel, names, on_host, text, write
from builders.xspace import Plane, event, host, line, xspace
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprof.cli.main import group
from moeprof.errors import TraceError
from moeprof.ingest import open_run
from moeprof.tables.intervals import cover


@pytest.fixture(params=["native", "python"], autouse=True)
def reader(request, monkeypatch) -> str:
    monkeypatch.setenv("MOEPROF_READER", request.param)
    return request.param


def opened(tmp_path, content, name="node0.trace.json"):
    return open_run(write(tmp_path / name, content))


def check(trace, name):
    return next(check for check in trace.trust if check.check == name)


def busy_ns(trace):
    starts = trace.events["start_ns"].to_numpy()
    return cover(starts, starts + trace.events["duration_ns"].to_numpy()).total


STEPS = [on_host("train", 1000 * step + 1, 900, step_num=str(step)) for step in range(3)]
KERNELS = [
    kernel(f"fusion.{n}", 1000 * step + 100 * n + 10, 50, name=f"jit(step)/jvp()/moe/router/{n}")
    for step in range(3)
    for n in range(4)
]


def test_kernels_get_their_step_stream_op_and_scope(tmp_path):
    trace = opened(tmp_path, text([*STEPS, *KERNELS]), "node0.trace.json.gz")
    assert trace.meta.platform == "gpu"
    assert trace.meta.hosts == ("node0",)
    assert trace.steps[["step", "used"]].to_numpy().tolist() == [[0, True], [1, True], [2, True]]
    events = trace.events
    assert events["step"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert set(events["line"]) == {"Stream #24(Compute)"}
    assert events["start_ns"].tolist()[:2] == [10_000, 110_000]
    ops = trace.hlo_ops.iloc[events["instruction"]]
    assert ops["op"].tolist() == events["op"].tolist()
    assert ops["op_name"].iloc[2] == "jit(step)/jvp()/moe/router/2"
    assert check(trace, "format").verdict == "warn"


def test_a_launch_on_the_host_decides_the_step_of_a_kernel_that_runs_later(tmp_path):
    launch = on_host("cuLaunchKernel", 500, 5, correlation_id="7")
    late = kernel("fusion.0", 1500, 50, correlation_id="7")
    trace = opened(tmp_path, text([*STEPS, launch, late]))
    assert trace.events["step"].tolist() == [0]


@pytest.mark.parametrize("most", [12, 20])
def test_a_trace_of_as_many_events_as_jax_keeps_is_called_cut(tmp_path, monkeypatch, most):
    # the earliest events survive: all of step 0 and 1, a kernel of step 2
    events = sorted([*STEPS, *KERNELS], key=lambda e: e["ts"])[:12]
    monkeypatch.setattr("moeprof.ingest.chrome_json.read.MOST_EVENTS", most)
    trace = opened(tmp_path, text(events))
    is_cut = most == 12
    truncated = check(trace, "truncated")
    assert (truncated.verdict == "warn") == is_cut
    if is_cut:
        assert "not captured, not idle" in truncated.detail
        assert trace.steps["used"].tolist() == [True, True, False]
        assert "not captured" in trace.steps["reason"].iloc[2]


def test_steps_behind_the_cut_are_not_captured(tmp_path):
    whole = text([*STEPS, *KERNELS[:8]])
    trace = opened(tmp_path, whole[: whole.rindex("}") - 1])
    assert trace.steps["reason"].tolist() == [
        "",
        "not captured whole: the record ends in it",
        "not captured: the record ends before it",
    ]


@pytest.mark.parametrize("reader", ["native"], indirect=True)  # the plain one takes 20 s
def test_a_trace_at_the_cap_of_jax_is_read_and_called_cut(tmp_path):
    """30,000 kernels in three steps among so many Python calls that the cap drops most of them."""
    per_step, calls = 10_000, 992_000 - 3
    python = [on_host("$train.py:7 step", 3 * n / 1000 + 1) for n in range(calls)]
    kernels = [kernel(f"fusion.{n % 50}", 0.1 * n + 10, 0.05) for n in range(8_000)]
    marks = [on_host("train", 1000 * s + 1, 999, step_num=str(s)) for s in range(3)]
    trace = opened(tmp_path, text([*marks, *kernels, *python]), "node0.trace.json.gz")
    assert trace.meta.events == 1_000_000
    assert len(trace.events) == 8_000
    assert 0.8 * per_step == len(trace.events)
    assert check(trace, "truncated").verdict == "warn"
    assert trace.steps["used"].tolist() == [False, False, False]
    assert [r.partition(":")[0] for r in trace.steps["reason"]] == [
        "not captured whole",
        "not captured",
        "not captured",
    ]


def test_the_profile_beside_a_json_copy_is_read_alone(tmp_path):
    stream = line("Stream #24(Compute)", *(event("k", 10 * n + 1, 5) for n in range(7)))
    folder = tmp_path / "plugins" / "profile" / "s1"
    write(folder / "node0.trace.json.gz", text(KERNELS))
    assert len(open_run(tmp_path).events) == 12
    (folder / "node0.xplane.pb").write_bytes(xspace(Plane("/device:GPU:0", (stream,)), host()))
    assert len(open_run(tmp_path).events) == 7


def test_bare_nan_and_infinity_are_read_and_such_an_event_is_counted(tmp_path):
    good = kernel("k", 10, 5)
    broken = {**kernel("k", 20), "dur": float("nan")}
    odd = {
        **kernel("k", 30, 5),
        "args": {"bw": float("inf"), "x": float("-inf"), "y": float("nan")},
    }
    trace = opened(tmp_path, text([good, broken, odd]))
    assert len(trace.events) == 2
    dropped = dict(zip(trace.dropped["what"], trace.dropped["count"], strict=True))
    assert dropped["events without a name or a number for a stamp"] == 1


def test_impossible_stamps_stretch_nothing(tmp_path):
    base = 17 * 10**14
    normal = [kernel("k", base + 10 * n, 5) for n in range(5000)]
    odd = [kernel("k", base, -5), kernel("k", 0, 5), kernel("k", -1_000_000, 5)]
    trace = opened(tmp_path, text([*normal, *odd]))
    events = trace.events
    ends = events["start_ns"] + events["duration_ns"]
    assert len(events) == 5000
    assert ends.max() - events["start_ns"].min() == (4999 * 10 + 5) * 1000
    dropped = dict(zip(trace.dropped["what"], trace.dropped["count"], strict=True))
    assert dropped["impossible time stamp"] == 3


def test_empty_events_and_those_without_stamp_or_name_do_no_harm(tmp_path):
    nameless = {k: v for k, v in kernel("k", 20).items() if k != "name"}
    trace = opened(tmp_path, text([kernel("k", 10), {}, {"ph": "M", "name": "x"}, nameless, {}]))
    assert len(trace.events) == 1


def test_the_place_of_other_keys_does_not_matter_and_a_list_alone_will_do(tmp_path):
    events = [*names(), *KERNELS]
    others = {"deviceProperties": [{"id": 0, "name": "H100"}], "schemaVersion": 1}
    before = json.dumps({**others, "traceEvents": events})
    after = json.dumps({"traceEvents": events, **others})
    first, second, third = (
        opened(tmp_path / place, content)
        for place, content in (("a", before), ("b", after), ("c", json.dumps(events)))
    )
    assert first.devices["model"].tolist() == second.devices["model"].tolist() == ["H100"]
    for other in (second, third):
        assert first.events.equals(other.events)
    assert "no metadata" in check(third, "format").detail
    assert "no metadata" not in check(first, "format").detail


def test_half_an_archive_gives_its_whole_events_and_exit_code_3(tmp_path):
    import random

    scattered = random.Random(0)
    many = [kernel(f"fusion.{scattered.random()}", 10 * n + 1, 5) for n in range(4000)]
    file = write(tmp_path / "node0.trace.json.gz", text(many))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    done = CliRunner().invoke(group, ["analyze", str(file)])
    assert done.exit_code == 3
    truncated = check(open_run(file), "truncated")
    count = len(open_run(file).events)
    assert 1000 < count < 3000
    assert truncated.detail.startswith(f"recovered {count:,} events, rest unreadable")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "found an empty file"),
        (b'{"traceEvents": [', "the text ends in the middle"),
        (b"<!DOCTYPE html><html></html>", "neither an object nor a list"),
        (b"{}", "no event"),
        (b"\xff\xfe\x00", "neither an object nor a list"),
    ],
)
def test_what_is_no_trace_is_one_line_that_names_the_file(tmp_path, content, found):
    with pytest.raises(TraceError, match=found) as caught:
        opened(tmp_path, content)
    assert "node0.trace.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_event_that_is_no_json_is_passed_over(tmp_path):
    content = text(KERNELS).replace('"fusion.1"', '"fusion"1"', 1)
    trace = opened(tmp_path, content)
    assert len(trace.events) == 11
    assert "1 event(s) are no JSON" in check(trace, "truncated").detail


@pytest.mark.parametrize(
    "name", ['a"b\\c', "x\u0001y", "</script><script>x</script>", "n" * 40_000]
)
def test_odd_names_are_kept(tmp_path, name):
    trace = opened(tmp_path, text([kernel(name, 10)]))
    assert trace.events["name"].tolist() == [name]


def test_bytes_that_are_no_utf_8_and_raw_controls_are_replaced_or_kept(tmp_path):
    raw = text([kernel("kNk", 10)]).encode()
    trace = opened(tmp_path, raw.replace(b"kNk", b"k\x9f\x01k"))
    assert trace.events["name"].tolist() == ["k�\x01k"]


def test_partly_overlapping_events_of_a_track_are_counted(tmp_path):
    trace = opened(tmp_path, text([kernel("a", 10, 6), kernel("b", 13, 9), kernel("c", 30, 5)]))
    assert "1 event(s) partly overlap" in check(trace, "format").detail
    assert set(trace.events["name"]) == {"a", "b", "c"}


def test_events_of_no_length_count_and_cost_nothing(tmp_path):
    trace = opened(tmp_path, text([kernel("a", 1, 10), kernel("b", 11, 0), kernel("c", 11, 10)]))
    assert (len(trace.events), busy_ns(trace)) == (3, 20_000)


def kineto(category, name, ts, dur, /, **args):
    where = {"pid": 0 if "device" in args else 5, "tid": args.get("stream", 5)}
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "args": args, **where}


KINETO = [
    event
    for n in range(2)
    for event in (
        kineto("user_annotation", f"ProfilerStep#{n}", 1000 * n + 1, 900),
        kineto("cuda_runtime", "cudaLaunchKernel", 1000 * n + 500, 4, correlation=n + 40),
        kineto("kernel", "sgemm", 1000 * n + 950, 20, device=3, stream=7, correlation=n + 40),
        kineto("gpu_memcpy", "Memcpy DtoD", 1000 * n + 880, 9, device=3, stream=7),
    )
]


def test_a_trace_of_pytorch_s_profiler(tmp_path):
    content = json.dumps(
        {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": 3},
            "deviceProperties": [{"id": n, "name": "NVIDIA H100"} for n in range(8)],
            "traceEvents": KINETO,
        }
    )
    trace = opened(tmp_path, content, "rank3.json.gz")
    assert trace.events["kind"].tolist() == ["copy", "kernel", "copy", "kernel"]
    assert set(trace.events["line"]) == {"Stream 7"}
    assert trace.events["step"].tolist() == [0, 0, 1, 1]
    columns = ["device", "rank", "model"]
    assert trace.devices[columns].to_numpy().tolist() == [[3, 3, "NVIDIA H100"]]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["traceEvents", "ph", "ts", "dur", "name", "pid", "tid", "args", "cat", "X"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


def test_half_a_surrogate_pair_is_replaced_everywhere(tmp_path):
    model = {"deviceProperties": [{"id": 0, "name": "H\ud800"}]}
    events = [on_host("s\udc00", 1, 90, step_num="0"), kernel("k\ud800", 10, name="moe/\ud800")]
    file = write(tmp_path / "n.trace.json", text(events, **model))
    trace = open_run(file)
    assert trace.events["name"].tolist() == ["k\ufffd"]
    assert trace.devices["model"].tolist() == ["H\ufffd"]
    assert CliRunner().invoke(group, ["analyze", str(file)]).exit_code in (0, 3)


def test_a_number_of_thousands_of_digits_costs_its_event_alone(tmp_path):
    content = text(KERNELS).replace('"dur": 50', '"dur": ' + "9" * 5000, 1)
    trace = opened(tmp_path, content)
    assert len(trace.events) == 11
    assert "1 event(s) are no JSON" in check(trace, "truncated").detail


def test_broken_keys_behind_the_events_cost_no_event(tmp_path):
    content = json.dumps({"traceEvents": [*names(), *KERNELS]})[:-1] + ', "a": x, "b": [{}, {}]}'
    trace = opened(tmp_path, content)
    assert len(trace.events) == 12
    assert "a value beside the events is no JSON" in check(trace, "truncated").detail


def test_broken_keys_before_the_events_are_one_clear_error(tmp_path):
    with pytest.raises(TraceError, match="a value beside the events is no JSON"):
        opened(tmp_path, '{"a": x, "b": [{}, {}], ' + text(KERNELS)[1:])


@pytest.mark.parametrize("ordinal", ["9" * 20, "9" * 5000])
@pytest.mark.parametrize("vendor", ["GPU", "TPU"])
def test_a_device_of_an_impossible_number_has_no_work(tmp_path, vendor, ordinal):
    content = text(KERNELS).replace("/device:GPU:0", f"/device:{vendor}:{ordinal}")
    assert opened(tmp_path, content).events.empty


def test_impossible_device_numbers_in_arguments_are_counted(tmp_path):
    events = [kineto("kernel", "k", 10, 5, device=d, stream=7) for d in (0, 2**31, 2**61)]
    models = [{"id": 0, "name": "H100"}, {"id": 10**30, "name": "odd"}]
    trace = opened(tmp_path, json.dumps({"deviceProperties": models, "traceEvents": events}))
    assert trace.devices["device"].tolist() == [0]
    dropped = dict(zip(trace.dropped["what"], trace.dropped["count"], strict=True))
    assert dropped["events of an impossible device number"] == 2


@pytest.mark.parametrize("digits", ["\N{SUPERSCRIPT TWO}", "9" * 30, "9" * 5000])
def test_odd_numbers_of_steps_are_none(tmp_path, digits):
    step = kineto("user_annotation", f"ProfilerStep#{digits}", 1, 90)
    trace = opened(tmp_path, json.dumps([step, kineto("kernel", "k", 10, 5, device=0, stream=7)]))
    assert trace.steps["step"].tolist() == [0]


def test_a_mark_of_byte_order_is_no_part_of_the_text(tmp_path):
    assert len(opened(tmp_path, b"\xef\xbb\xbf" + text(KERNELS).encode()).events) == 12


def test_overlaps_of_many_tracks_at_stamps_since_1970_are_counted_exactly(tmp_path):
    base = 17 * 10**14
    pair = [(base, 6), (base + 3, 9)]
    tracks = [{**kernel("k", ts, dur), "tid": tid} for tid in range(12) for ts, dur in pair]
    early = {**kernel("k", 1, 5), "tid": 40}
    bad = {**kernel("k", base, -5), "tid": 41}
    trace = opened(tmp_path, text([*tracks, early, bad]))
    assert "; 12 event(s) partly overlap" in check(trace, "format").detail


@settings(max_examples=30, deadline=None)
@given(value=JSON, cut=st.integers(0, 40), mark=st.binary(max_size=4))
def test_any_text_gives_a_trace_or_one_clear_error(tmp_path_factory, value, cut, mark):
    content = json.dumps({"traceEvents": [kernel("k", 10), value, value]}).encode()
    file = tmp_path_factory.mktemp("odd") / "a.trace.json"
    file.write_bytes(content[: len(content) - cut] + mark)
    told = ""
    try:
        assert (open_run(file).events["duration_ns"] >= 0).all()
    except TraceError as error:
        told = str(error)
    assert "\n" not in told


def test_a_single_device_with_kernels_alone_has_every_section(tmp_path):
    file = write(tmp_path / "foo.trace.json", text([kernel("k", 10 * n + 1, 5) for n in range(9)]))
    done = CliRunner().invoke(group, ["analyze", str(file)])
    assert done.exit_code in (0, 3)
    assert "Traceback" not in done.output
    assert "None in this trace" in done.output or "none in this trace" in done.output
    assert (GPU, STREAM) == (1, 24)


def test_a_file_name_that_is_no_utf8_names_a_host_all_the_same(tmp_path):
    trace = opened(tmp_path, text([*STEPS, *KERNELS]), os.fsdecode(b"h\xff.trace.json"))
    assert trace.meta.hosts == ("h\N{REPLACEMENT CHARACTER}",)


@pytest.mark.parametrize("ending", [".trace.json", ".trace.json.gz", ".json", ".json.gz"])
def test_a_host_is_called_as_its_file_without_the_ending(tmp_path, ending):
    trace = opened(tmp_path, text([*STEPS, *KERNELS]), f"node0{ending}")
    assert trace.meta.hosts == ("node0",)
