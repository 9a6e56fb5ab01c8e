"""The order of work of a grouped product on a GPU: every tile of a group is computed once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu("compiles host code, no GPU")

NATIVE = Path(__file__).parents[2] / "native"
COLS = (8, 256, 264, 512, 776, 1024, 1800)
ROWS = [*range(1200), *range(1200, 4701, 13)]


def test_every_tile_is_computed_once_and_pairs_fit(tmp_path: Path):
    program = tmp_path / "grouped_gemm_units"
    flags = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}")
    compiler = os.environ.get("CXX", "c++")
    source = str(NATIVE / "stress" / "grouped_gemm_units.cc")
    subprocess.run([compiler, *flags, source, "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    # Tiles are 128 x 256; with pairs and without.
    tiles = 2 * sum(-(-rows // 128) * -(-cols // 256) for rows in ROWS for cols in COLS)
    assert (done.stdout, done.returncode) == (f"ok {tiles}\n", 0)
