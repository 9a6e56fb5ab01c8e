"""Question: how fast do copy engines move rows between two GPUs?

python peer_copy.py LOAD      by torch, in a process of its own; a line of JSON
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.exchange_load import Load, Op, row
from gpu.timing import Timing


def copy_between_peers(load: Load, samples: int = 20) -> list[dict[str, Any]]:
    """torch's copies of T rows between the first two devices: one way, and both ways at once."""
    import torch

    rows = [
        torch.randn(load.tokens, load.hidden, device=f"cuda:{device}", dtype=torch.bfloat16)
        for device in range(2)
    ]
    landing = [torch.empty_like(rows[device]) for device in range(2)]
    streams = [torch.cuda.Stream(device=f"cuda:{device}") for device in range(2)]
    results = []
    for name, sources in (("peer copy, one way", (0,)), ("peer copy, both ways", (0, 1))):
        seconds = []
        for _ in range(samples + 2):
            for device in range(2):
                torch.cuda.synchronize(device)
            began = time.perf_counter()
            for _ in range(20):
                for source in sources:
                    with torch.cuda.stream(streams[source]):
                        landing[1 - source].copy_(rows[source], non_blocking=True)
            for device in range(2):
                torch.cuda.synchronize(device)
            seconds.append((time.perf_counter() - began) / 20)
        timed = seconds[2:]
        quartiles = np.quantile(timed, (0.25, 0.5, 0.75))
        timing = Timing(float(quartiles[1]), float(quartiles[0]), float(quartiles[2]), samples, 20)
        op = Op(name, lambda times: lambda: None, load.tokens, load.tokens)
        results.append(row(op, timing, 1, load))
    return results


if __name__ == "__main__":
    print(json.dumps(copy_between_peers(Load(**json.loads(sys.argv[1])))))
