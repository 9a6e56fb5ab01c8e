import json

import pytest
from builders.sessions import profile, write
from click.testing import CliRunner

from moeprof.cli import main as command_line
from moeprof.cli.main import group


def test_all_devices_are_listed_with_units():
    lines = CliRunner().invoke(group, ["hardware"]).output.splitlines()
    assert lines[0].split()[:3] == ["key", "memory", "memory"]
    assert lines[1].split()[:3] == ["GiB", "TB/s", "TFLOP/s"]
    (h100,) = (line.split() for line in lines if line.startswith("h100_sxm"))
    assert h100 == ["h100_sxm", "79.1", "3.35", "989.4", "1978.9", "-", "450", "50", "8"]
    assert max(map(len, lines)) <= 80


def test_one_device_is_shown_with_its_source():
    text = CliRunner().invoke(group, ["hardware", "mi300x"]).output
    assert "source: AMD Instinct MI300X data sheet" in text
    assert "confidence: high; 7 links of 64 GB/s, one per peer" in text


def test_the_json_is_strict_and_in_base_units():
    text = CliRunner().invoke(group, ["hardware", "tpu_v4", "--json"]).output
    document = json.loads(text, parse_constant=pytest.fail)
    assert document["schema"] == "moeprof.hardware/1"
    (device,) = document["devices"]
    assert device["bf16_flops_per_s"] == 275e12
    assert device["fp8_flops_per_s"] is None


@pytest.mark.parametrize("command", ["analyze", "report", "hardware"])
def test_an_unknown_key_is_wrong_usage(monkeypatch, tmp_path, capsys, command):
    run = tmp_path / "node0.xplane.pb"
    write(run, profile())
    arguments = ["nope"] if command == "hardware" else [str(run), "--hardware", "nope"]
    monkeypatch.setattr("sys.argv", ["moeprof", command, *arguments])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 2
    assert "no hardware is named 'nope'; there are: mi250x" in capsys.readouterr().err
