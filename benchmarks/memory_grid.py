"""Question: what does XLA lay out for an H100, over models, plans, strategies and batches?

    python benchmarks/memory_grid.py [--library] [--jobs 32] [--out FILE.jsonl] [--limit N]

Compiles every case of `memory_grid_cases.py` for NVIDIA H100s that are not there, and appends one
JSON line per case as it ends; cases that the file has already are not compiled again. A line has
the case, its half (``split``: fit or test), XLA's totals, and what fills the arena when it is
fullest: ``buffers`` lists [kind of tensor, component, phase, layer kind, shape, its family, count,
bytes], largest first, ``rest_bytes`` what is left; ``heap_bytes`` the most that is alive at once in
the largest heap of the arena (jax 0.11 makes several), ``maxima`` the same while each part of the
step writes. All on one device. Needs jax with its CUDA plugin, and no GPU.

Products are those of Triton's kernels, which XLA lays out where nothing is timed; with --library
they are those of libraries, in a file of their own. A run times both, product by product, and its
arena lies between the two.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import jax
from memory_grid_cases import Case, cases, received_rows

from moeprof.analyzers.attribution import classes_of
from moeprof.analyzers.heap.at_peak import grouped, main_module, peak_of
from moeprof.errors import MoeprofError
from moeprof.ingest.dump.open import open_dump
from moeprof.projector.compiled import load_target
from moeprof.projector.compiled.bundled import build_bundled
from moeprof.projector.compiled.compiler import Build, compile_step
from moeprof.projector.compiled.result import is_laid_out
from moeprof.specs.hardware import load_hardware

RESULTS = Path(__file__).parent / "results"
RESULT, LIBRARY_RESULT = (RESULTS / f"memory_grid{end}.jsonl" for end in ("", "_library"))
NO_TRITON = "--xla_gpu_enable_triton_gemm=false"
HARDWARE = "h100_sxm"
_LEAST_SHARE, _MOST_GROUPS, _MOST_MAXIMA = 0.004, 24, 10
_TOTALS = ("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes", "constant_bytes")
_HELD = ("weights", "optimizer state", "inputs", "results that reuse no argument")


def compiled(case: Case, build: Build = build_bundled) -> dict[str, Any]:
    """The line of one case; ``build`` makes another program of it than the step.

    The compiler runs in a fork of this process, which has imported JAX but started none of it, and
    is stopped when it has laid out memory: the code that would come next changes nothing.

    Raises:
        RuntimeError: the compiler's error.
    """
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="moeprof-grid-") as folder:
        used_s = _compile_in_fork(case, build, Path(folder))
        totals, found = _laid_out(Path(folder), case)
    seconds = {"compile_core_s": round(used_s, 1), "s": round(time.perf_counter() - began, 1)}
    return {**totals, **found, "jax": jax.__version__, **seconds}


def _compile_in_fork(case: Case, build: Build, folder: Path) -> float:
    """Fill a folder with the compiler's dump, as far as wanted; processor seconds that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = os.fork()
    if child == 0:
        os.setsid()
        _compile_here(case, build, folder)
    while not is_laid_out(folder) and os.waitpid(child, os.WNOHANG)[0] == 0:
        time.sleep(0.2)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    error = folder / "error.txt"
    if error.exists():
        raise RuntimeError(error.read_text("utf-8"))
    if not is_laid_out(folder):
        raise RuntimeError("the compiler's process ended before it laid out memory")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _compile_here(case: Case, build: Build, folder: Path) -> NoReturn:
    try:
        target = load_target(load_hardware(HARDWARE), case.plan.devices)
        compile_step(build, case.options, target, folder, ep_axis=(case.expert, "expert"))
    except Exception as error:  # a case that cannot be compiled is a result
        (folder / "error.txt").write_text(f"{type(error).__name__}: {str(error)[:400]}", "utf-8")
    finally:
        os._exit(0)


def _laid_out(folder: Path, case: Case) -> tuple[dict[str, int], dict[str, Any]]:
    """Totals, and what fills the arena."""
    trace = open_dump(folder)
    peak = peak_of(trace, main_module(trace))
    if peak is None or not peak.heaps:
        raise RuntimeError("no buffer has a life")
    stated = trace.modules[trace.modules["module"].eq(peak.module)].iloc[0]
    totals = {name: int(stated[name]) for name in _TOTALS}
    temp_bytes = totals["temp_bytes"]
    table = peak.table[~peak.table["content"].isin(_HELD)]
    groups = grouped(table, ["content", "component", "phase", "layer_kind", "shape"])
    shown = groups[groups["bytes"] >= _LEAST_SHARE * temp_bytes].head(_MOST_GROUPS)
    names = _names(case)
    rows = [
        [*row[:5], _family(row[4], names), int(row[5]), int(row[6])]
        for row in zip(
            *(shown[c] for c in ("content", "component", "phase", "layer_kind", "shape")),
            shown["buffers"],
            shown["bytes"],
            strict=True,
        )
    ]
    heap = peak.heaps[0]
    mine = trace.buffers[trace.buffers["module"].eq(peak.module)]
    born = mine[mine["trace"].eq(heap.trace) & mine["live_from"].ge(0)]
    labels = classes_of(trace).pandas()
    labels = labels[labels["module"].eq(peak.module)].set_index("op")
    part = (labels["component"] + "/" + labels["phase"]).reindex(born["op"]).fillna("other")
    live = heap.live_bytes[born["live_from"].to_numpy()]
    highest: dict[str, int] = {}
    for name, size in zip(part, live, strict=True):
        highest[name] = max(highest.get(name, 0), int(size))
    maxima = sorted(highest.items(), key=lambda item: -item[1])[:_MOST_MAXIMA]
    return totals, {
        "peak_op": peak.op,
        "heap_bytes": int(heap.live_bytes.max()),
        "buffers": rows,
        "rest_bytes": temp_bytes - int(shown["bytes"].sum()),
        "maxima": dict(maxima),
    }


