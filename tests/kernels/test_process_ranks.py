"""Scenarios for GPUs hold on the CPU, where devices of one process are the ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_arrays_of_every_routing_are_those_of_the_definition():
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.process_ranks", "arrays", "", "0", "1"],
        cwd=ROOT,
        env={**os.environ, **flags},
        capture_output=True,
        text=True,
        timeout=200,
    )
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    assert [finding for finding in findings if not finding["ok"]] == []
    assert findings[0]["what"] == "INPROC"
    assert len(findings) == 1 + 1 + 9 + 1  # mode, setup, routings, reset
    assert done.returncode == 0, done.stderr
