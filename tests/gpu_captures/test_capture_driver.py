"""`benchmarks/gpu/captures.py`: what fails is named, and what succeeded becomes small files."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "captures.py"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_captures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("raise SystemExit('expected two devices')", "exit code 1: expected two devices"),
        ("import time; time.sleep(60)", "did not compile in time"),
        ("import sys; open(sys.argv[6], 'w').close()", "no profile or no answers"),
    ],
)
def test_a_capture_that_fails_is_named_and_ended(
    tmp_path, driver, monkeypatch, capsys, script, said
):
    step = tmp_path / "step.py"
    step.write_text(script)
    monkeypatch.setattr(driver, "STEP", step)
    assert driver.run(tmp_path / "out", ["dense-cf1.25"], compile_s=5, run_s=5) == 1
    assert said in capsys.readouterr().out


def test_a_capture_is_packed_with_its_routing(tmp_path, driver):
    captured = tmp_path / "out" / "sparse-gmm" / "run"
    profile = captured / "plugins" / "profile" / "run" / "node0-p0.xplane.pb"
    profile.parent.mkdir(parents=True)
    profile.write_bytes(b"profile" * 1000)
    (captured / "meta.json").write_text("{}")
    steps = [{"step": 4, "tokens_per_expert": [[3, 1]], "received_rows": [[[3, 1]]]}]
    answers = {"steps": steps, "model": {"dense_layers": 2}}
    (captured.parent / "answers.json").write_text(json.dumps(answers))
    driver.pack(tmp_path / "out", tmp_path / "kept")
    kept = tmp_path / "kept" / "sparse-gmm"
    packed = kept / "plugins" / "profile" / "run" / "node0-p0.xplane.pb.gz"
    assert gzip.decompress(packed.read_bytes()) == b"profile" * 1000
    routing = pd.read_parquet(kept / "routing" / "p0.parquet")
    assert routing[["step", "layer", "expert", "tokens"]].values.tolist() == [
        [4, 2, 0, 3],
        [4, 2, 1, 1],
    ]
    received = pd.read_parquet(kept / "routing" / "received-p0.parquet")
    assert received[["layer", "rank", "rows"]].values.tolist() == [[2, 0, 3], [2, 1, 1]]


def test_a_profile_that_is_too_large_is_refused(tmp_path, driver, monkeypatch):
    captured = tmp_path / "out" / "sparse-gmm" / "run"
    captured.mkdir(parents=True)
    (captured / "a.xplane.pb").write_bytes(bytes(range(256)) * 4)
    (captured.parent / "answers.json").write_text("{}")
    monkeypatch.setattr(driver, "LIMIT_BYTES", 100)
    with pytest.raises(SystemExit, match="expected at most 100 bytes"):
        driver.pack(tmp_path / "out", tmp_path / "kept")
