"""What a user sees of a profile that cannot carry figures: text, JSON and page."""

import json

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, event, host, line, metadata, xspace

from moeprof.cli import main as command_line
from moeprof.reports.pages.run import render

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


@pytest.fixture
def ran(monkeypatch, capsys):
    """Run a command as a shell would: exit code, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["moeprof", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


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
