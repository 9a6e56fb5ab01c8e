"""Writes the JSON traces that fuzzing starts from.

    PYTHONPATH=tests python tests/ingest/json_fuzz_seeds.py

They have what the reader knows, ways to write it, and ways in which files go wrong.
"""

from __future__ import annotations

import json
from pathlib import Path

from builders.chrome import kernel, names, on_host, text
from fuzz_seeds import write

CORPUS = Path(__file__).parent.parent / "data" / "json_fuzz"


def called(name: str, category: str, **args: object) -> dict[str, object]:
    """A host op or kernel as PyTorch writes it."""
    return {"ph": "X", "cat": category, "pid": 5, "tid": 7, "name": name, "args": args}


def seeds() -> dict[str, bytes]:
    """Content by file name."""
    op = called("aten::mm", "cpu_op") | {"ts": 5200460058434.717, "dur": 90.842}
    op["args"] = {
        "External id": 3,
        "Sequence number": 9,
        "Fwd thread id": 0,
        "Input Dims": [[8, 256], []],
        "Input type": ["c10::BFloat16", "Scalar"],
        "Input Strides": [[256, 1], []],
        "Concrete Inputs": ["", "1.5"],
    }
    sent = called("nccl", "kernel") | {"ts": 10, "dur": 2.5}
    sent["args"] = {"Collective name": "all_gather", "dtype": "BFloat16", "In msg nelems": 8}
    launch = on_host("launch", 4, 1) | {"cat": "gpu_launch", "bind_id": "77"}
    pair = [
        {"ph": "B", "pid": 1, "tid": 2, "name": "f", "ts": 1.5, "args": {"run_id": 3}},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 2},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 3},
    ]
    jax = [*names(), kernel("fusion.1", 1.25, 2, correlation_id="18446744073709551615"), launch]
    calls = [on_host("$f.py:3 g", n) for n in range(3)]
    odd = (
        r'[{"ph":"X","n\u0061me":"k","ts":1,"dur":1},{"ph":"X","name":"\u0024k","ts":1e3,"dur":"7"},'
        r'{"ph":"X","name":"\ud800","ts":-1.5,"dur":0.0009,"pid":"1.0","tid":null,"cat":["x"],'
        r'"args":{"hlo_op":2.5,"run_id":true,"rank":"1_0","name":"Xla\u004dodule:","device":NaN}}]'
    )
    return {
        "empty": b"",
        "jax": text([*jax, *calls, {}]).encode(),
        "torch": json.dumps({"traceEvents": [op, sent, op], "schemaVersion": 1}, indent=1).encode(),
        "list": json.dumps([op, *pair, {"ph": "i"}, {"ph": "s"}, {"ph": "f"}, 1, None]).encode(),
        "cut": text(jax).encode()[:-20],
        "odd": odd.encode(),
        "broken": text(jax).replace(": 24", ":: 24", 1).encode(),
        "no_text": text(jax).encode().replace(b"fusion", b"f\xffs\xe2\x82"),
        "wide": text([kernel("\N{SNOWMAN}\N{GRINNING FACE}", 1)]).encode()
        + '[{"ph":"X","name":"\N{SNOWMAN}\N{GRINNING FACE}","ts":1,"dur":1}]'.encode(),
        "deep": b'[{"ph":"X","name":"k","ts":1,"dur":1,"args":' + b"[" * 70 + b"]" * 70 + b"},{}]",
        "long": b'[{"ph":"X","name":"k","ts":' + b"9" * 400 + b',"dur":1},{"ph":"X"}]',
    }


if __name__ == "__main__":
    write(CORPUS, seeds())
