from __future__ import annotations

import pytest

from .running import EXAMPLES, run_python

SCRIPT = EXAMPLES / "train_moe.py"
SMALL = ("--layers", "2", "--hidden", "32", "--experts", "4", "--moe-ffn", "16", "--seq", "16")


def test_it_trains_on_as_many_devices_as_the_plan_has():
    plan = ("--strategy", "sparse-gmm", "--expert", "2", "--fsdp", "2")
    run = run_python(SCRIPT, "--steps", "3", *plan, *SMALL, is_quick=True)
    assert run.returncode == 0, run.stderr
    first, *_, last = run.stdout.splitlines()
    assert first == "sparse-gmm on expert 2 × fsdp 2, 4 devices, 0.1 M parameters"
    assert last.startswith("step    2  loss ")


def test_the_exchange_has_a_group_of_one_on_one_device():
    plan = ("--strategy", "sparse-gmm-deepep", "--expert", "1")
    run = run_python(SCRIPT, "--steps", "1", *plan, *SMALL, is_quick=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1].startswith("step    0  loss ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--strategy", "sparse"), "strategy: expected dense-cfX"),
        (("--expert", "3"), "16 experts cannot be split evenly over expert 3"),
        (("--expert", "4", "--devices", "8"), "plan needs 1 × 1 × 4 = 4 devices"),
        (("--expert", "-1", "--fsdp", "3"), "plan expert -1: 8 devices are not a multiple of 3"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(arguments, complaint):
    run = run_python(SCRIPT, *arguments)
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert line.startswith(f"train_moe: {complaint}")


def test_a_count_of_zero_is_a_usage_error():
    run = run_python(SCRIPT, "--print-every", "0")
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].endswith("--print-every: expected at least 1, found 0")
