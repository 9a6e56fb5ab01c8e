"""Steps and hosts that do not belong together: what is measured must be of one run, and whole."""

import json
from pathlib import Path

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.sessions import DAY_NS, profile, write
from builders.xspace import host, line, metadata, thunk, xspace

from moeprof.analyzers import analyze
from moeprof.errors import TraceError
from moeprof.ingest import open_run
from moeprof.tables.trace import Trace

PROGRAM = hlo_proto(computation("main", op("add", "add", "f32[8]")))
OTHER = hlo_proto(
    computation("main", op("conv", "convolution", "f32[8]"), op("add", "add", "f32[8]"))
)
LENGTH = 100


def run(*starts: int, length: dict[int, int] | None = None, program: bytes = PROGRAM) -> bytes:
    """Executions of a program on two devices, each at a start; `length` by place."""
    work = [
        thunk("add", at, (length or {}).get(n, LENGTH), run_id=n, device_ordinal=d, program_id=7)
        for n, at in enumerate(starts)
        for d in (0, 1)
    ]
    return xspace(metadata(p7=program), host(line("pool", *work)))


def opened(folder: Path, **hosts: bytes) -> Trace:
    for name, data in hosts.items():
        write(folder / f"{name}.xplane.pb", data)
    return open_run(folder)


def check(trace: Trace, name: str):
    return next(c for c in trace.trust if c.check == name)


def test_steps_that_follow_each_other_are_in_order(tmp_path):
    trace = opened(tmp_path, a=run(10, 1010, 2010, 3010))
    assert check(trace, "step_order").verdict == "ok"


def test_a_step_longer_than_the_time_to_the_next_withholds_all_times(tmp_path):
    trace = opened(tmp_path, a=run(10, 1010, 2010, 3010, length={1: 5000}))
    found = check(trace, "step_order")
    assert found.verdict == "fail"
    assert (
        "1 of 4 measured steps cannot be: step 1 lasts 5 us, and the next begins 1 us after it"
        in found.detail.replace("5.000", "5").replace("1.000", "1").replace("µ", "u")
    )
    assert all(m.value is None for m in analyze(trace, ["step_time"])["step_time"].headline)


def test_devices_that_end_a_step_apart_are_no_fault(tmp_path):
    trace = opened(tmp_path, a=run(10, 1010, 2010, 3010, length={1: 1400}))
    assert check(trace, "step_order").verdict == "ok"


def test_steps_that_all_run_into_the_next_are_the_programs_way(tmp_path):
    trace = opened(tmp_path, a=run(10, 1010, 2010, 3010, length=dict.fromkeys(range(4), 1800)))
    found = check(trace, "step_order")
    assert found.verdict == "warn"
    assert found.detail.startswith("3 of 4 measured steps run into the next: step 0 lasts 1.800")


def test_a_step_that_a_host_lacks_is_not_measured(tmp_path):
    trace = opened(tmp_path, a=run(10, 1010, 2010, 3010), b=run(10, 1010, 2010))
    assert trace.steps["used"].tolist() == [True, True, True, False]
    assert trace.steps["reason"].tolist()[-1] == "work of 1 of 2 hosts"
    table = analyze(trace, ["breakdown"])["breakdown"].table
    assert table["per_step_ns"].sum() == LENGTH  # of 2 hosts × 2 devices × 3 steps


def test_hosts_that_share_a_program_are_one_run(tmp_path):
    trace = opened(tmp_path, a=run(10, 1010, 2010), b=run(10, 1010, 2010))
    assert check(trace, "one_run").verdict == "ok"


def test_hosts_without_a_program_in_common_are_named(tmp_path):
    trace = opened(tmp_path, a=run(10, 1010, 2010), b=run(10, 1010, 2010, program=OTHER))
    found = check(trace, "one_run")
    assert found.verdict == "warn"
    assert found.detail.startswith("b ran no program that a ran")


def test_files_of_different_days_are_not_one_run(tmp_path):
    trace = opened(tmp_path, a=profile((0, 10**9)), b=profile((DAY_NS, DAY_NS + 10**9)))
    found = check(trace, "one_run")
    assert found.verdict == "fail"
    assert "a and b were recorded 86,399 s apart" in found.detail
    assert all(m.value is None for m in analyze(trace, ["breakdown"])["breakdown"].headline)
    assert check(open_run(tmp_path, hosts=["a"]), "one_run").verdict == "ok"


def test_files_of_one_time_are_one_run(tmp_path):
    trace = opened(tmp_path, a=profile((0, 10**9)), b=profile((2 * 10**9, 3 * 10**9)))
    assert check(trace, "one_run").verdict == "ok"  # profilers start by hand


@pytest.mark.parametrize("broken", [b"", b"<html>gone</html>", b"\x08"])
def test_one_host_that_cannot_be_read_does_not_take_the_others_along(tmp_path, broken):
    trace = opened(tmp_path, a=run(10, 1010, 2010), b=broken)
    assert trace.meta.hosts == ("a",)
    found = check(trace, "truncated")
    assert found.verdict == "warn"
    assert "a host is left out: " in found.detail
    assert "b.xplane.pb: expected" in found.detail


