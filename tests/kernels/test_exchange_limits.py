"""The most rows of an exchange on a GPU: what is taken does not overflow int32."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu("compiles host code, no GPU")

NATIVE = Path(__file__).parents[2] / "native"
MOST = 2**30 - 2**20


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("limits") / "exchange_limits"
    flags = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}")
    trap = ("-fsanitize=signed-integer-overflow", "-fsanitize-undefined-trap-on-error")
    source = str(NATIVE / "stress" / "exchange_limits.cc")
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, *flags, *trap, source, "-o", str(program)], check=True)
    return program


def test_the_most_rows_are_taken_and_do_not_overflow(limits: Path):
    done = subprocess.run([limits], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("ok\n", 0)


def test_more_rows_are_refused_with_the_limit(limits: Path):
    done = subprocess.run([limits, str(MOST + 1)], capture_output=True, text=True, timeout=60)
    expected = f"expected at most {MOST} rows (tokens * EP), found {MOST + 1}\n"
    assert done.stdout.startswith(expected)


def test_rows_that_int32_holds_would_overflow(limits: Path):
    done = subprocess.run([limits, str(2**30)], capture_output=True, timeout=60)
    assert done.returncode < 0  # the trap
