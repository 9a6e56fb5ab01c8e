import json

import pytest
from builders.sessions import profile, write
from builders.xspace import Plane, event, line, xspace

from moeprof.ingest import open_run
from moeprof.ingest.sources.processes import processes_of
from moeprof.tables.law import Need


def capture(root, processes, expected, recorded):
    """A run folder with the profiles of `recorded`; process 1 comes before 0 by its file's name."""
    files = {k: root / "plugins" / "profile" / "s" / f"{'zyx'[k]}-p{k}.xplane.pb" for k in recorded}
    for file in files.values():
        write(file, profile())
    windows = {k: [{"file": f"plugins/profile/s/{f.name}"}] for k, f in files.items()}
    meta = {
        "schema": "moeprof.run/1",
        "expected_processes": expected,
        "processes": [{**p, "windows": windows.get(p["process_index"], [])} for p in processes],
    }
    (root / "meta.json").write_text(json.dumps(meta))
    return root, [files[k] for k in recorded]


def process(index, **more):
    return {"process_index": index, "host": f"node{index}", **more}


def check(trace):
    return next(c for c in trace.trust if c.check == "processes")


def test_ranks_follow_the_processes_of_the_run_not_the_names_of_its_files(tmp_path):
    run, _ = capture(tmp_path, [process(0), process(1)], 2, [0, 1])
    trace = open_run(run)
    ranks = dict(zip(trace.devices["host"], trace.devices["rank"], strict=True))
    assert ranks == {"z-p0": 0, "y-p1": 1}
    assert check(trace).verdict == "ok"


def test_without_a_record_the_number_in_the_name_counts(tmp_path):
    names = ["h-p10.xplane.pb", "h-p2.xplane.pb"]
    assert processes_of(None, [tmp_path / name for name in names]).of_file == (10, 2)
    assert processes_of(None, [tmp_path / "a.xplane.pb"]).of_file == (-1,)


def test_a_process_without_a_profile_is_named(tmp_path):
    run, _ = capture(tmp_path, [process(0), process(1)], 3, [0])
    found = check(open_run(run))
    assert found.verdict == "fail"
    assert found.breaks == (Need.EVERY_DEVICE,)
    assert "no profile of process 1 (node1), process 2" in found.detail


def test_a_process_that_was_not_asked_to_record_is_not_missed(tmp_path):
    run, _ = capture(tmp_path, [process(0), process(1, records=False)], 2, [0])
    found = check(open_run(run))
    assert found.verdict == "ok"
    assert "not asked to record process 1 (node1)" in found.detail


def test_hosts_that_were_left_out_by_choice_are_not_missed(tmp_path):
    run, _ = capture(tmp_path, [process(0), process(1)], 2, [0, 1])
    assert check(open_run(run, hosts=["z-p0"])).verdict == "ok"


def test_a_host_alone_keeps_the_ranks_that_it_has_among_all(tmp_path):
    write(tmp_path / "plugins" / "profile" / "S" / "y-p1.xplane.pb", profile())
    write(tmp_path / "plugins" / "profile" / "S" / "z-p3.xplane.pb", profile())
    assert open_run(tmp_path).devices["rank"].tolist() == [1, 3]
    assert open_run(tmp_path, hosts=["z-p3"]).devices["rank"].tolist() == [3]


def test_devices_of_equal_name_on_two_hosts_are_kept_apart_where_nothing_tells_ranks(tmp_path):
    for index in range(2):
        planes = [
            Plane(f"/device:GPU:{d}", (line("Stream #1", event("k", 10, 5)),)) for d in range(4)
        ]
        write(tmp_path / "plugins" / "profile" / "s" / f"h{index}.xplane.pb", xspace(*planes))
    devices = open_run(tmp_path).devices
    assert devices["rank"].max() < -1
    assert devices["rank"].is_unique
    assert devices["host"].tolist() == ["h0"] * 4 + ["h1"] * 4
    assert devices["device"].tolist() == [0, 1, 2, 3] * 2


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (["run-p20241101"], (-1,)),  # a date
        (["run-p9999"], (9999,)),
        (["run-p10000"], (-1,)),  # alone, with nothing to compare it with
        (["a-p10000", "b-p99999"], (10000, 99999)),
        (["a-p0", "b-p20241101"], (-1, -1)),
        (["a-p1", "b-p1"], (-1, -1)),
    ],
)
def test_numbers_in_names_count_where_a_run_can_have_so_many_processes(tmp_path, names, places):
    files = [write(tmp_path / f"{name}.xplane.pb", profile()) for name in names]
    assert processes_of(None, files).of_file == places


def test_a_date_in_a_name_is_no_rank(tmp_path):
    file = write(tmp_path / "run-p20241101.xplane.pb", profile())
    assert open_run(file).devices["rank"].tolist() == [0]


@pytest.mark.parametrize("index", [2**64 - 1, -5, True, "1", 100_000])
def test_a_process_index_that_cannot_be_is_not_known(tmp_path, index):
    file = tmp_path / "plugins" / "profile" / "s" / "h.xplane.pb"
    write(file, profile())
    windows = [{"file": "plugins/profile/s/h.xplane.pb"}]
    meta = {
        "schema": "moeprof.run/1",
        "processes": [{"process_index": index, "windows": windows}],
    }
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    assert processes_of(tmp_path, [file]).of_file == (-1,)
    assert open_run(tmp_path).devices["rank"].tolist() == [0]


@pytest.mark.parametrize("expected", [True, 10**12, -1, "2"])
def test_a_count_of_processes_that_cannot_be_is_not_known(tmp_path, expected):
    run, files = capture(tmp_path, [process(0), process(1)], expected, [0, 1])
    assert processes_of(run, files).expected == 0
    told = "2 process(es) read; nothing says how many there were"
    assert check(open_run(run)).detail == told


@pytest.mark.parametrize("windows", [5, "s", {"file": 1}, [5], None])
def test_windows_of_a_record_that_are_no_list_count_as_none(tmp_path, windows):
    write(tmp_path / "plugins" / "profile" / "s" / "h.xplane.pb", profile())
    meta = {
        "schema": "moeprof.run/1",
        "processes": [{"process_index": 0, "windows": windows, "files": windows}],
    }
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    assert len(open_run(tmp_path).events) == 3


def test_a_record_that_is_no_utf8_is_told_as_damage(tmp_path):
    write(tmp_path / "plugins" / "profile" / "s" / "h.xplane.pb", profile())
    (tmp_path / "meta.json").write_bytes(b'{"schema": "moeprof.run/\xff"}')
    trace = open_run(tmp_path)
    assert any("meta.json is not JSON" in c.detail for c in trace.trust)