def test_no_host_that_can_be_read_is_an_error(tmp_path):
    with pytest.raises(TraceError, match=r"a\.xplane\.pb: expected a profile, found an empty"):
        opened(tmp_path, a=b"", b=b"")


def test_a_device_that_lost_work_is_not_averaged_in(tmp_path):
    whole = [thunk("add", 1000 * n + 10, 50, run_id=n, device_ordinal=0) for n in range(4)]
    half = [thunk("add", 1000 * n + 15, 50, run_id=n, device_ordinal=1) for n in range(4)]
    more = [thunk("add", 1000 * n + 70, 20, run_id=n, device_ordinal=0) for n in range(4)]
    rest = [thunk("add", 1000 * n + 75, 20, run_id=n, device_ordinal=1) for n in range(3)]
    data = xspace(metadata(p7=PROGRAM), host(line("p", *whole, *half, *more, *rest)))
    sound = opened(tmp_path / "sound", a=data)
    assert sound.steps["used"].tolist() == [True, True, True, False]
    cut = opened(tmp_path / "cut", a=data + b"\x0a\xff")  # a plane that is cut off follows
    assert cut.steps["reason"].tolist()[-1].endswith(("of 4 ops", "1 of 2 pieces left on a device"))
    middle = [e for e in more if e.stats["run_id"] != 1]
    data = xspace(metadata(p7=PROGRAM), host(line("p", *whole, *half, *middle, *rest)))
    cut = opened(tmp_path / "middle", a=data + b"\x0a\xff")
    assert cut.steps["reason"].tolist()[1] == "1 of 2 pieces left on a device"


TRACE = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:GPU:0"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 7, "args": {"name": "Stream #7"}},
]


def kernel(**changes) -> dict[str, object]:
    whole = {
        "ph": "X",
        "name": "k",
        "pid": 1,
        "tid": 7,
        "ts": 20,
        "dur": 3,
        "args": {"hlo_op": "a"},
    }
    made = {**whole, **changes}
    return {key: value for key, value in made.items() if value is not ...}


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        (kernel(dur="x"), "1 events without a name or a number for a stamp"),
        (kernel(dur=...), "1 events without a name or a number for a stamp"),
        (kernel(ts=None), "1 events without a name or a number for a stamp"),
        (kernel(name=5), "1 events without a name or a number for a stamp"),
        (kernel(ph=7), "1 events without a phase"),
        ("kernel", "1 event(s) are no JSON objects"),
        (kernel(pid="z"), "1 op(s) are of a process that has no name"),
    ],
)
def test_each_json_event_that_is_lost_is_told(tmp_path, lost, told):
    file = tmp_path / "a.trace.json"
    file.write_text(json.dumps({"traceEvents": [*TRACE, kernel(ts=10), lost]}))
    trace = open_run(file)
    assert len(trace.events) == 1
    found = check(trace, "truncated")
    assert (found.verdict, found.detail) == ("warn", told)


def test_bytes_that_are_no_text_are_told(tmp_path):
    file = tmp_path / "a.trace.json"
    text = json.dumps({"traceEvents": [*TRACE, kernel(name="kXk")]}).encode()
    file.write_bytes(text.replace(b"kXk", b"k\xffk"))
    assert "1 place(s) are no UTF-8" in check(open_run(file), "truncated").detail


def test_an_archive_without_its_end_is_told(tmp_path):
    import gzip

    whole = gzip.compress(json.dumps({"traceEvents": [*TRACE, kernel()]}).encode())
    (tmp_path / "a.trace.json.gz").write_bytes(whole[:-4])
    assert "the archive is damaged" in check(open_run(tmp_path), "truncated").detail
    (tmp_path / "a.trace.json.gz").write_bytes(whole)
    assert check(open_run(tmp_path), "truncated").verdict == "ok"


def test_deep_nesting_is_called_so(tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    (tmp_path / "a.trace.json").write_text(f'{{"traceEvents": [], "x": {deep}}}')
    with pytest.raises(TraceError, match="nested too deeply"):
        open_run(tmp_path)


def test_a_host_whose_file_may_not_be_read_does_not_take_the_others_along(tmp_path, monkeypatch):
    write(tmp_path / "a.xplane.pb", profile((0, 10**9)))
    write(tmp_path / "b.xplane.pb", profile((0, 10**9)))
    usual = Path.open

    def refuse(file, *arguments, **named):
        if file.name == "b.xplane.pb":
            raise PermissionError(13, "Permission denied", str(file))
        return usual(file, *arguments, **named)

    monkeypatch.setattr(Path, "open", refuse)
    trace = open_run(tmp_path)
    assert trace.meta.hosts == ("a",)
    assert "Permission denied" in check(trace, "truncated").detail
