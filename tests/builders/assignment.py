"""The text of a buffer assignment on a few lines, as XLA prints it."""

from __future__ import annotations

from typing import NamedTuple


class Value(NamedTuple):
    op: str
    size_bytes: int
    offset_bytes: int
    shape: str
    op_name: str


def value(op: str, size_bytes: int, offset_bytes: int, shape: str, op_name: str = "") -> Value:
    return Value(op, size_bytes, offset_bytes, shape, op_name)


def assignment_text(
    *values: Value,
    temp_bytes: int,
    parameter_bytes: int = 0,
    lives: dict[str, tuple[int, int]] | None = None,
    on_host: tuple[int, int] = (0, 0),
) -> str:
    """One parameter, one temporary allocation with `values`, and where given their lives.

    ``on_host`` has the bytes of a donated parameter and of temporaries in the host's memory.
    """
    lines = ["BufferAssignment:"]
    if parameter_bytes:
        shape = f"f32[{parameter_bytes // 4}]"
        lines += [
            f"allocation 0: size {parameter_bytes}, parameter 0, shape |{shape}| at ShapeIndex "
            "{}, maybe-live-out:",
            f" value: <0 w @0> (size={parameter_bytes},offset=0): {shape}{{0}}",
        ]
    lines.append(f"allocation 1: size {temp_bytes}, preallocated-temp:")
    lines += [
        f" value: <{number} {part.op} @0> (size={part.size_bytes},offset={part.offset_bytes}): "
        f"{part.shape}{{0}}"
        for number, part in enumerate(values, start=1)
    ]
    parameter, temporary = on_host
    if parameter:
        shape = f"f32[{parameter // 4}]"
        lines += [
            f"allocation 2: size {parameter}, color 5, parameter 1, shape |{shape}| at ShapeIndex "
            "{}, maybe-live-out:",
            f" value: <90 m @5> (size={parameter},offset=0): {shape}{{0:S(5)}}",
            f" value: <91 copy.9 @5> (size={parameter},offset=0): {shape}{{0:S(5)}}",
        ]
    if temporary:
        shape = f"f32[{temporary // 4}]"
        lines += [
            f"allocation 3: size {temporary}, color 5, preallocated-temp:",
            f" value: <92 copy.8 @5> (size={temporary},offset=0): {shape}{{0:S(5)}}",
        ]
    lines += ["", f"Total bytes used: {temp_bytes + parameter_bytes}", "", "Used values:"]
    for number, part in enumerate(values, start=1):
        lines += [f"<{number} {part.op} @0>", " positions:", f"  {part.op}", " uses:", "  (none)"]
        made = f"%{part.op} = {part.shape}{{0}} fusion(), kind=kLoop"
        lines.append(f' from instruction: {made}, metadata={{op_name="{part.op_name}"}}')
    if lives:
        lines += ["  BufferLiveRange:"]
        lines += [f"    {op}{{}}:{start}-{end}" for op, (start, end) in lives.items()]
    return "\n".join(lines) + "\n"
