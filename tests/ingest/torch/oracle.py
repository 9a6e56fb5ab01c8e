"""PyTorch's traces read by other means: Python's json, dicts and loops."""

import gzip
import json
from collections import defaultdict
from pathlib import Path

DATA = Path(__file__).parents[2] / "data" / "torch"
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def events(path: Path) -> list[dict]:
    """The complete events of a trace."""
    with gzip.open(path) as file:
        return [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]


def device_events(path: Path) -> list[dict]:
    """Work of GPUs."""
    return [e for e in events(path) if e["cat"] in ON_GPU]


def nanoseconds(microseconds: float) -> int:
    """Whole nanoseconds: the profiler writes three digits."""
    return round(microseconds * 1000)


def busy_ns(path: Path) -> int:
    """Union of the intervals of all work, in ns."""
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in device_events(path))
    total, reached = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return nanoseconds(total)


def time_by_op(path: Path) -> dict[str, tuple[int, int]]:
    """Op of the dispatcher -> (ns, pieces) of the work that carries its external id."""
    every = events(path)
    ops = {e["args"]["External id"]: e["name"] for e in every if e["cat"] == "cpu_op"}
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for event in every:
        name = ops.get(event["args"].get("External id")) if event["cat"] in ON_GPU else None
        if name is not None:
            found[name][0] += nanoseconds(event["dur"])
            found[name][1] += 1
    return {name: (time, pieces) for name, (time, pieces) in found.items()}
