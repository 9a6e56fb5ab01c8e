"""Question: what else does an instruction say, in one line of ``key=value``?

Field numbers are those of HloInstructionProto (xla/service/hlo.proto), DotDimensionNumbers,
RaggedDotDimensionNumbers and ConvolutionDimensionNumbers (xla/xla_data.proto).
"""

from __future__ import annotations

from moeprof.ingest.hlo.messages import Message, read_message, whole_numbers
from moeprof.ingest.xspace.wire import text

_FUSION_KIND, _DIMENSIONS, _CONVOLUTION, _DOT, _DIRECTION, _RAGGED_DOT = 11, 14, 16, 30, 63, 90
_DOT_NAMES = {1: "lhs_contracting", 2: "rhs_contracting", 3: "lhs_batch", 4: "rhs_batch"}
_RAGGED_NAMES = {2: "lhs_ragged", 3: "rhs_group"}
_DOT_OF_RAGGED = 1
_KERNEL_OUTPUT = 4

SCALAR_DETAILS = frozenset({_FUSION_KIND, _CONVOLUTION, _DOT, _DIRECTION, _RAGGED_DOT})
"""Fields that occur once and are told here."""


def details_text(data: bytes, message: Message, tuple_index: int, constant: int | None) -> str:
    """``kind=kLoop``, ``index=1``, ``value=4``, ``dimensions=0,1``, ``direction=LT``, dot's dims.

    What the instruction does not say is left out; ``lhs_contracting=2 rhs_contracting=1
    lhs_batch=0 rhs_batch=0`` and for a ragged dot ``lhs_ragged=0 rhs_group=0``; of a convolution
    ``kernel_output=3``, the dimension of its kernel that counts the output's features.

    Raises:
        WireError: the bytes are damaged.
    """
    stretches = message.stretches
    parts = []
    if kind := stretches.get(_FUSION_KIND):
        parts.append(f"kind={text(data, *kind)}")
    if tuple_index >= 0:
        parts.append(f"index={tuple_index}")
    if constant is not None:
        parts.append(f"value={constant}")
    if dimensions := whole_numbers(data, message.lists.get(_DIMENSIONS)):
        parts.append(f"dimensions={_numbers(dimensions)}")
    if direction := stretches.get(_DIRECTION):
        parts.append(f"direction={text(data, *direction)}")
    if dot := stretches.get(_DOT):
        parts += _named_lists(data, dot, _DOT_NAMES)
    if convolution := stretches.get(_CONVOLUTION):
        output = read_message(data, *convolution).numbers.get(_KERNEL_OUTPUT, 0)
        parts.append(f"kernel_output={output}")
    if ragged := stretches.get(_RAGGED_DOT):
        if dot := read_message(data, *ragged).stretches.get(_DOT_OF_RAGGED):
            parts += _named_lists(data, dot, _DOT_NAMES)
        parts += _named_lists(data, ragged, _RAGGED_NAMES)
    return " ".join(parts)


def _named_lists(data: bytes, where: tuple[int, int], names: dict[int, str]) -> list[str]:
    lists = read_message(data, *where, names).lists
    found = {number: whole_numbers(data, lists.get(number)) for number in names}
    return [f"{names[number]}={_numbers(values)}" for number, values in found.items() if values]


def _numbers(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))
