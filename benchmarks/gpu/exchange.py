"""Question: how fast do tokens travel between two GPUs, with ours and with XLA's exchanges?

    python benchmarks/gpu/exchange.py [--tokens 4096] [--out FILE.json] [--smoke]

T tokens per rank of ``hidden`` bfloat16, top-8 of 256 experts drawn evenly, EP over all devices of
this process. Every figure is the time of one op (exchange_ops.py) inside one compiled program
that runs it many times over, one after the other (`Exchanges.chain` says how that is held); beside
them, a copy of T rows by the copy engines (peer_copy.py).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.exchange_load import SMOKE, Load, Op, row
from gpu.exchange_ops import Exchanges
from gpu.gate import begin, write_result
from gpu.machine import gpu_machine
from gpu.timing import Contestant, jax_sample, take_turns, telling_line

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"


def measure(load: Load, options: argparse.Namespace) -> dict[str, Any]:
    """All ops for one load; slow ones are repeated less often inside their program."""
    import jax

    exchanges = Exchanges(load)
    local = load.experts // exchanges.ranks
    longest = load.tokens * min(local, load.top_k)
    ops: list[Op] = []
    failed: dict[str, str] = {}
    makers: dict[str, Callable[[], list[Op]]] = {
        "ours": exchanges.ours,
        "all_to_all: tokens": lambda: exchanges.padded("tokens", exchanges.tokens, load.tokens),
        "all_to_all: pairs": lambda: exchanges.padded("pairs", exchanges.pairs, longest),
        "ppermute": lambda: [exchanges.ppermute()],
        "ragged: tokens": lambda: exchanges.ragged("tokens", exchanges.tokens, load.tokens),
        "ragged: pairs": lambda: exchanges.ragged("pairs", exchanges.pairs, longest),
    }
    for name, make in makers.items():
        try:
            ops += make()
        except Exception as error:  # wrong, or no room for a buffer: the others go on
            failed[name] = telling_line(error)
            print(f"  {name}: {failed[name][:110]}", flush=True)
    contestants, times = [], {}
    for op in ops:
        times[op.name] = 1 if "ragged" in op.name else options.repetitions
        try:
            sample = jax_sample(op.repeat(times[op.name]))
            sample(1)
        except Exception as error:  # not implemented on this backend, or no room
            failed[op.name] = telling_line(error)
            continue
        contestants.append(Contestant(op.name, sample))
    timings, more = take_turns(contestants, options.samples, options.sample_s, options.limit_s)
    rows = [row(op, timings[op.name], times[op.name], load) for op in ops if op.name in timings]
    result = {
        **asdict(load),
        "ranks": exchanges.ranks,
        "platform": jax.devices()[0].platform,
        "tokens_between_ranks": exchanges.tokens.tolist(),
        "pairs_between_ranks": exchanges.pairs.tolist(),
        "ops": rows,
        "failed": {**failed, **more},
    }
    for entry in rows:
        print(line(entry), flush=True)
    for name, reason in result["failed"].items():
        print(f"  {name}: {reason[:110]}", flush=True)
    return result


def line(entry: dict[str, Any]) -> str:
    """One row of the table."""
    return (
        f"  {entry['op']:<34}{entry['us']:>12.1f} µs{entry['payload_GB_s']:>10.1f} GB/s payload"
        f"{entry['wire_GB_s']:>10.1f} GB/s on the wire"
    )


def peer_copy(load: Load) -> list[dict[str, Any]]:
    """peer_copy.py in a process of its own; nothing where torch or two GPUs are missing."""
    command = [sys.executable, str(HERE / "peer_copy.py"), json.dumps(asdict(load))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    except subprocess.TimeoutExpired:
        print("  peer copy: no result within 90 s", flush=True)
        return []
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"  peer copy: {last[:110]}", flush=True)
        return []
    results: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    for entry in results:
        print(line(entry), flush=True)
    return results


def main() -> None:
    """Measure every load, print tables, write JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, action="append", help="per rank: 4096 and 8192")
    parser.add_argument("--repetitions", type=int, default=20, help="of an op in one program")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--sample-s", type=float, default=0.06, help="seconds per sample")
    parser.add_argument("--limit-s", type=float, default=1.2, help="per op")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on any backend")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_exchange.json")
    options = parser.parse_args()
    begin(parser.prog, 2, options.out, smoke=options.smoke)
    began = time.monotonic()
    loads = [SMOKE] if options.smoke else [Load(t) for t in options.tokens or (4096, 8192)]
    document: dict[str, Any] = {"machine": gpu_machine(), "loads": []}
    for load in loads:
        print(f"{load.tokens} tokens per rank, {load.row_bytes} bytes each")
        copies = [] if options.smoke else peer_copy(load)
        document["loads"].append({**measure(load, options), "peer_copies": copies})
        document["seconds"] = round(time.monotonic() - began, 1)
        write_result(options.out, document)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.3")
    main()
