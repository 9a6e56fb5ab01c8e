"""Profiles of any size, written with numpy: events of one shape are one array of bytes.

Numbers take a fixed count of bytes: protobuf allows a varint to be longer than it needs to be.
Times count from the start of the capture, in ns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from builders.hlo import computation, dot, hlo_proto, op
from builders.protobuf import field, message

Numbers = np.ndarray | int

STEP_NS = 50_000_000
PROGRAM_ID = 7
_SCOPES = (
    *("router", "permute", "dispatch", "experts", "combine", "unpermute", "shared_expert"),
    *("self_attention", "norm", "logits", "loss", "optimizer"),
)
_FORWARD, _BACKWARD = "jit(step)/jvp(layer)", "jit(step)/transpose(jvp(layer))"


@dataclass(frozen=True)
class Names:
    """Names of a plane's events and stats; the id of each is its place, from 1."""

    events: Sequence[str]
    stats: Sequence[str]

    def event(self, name: str) -> int:
        """Id of an event name."""
        return self.events.index(name) + 1

    def stat(self, name: str) -> int:
        """Id of a stat name."""
        return self.stats.index(name) + 1


def program(ops: int) -> bytes:
    """An HloProto of `ops` fusions named ``fusion.<n>``, in the scopes of a MoE layer."""
    products = [f"fusion.{n}" for n in range(ops)]
    inner = computation(
        "fused",
        op("p0", "parameter", "bf16[128,256]"),
        op("p1", "parameter", "bf16[256,64]", parameter=1),
        dot("dot", "bf16[128,64]", "p0", "p1"),
    )
    scopes = [
        f"{_FORWARD if n % 2 else _BACKWARD}/{_SCOPES[n % 12]}/dot_general" for n in range(ops)
    ]
    outer = computation(
        "main",
        op("x", "parameter", "bf16[128,256]"),
        op("w", "parameter", "bf16[256,64]", parameter=1),
        *(
            op(name, "fusion", "bf16[128,64]", "x", "w", op_name=scope, called=("fused",))
            for name, scope in zip(products, scopes, strict=True)
        ),
    )
    return hlo_proto(inner, outer)


def events(
    names: Names,
    name_ids: Numbers,
    start_ns: np.ndarray,
    duration_ns: Numbers,
    numbers: Mapping[str, Numbers],
    refs: Mapping[str, Numbers] | None = None,
) -> np.ndarray:
    """Bytes of the events of a line, one row each; `refs` hold stat ids. Rows are fields 4."""
    count = len(start_ns)
    parts = [
        _constant(count, b"\x08"),
        _padded(name_ids, count, 3),
        _constant(count, b"\x10"),
        _padded(start_ns * 1000, count, 8),
        _constant(count, b"\x18"),
        _padded(np.asarray(duration_ns) * 1000, count, 6),
    ]
    for name, values in numbers.items():
        parts += _stat(names.stat(name), b"\x20", values, count, 5)
    for name, values in (refs or {}).items():
        parts += _stat(names.stat(name), b"\x38", values, count, 3)
    body = np.concatenate(parts, axis=1)
    assert body.shape[1] < 128
    return np.concatenate([_constant(count, bytes([0x22, body.shape[1]])), body], axis=1)


def line(name: str, *rows: np.ndarray) -> bytes:
    """A line with the events of all `rows`."""
    return message((2, name), (3, 1000)) + b"".join(part.tobytes() for part in rows)


def plane(name: str, names: Names, *lines: bytes, stats: bytes = b"") -> bytes:
    """A plane: lines first, then the names, as the profiler writes them."""
    known = [
        field(number, message((1, place), (2, message((1, place), (2, text)))))
        for number, texts in ((4, names.events), (5, names.stats))
        for place, text in enumerate(texts, start=1)
    ]
    return message((2, name), *((3, part) for part in lines)) + b"".join(known) + stats


def metadata_plane(proto: bytes) -> bytes:
    """The plane that carries the program."""
    stats = (5, message((1, 1), (6, proto))), (5, message((1, 2), (3, PROGRAM_ID)))
    entry = message((1, 1), (2, message((1, 1), (2, f"jit_step({PROGRAM_ID})"), *stats)))
    names = (
        field(5, message((1, place), (2, message((1, place), (2, text)))))
        for place, text in enumerate(("Hlo Proto", "program_id"), start=1)
    )
    return message((2, "/host:metadata"), (4, entry)) + b"".join(names)


def gpu_profile(
    *, devices: int, steps: int, kernels: int, python_calls: int = 0, ops: int = 240
) -> bytes:
    """`kernels` per step and device, launched by a thread per device, and Python's own calls."""
    names = Names(
        [f"fusion_{n}" for n in range(ops)],
        ["correlation_id", "program_id", "hlo_op", *(f"fusion.{n}" for n in range(ops))],
    )
    planes = [
        plane(
            f"/device:GPU:{d}",
            names,
            line("Stream #7(Compute)", _kernels(names, d, steps, kernels)),
        )
        for d in range(devices)
    ]
    planes += [_gpu_host(devices, steps, kernels, python_calls), metadata_plane(program(ops))]
    return message(*((1, part) for part in planes), (4, "node0"))


