"""Question: what is known of an array on a device that is not there?

Its shape, its type and how it is split (`AbsentArray`); to a script it is one like any other. No
value is ever computed: whatever the host reads is 0, and `World.reads` says where it was read.
`absent` lets JAX make these, and keeps the programs that they are given to (`Call`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import sysconfig
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from moeprof.interpreter import installed_as

_ON_HOST = ("pinned_host", "unpinned_host")
_PATHS = {sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")}
_LIBRARIES = tuple(path + os.sep for path in _PATHS)
_OURS = str(Path(__file__).parents[2]) + os.sep
_START = str(Path.cwd()) + os.sep
_serial = itertools.count()
FOLDERS = tuple(str(Path(package).parent) + os.sep for package in (jax.__file__, np.__file__))
"""Of JAX and numpy; what a file of theirs starts with."""


@dataclass(frozen=True)
class Spec:
    """Shape of an array, and its sharding where the program has to keep to it."""

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool
    sharding: Sharding | None

    @property
    def key(self) -> tuple[object, ...]:
        """Alike for all shardings that leave it whole: such are one program here."""
        return self.shape, str(self.dtype), str(self.sharding) if self.is_split else ""

    @property
    def is_split(self) -> bool:
        """Whether a device has a part of it."""
        return self.sharding is not None and self.sharding.shard_shape(self.shape) != self.shape

    @property
    def device_bytes(self) -> int:
        """Bytes of the part that a device has of it."""
        split = self.sharding.shard_shape(self.shape) if self.sharding else self.shape
        return prod(split) * int(self.dtype.itemsize)


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a jitted function.

    ``source`` is where the function is, ``at`` where the script calls it. ``is_fed``: whether it is
    given results of the same function, as a training step is. ``results_bytes`` are of
    a device, as far as the results' shardings are told; ``others_bytes`` are of arrays that are
    alive beside its arguments, ``others`` the lines that made most of these.
    """

    name: str
    source: str
    at: str
    jaxpr: Any
    arguments: tuple[Spec, ...]
    out_shardings: tuple[Sharding | None, ...]
    donated: tuple[bool, ...]
    keep_unused: bool
    is_fed: bool
    results_bytes: int
    others_bytes: int
    others: tuple[tuple[str, int], ...]

    @property
    def arguments_bytes(self) -> int:
        """Of a device."""
        return sum(each.device_bytes for each in self.arguments)

    @property
    def key(self) -> tuple[object, ...]:
        """What calls of one program have in common, beside what it computes."""
        split = tuple(each.key for each in self.arguments)
        return self.name, self.source, split, tuple(map(str, self.out_shardings)), self.donated


@dataclass(eq=False)
class World:
    """The absent devices, the arrays on them, and what the host read of these.

    ``folder`` is the script's. ``on_new`` is told of each array that takes memory, and returns what
    to call once it is given up.
    """

    folder: str
    devices: tuple[Any, ...]
    cpu: Any
    pool_bytes: int
    on_call: Callable[[Call], None]
    on_new: Callable[[AbsentArray], Callable[[], object]]
    reads: Counter[tuple[str, str]] = field(default_factory=Counter)
    live: weakref.WeakValueDictionary[int, AbsentArray] = field(
        default_factory=weakref.WeakValueDictionary
    )
    left_out: Counter[str] = field(default_factory=Counter)
    passing: threading.local = field(default_factory=threading.local)


_entered: list[World] = []


def here() -> World:
    """The world that this process has entered."""
    return _entered[-1]


def set_world(world: World) -> None:
    """Enter a world."""
    _entered.append(world)


