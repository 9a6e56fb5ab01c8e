"""Question: are the small grouped products right, in a program that a sanitizer can watch?

    compute-sanitizer --tool memcheck python benchmarks/gpu_small_products.py [--case NAME]

Every small case of `moeprof.kernels.cases` in bfloat16 and float32, the product and both gradients
under jit, against float64 on the host. Ends with 1 where one is wrong.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from moeprof.kernels.cases import GROUPED_GEMM_CASES, GroupedGemmCase

# Relative to the largest exact element: half a unit of bfloat16's last place, sums in float32.
TOLERANCE = {"bfloat16": 2**-7, "float32": 1e-5}


def exact(case: GroupedGemmCase, a: Any, b: Any, d_out: Any) -> tuple[Any, Any, Any]:
    """The product, d_a and d_b in float64; rows past the lengths are zero."""
    out, d_a, d_b = np.zeros_like(d_out), np.zeros_like(a), np.zeros_like(b)
    start = 0
    for group, length in enumerate(case.group_lens):
        rows = slice(start, start + length)
        out[rows], d_a[rows] = a[rows] @ b[group], d_out[rows] @ b[group].T
        d_b[group] = a[rows].T @ d_out[rows]
        start += length
    return out, d_a, d_b


def errors(case: GroupedGemmCase, dtype: str) -> list[float]:
    """Largest difference over the largest exact element, of the product, d_a and d_b."""
    import jax
    import jax.numpy as jnp

    from moeprof.kernels import grouped_gemm

    random = np.random.default_rng(0)
    sizes = ((case.rows, case.k), (case.groups, case.k, case.n), (case.rows, case.n))
    a, b, d_out = (jnp.asarray(random.standard_normal(size), dtype) for size in sizes)
    lens = jnp.asarray(case.group_lens, jnp.int32)

    @jax.jit
    def run(a: Any, b: Any, d_out: Any, lens: Any) -> tuple[Any, Any, Any]:
        out, pull_back = jax.vjp(lambda a, b: grouped_gemm(a, b, lens), a, b)
        return out, *pull_back(d_out)

    found = jax.device_get(run(a, b, d_out, lens))
    wide = (np.asarray(x, np.float64) for x in (a, b, d_out))
    return [
        float(np.abs(np.asarray(x, np.float64) - true).max() / max(np.abs(true).max(), 1e-30))
        for x, true in zip(found, exact(case, *wide), strict=True)
    ]


def main() -> None:
    """Check all cases, a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=list(GROUPED_GEMM_CASES))
    wrong = 0
    for name in parser.parse_args().case or GROUPED_GEMM_CASES:
        for dtype, tolerance in TOLERANCE.items():
            found = errors(GROUPED_GEMM_CASES[name], dtype)
            is_right = all(error <= tolerance for error in found)  # NaN is not
            wrong += not is_right
            texts = "  ".join(f"{error:.1e}" for error in found)
            print(f"{'right' if is_right else 'WRONG'}  {name:<20}{dtype:<10}{texts}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
