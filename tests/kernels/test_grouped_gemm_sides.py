"""The longest side of a grouped product on a GPU: what is taken does not overflow int32."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu("compiles host code, no GPU")

NATIVE = Path(__file__).parents[2] / "native"
LONGEST = 2**31 - 512  # the largest multiple of a pair of tiles, 512, that an int32 holds


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("sides") / "grouped_gemm_sides"
    flags = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}")
    trap = ("-fsanitize=signed-integer-overflow", "-fsanitize-undefined-trap-on-error")
    compiler = os.environ.get("CXX", "c++")
    source = str(NATIVE / "stress" / "grouped_gemm_sides.cc")
    subprocess.run([compiler, *flags, *trap, source, "-o", str(program)], check=True)
    return program


@pytest.mark.parametrize("side", [(), ("512",), (str(LONGEST),), (str(LONGEST - 1),)])
def test_a_side_that_is_taken_does_not_overflow(sides: Path, side: tuple[str, ...]):
    done = subprocess.run([sides, *side], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("ok\n", 0)


@pytest.mark.parametrize("side", [LONGEST + 1, 2**31 - 1])
def test_a_longer_side_is_refused_with_the_limit(sides: Path, side: int):
    done = subprocess.run([sides, str(side)], capture_output=True, text=True, timeout=60)
    expected = f"a side of {side} is past the limit of {LONGEST} of one product\n"
    assert done.stdout.startswith(expected)


def test_the_largest_int32_would_overflow(sides: Path):
    done = subprocess.run([sides, str(2**31 - 1)], capture_output=True, timeout=60)
    assert done.returncode < 0  # the trap
