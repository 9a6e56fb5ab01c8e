"""Writes the files that fuzzing starts from.

    PYTHONPATH=tests python tests/ingest/fuzz_seeds.py

They have every field that the reader knows, and the ways in which files go wrong.
"""

from __future__ import annotations

from pathlib import Path

from builders.protobuf import field, message
from builders.xspace import METADATA, Plane, Ref, event, host, line, metadata, thunk, xspace

CORPUS = Path(__file__).parent.parent / "data" / "fuzz"


def seeds() -> dict[str, bytes]:
    """Content by file name."""
    cpu = host(
        line("main", event("PjitFunction", 0, 90, _pt=1, _p=2), event("train", 1, 9, step_num=3)),
        line("worker", *(thunk(f"dot.{i % 3}", i, 1.5) for i in range(12)), timestamp_ns=7),
    )
    kernels = (
        event("sm90_gemm", i, 2, hlo_op=Ref("fusion.1"), correlation_id=i, details=f"grid:{i}")
        for i in range(8)
    )
    gpu = Plane("/device:GPU:0", (line("Stream #13(Compute)", *kernels),), {"clock": 2.5, "n": -1})
    whole = xspace(cpu, gpu, metadata(p7=b"proto"), Plane(METADATA), hostnames=("a", "b"))
    broken_event = field(4, b"\x0a\xff")
    return {
        "empty": b"",
        "cpu": xspace(cpu),
        "gpu": xspace(gpu),
        "whole": whole,
        "cut": whole[: len(whole) * 7 // 10],
        "notes": message((2, "error"), (3, "warning"), (4, "host")),
        "broken_events": field(1, field(3, broken_event * 8)),
        "no_names": field(1, field(3, field(4, message((1, -1), (2, -1), (3, 2**63 - 1))))),
        "twice": xspace(cpu) + xspace(cpu),
        "long_number": field(1, field(3, b"\x18" + b"\xff" * 11)),
    }


def write(corpus: Path, contents: dict[str, bytes]) -> None:
    """Write them beside what fuzzing has found."""
    corpus.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (corpus / f"seed-{name}").write_bytes(content)


if __name__ == "__main__":
    write(CORPUS, seeds())
