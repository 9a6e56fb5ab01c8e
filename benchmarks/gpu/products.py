"""Question: how fast is the grouped GEMM without a framework, in bursts and in long samples?

    python benchmarks/gpu/products.py FOLDER [--out FILE.json] [--seconds S] [--limit-s S]

Forward with both layouts of b, dA and dB at four shapes in bfloat16, called through the library's
raw interface on torch tensors, beside `torch._grouped_mm` and one dense product of the same flops.
libmoeprof_gpu.so is built in FOLDER first.

A burst is the median of rounds of two calls, the second timed by CUDA events, in which contestants
take turns. A long sample is the mean of calls sent off together for the last two thirds of S
seconds: there the card has met its limit of power. Beside it stand the energy of one call, by
NVML's counter, and the clock of the multiprocessors near the end. A product whose bits differ
between pairs of blocks and none, which sum in the same order, that leaves an element unwritten or
reports a fault is an error.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.gate import begin, write_result
from gpu.machine import gpu_machine
from gpu.meter import Meter

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
CHECK = ROOT / "native" / "gpu" / "check"
ROWS = 32768
SHAPES = ((32, 7168, 2048), (32, 2048, 7168), (8, 4096, 14336), (256, 2048, 1024))
PASSES = ("forward", "forward, b as [E, n, k]", "dA", "dB")
ROUNDS = 12
NOTE = (
    f"Bursts are medians of {ROUNDS} rounds in which the calls take turns; long samples last "
    "{seconds:g} s, of which the last two thirds count. Timed by CUDA events."
)

Calls = dict[str, Callable[[], Any]]


def calls_module() -> ModuleType:
    """The calls of the library's check, which lies beside its C++ sources, in no package."""
    spec = importlib.util.spec_from_file_location(
        "grouped_gemm_calls", CHECK / "grouped_gemm_calls.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def bursts_ms(torch: Any, calls: Calls) -> dict[str, float]:
    """Median milliseconds of each call."""
    spans: dict[str, list[Any]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            spans[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: sorted(start.elapsed_time(end) for start, end in pairs)[ROUNDS // 2]
        for name, pairs in spans.items()
    }


def long_sample(
    torch: Any, meter: Meter, call: Callable[[], Any], burst_ms: float, seconds: float
) -> dict[str, Any]:
    """Mean ``ms`` of a call, its ``millijoules`` and ``megahertz``; the last two may be None."""
    warm, counted = (max(1, int(seconds * part * 1e3 / burst_ms)) for part in (1 / 3, 2 / 3))
    for _ in range(warm):
        call()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before, clock = meter.joules(), meter.megahertz()
    start.record()
    for _ in range(counted):
        call()
    end.record()
    while not end.query():
        clock = meter.megahertz()
        time.sleep(0.01)
    after = meter.joules()
    spent = None if before is None or after is None else (after - before) / counted * 1e3
    return {
        "ms": start.elapsed_time(end) / counted,
        "millijoules": None if spent is None else round(spent, 1),
        "megahertz": clock,
    }


def contestants(
    torch: Any, raw: ModuleType, library: Any, shape: tuple[int, int, int], lens: list[int]
) -> dict[str, tuple[Calls, Any]]:
    """The calls of each pass, and the output that ours write."""
    groups, k, n = shape
    there = torch.tensor(lens, dtype=torch.int32, device="cuda")
    ends = there.cumsum(0).to(torch.int32)

    def normal(*sides: int) -> Any:
        return torch.randn(*sides, device="cuda", dtype=torch.bfloat16)

    a, d, b = normal(ROWS, k), normal(ROWS, n), normal(groups, k, n)
    bt = b.transpose(1, 2).contiguous()
    out, da, db = torch.empty_like(d), torch.empty_like(a), torch.empty_like(b)
    ours = {"moeprof": raw.Choice(), "moeprof_plain": raw.Choice(256, 1)}

    def calls(run: Callable[[Any], Any], grouped: Callable[[], Any], dense: Callable[[], Any]):
        mine: Calls = {name: lambda choice=choice: run(choice) for name, choice in ours.items()}
        return mine | {"torch_grouped_mm": grouped, "dense_torch": dense}

    forward, nk, d_a, d_b = PASSES
    return {
        forward: (
            calls(
                lambda choice: library.forward(a, b, out, there, False, choice),
                lambda: torch._grouped_mm(a, b, offs=ends),
                lambda: torch.mm(a, b[0], out=out),
            ),
            out,
        ),
        nk: (
            calls(
                lambda choice: library.forward(a, bt, out, there, True, choice),
                lambda: torch._grouped_mm(a, bt.transpose(1, 2), offs=ends),
                lambda: torch.mm(a, bt[0].t(), out=out),
            ),
            out,
        ),
        d_a: (
            calls(
                lambda choice: library.forward(d, b, da, there, True, choice),
                lambda: torch._grouped_mm(d, b.transpose(1, 2), offs=ends),
                lambda: torch.mm(d, b[0].t(), out=da),
            ),
            da,
        ),
        d_b: (
            calls(
                lambda choice: library.variable_k(a, d, db, there, choice),
                lambda: torch._grouped_mm(a.t(), d, offs=ends),
                lambda: torch.mm(a.t(), d),
            ),
            db,
        ),
    }


def agree(torch: Any, calls: Calls, out: Any) -> bool:
    """Whether ours write every element, and the same bits with pairs of blocks and without."""
    written = []
    for name in ("moeprof", "moeprof_plain"):
        out.fill_(float("nan"))
        calls[name]()
        written.append(out.clone())
    same = bool(torch.equal(*(bits.view(torch.int16) for bits in written)))
    return same and not bool(written[0].isnan().any())


def measured(torch: Any, meter: Meter, calls: Calls, flops: int, seconds: float) -> dict[str, Any]:
    """Whole TFLOP/s of bursts and of long samples, energy and clock of the latter."""
    usable, failed = {}, {}
    for name, call in calls.items():
        try:
            call()
            torch.cuda.synchronize()
            usable[name] = call
        except RuntimeError as error:  # a peer that refuses is a result too
            failed[name] = str(error).splitlines()[0]
    bursts = bursts_ms(torch, usable)
    long = {
        name: long_sample(torch, meter, call, bursts[name], seconds)
        for name, call in usable.items()
        if name != "moeprof_plain"
    }
    return {
        "tflops": {name: round(flops / ms / 1e9) for name, ms in bursts.items()},
        "long_tflops": {name: round(flops / one["ms"] / 1e9) for name, one in long.items()},
        "millijoules": {name: one["millijoules"] for name, one in long.items()},
        "megahertz": {name: one["megahertz"] for name, one in long.items()},
        "failed": failed,
    }


def built(folder: Path) -> Path:
    """The library of today's sources in ``folder``: what is built already is kept."""
    folder = folder.resolve()
    build = [str(CHECK.parent / "build.sh"), str(folder), "moeprof_gpu"]
    env = {"PYTHON": sys.executable, **os.environ}
    subprocess.run(build, check=True, env=env, timeout=400)
    return folder / "libmoeprof_gpu.so"


def main() -> int:
    """Measures every pass of every shape; the number of passes that are wrong or left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=1.2, help="of one long sample")
    parser.add_argument("--limit-s", type=float, default=200.0, help="no product begins later")
    options = parser.parse_args()
    begin(parser.prog, 1, options.out)
    if importlib.util.find_spec("torch") is None:
        sys.exit(f"{parser.prog}: expected torch in {sys.executable}, found none; install it")
    path = built(options.folder)
    ends_at = time.monotonic() + options.limit_s

    import torch

    raw, meter = calls_module(), Meter()
    library, cases = raw.Library(path), raw.load_cases()
    torch.manual_seed(1)
    document = {
        "machine": gpu_machine(),
        "rows_per_product": ROWS,
        "dtype": "bfloat16",
        "rounds": ROUNDS,
        "note": NOTE.format(seconds=options.seconds),
        "rows": [],
    }
    wrong = 0
    for shape in SHAPES:
        groups, k, n = shape
        products = contestants(torch, raw, library, shape, cases.unbalanced_lens(groups, ROWS))
        for name, (calls, out) in products.items():
            if time.monotonic() > ends_at:
                print(f"{shape} {name}: left out, the time is over", flush=True)
                wrong += 1
                continue
            right = agree(torch, calls, out) and library.take_fault() is None
            row = {"groups": groups, "k": k, "n": n, "pass": name}
            row |= measured(torch, meter, calls, 2 * ROWS * k * n, options.seconds)
            document["rows"].append(row)
            print(shape, name, row["tflops"], "long", row["long_tflops"], flush=True)
            for contestant, reason in row["failed"].items():
                print(f"  {contestant}: {reason}", flush=True)
            wrong += not right or "moeprof" in row["failed"]
            if not right:
                print(
                    "  WRONG: bits differ with pairs of blocks and without, an element is not"
                    " written, or a fault is reported",
                    flush=True,
                )
            if options.out:
                write_result(options.out, document)
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
