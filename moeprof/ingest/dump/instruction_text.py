"""Question: what does one HLO instruction say, where it is written as text?

As the compiler prints it in dumps, in buffer assignments and in out-of-memory messages::

    %fusion.3 = bf16[8,4]{1,0} fusion(%p.0, %p.1), kind=kLoop, calls=%fused, metadata={op_name="…"}
    fusion.3 = fusion(p.0, p.1), kind=kLoop
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from moeprof.hlo.shape import parse_shape

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


@dataclass(frozen=True)
class InstructionText:
    """An instruction as far as its text tells; what it does not is empty, ``parameter`` -1.

    ``shape`` is the result as ``dtype[dims]``, without layouts, tuples in brackets; ``details`` are
    those of `HLO_OPS`.
    """

    name: str
    opcode: str
    shape: str = ""
    operands: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    op_name: str = ""
    target: str = ""
    fusion_kind: str = ""
    parameter: int = -1
    computation: str = "main"
    is_root: bool = False
    details: str = ""
    trip_count: int = -1
    frames: str = ""


def parse_instruction(text: str) -> InstructionText | None:
    """Read an instruction; None where the text is none."""
    head = _NAME.match(text)
    if head is None:
        return None
    rest = text[head.end() :]
    shape, rest = _shape(rest)
    opcode, bracket, rest = rest.partition("(")
    opcode = opcode.strip()
    if not bracket or not re.fullmatch(r"[a-z][\w\-]*", opcode):
        return None
    inside = _balanced(rest)
    attributes = rest[len(inside) :]
    fields = metadata(attributes)
    number = inside.strip()
    return InstructionText(
        name=head[1],
        opcode=opcode,
        shape=shape,
        operands=_operands(inside),
        called=tuple(_CALLED.findall(attributes)),
        op_name=fields["op_name"],
        frames=_frame(fields["source_file"], fields["source_line"]),
        target=fields["target"],
        fusion_kind=fields["fusion_kind"],
        parameter=int(number) if opcode == "parameter" and number.isdecimal() else -1,
        is_root=text.lstrip().startswith("ROOT "),
        details=" ".join(_details(attributes, fields["fusion_kind"])),
        trip_count=int(fields["trip_count"] or -1),
    )


def metadata(text: str) -> dict[str, str]:
    """``op_name``, ``source_file``, ``source_line`` and others of a text; empty where not told."""
    found = {name: pattern.search(text) for name, pattern in _FIELD.items()}
    return {name: _unescaped(match[1]) if match else "" for name, match in found.items()}


def _frame(file: str, line: str) -> str:
    return f"{file}:{line or 0}:" if file else ""


def _details(attributes: str, fusion_kind: str) -> Iterator[str]:
    """What `HLO_OPS` says in ``details``, as far as the attributes tell."""
    if fusion_kind:
        yield f"kind={fusion_kind}"
    if index := re.search(r"\bindex=(\d+)", attributes):
        yield f"index={index[1]}"
    if dimensions := re.search(r"(?<![a-z_])dimensions=\{([\d,]+)\}", attributes):
        yield f"dimensions={dimensions[1]}"
    if direction := re.search(r"\bdirection=(\w+)", attributes):
        yield f"direction={direction[1]}"
    for side in ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch"):
        if numbers := re.search(rf"\b{side}_dims=\{{([\d,]+)\}}", attributes):
            yield f"{side}={numbers[1]}"


def _unescaped(text: str) -> str:
    return re.sub(r"\\(['\"\\])", r"\1", text)


def _shape(text: str) -> tuple[str, str]:
    """The shape at the beginning, where there is one, and what follows it."""
    if text.startswith("("):
        inside = _balanced(text[1:])
        return parse_shape(f"({inside})").text, text[len(inside) + 2 :].lstrip()
    first, _, rest = text.partition(" ")
    has_shape = "[" in first.partition("(")[0]
    return (parse_shape(first).text, rest.lstrip()) if has_shape else ("", text)


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
