"""Question: how fast is our grouped GEMM on a GPU beside its peers and beside one dense product?

    python benchmarks/gpu_grouped_gemm.py [--case NAME] [--out FILE.json] [--smoke]

Forward, dA and dB of rows [M, k] sorted by group times a matrix [k, n] per group, in bfloat16:

    forward  out[i] = a[i] b[g(i)]          dA  d_a[i] = d_out[i] b[g(i)]^T
    dB       d_b[g] = a_g^T d_out_g         each 2 · sum(lengths) · k · n flops

Contestants: `moeprof.kernels.grouped_gemm` under jit, `jax.lax.ragged_dot`, Pallas' ragged_dot and
transposed_ragged_dot for Hopper (the best of a few tile sizes), `torch._grouped_mm` (in a process
of its own that takes its turns), and a dense product [M, k] [k, n] of the same flops by JAX and by
torch. A contestant that fails is named with the reason. What ours computes is compared with a
float32 product of its first, its longest and its last group before it is timed.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gpu_machine import gpu_machine
from gpu_timing import Contestant, Timing, jax_sample, take_turns, telling_line

from moeprof.kernels.cases import unbalanced_lens, zipf_lens
from moeprof.kernels.provider import describe

RESULTS = Path(__file__).parent / "results"
PASSES = ("forward", "dA", "dB")


@dataclass(frozen=True)
class Shape:
    """``rows`` of width ``k`` in ``groups`` of the named spread, a k × n matrix per group."""

    rows: int
    groups: int
    k: int
    n: int
    spread: str = "unbalanced"

    @property
    def group_lens(self) -> tuple[int, ...]:
        """Rows of each group; they sum to ``rows``."""
        lens = zipf_lens if self.spread == "zipf" else unbalanced_lens
        return lens(self.groups, self.rows)

    @property
    def flops(self) -> int:
        """Of one pass, a multiply and an add counted as two."""
        return 2 * sum(self.group_lens) * self.k * self.n


SHAPES = {
    "e32_k7168_n2048": Shape(32768, 32, 7168, 2048),
    "e32_k2048_n7168": Shape(32768, 32, 2048, 7168),
    "e8_k4096_n14336": Shape(32768, 8, 4096, 14336),
    "e256_k2048_n1024": Shape(32768, 256, 2048, 1024),
    "e32_k7168_n2048_zipf": Shape(32768, 32, 7168, 2048, "zipf"),
    "e256_k2048_n1024_zipf": Shape(32768, 256, 2048, 1024, "zipf"),
}
SMOKE_SHAPES = {"smoke": Shape(96, 4, 32, 24), "smoke_zipf": Shape(64, 8, 16, 32, "zipf")}
# Tiles of Pallas' kernels: (block_m, block_n, block_k, concurrent steps, grid_block_n).
TILES = ((128, 128, 64, 4, 8), (128, 128, 64, 6, 4))


class Operands:
    """a [M, k], b [G, k, n], d_out [M, n] and lengths, on the first device, random and normal."""

    def __init__(self, shape: Shape) -> None:
        """Draws on the device, from three keys of seed 0."""
        import jax
        import jax.numpy as jnp

        keys = jax.random.split(jax.random.key(0, impl="unsafe_rbg"), 3)
        sizes = ((shape.rows, shape.k), (shape.groups, shape.k, shape.n), (shape.rows, shape.n))
        draw = jax.jit(jax.random.normal, static_argnums=(1, 2))
        self.a, self.b, self.d_out = (
            draw(key, size, jnp.bfloat16) for key, size in zip(keys, sizes, strict=True)
        )
        self.lens = jnp.asarray(shape.group_lens, jnp.int32)


def calls_of(product: Callable[..., Any], operands: Operands) -> dict[str, Callable[[], Any]]:
    """One compiled call per pass of a differentiable ``product(a, b, lens)``.

    A gradient's program holds that gradient alone: what it does not use is never computed.
    """
    import jax

    a, b, d_out, lens = operands.a, operands.b, operands.d_out, operands.lens
    forward = jax.jit(product)

    @jax.jit
    def d_a(a: Any, b: Any, d_out: Any, lens: Any) -> Any:
        return jax.vjp(lambda a: product(a, b, lens), a)[1](d_out)

    @jax.jit
    def d_b(a: Any, b: Any, d_out: Any, lens: Any) -> Any:
        return jax.vjp(lambda b: product(a, b, lens), b)[1](d_out)

    return {
        "forward": lambda: forward(a, b, lens),
        "dA": lambda: d_a(a, b, d_out, lens),
        "dB": lambda: d_b(a, b, d_out, lens),
    }


def dense_calls(operands: Operands) -> dict[str, Callable[[], Any]]:
    """The same passes with one matrix for all rows, the first group's."""
    import jax
    import jax.numpy as jnp

    a, b, d_out = operands.a, operands.b[0], operands.d_out
    forward = jax.jit(lambda a, b: a @ b)
    d_a = jax.jit(lambda d, b: jnp.einsum("mn,kn->mk", d, b))
    d_b = jax.jit(lambda a, d: jnp.einsum("mk,mn->kn", a, d))
    return {
        "forward": lambda: forward(a, b),
        "dA": lambda: d_a(d_out, b),
        "dB": lambda: d_b(a, d_out),
    }


