"""Question: how fast is our grouped GEMM beside `jax.lax.ragged_dot` and beside one dense product?

    python benchmarks/grouped_gemm.py [--case unbalanced_32] [--dtype float32]

Three contestants take turns within each round, so that what else the machine does hits all alike;
the figures are medians over the rounds and ratios of those. The dense product has the same rows
and the same flops, but one matrix for all rows: OpenBLAS' own sgemm, from the very library that
our kernel calls, on all cores, into memory it has written before. 16-bit runs are held against
that float32 rate too: the OpenBLAS wheel exports no bfloat16 product (no cblas_sbgemm in 0.3.34).

Backward means both gradients: three products instead of one.

The process keeps the memory it frees (`keep_freed_memory`). Else XLA would get every output anew
from the system, and the time of the first write to each page, which is the system's and not the
kernel's, would decide: it can be more than the product itself, on virtual machines above all.
``--fresh-memory`` measures with the system's usual behaviour instead; the JSON says which it was.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import scipy_openblas32
from machine import machine

from moeprof.kernels.products.cases import BENCHMARK_CASES, GroupedGemmCase
from moeprof.kernels.products.grouped_product import grouped_gemm

Run = Callable[[], object]
ROW_MAJOR, NO_TRANSPOSE, TRANSPOSE = 101, 111, 112
RESULTS = Path(__file__).parent / "results"
PASSES = {"forward": 1, "forward+backward": 3}


@dataclass(frozen=True)
class Measurement:
    """Medians over the rounds of one case, dtype and pass."""

    case: str
    groups: int
    rows: int
    k: int
    n: int
    dtype: str
    passes: str
    flops: int
    grouped_gemm_ns: int
    ragged_dot_ns: int
    dense_float32_ns: int

    @property
    def times_ragged_dot(self) -> float:
        """How many times faster than ragged_dot."""
        return self.ragged_dot_ns / self.grouped_gemm_ns

    @property
    def share_of_dense(self) -> float:
        """Our rate over that of one dense float32 product of the same size."""
        return self.dense_float32_ns / self.grouped_gemm_ns


class DenseSgemm:
    """OpenBLAS' sgemm on all cores; our kernels need it back on one thread after each use."""

    def __init__(self, case: GroupedGemmCase) -> None:
        """Operands and outputs of the size of `case`."""
        path = Path(scipy_openblas32.get_lib_dir()) / "libscipy_openblas.so"
        self._blas = ctypes.CDLL(str(path))
        rng = np.random.default_rng(0)
        self._a, self._b, self._out, self._d_a, self._d_b = (
            rng.standard_normal(shape, dtype=np.float32)
            for shape in (
                (case.rows, case.k),
                (case.k, case.n),
                (case.rows, case.n),
                (case.rows, case.k),
                (case.k, case.n),
            )
        )

    def forward(self) -> None:
        """``out = a b``."""
        self._run(lambda: self._sgemm(self._a, self._b, self._out))

    def forward_and_backward(self) -> None:
        """``out = a b``, ``d_a = out b^T``, ``d_b = a^T out``."""

        def products() -> None:
            self._sgemm(self._a, self._b, self._out)
            self._sgemm(self._out, self._b, self._d_a, transpose_right=True)
            self._sgemm(self._a, self._out, self._d_b, transpose_left=True)

        self._run(products)

    def _run(self, products: Run) -> None:
        self._blas.scipy_openblas_set_num_threads(os.cpu_count())
        try:
            products()
        finally:
            self._blas.scipy_openblas_set_num_threads(1)

    def _sgemm(
        self,
        left: np.ndarray,
        right: np.ndarray,
        out: np.ndarray,
        transpose_left: bool = False,
        transpose_right: bool = False,
    ) -> None:
        depth = left.shape[0 if transpose_left else 1]
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        self._blas.scipy_cblas_sgemm(
            ROW_MAJOR,
            TRANSPOSE if transpose_left else NO_TRANSPOSE,
            TRANSPOSE if transpose_right else NO_TRANSPOSE,
            *out.shape,
            depth,
            one,
            *_pointer(left),
            *_pointer(right),
            zero,
            *_pointer(out),
        )


def _pointer(matrix: np.ndarray) -> tuple[ctypes.c_void_p, int]:
    return ctypes.c_void_p(matrix.ctypes.data), matrix.shape[1]


