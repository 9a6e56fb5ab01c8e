"""Devices that are left out have a row of nulls, so that what is withheld can be seen."""

from builders import gpu

from moeprof.analyzers import without_withheld
from moeprof.analyzers.laws import laws_of
from moeprof.analyzers.questions.timeline import timeline
from moeprof.ingest import open_run
from moeprof.reports.run.document import finding_of

OPS = ("norm", "gemm", "act", "down")
KEYS = {"host": "node0", "withheld": "launches"}


def finding(folder, kept):
    file = folder / "node0.xplane.pb"
    file.write_bytes(gpu.gpu_file(OPS, 5, 3, kept))
    trace = open_run(file)
    shown = without_withheld({"timeline": timeline(trace)}, laws_of(trace))
    return finding_of(shown["timeline"])


def test_a_device_without_a_record_has_one_row_of_nulls(tmp_path):
    found = finding(tmp_path, lambda device, step, place: device != 1)
    row = next(row for row in found["rows"] if row["device"] == 1)
    assert {name: value for name, value in row.items() if value is not None} == {
        "device": 1,
        **KEYS,
    }
    assert set(row) == {column["name"] for column in found["columns"]} | {"withheld"}
    assert [row["device"] for row in found["rows"]] == [0] * 5 + [2] * 5 + [1]
    assert (
        "device 1 of node0 is left out: its row is withheld by the check 'launches'"
        in (found["notes"])
    )


def test_so_has_one_that_lacks_most_of_it(tmp_path):
    found = finding(tmp_path, lambda device, step, place: device != 2 or place == 0)
    rows = [row for row in found["rows"] if row["device"] == 2]
    assert [row["withheld"] for row in rows] == ["launches"]
    assert rows[0]["compute_ns"] is None


def test_no_row_is_added_where_each_device_has_its_work(tmp_path):
    found = finding(tmp_path, lambda *_: True)
    assert len(found["rows"]) == 15
    assert not any("withheld" in row for row in found["rows"])