def pallas_calls(
    which: str, operands: Operands, tiles: tuple[tuple[int, ...], ...] = TILES
) -> list[tuple[str, Callable[[], Any]]]:
    """Pallas' kernel for one pass with each tile size that fits the shape."""
    import jax
    from jax.experimental.pallas.ops.gpu.ragged_dot_mgpu import ragged_dot
    from jax.experimental.pallas.ops.gpu.transposed_ragged_dot_mgpu import transposed_ragged_dot

    a, b, d_out, lens = operands.a, operands.b, operands.d_out, operands.lens
    tiles = tiles[:1] if len(operands.lens) > 64 else tiles  # groups are unrolled: long to compile
    left, right, product, width = {
        "forward": (a, b, ragged_dot, b.shape[2]),
        "dA": (d_out, b, functools.partial(ragged_dot, transpose_rhs=True), b.shape[1]),
        "dB": (a, d_out, transposed_ragged_dot, b.shape[2]),
    }[which]
    calls = []
    for block_m, block_n, block_k, steps, grid_block_n in tiles:
        if width % (block_n * grid_block_n):
            continue
        run = jax.jit(
            functools.partial(
                product,
                block_m=block_m,
                block_n=block_n,
                block_k=block_k,
                max_concurrent_steps=steps,
                grid_block_n=grid_block_n,
            )
        )
        name = f"{block_m}x{block_n}x{block_k}, {steps} steps, grid {grid_block_n}"
        calls.append((name, functools.partial(run, left, right, group_sizes=lens)))
    return calls


def best_pallas(which: str, operands: Operands) -> tuple[str, Callable[[], Any]]:
    """The fastest tile size by two timed calls each.

    Raises:
        RuntimeError: none ran; the message holds the last failure.
    """
    best: tuple[float, str, Callable[[], Any]] | None = None
    failure = "no tile size divides the shape"
    for name, call in pallas_calls(which, operands):
        try:
            sample = jax_sample(call)
            sample(1)
            took_s = sample(2)
        except Exception as error:  # one tile size that fails leaves the others
            failure = telling_line(error)
            continue
        if best is None or took_s < best[0]:
            best = (took_s, name, call)
    if best is None:
        raise RuntimeError(failure)
    return best[1], best[2]


