"""Reads one HLO instruction where it is written as text.

As the compiler prints it in dumps, in buffer assignments and in out-of-memory messages::

    %fusion.3 = bf16[8,4]{1,0} fusion(%p.0, %p.1), kind=kLoop, calls=%fused, metadata={op_name="…"}
    fusion.3 = fusion(p.0, p.1), kind=kLoop
"""

from __future__ import annotations

import re

from moeprof.hlo.attributes import Attributes, DotDims
from moeprof.hlo.frames import Frames, parse_frames
from moeprof.hlo.instruction import NO_SHAPE, Instruction
from moeprof.hlo.shape import Shape, parse_shape

_NAME = re.compile(r"\s*(?:ROOT\s+)?%?([\w.\-]+)\s*=\s*")
_LAYOUT = re.compile(r"\{[^{}]*\}|/\*[^*]*\*/")
_OPERAND = re.compile(r"%?([A-Za-z_][\w.\-]*)\s*(?:,|$)")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
_FIELD = {
    "op_name": re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"'),
    "source_file": re.compile(r'\bsource_file="([^"]*)"'),
    "source_line": re.compile(r"\bsource_line=(\d+)"),
    "target": re.compile(r'\bcustom_call_target="([^"]*)"'),
    "fusion_kind": re.compile(r"\bkind=(k\w+)"),
    "trip_count": re.compile(r'"known_trip_count":\{"n":"(\d+)"'),
}


def parse_instruction(text: str, computation: str = "main") -> Instruction | None:
    """Read an instruction, as far as its text tells; None where the text is none."""
    head = _NAME.match(text)
    if head is None:
        return None
    shape, rest = _shape(text[head.end() :])
    opcode, bracket, rest = rest.partition("(")
    opcode = opcode.strip()
    if not bracket or not re.fullmatch(r"[a-z][\w\-]*", opcode):
        return None
    inside = _balanced(rest)
    attributes = rest[len(inside) :]
    fields = metadata(attributes)
    number = inside.strip()
    return Instruction(
        head[1],
        opcode,
        shape,
        _operands(inside),
        tuple(_CALLED.findall(attributes)),
        _attributes(attributes, fields["fusion_kind"]),
        computation,
        is_root=text.lstrip().startswith("ROOT "),
        op_name=fields["op_name"],
        frames=_frames(fields["source_file"], fields["source_line"]),
        target=fields["target"],
        parameter=int(number) if opcode == "parameter" and number.isdecimal() else -1,
        trip_count=int(fields["trip_count"] or -1),
    )


def metadata(text: str) -> dict[str, str]:
    """``op_name``, ``source_file``, ``source_line`` and others of a text; empty where not told."""
    found = {name: pattern.search(text) for name, pattern in _FIELD.items()}
    return {name: _unescaped(match[1]) if match else "" for name, match in found.items()}


def _frames(file: str, line: str) -> Frames:
    return parse_frames(f"{file}:{line or 0}:") if file else ()


def _attributes(text: str, fusion_kind: str) -> Attributes:
    index, direction = re.search(r"\bindex=(\d+)", text), re.search(r"\bdirection=(\w+)", text)
    sides = DotDims._fields[:4]
    return Attributes(
        fusion_kind=fusion_kind,
        tuple_index=int(index[1]) if index else -1,
        dimensions=_numbers(text, r"(?<![a-z_])dimensions"),
        direction=direction[1] if direction else "",
        dot=DotDims(*(_numbers(text, rf"\b{side}_dims") for side in sides)),
    )


def _numbers(text: str, name: str) -> tuple[int, ...]:
    found = re.search(rf"{name}=\{{([\d,]+)\}}", text)
    return tuple(int(part) for part in found[1].split(",") if part) if found else ()


def _unescaped(text: str) -> str:
    return re.sub(r"\\(['\"\\])", r"\1", text)


def _shape(text: str) -> tuple[Shape, str]:
    """The shape at the beginning, where there is one, and what follows it."""
    if text.startswith("("):
        inside = _balanced(text[1:])
        return parse_shape(f"({inside})"), text[len(inside) + 2 :].lstrip()
    first, _, rest = text.partition(" ")
    has_shape = "[" in first.partition("(")[0]
    return (parse_shape(first), rest.lstrip()) if has_shape else (NO_SHAPE, text)


def _balanced(text: str) -> str:
    """Up to the bracket that closes the one before the text; all of it where none does."""
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[:place]
    return text


def _operands(inside: str) -> tuple[str, ...]:
    if "%" in inside:
        return tuple(re.findall(r"%([\w.\-]+)", inside))
    return tuple(_OPERAND.findall(_LAYOUT.sub("", inside)))
