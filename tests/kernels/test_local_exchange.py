"""GPUs of one process meet although programs fail, leave and come late: threads, no GPU, no JAX."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .stress_programs import build

CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"

pytestmark = [
    pytest.mark.cpu("threads without a GPU"),
    pytest.mark.skipif(
        not (CUDA / "cuda_runtime_api.h").exists(), reason="the headers of CUDA are not here"
    ),
]


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("local_exchange_stress", tmp_path_factory.mktemp("stress"))


@pytest.mark.parametrize("seed", range(1, 4))
def test_failed_programs_do_not_shift_the_calls_of_the_next(stress: Path, seed: int):
    run = subprocess.run(
        [stress, "200", str(seed)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("ok: 200 programs"), run.stdout
