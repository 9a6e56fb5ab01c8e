"""What a user sees of a profile that cannot carry figures: text, JSON and page."""

import json

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, event, host, line, metadata, xspace

from moeprof.reports.run.page import render

PROGRAM = hlo_proto(computation("main", op("add", "add", "f32[8]")))


@pytest.fixture
def idle(tmp_path):
    """A profile with a host plane alone."""
    file = tmp_path / "node0.xplane.pb"
    file.write_bytes(xspace(metadata(p7=PROGRAM), host(line("python", event("train", 1, 9)))))
    return file


@pytest.fixture
def cut(tmp_path):
    """A profile of three steps whose last plane is cut."""
    work = [event("add", 1000 * i + 10, 100, hlo_op="add", program_id=7) for i in range(4)]
    noise = host(*(line(f"t{k}", *(event("x", 10, 1) for _ in range(99))) for k in range(9)))
    data = xspace(metadata(p7=PROGRAM), Plane("/device:GPU:0", (line("Stream #1", *work),)), noise)
    file = tmp_path / "cut.xplane.pb"
    file.write_bytes(data[: int(0.7 * len(data))])
    return file


def test_no_device_events_end_with_exit_code_3_and_their_causes(ran, idle):
    code, out, _ = ran("analyze", idle)
    assert code == 3
    text = " ".join(out.split())
    assert "no device events" in text
    for cause in ("permission", "another CUPTI user", "CPU backend", "window was too short"):
        assert text.count(cause) == 1  # once, however many figures are withheld
    assert "Withheld: device_work failed" in text
    assert all(len(line) <= 80 for line in out.splitlines() if str(idle) not in line)


def test_json_says_which_check_withholds_what(ran, idle):
    code, out, _ = ran("analyze", idle, "--json")
    assert code == 3
    document = json.loads(out, parse_constant=pytest.fail)
    (failed,) = (c for c in document["trust"] if c["withholds"])
    assert failed["check"] == "device_work"
    for name in failed["withholds"]:
        if name in document["analyses"]:
            finding = document["analyses"][name]
            assert finding["rows"] == []
            assert all(metric["value"] is None for metric in finding["headline"])
            assert finding["notes"][0].startswith("withheld: device_work: no device events")


def test_the_page_says_so_too(ran, idle):
    document = json.loads(ran("analyze", idle, "--json")[1])
    page = render([document])
    assert "no device events: nothing can be measured" in page
    assert "Withheld: device_work failed, so no figure of it can be trusted." in page


def test_a_cut_file_leads_the_text(ran, cut):
    code, out, error = ran("analyze", cut)
    assert code == 3
    assert out.startswith("Cut    recovered ")
    assert "Traceback" not in error


@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html><html>404 Not Found</html>"])
def test_what_is_no_profile_is_one_line_that_names_the_file(ran, tmp_path, content):
    file = tmp_path / "node0.xplane.pb"
    file.write_bytes(content)
    code, out, error = ran("analyze", file)
    assert (code, out) == (1, "")
    (line,) = error.strip().splitlines()
    assert str(file) in line


def test_report_says_on_stderr_what_is_damaged(ran, idle, tmp_path):
    code, out, error = ran("report", idle, "-o", tmp_path / "x.html")
    assert (code, out) == (3, f"{tmp_path / 'x.html'}\n")
    (line,) = error.splitlines()
    assert line.startswith(f"moeprof: {idle}: no device events: nothing can be measured.")
    assert line.endswith("The page says more")


def test_a_timeline_of_nothing_is_said_in_words(ran, idle, tmp_path, monkeypatch):
    asked = ("export", idle, "--perfetto", tmp_path / "x.pftrace")
    code, _, error = ran(*asked)
    assert code == 3
    assert json.loads(error)["perfetto"]["missing"][0].startswith("no slice: ")
    monkeypatch.setattr("moeprof.cli.export._is_read", lambda: True)  # a terminal
    said = ran(*asked)[2].splitlines()
    assert said[0].startswith(f"moeprof: {tmp_path / 'x.pftrace'}: 0 slices, 0 arrows, ")
    assert "moeprof: not in it: no slice: nothing of this run can be drawn over time" in said
    assert said[-1].startswith(f"moeprof: figures are withheld: {idle}: no device events")


@pytest.mark.parametrize(
    "words",
    [
        *("report {run} -o {out}.html", "compare {run} {run} --html {out}.html"),
        *("pipeline --run {run} --html {out}.html", "memory --model {run} --html {out}.html"),
        "export {run} --perfetto {out}.pftrace",
    ],
)
def test_a_place_that_cannot_be_written_is_told_before_the_work(ran, tmp_path, words):
    file = tmp_path / "node0.xplane.pb"
    file.write_bytes(b"no profile: it would be told if it were read")
    asked = words.format(run=file, out=tmp_path / "nowhere" / "x").split()
    code, out, error = ran(*asked)
    assert (code, out) == (1, "")
    assert f"expected a place that can be written, found no folder {tmp_path / 'nowhere'}" in error
    assert error.count("\n") == 1


def test_an_empty_name_is_called_empty(ran, idle):
    code, _, error = ran("report", idle, "-o", "")
    assert code == 2
    assert "expected a name that ends in .html, found an empty one." in error
