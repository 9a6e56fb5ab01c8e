"""What does a call of PyTorch say of itself: its inputs, or what it sends to whom?"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from moeprof.hlo.attributes import NO_ATTRIBUTES, Attributes
from moeprof.hlo.instruction import NO_SHAPE, NOT_READ, Groups
from moeprof.hlo.shape import Shape
from moeprof.ingest.chrome_json.device_work import GLOO

DTYPES = {
    **{"float": "f32", "double": "f64", "c10::Half": "f16", "c10::BFloat16": "bf16"},
    **{"c10::Float8_e4m3fn": "f8e4m3fn", "c10::Float8_e5m2": "f8e5m2"},
    **{"c10::Float8_e4m3fnuz": "f8e4m3fnuz", "c10::Float8_e5m2fnuz": "f8e5m2fnuz"},
    **{"long int": "s64", "long": "s64", "int": "s32", "short": "s16", "signed char": "s8"},
    **{"unsigned char": "u8", "bool": "pred", "c10::complex<float>": "c64"},
}
"""Types as the profiler writes them (c10::ScalarType's C++ names) -> those of HLO."""
_MESSAGE_DTYPES = {
    **{"Float": "f32", "Double": "f64", "Half": "f16", "BFloat16": "bf16", "Long": "s64"},
    **{"Int": "s32", "Short": "s16", "Char": "s8", "Byte": "u8", "Bool": "pred"},
    **{"Float8_e4m3fn": "f8e4m3fn", "Float8_e5m2": "f8e5m2"},
}
"""The same as collectives name them (c10::toString)."""
COLLECTIVES = {
    **{"allreduce": "all-reduce", "all_reduce": "all-reduce", "reduce": "all-reduce"},
    **{"allreduce_coalesced": "all-reduce", "allreduce_sparse": "all-reduce"},
    **{"allgather": "all-gather", "_allgather_base": "all-gather", "all_gather": "all-gather"},
    **{"allgather_into_tensor_coalesced": "all-gather", "gather": "all-gather"},
    **{"reduce_scatter": "reduce-scatter", "_reduce_scatter_base": "reduce-scatter"},
    **{"reduce_scatter_tensor_coalesced": "reduce-scatter"},
    **{"alltoall": "all-to-all", "all_to_all": "all-to-all", "all_to_allv": "all-to-all"},
    **{"alltoall_base": "all-to-all", "broadcast": "collective-broadcast"},
    **{"_broadcast_oop": "collective-broadcast", "send": "send", "recv": "recv"},
}
"""What collectives call themselves -> HLO's opcode."""
_TO_ONE = ("reduce", "gather", "scatter")
"""Those that one rank has the result of: HLO has none such, so their size is left unknown."""
_MOST_RANKS = 1 << 17
_MOST_ELEMENTS = 1 << 50  # beyond any device; more is a damaged file


@dataclass(frozen=True)
class Call:
    """An op with its inputs; ``message`` is what a collective says of itself.

    ``groups`` are the ranks of its process group where they are listed elsewhere.
    """

    name: str
    inputs: tuple[Shape | tuple[Shape, ...] | None, ...] = ()
    values: tuple[str, ...] = ()
    message: Mapping[str, object] | None = None
    groups: Groups = ()

    @property
    def tensors(self) -> tuple[Shape, ...]:
        """Its inputs that are tensors, of lists each."""
        found: list[Shape] = []
        for one in self.inputs:
            found += one if isinstance(one, tuple) else [one] if one is not None else []
        return tuple(found)

    def value(self, place: int) -> str:
        """An input that is no tensor, as text; empty where it is not known."""
        return self.values[place] if place < len(self.values) else ""


def call_of(name: str, dims: str, types: str, values: str, message: str) -> Call:
    """Read what an event tells of a call; texts are JSON, or empty."""
    shapes, kinds = _listed(dims), _listed(types)
    inputs = [
        _input(one, kinds[place] if place < len(kinds) else "") for place, one in enumerate(shapes)
    ]
    told = json.loads(message) if message else None
    return Call(name, tuple(inputs), tuple(map(str, _listed(values))), told)


def process_groups(others: Mapping[str, object]) -> dict[str, Groups]:
    """The groups that the trace lists by name (``distributedInfo``): all ranks of each."""
    info = others.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    found: dict[str, Groups] = {}
    for one in listed if isinstance(listed, list) else []:
        told = one if isinstance(one, dict) else {}
        ranks = told.get("ranks")
        is_list = isinstance(ranks, list) and len(ranks) == told.get("pg_size")
        if is_list and ranks and all(_count(rank) >= 0 for rank in ranks):
            found[str(told.get("pg_name"))] = (tuple(ranks),)
    return found


def gloo_message(name: str) -> Mapping[str, object] | None:
    """What the name of an annotation says of a collective that gloo runs; None for any other."""
    return {"Collective name": name.removeprefix(GLOO)} if name.startswith(GLOO) else None


def _listed(text: str) -> list[object]:
    found = json.loads(text) if text else []
    return found if isinstance(found, list) else []


def _input(dims: object, kind: object) -> Shape | tuple[Shape, ...] | None:
    """A tensor, or a list of them; None for a scalar, and where the type is not known."""
    if not isinstance(dims, list):
        return None
    if kind == "TensorList" or (dims and all(isinstance(one, list) for one in dims)):
        return tuple(Shape("", _dims(one), unread="") for one in dims)
    dtype, sizes = DTYPES.get(str(kind)), _dims(dims)
    return Shape(dtype, sizes) if dtype and prod(sizes) < _MOST_ELEMENTS else None


def _dims(given: object) -> tuple[int, ...]:
    numbers = given if isinstance(given, list) else []
    return tuple(int(n) for n in numbers if isinstance(n, int) and 0 <= n < 2**62)


@dataclass(frozen=True)
class Made:
    """An instruction without its name and place: what it does, reads and gives."""

    opcode: str
    result: Shape = NO_SHAPE
    operands: tuple[Shape, ...] = ()
    attributes: Attributes = NO_ATTRIBUTES
    target: str = ""
    config: str = ""
    groups: Groups = ()


def numbers_in(text: str) -> list[int]:
    """Whole numbers of a list as text."""
    return [int(n) for n in re.findall(r"-?\d+", text)]


def collective(call: Call) -> Made:
    """What is sent, by whom: the result has the elements that the message says."""
    message = call.message or {}
    plain = str(message.get("Collective name", "")).removeprefix("nccl:").lower()
    opcode = COLLECTIVES.get(plain, "custom-call")
    dtype = _MESSAGE_DTYPES.get(str(message.get("dtype", "")), "") if plain not in _TO_ONE else ""
    sent, received = (_count(message.get(f"{way} msg nelems")) for way in ("In", "Out"))
    result = Shape(dtype, (received,)) if dtype and received >= 0 else NO_SHAPE
    operands = (Shape(dtype, (sent,)),) if dtype and sent >= 0 else ()
    target = call.name if opcode == "custom-call" else ""
    return Made(opcode, result, operands, target=target, groups=_groups(message, call.groups))


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**62 else -1


def _groups(message: Mapping[str, object], listed_elsewhere: Groups) -> Groups:
    """The ranks of the group, `NOT_READ` where they are not all listed and follow from nothing."""
    size = _count(message.get("Group size"))
    listed = message.get("Process Group Ranks")
    text = listed if isinstance(listed, str) else json.dumps(listed or [])
    ranks = numbers_in(text)
    if "..." not in text and len(ranks) == size:
        return (tuple(ranks),)
    start, stride = (_count(message.get(f"Global rank {key}")) for key in ("start", "stride"))
    if 0 < size <= _MOST_RANKS and start >= 0 and stride > 0:
        return (tuple(range(start, start + size * stride, stride)),)
    return listed_elsewhere or NOT_READ
