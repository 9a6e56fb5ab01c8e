"""`moeprof memory --calibrate RUN [--correction FILE]`, as users meet it."""

from __future__ import annotations

import json

import pytest
from builders.assignment import assignment_text, value

RUN = ("--model", "mixtral_8x7b", "--hardware", "h100_sxm", "--ep", 8)
ONE = (*RUN, "--strategy", "sparse-gmm", "--pdbs", 1)


@pytest.fixture
def dump(tmp_path):
    """A compiled program of 4 MiB of arguments and 8 MiB of arena, of no known device."""
    file = tmp_path / "step-buffer-assignment.txt"
    part = value("fusion", 8 << 20, 0, "f32[2097152]", "jit(step)/jvp()/mlp/dot")
    file.write_text(assignment_text(part, temp_bytes=8 << 20, parameter_bytes=4 << 20))
    return file


def corrections(tmp_path, factor: float):
    evidence = {
        "run": "runs/one", "program": "jit_train_step", "device": "NVIDIA H100 80GB HBM3",
        "jax_version": "0.11.2", "date": "2026-03-01", "model": "mixtral_8x7b", "devices": 8,
        "pdbs": 1, "sequence": 4096, "projected_temp_bytes": 4, "measured_temp_bytes": 5,
        "args_bytes": 3,
    }  # fmt: skip
    account = {
        "world": "maxtext", "strategy": "sparse-gmm", "remat": "full", "hardware": "h100_sxm",
        "factor": factor, "evidence": evidence,
    }  # fmt: skip
    file = tmp_path / "corrections.json"
    document = {"schema": "moeprof.memory_correction/1", "corrections": [account]}
    file.write_text(json.dumps(document))
    return file


def test_a_run_stands_beside_the_projection(memory, dump):
    code, out, _ = memory(*ONE, "--calibrate", dump, "--json")
    made = json.loads(out)
    assert code == 0
    temp = next(row for row in made["totals"] if row["pool"] == "temp")
    # the result of 4 MiB reuses the parameter
    assert temp["measured_bytes"] == 8 << 20
    assert "the run's device is unknown" in made["refusal"]


def test_what_does_not_match_is_not_stored(memory, dump, tmp_path):
    file = tmp_path / "c.json"
    code, out, err = memory(*ONE, "--calibrate", dump, "--correction", file)
    assert code == 1
    assert "No correction may be stored" in out
    assert "nothing to store" in err
    assert len(err.splitlines()) == 1
    assert not file.exists()


def test_one_strategy_and_one_batch_are_needed(memory, dump):
    code, _, err = memory(*RUN, "--calibrate", dump)
    assert code == 2
    assert "--strategy and --pdbs, one each" in err


def test_a_correction_moves_the_arena_alone_and_the_rows_still_sum(memory, tmp_path):
    plain = json.loads(memory(*ONE, "--json")[1])["rows"][0]
    file = corrections(tmp_path, 1.5)
    found = json.loads(memory(*ONE, "--json", "--correction", file)[1])["rows"][0]
    assert found["args_bytes"] == plain["args_bytes"]
    assert found["temp_bytes"] == pytest.approx(1.5 * plain["temp_bytes"], abs=2)
    assert sum(row["bytes"] for row in found["components"]) == found["total_bytes"]


def test_a_correction_that_cannot_be_read_is_one_line(memory, tmp_path):
    code, _, err = memory(*ONE, "--correction", tmp_path / "none.json")
    assert code == 1
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: "[" * 100_000, "found lists or objects that are nested too deep"),
        (lambda text: text + " " * (4 << 20), "of at most 4 MiB"),
        (lambda text: text.replace(": 5,", ': "5",'), "found measured_temp_bytes as '5' in the"),
        (lambda text: text.replace('"2026-03-01"', "null"), "date as None in the evidence"),
    ],
    ids=["nested", "large", "text-for-bytes", "no-date"],
)
def test_a_damaged_file_of_corrections_is_one_line(memory, tmp_path, damage, says):
    file = corrections(tmp_path, 1.5)
    file.write_text(damage(file.read_text()))
    code, _, err = memory(*ONE, "--correction", file)
    assert code == 1
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("file", ["/dev/zero", "n" * 300])
def test_what_is_no_file_of_corrections_is_one_line(memory, file):
    code, _, err = memory(*ONE, "--correction", file)
    assert code == 1
    assert "a file of corrections" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "given", [("--detail", "sparse-gmm@1"), ("--compile",), ("--html", "x.html")]
)
def test_what_a_calibration_does_not_use_is_refused(memory, given):
    code, _, err = memory(*ONE, "--calibrate", "runs/none", *given)
    assert code == 2
    assert f"memory {given[0]}: expected no --calibrate beside it." in err
