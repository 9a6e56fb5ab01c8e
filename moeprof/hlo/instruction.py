"""One instruction of a compiled program, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from moeprof.hlo.attributes import NO_ATTRIBUTES, Attributes
from moeprof.hlo.frames import Frames
from moeprof.hlo.groups import Groups
from moeprof.hlo.shape import Shape

NO_SHAPE = Shape("", unread="")


class Instruction(NamedTuple):
    """One HLO instruction; operands and called computations are named.

    A tuple, since a program has tens of thousands. Numbers that an instruction lacks are -1, texts
    empty. ``size_bytes`` is the size of all parts of its ``result``; ``groups`` is empty where all
    devices take part; ``pairs`` are (source, target) of a permutation; ``async_pair`` ends or
    began the same work, which is ``async_opcode``; ``config`` is the backend's configuration, cut
    where it is long; ``schedule`` the place in its computation's order.
    """

    name: str
    opcode: str
    result: Shape = NO_SHAPE
    operands: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    attributes: Attributes = NO_ATTRIBUTES
    computation: str = ""
    is_root: bool = False
    size_bytes: int = -1
    op_name: str = ""
    frames: Frames = ()
    target: str = ""
    config: str = ""
    groups: Groups = ()
    parameter: int = -1
    trip_count: int = -1
    id: int = -1
    schedule: int = -1
    channel_id: int = -1
    uses_global_ids: bool = False
    pairs: Groups = ()
    async_pair: str = ""
    async_opcode: str = ""
    api_version: str = ""

    @property
    def shape(self) -> str:
        """The text of its result: ``f32[8,128]``, tuples in brackets."""
        return self.result.text

    @property
    def dims(self) -> tuple[int, ...]:
        """Dimensions of an array result; of a tuple's first part."""
        return self.result.first.dims

    @property
    def dtype(self) -> str:
        """Element type; of a tuple's first part."""
        return self.result.first.dtype

    @property
    def details(self) -> Mapping[str, str]:
        """Its attributes as texts, by the keys of column ``details`` of `HLO_OPS`."""
        return self.attributes.details

    @property
    def primitive(self) -> str:
        """Last element of the op_name: the JAX primitive, as far as it survived."""
        return self.op_name.rpartition("/")[2].rstrip(")")

    @property
    def group_size(self) -> int:
        """Devices in the first group of a collective; 0 where it names none."""
        return len(self.groups[0]) if self.groups else 0

    @property
    def base_opcode(self) -> str:
        """Opcode without the ``-start`` or ``-done`` of its asynchronous halves."""
        return self.opcode.removesuffix("-start").removesuffix("-done")
