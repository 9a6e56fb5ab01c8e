"""Do AMD's kernels round to bfloat16 as the definition does? By a program of the host.

The oracle is ``ml_dtypes``; the kernels of NVIDIA use CUDA's conversion, whose NaN is 0x7FFF.
"""

import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np

NATIVE = Path(__file__).resolve().parents[2] / "native"

FLOATS = """
#include <cstdint>
#include <cstdio>
#include "gpu/runtime/bfloat16_bits.h"
int main() {
  for (uint32_t bits; std::fread(&bits, sizeof bits, 1, stdin) == 1;) {
    const uint16_t narrow = moeprof::gpu::BFloat16Bits(bits);
    std::fwrite(&narrow, sizeof narrow, 1, stdout);
  }
}
"""


def test_floats_become_bfloat16_as_numpy_rounds_them(tmp_path):
    source, program = tmp_path / "floats.cc", tmp_path / "floats"
    source.write_text(FLOATS)
    subprocess.run(
        ["c++", "-std=c++17", f"-I{NATIVE}", "-o", program, source], check=True, timeout=60
    )
    # Every upper half with the lower halves around a tie and at the ends.
    upper = np.arange(2**16, dtype=np.uint32)[:, None] << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)[None, :]
    bits = (upper | lower).ravel()
    done = subprocess.run([program], input=bits.tobytes(), capture_output=True, check=True)
    narrow = np.frombuffer(done.stdout, np.uint16)
    floats = bits.view(np.float32)
    is_nan = np.isnan(floats)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = floats.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert (narrow[~is_nan] == expected[~is_nan]).all()
    assert (narrow[is_nan] == 0x7FFF).all()