class TorchPeer:
    """torch in a process of its own that answers lines, so that it can take turns with JAX."""

    def __init__(self, shape: Shape) -> None:
        """Starts the process; it draws operands of this shape while JAX compiles."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--torch", json.dumps(asdict(shape))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._is_ready = False

    def sample(self, what: str, which: str) -> Callable[[int], float]:
        """A sample of ``what``, "grouped" or "dense", of one pass, timed by CUDA events."""

        def sample(calls: int) -> float:
            assert self._process.stdin is not None
            if not self._is_ready:
                first = self._answer()
                if "failed" in first:
                    raise RuntimeError(first["failed"])
                self._is_ready = True
            self._process.stdin.write(json.dumps([what, which, calls]) + "\n")
            self._process.stdin.flush()
            answer = self._answer()
            if "failed" in answer:
                raise RuntimeError(answer["failed"])
            return float(answer["seconds"])

        return sample

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            return {"failed": f"torch's process ended with status {self._process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer


def serve_torch(shape: Shape) -> None:
    """The other side of `TorchPeer`: a line of JSON per request."""
    import torch

    def answer(**values: object) -> None:
        print(json.dumps(values), flush=True)

    try:
        calls = torch_calls(shape)
    except Exception as error:  # no GPU, or no room: said, not raised
        answer(failed=telling_line(error))
        return
    answer(ready=True)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for request in sys.stdin:
        what, which, count = json.loads(request)
        try:
            start.record()
            for _ in range(count):
                calls[what, which]()
            end.record()
            end.synchronize()
            answer(seconds=start.elapsed_time(end) / 1e3 / count)
        except Exception as error:  # torch refuses this layout or has no room
            answer(failed=telling_line(error))


def torch_calls(shape: Shape) -> dict[tuple[str, str], Callable[[], Any]]:
    """`torch._grouped_mm` and a dense product, by what and pass."""
    import torch

    torch.manual_seed(0)
    options = {"device": "cuda", "dtype": torch.bfloat16}
    a = torch.randn(shape.rows, shape.k, **options)
    b = torch.randn(shape.groups, shape.k, shape.n, **options)
    d_out = torch.randn(shape.rows, shape.n, **options)
    ends = np.cumsum(shape.group_lens).astype(np.int32)
    offsets = torch.from_numpy(ends).cuda()
    one = b[0]
    return {
        ("grouped", "forward"): lambda: torch._grouped_mm(a, b, offs=offsets),
        ("grouped", "dA"): lambda: torch._grouped_mm(d_out, b.transpose(1, 2), offs=offsets),
        ("grouped", "dB"): lambda: torch._grouped_mm(a.t(), d_out, offs=offsets),
        ("dense", "forward"): lambda: a @ one,
        ("dense", "dA"): lambda: d_out @ one.t(),
        ("dense", "dB"): lambda: a.t() @ d_out,
    }


def worst_error(operands: Operands, shape: Shape, calls: dict[str, Callable[[], Any]]) -> float:
    """The largest ‖ours − float32‖ / ‖float32‖ over passes and three groups: first, longest, last.

    NaN where ours has one.
    """
    import jax.numpy as jnp

    lens = shape.group_lens
    offsets = np.concatenate([[0], np.cumsum(lens)])
    out, d_a, d_b = (calls[which]() for which in PASSES)
    (d_a,), (d_b,) = d_a, d_b
    worst = 0.0
    for group in {0, int(np.argmax(lens)), len(lens) - 1}:
        rows = slice(int(offsets[group]), int(offsets[group + 1]))
        a, d_out, b = (
            x.astype(jnp.float32)
            for x in (operands.a[rows], operands.d_out[rows], operands.b[group])
        )
        exact = "highest"
        for ours, true in (
            (out[rows], jnp.matmul(a, b, precision=exact)),
            (d_a[rows], jnp.matmul(d_out, b.T, precision=exact)),
            (d_b[group], jnp.matmul(a.T, d_out, precision=exact)),
        ):
            if true.size == 0:
                continue
            off = jnp.linalg.norm(ours.astype(jnp.float32) - true) / jnp.linalg.norm(true)
            worst = float("nan") if np.isnan(worst + float(off)) else max(worst, float(off))
    return worst


def measure(
    name: str, shape: Shape, options: argparse.Namespace, peer: TorchPeer | None
) -> list[dict[str, Any]]:
    """One row per pass."""
    import jax

    from moeprof.kernels import grouped_gemm

    operands = Operands(shape)
    ours = calls_of(grouped_gemm, operands)
    error = worst_error(operands, shape, ours)
    ragged, dense = calls_of(jax.lax.ragged_dot, operands), dense_calls(operands)
    rows = []
    for which in PASSES:
        contestants = [
            Contestant("moeprof", jax_sample(ours[which])),
            Contestant("dense_jax", jax_sample(dense[which])),
            Contestant("ragged_dot", jax_sample(ragged[which])),
        ]
        chosen, problems = "", {}
        if options.pallas:
            try:
                chosen, call = best_pallas(which, operands)
                contestants.append(Contestant("pallas", jax_sample(call)))
            except Exception as failure:  # not this GPU, or not this shape
                problems["pallas"] = telling_line(failure)
        if peer is not None:
            contestants.append(Contestant("torch_grouped_mm", peer.sample("grouped", which)))
            contestants.append(Contestant("dense_torch", peer.sample("dense", which)))
        timings, failed = take_turns(
            contestants, options.samples, options.sample_s, options.limit_s
        )
        rows.append(
            {
                "case": name,
                "pass": which,
                **asdict(shape),
                "flops": shape.flops,
                "relative_error": error,
                "pallas_tile": chosen,
                "timings": {key: timing.as_json() for key, timing in timings.items()},
                "tflops": {key: round(rate(shape, timing), 2) for key, timing in timings.items()},
                "failed": {**problems, **failed},
            }
        )
        print(line(rows[-1]), flush=True)
    return rows


def rate(shape: Shape, timing: Timing) -> float:
    """TFLOP/s: 10^12 flops of used rows per second."""
    return shape.flops / timing.median_s / 1e12


CONTESTANTS = ("moeprof", "torch_grouped_mm", "pallas", "ragged_dot", "dense_jax", "dense_torch")
HEADER = f"{'TFLOP/s':<24}{'pass':<9}" + "".join(f"{name:>17}" for name in CONTESTANTS) + "   error"


def line(row: dict[str, Any]) -> str:
    """One row of the table: TFLOP/s, a dash where a contestant failed."""
    rates = row["tflops"]
    texts = (f"{rates[name]:.2f}" if name in rates else "-" for name in CONTESTANTS)
    return (
        f"{row['case']:<24}{row['pass']:<9}"
        + "".join(f"{text:>17}" for text in texts)
        + f"   {row['relative_error']:.1e}"
    )


def main() -> None:
    """Measure every case, print a table, write JSON after each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", help=argparse.SUPPRESS)
    parser.add_argument("--case", action="append")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on any backend")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--sample-s", type=float, default=0.01, help="seconds per sample")
    parser.add_argument("--limit-s", type=float, default=1.0, help="per contestant and pass")
    parser.add_argument("--no-pallas", dest="pallas", action="store_false")
    parser.add_argument("--no-torch", dest="with_torch", action="store_false")
    parser.add_argument("--until-s", type=float, default=540, help="start no case after this")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_grouped_gemm.json")
    options = parser.parse_args()
    if options.torch:
        serve_torch(Shape(**json.loads(options.torch)))
        return
    began = time.monotonic()
    shapes = SMOKE_SHAPES if options.smoke else SHAPES
    if options.smoke:
        options.pallas = options.with_torch = False
    document: dict[str, Any] = {
        "machine": gpu_machine(),
        "kernels": asdict(describe())["reason"],
        "rows": [],
    }
    print(HEADER)
    for name in options.case or shapes:
        if time.monotonic() - began > options.until_s:
            print(f"{name}: not started, {options.until_s:.0f} s are over")
            continue
        peer = TorchPeer(shapes[name]) if options.with_torch else None
        try:
            document["rows"] += measure(name, shapes[name], options, peer)
        except Exception as error:  # a case that fails leaves the others
            print(f"{name}: {telling_line(error)}", flush=True)
            document["rows"].append({"case": name, "failed": {"moeprof": telling_line(error)}})
        finally:
            if peer is not None:
                peer.close()
        document["seconds"] = round(time.monotonic() - began, 1)
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    main()
