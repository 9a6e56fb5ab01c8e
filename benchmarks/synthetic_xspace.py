"""Question: how is an XSpace of any size made that decodes like a real one?

Modelled on captures of jax 0.10 and 0.11: a kernel on a GPU plane has 13 stats and some 120 bytes,
a thunk of XLA:CPU 5 stats and some 55 bytes, Python and pool-thread events of the host none to two
stats and some 20 bytes. A line is one stretch of events repeated, so a gigabyte takes seconds to
write: stamps and correlation ids repeat with it, names and references are as many as in a step.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

STRETCH_EVENTS = 20_000
OPS = 400
_FIRST_OP, _FIRST_DETAILS = 100, 600
_NAMED = (
    *("hlo_op", "hlo_module", "program_id", "run_id", "device_ordinal", "correlation_id"),
    *("context_id", "scope_range_id", "tf_op", "theoretical_occupancy_pct"),
    *("occupancy_min_grid_size", "occupancy_suggested_block_size", "kernel_details"),
    *("unique_hlo_op_id", "cuda_graph_id", "cuda_graph_node_id", "_pt", "_p", "_ct", "_c"),
    *("step_num", "name", "jit_train_step"),
)
STAT_NAMES = {
    **dict(enumerate(_NAMED, 1)),
    **{_FIRST_OP + op: f"fusion.{op}" for op in range(OPS)},
    **{_FIRST_DETAILS + op: f"regs:{op} grid:{op},1,1 block:256,1,1" for op in range(OPS)},
}
STAT_IDS = {name: key for key, name in STAT_NAMES.items()}
Event = Callable[[random.Random, int], bytes]


def write(path: Path, size_bytes: int, shape: str) -> int:
    """Write a ``gpu`` or ``cpu`` shaped file of about this size; return its number of events."""
    if shape == "gpu":
        planes = [("/device:GPU:0", [_kernel], 0.4), ("/device:GPU:1", [_kernel], 0.4)]
        planes.append(("/host:CPU", [_noise, _noise], 0.2))
    else:
        planes = [("/host:CPU", [_thunk, _noise, _thunk], 1.0)]
    events = 0
    with path.open("wb") as file:
        for name, lines, share in planes:
            for piece in _plane(name, lines, int(size_bytes * share)):
                file.write(piece)
            events += STRETCH_EVENTS * len(lines) * _times(lines, int(size_bytes * share))
    return events


def _plane(name: str, lines: list[Event], size_bytes: int) -> Iterator[bytes]:
    """The bytes of a plane in pieces: its lines, each a stretch repeated, then its names."""
    times = _times(lines, size_bytes)
    head = _field(2, name.encode())
    tail = b"".join(
        [_entry(4, 1 + op, f"kernel_{op}") for op in range(OPS)]
        + [_entry(5, key, stat) for key, stat in STAT_NAMES.items()]
    )
    titles = [_field(2, f"line {at}".encode()) for at in range(len(lines))]
    lengths = [
        len(title) + times * len(_stretch(line)) for title, line in zip(titles, lines, strict=True)
    ]
    heads = [_tag(3, length) for length in lengths]
    yield _tag(1, len(head) + len(tail) + sum(lengths) + sum(map(len, heads)))
    yield head
    for line_head, title, line in zip(heads, titles, lines, strict=True):
        yield line_head + title
        stretch = _stretch(line)
        for _ in range(times):
            yield stretch
    yield tail


def _times(lines: list[Event], size_bytes: int) -> int:
    return max(1, size_bytes // sum(len(_stretch(line)) for line in lines))


_STRETCHES: dict[Event, bytes] = {}


def _stretch(event: Event) -> bytes:
    if event not in _STRETCHES:
        rng = random.Random(0)
        made = (_field(4, event(rng, at)) for at in range(STRETCH_EVENTS))
        _STRETCHES[event] = b"".join(made)
    return _STRETCHES[event]


def _kernel(rng: random.Random, at: int) -> bytes:
    op = rng.randrange(OPS)
    references = (
        *(("hlo_op", _FIRST_OP + op), ("hlo_module", STAT_IDS["jit_train_step"])),
        *(("tf_op", _FIRST_OP + op), ("kernel_details", _FIRST_DETAILS + op)),
    )
    numbers = (
        *(("correlation_id", 40_000 + at), ("context_id", 1), ("scope_range_id", op)),
        *(("program_id", 12), ("unique_hlo_op_id", op), ("occupancy_min_grid_size", 264)),
        *(("occupancy_suggested_block_size", 1024), ("cuda_graph_node_id", 900 + op)),
    )
    occupancy = _number(1, STAT_IDS["theoretical_occupancy_pct"]) + b"\x11" + struct.pack("<d", 50)
    stats = [_stat(name, 7, value) for name, value in references]
    stats += [_stat(name, 4, value) for name, value in numbers]
    return _event(op, 9_000_000 * at, rng.randrange(9_000_000), [*stats, occupancy])


def _thunk(rng: random.Random, at: int) -> bytes:
    op = rng.randrange(OPS)
    references = (("hlo_op", _FIRST_OP + op), ("hlo_module", STAT_IDS["jit_train_step"]))
    numbers = (("program_id", 12), ("run_id", 1 + at // 5_000), ("device_ordinal", at % 8))
    stats = [_stat(name, 7, value) for name, value in references]
    stats += [_stat(name, 4, value) for name, value in numbers]
    return _event(op, 7_000_000 * at, rng.randrange(7_000_000), stats)


def _noise(rng: random.Random, at: int) -> bytes:
    numbers = (("_pt", 7), ("_p", 80_000 + at)) if at % 4 == 0 else ()
    stats = [_stat(name, 4, value) for name, value in numbers]
    return _event(rng.randrange(OPS), 11_000_000 * at, rng.randrange(99_999), stats)


def _event(op: int, offset_ps: int, duration_ps: int, stats: list[bytes]) -> bytes:
    numbers = _number(1, 1 + op) + _number(2, offset_ps) + _number(3, duration_ps)
    return numbers + b"".join(_field(4, stat) for stat in stats)


def _stat(name: str, number: int, value: int) -> bytes:
    return _number(1, STAT_IDS[name]) + _number(number, value)


def _entry(number: int, key: int, name: str) -> bytes:
    metadata = _number(1, key) + _field(2, name.encode())
    return _field(number, _number(1, key) + _field(2, metadata))


def _field(number: int, content: bytes) -> bytes:
    return _tag(number, len(content)) + content


def _tag(number: int, length: int) -> bytes:
    return bytes([number << 3 | 2]) + _varint(length)


def _number(number: int, value: int) -> bytes:
    return bytes([number << 3]) + _varint(value)


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