def _kernels(names: Names, device: int, steps: int, kernels: int) -> np.ndarray:
    which, start_ns = _grid(steps, kernels)
    place = which % (len(names.events))
    return events(
        names,
        place + 1,
        start_ns + 20_000 + device,
        np.full(len(which), STEP_NS // kernels * 4 // 5),
        {"correlation_id": _launches(device, len(which)), "program_id": PROGRAM_ID},
        {"hlo_op": place + 4},
    )


def _launches(device: int, count: int) -> np.ndarray:
    """Correlation ids of a device's launches: CUPTI counts those of all devices of a process."""
    return device * count + np.arange(count) + 1


def _grid(steps: int, per_step: int) -> tuple[np.ndarray, np.ndarray]:
    """Place within its step, and start, of every event of a regular run."""
    which = np.tile(np.arange(per_step), steps)
    step = np.repeat(np.arange(steps), per_step)
    return which, step * STEP_NS + which * (STEP_NS * 9 // 10 // per_step) + 1000


def _gpu_host(devices: int, steps: int, kernels: int, python_calls: int) -> bytes:
    execute = "[0] PjRtStreamExecutorRawLoadedExecutable::Execute"
    names = Names(
        [execute, "cuLaunchKernel", "train", *(f"$model.py:{n} f" for n in range(400))],
        ["_c", "global_device_id", "correlation_id", "step_num"],
    )
    step = np.arange(steps)
    _, launched_ns = _grid(steps, kernels)
    count = steps * kernels
    threads = [
        line(
            f"py_xla_execute/{d}",
            events(
                names,
                names.event(execute),
                step * STEP_NS + 500,
                STEP_NS * 9 // 10 + 10_000,
                {"_c": step + 1000, "global_device_id": d},
            ),
            events(
                names,
                names.event("cuLaunchKernel"),
                launched_ns,
                900,
                {"correlation_id": _launches(d, count)},
            ),
        )
        for d in range(devices)
    ]
    marker = events(
        names, names.event("train"), step * STEP_NS + 100, STEP_NS * 19 // 20, {"step_num": step}
    )
    calls = np.arange(python_calls)
    spent_ns = steps * STEP_NS // max(python_calls, 1)
    python = events(names, 4 + calls % 400, calls * spent_ns + 1, spent_ns, {})
    return plane("/host:CPU", names, *threads, line("python", marker, python))


def cpu_profile(*, devices: int, steps: int, ops: int, threads: int = 4) -> bytes:
    """XLA:CPU: `ops` per step and device, each with its end event, and as much pool noise."""
    op_names = [f"fusion.{n}" for n in range(ops)]
    numbers = ("program_id", "run_id", "device_ordinal", "_pt", "_p", "_ct", "_c", "step_num")
    names = Names(
        [*op_names, *(f"end: {name}" for name in op_names), "ThunkExecutor::Execute", "train"],
        [*numbers, "hlo_op", *op_names],
    )
    which, start_ns = _grid(steps, ops)
    step = np.repeat(np.arange(steps), ops)
    lines = []
    for thread in range(threads):
        rows = [
            part
            for device in range(thread, devices, threads)
            for part in _thunks(names, which, step, start_ns + device * 7, device)
        ]
        lines.append(line(f"tf_XLAEigen/{thread}", *rows))
    marks = np.arange(steps)
    lines.append(
        line(
            "python",
            events(
                names,
                names.event("train"),
                marks * STEP_NS + 100,
                STEP_NS * 9 // 10,
                {"step_num": marks},
            ),
        )
    )
    planes = [plane("/host:CPU", names, *lines), metadata_plane(program(ops))]
    return message(*((1, part) for part in planes), (4, "node0"))


def _thunks(
    names: Names, which: np.ndarray, step: np.ndarray, start_ns: np.ndarray, device: int
) -> list[np.ndarray]:
    duration = STEP_NS // 2 // (int(which.max()) + 1)
    flow = np.arange(len(which)) + 1 + device * len(which)
    first_ref = names.stats.index("hlo_op") + 2
    count = len(which) // max(int(which.max()) + 1, 1)
    return [
        events(
            names,
            which + 1,
            start_ns,
            duration,
            {
                "program_id": PROGRAM_ID,
                "run_id": step + 1,
                "device_ordinal": device,
                "_pt": 3,
                "_p": flow,
            },
            {"hlo_op": which + first_ref},
        ),
        events(
            names, which + 1 + int(which.max()) + 1, start_ns + duration, 1, {"_ct": 3, "_c": flow}
        ),
        events(names, names.event("ThunkExecutor::Execute"), start_ns, duration, {}),
    ][: 3 if count else 0]


def _constant(count: int, content: bytes) -> np.ndarray:
    return np.broadcast_to(np.frombuffer(content, np.uint8), (count, len(content)))


def _padded(values: Numbers, count: int, width: int) -> np.ndarray:
    """Varints of exactly `width` bytes."""
    wide = np.broadcast_to(np.asarray(values, np.uint64), (count,))
    assert count == 0 or int(wide.max()) < 1 << 7 * width
    groups = [(wide >> np.uint64(7 * n)) & np.uint64(0x7F) for n in range(width)]
    more = [group | np.uint64(0x80) for group in groups[:-1]]
    return np.stack([*more, groups[-1]], axis=1).astype(np.uint8)


def _stat(identity: int, tag: bytes, values: Numbers, count: int, width: int) -> list[np.ndarray]:
    length = 3 + 1 + width
    return [
        _constant(count, bytes([0x22, length, 0x08])),
        _padded(identity, count, 2),
        _constant(count, tag),
        _padded(values, count, width),
    ]