def _names(case: Case) -> dict[int, str]:
    """Letters for the lengths that dimensions of this case have; the first that fits is taken."""
    tokens = case.pdbs * case.sequence
    lengths = {
        "T": tokens,
        "M": case.hidden,
        "V": case.vocab,
        "R": received_rows(case),
        "TK": tokens * case.top_k,
        "F": case.moe_ffn,
        "S": case.sequence,
        "G": case.dense_ffn,
        "E": case.experts,
        "N": case.heads,
        "E/EP": case.experts // case.expert,
        "EP*T": case.expert * tokens,
        "B": case.pdbs,
        "L": case.layers - case.dense_layers,
        "K": case.top_k,
    }
    named: dict[int, str] = {}
    for name, length in lengths.items():
        if length > 1:
            named.setdefault(length, name)
    return named


def _family(shape: str, names: dict[int, str]) -> str:
    return re.sub(r"(?<=[\[,])\d+", lambda m: names.get(int(m.group()), m.group()), shape)


def serve() -> None:
    """Compile the cases whose places are on stdin, one a line, and answer one line each."""
    every = cases()
    for line in sys.stdin:
        case = every[int(line)]
        head = {"key": case.key, "split": case.split, "case": asdict(case)}
        try:
            answer = compiled(case)
        except (RuntimeError, MoeprofError) as error:
            answer = {"error": str(error)}
        print(json.dumps({**head, **answer}), flush=True)


def _work(
    waiting: Iterator[int], lock: threading.Lock, every: list[Case], out: Path, flags: str
) -> None:
    server: subprocess.Popen[str] | None = None
    while True:
        with lock:
            place = next(waiting, None)
        if place is None:
            break
        if server is None or server.poll() is not None:
            server = _start(flags)
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(f"{place}\n")
        server.stdin.flush()
        line = server.stdout.readline()
        if not line:
            failed = {"key": every[place].key, "error": f"compiler ended with {server.wait()}"}
            line = json.dumps({**failed, "split": every[place].split}) + "\n"
        with lock, out.open("a", encoding="utf-8") as file:
            file.write(line)
            print(f"{place + 1}/{len(every)} {_short(json.loads(line))}", file=sys.stderr)
    if server is not None:
        server.kill()


def _short(line: dict[str, Any]) -> str:
    if "error" in line:
        return f"{line['key']} {line['error']}"
    case = line["case"]
    sizes = f"args {line['argument_bytes'] / 2**30:.2f} temp {line['temp_bytes'] / 2**30:.2f} GiB"
    return f"{line['key']} {case['strategy']} {sizes}, {line['compile_core_s']} core-s"


def _start(flags: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "XLA_FLAGS": flags}
    return subprocess.Popen(
        [sys.executable, __file__, "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )


def _kept(out: Path, every: list[Case]) -> set[str]:
    """Keys that need not be compiled again; what failed, or is no case any more, is taken out."""
    if not out.exists():
        return set()
    known = {case.key for case in every}
    lines = {json.loads(line)["key"]: line for line in out.read_text("utf-8").splitlines() if line}
    kept = {k: line for k, line in lines.items() if k in known and '"error":' not in line}
    out.write_text("".join(f"{line}\n" for line in kept.values()), encoding="utf-8")
    return set(kept)


def main() -> None:
    """Compile what the file of results lacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--library", action="store_true", help="products by libraries alone")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=int, default=None, help="only the first N cases")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve()
    every = cases()
    flags = f"{os.environ.get('XLA_FLAGS', '')} {NO_TRITON if options.library else ''}".strip()
    out = options.out or (LIBRARY_RESULT if options.library else RESULT)
    kept = _kept(out, every)
    places = [i for i, case in enumerate(every[: options.limit]) if case.key not in kept]
    waiting, lock = iter(places), threading.Lock()
    out.parent.mkdir(parents=True, exist_ok=True)
    threads = [
        threading.Thread(target=_work, args=(waiting, lock, every, out, flags))
        for _ in range(min(options.jobs, len(places)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return None


if __name__ == "__main__":
    main()