def caller() -> str:
    """File and line that is running: of the script and what lies beside it, else of a library."""
    frame, others = sys._getframe(1), ["", ""]
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name):
            if name.startswith(here().folder):
                return shown(name, frame.f_lineno)
            others[0] = others[0] or shown(name, frame.f_lineno)
        elif not name.startswith(("<", _OURS, *FOLDERS)):
            others[1] = others[1] or shown(name, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return others[0] or others[1]


def shown(file: str, line: object) -> str:
    """A line of code, its file as seen from the current folder, or of an installed package."""
    return f"{installed_as(file).removeprefix(_START)}:{line}"


def is_users(file: str) -> bool:
    """Whether a file of code is none of a library."""
    return not file.startswith(("<", _OURS, *FOLDERS, *_LIBRARIES))


def is_of_jax(file: str) -> bool:
    """Whether functions of a file are JAX's or numpy's own; those that `jax.pmap` maps are not."""
    return file.startswith(FOLDERS) and not file.endswith("pmap.py")


def read(what: str) -> None:
    """Note that the host reads a value at the line that is running."""
    here().reads[what, caller()] += 1


def stating_memory(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """In place of what a device says of its memory: of an absent one that it is empty."""

    def memory_stats(device: Any) -> Any:
        if device not in here().devices:
            return original(device)
        read("memory_stats")
        return {"bytes_in_use": 0, "peak_bytes_in_use": 0, "bytes_limit": here().pool_bytes}

    return memory_stats


class AbsentArray(jax.Array):
    """An array of a device that is not there; to a script one like any other."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, aval: Any, sharding: Sharding, committed: bool, parts: Sequence[AbsentArray] = ()
    ) -> None:
        """Keep what is known of it; where it is in the memory of others, ``parts`` are these."""
        self.aval = aval  # type: ignore[misc]
        self._sharding, self._committed = sharding, committed
        self.made_by = ""  # the function that it is a result of
        self.made_at, self._is_deleted = "" if parts else caller(), False
        self._serial, self._parts = next(_serial), tuple(parts)
        if not parts:
            here().live[self._serial] = self
            self._give_up = here().on_new(self)

    shape = property(lambda self: self.aval.shape)
    dtype = property(lambda self: self.aval.dtype)
    ndim = property(lambda self: len(self.aval.shape))
    size = property(lambda self: prod(self.aval.shape))
    weak_type = property(lambda self: self.aval.weak_type)
    sharding = property(lambda self: self._sharding)
    committed = property(lambda self: self._committed)
    is_fully_addressable = property(lambda self: True)
    is_fully_replicated = property(lambda self: self._sharding.is_fully_replicated)
    global_shards = property(lambda self: self.addressable_shards)

    @property
    def device(self) -> Any:
        """Its device, or its sharding where there are several."""
        devices = self._sharding.device_set
        return next(iter(devices)) if len(devices) == 1 else self._sharding

    @property
    def device_bytes(self) -> int:
        """Bytes on one of its devices; 0 where it lies in the host's memory."""
        is_on_host = self._sharding.memory_kind in _ON_HOST or self.device == here().cpu
        spec = Spec(self.shape, self.dtype, False, self._sharding)
        return 0 if is_on_host else spec.device_bytes

    @property
    def addressable_shards(self) -> list[Any]:
        """Its parts, one a device."""
        return [_Shard(self, device) for device in self._sharding.device_set]

    def addressable_data(self, index: int) -> Any:
        """One of its parts."""
        return self.addressable_shards[index].data

    def devices(self) -> set[Any]:
        """Where it lies."""
        return set(self._sharding.device_set)

    def block_until_ready(self) -> Any:
        """Return at once."""
        return self

    def copy_to_host_async(self) -> None:
        """Do nothing."""

    def commit(self, is_told: bool) -> None:
        """Keep it where it is, if someone said so."""
        self._committed = self._committed or is_told

    def delete(self) -> None:
        """Give its memory up."""
        self._is_deleted = True
        if not self._parts:
            here().live.pop(self._serial, None)
            self._give_up()
        for each in self._parts:
            if each.places <= self.places:  # and no whole of which this is the part
                each.delete()

    @property
    def places(self) -> frozenset[Any]:
        """Its devices."""
        return places_of(self._sharding)

    def owners(self) -> Iterator[int]:
        """Serial numbers of the arrays in whose memory it is: its own, or its parts'."""
        for each in self._parts:
            yield from each.owners()
        if not self._parts:
            yield self._serial

    def is_deleted(self) -> bool:
        """Whether it was given up, or donated."""
        return self._is_deleted

    def on_device_size_in_bytes(self) -> int:
        """Bytes of one device."""
        return self.device_bytes

    def _zeros(self, what: str) -> Any:
        read(what)
        is_key = jax.numpy.issubdtype(self.dtype, jax.dtypes.extended)
        return np.zeros(self.shape, np.uint32 if is_key else self.dtype)

    def __array__(self, dtype: Any = None, context: None = None, copy: bool | None = None) -> Any:
        """Zeros."""
        return self._zeros("numpy").astype(dtype or self.dtype)

    def item(self, *args: int) -> Any:
        """Zero."""
        return self._zeros("item").item(*args)

    def tolist(self) -> Any:
        """Zeros."""
        return self._zeros("tolist").tolist()

    def __format__(self, spec: str) -> str:
        """Zero, as it is to be shown."""
        return format(self._zeros("format")[()], spec) if not self.ndim else repr(self)

    def __repr__(self) -> str:
        """Its type."""
        return f"Array({self.aval.str_short()} of an absent device)"

    def __len__(self) -> int:
        """Length of its first dimension."""
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        """Its parts along the first dimension."""
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[index] for index in range(self.shape[0]))

    def __reduce__(self) -> Any:
        """Zeros, for another process."""
        return np.asarray, (self._zeros("pickle"),)

    def __copy__(self) -> Any:
        """Itself: no one changes it."""
        return self

    def __deepcopy__(self, memo: object) -> Any:
        """Another array like it."""
        return AbsentArray(self.aval, self._sharding, self._committed)


def _reader(name: str) -> Callable[[AbsentArray], Any]:
    def read_value(self: AbsentArray) -> Any:
        return getattr(self._zeros(name), f"__{name}__")()

    return read_value


for _name in ("bool", "int", "float", "complex", "index"):
    setattr(AbsentArray, f"__{_name}__", _reader(_name))


class _Shard:
    """One part of an array."""

    def __init__(self, whole: AbsentArray, device: Any) -> None:
        self._whole, self.device, self.replica_id = whole, device, 0

    @property
    def index(self) -> Any:
        """Which part of the whole it is."""
        return self._whole.sharding.devices_indices_map(self._whole.shape)[self.device]

    @property
    def data(self) -> AbsentArray:
        """It as an array, which takes no memory of its own."""
        shape = self._whole.sharding.shard_shape(self._whole.shape)
        aval = jax.core.ShapedArray(shape, self._whole.dtype)
        return AbsentArray(aval, SingleDeviceSharding(self.device), True, [self._whole])


def is_absent(value: object) -> bool:
    """Whether it is an array of an absent device."""
    return isinstance(value, AbsentArray)


@functools.lru_cache(maxsize=1024)
def places_of(sharding: Sharding) -> frozenset[Any]:
    """The devices of a sharding."""
    return frozenset(sharding.device_set)


@contextlib.contextmanager
def passing() -> Iterator[None]:
    """What is made in here does not lie on a device beside all that is there."""
    here().passing.is_on = True
    try:
        yield
    finally:
        here().passing.is_on = False