def _jax_runs(case: GroupedGemmCase, dtype: str, passes: str) -> tuple[Run, Run]:
    """grouped_gemm and ragged_dot on the same operands, compiled."""
    rng = np.random.default_rng(0)
    a, d_out, b = (
        jnp.asarray(rng.standard_normal(shape, dtype=np.float32), dtype)
        for shape in ((case.rows, case.k), (case.rows, case.n), (case.groups, case.k, case.n))
    )
    lens = jnp.asarray(case.group_lens, jnp.int32)

    def compiled(product: Callable[..., jax.Array]) -> Run:
        @jax.jit
        def forward(a: jax.Array, b: jax.Array) -> jax.Array:
            return product(a, b, lens)

        @jax.jit
        def both(a: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
            out, pull_back = jax.vjp(lambda a, b: product(a, b, lens), a, b)
            return out, *pull_back(d_out)

        chosen = forward if passes == "forward" else both
        return lambda: jax.block_until_ready(chosen(a, b))

    return compiled(grouped_gemm), compiled(jax.lax.ragged_dot)


def _elapsed_ns(run: Run) -> int:
    start = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start


def measure(name: str, dtype: str, passes: str, rounds: int, ragged_rounds: int) -> Measurement:
    """Interleave the contestants; ragged_dot, many times slower, takes part in fewer rounds."""
    case = BENCHMARK_CASES[name]
    ours, ragged = _jax_runs(case, dtype, passes)
    dense_product = DenseSgemm(case)
    dense = dense_product.forward if passes == "forward" else dense_product.forward_and_backward
    for warm_up in (ours, dense, ragged):
        warm_up()
    times: dict[Run, list[int]] = {ours: [], dense: [], ragged: []}
    for index in range(rounds):
        for run in (ours, dense, ragged) if index < ragged_rounds else (ours, dense):
            times[run].append(_elapsed_ns(run))
    return Measurement(
        case=name,
        groups=case.groups,
        rows=case.rows,
        k=case.k,
        n=case.n,
        dtype=dtype,
        passes=passes,
        flops=case.forward_flops * PASSES[passes],
        grouped_gemm_ns=int(statistics.median(times[ours])),
        ragged_dot_ns=int(statistics.median(times[ragged])),
        dense_float32_ns=int(statistics.median(times[dense])),
    )


def keep_freed_memory() -> None:
    """Let glibc hand out freed blocks again instead of mapping fresh ones; nothing elsewhere.

    Parameters of mallopt(3): no mmap, one arena, and a heap that is never trimmed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    max_mmaps, max_arenas, trim_threshold = -4, -8, -1
    mallopt(max_mmaps, 0)
    mallopt(max_arenas, 1)
    mallopt(trim_threshold, 2**31 - 1)


HEADER = (
    f"{'case':<19}{'dtype':<10}{'pass':<18}{'ours':>8}{'dense':>8}{'ragged':>8}{'x':>7}{'%':>6}"
)


def row(result: Measurement) -> str:
    """Rates in GFLOP/s (flops per nanosecond), then the two ratios."""
    rates = [
        result.flops / time_ns
        for time_ns in (result.grouped_gemm_ns, result.dense_float32_ns, result.ragged_dot_ns)
    ]
    return (
        f"{result.case:<19}{result.dtype:<10}{result.passes:<18}"
        + "".join(f"{rate:>8.1f}" for rate in rates)
        + f"{result.times_ragged_dot:>7.1f}{100 * result.share_of_dense:>6.0f}"
    )


def write(results: list[Measurement], path: Path, *, keeps_freed_memory: bool) -> None:
    """All measurements and the machine as JSON."""
    rows = [
        {
            **asdict(result),
            "times_ragged_dot": round(result.times_ragged_dot, 2),
            "share_of_dense": round(result.share_of_dense, 3),
        }
        for result in results
    ]
    document = {
        "schema": "moeprof.bench/1",
        "machine": machine("jax", "scipy-openblas32"),
        "keeps_freed_memory": keeps_freed_memory,
        "measurements": rows,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {path}", file=sys.stderr)


def main() -> None:
    """Measure every case, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ragged-rounds", type=int, default=3)
    parser.add_argument("--case", action="append", choices=list(BENCHMARK_CASES))
    parser.add_argument("--dtype", action="append", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--out", type=Path, default=RESULTS / "grouped_gemm.json")
    parser.add_argument("--fresh-memory", action="store_true", help="leave malloc as it is")
    options = parser.parse_args()
    if not options.fresh_memory:
        keep_freed_memory()
    print("GFLOP/s; x: times as fast as ragged_dot; %: share of the dense float32 rate")
    print(HEADER)
    results = []
    for name in options.case or BENCHMARK_CASES:
        for dtype in options.dtype or ("float32", "bfloat16"):
            for passes in PASSES:
                results.append(measure(name, dtype, passes, options.rounds, options.ragged_rounds))
                print(row(results[-1]), flush=True)
    write(results, options.out, keeps_freed_memory=not options.fresh_memory)


if __name__ == "__main__":
    main()
