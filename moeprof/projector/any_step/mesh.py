"""Question: over which mesh of devices that are not there does a function, or an array, lie?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)

from moeprof.errors import SelectionError
from moeprof.projector.any_step.absent_array import Spec, here, is_absent, places_of

MeshLike = Mesh | AbstractMesh | Mapping[str, int] | None
ALONE = "devices"
"""The axis of a mesh that nobody named."""


def mesh_of(asked: MeshLike, devices: int | None, shardings: Any) -> AbstractMesh:
    """The mesh that was asked for; else that of shardings, or of a context; else a plain one.

    Args:
        asked: a mesh, or the sizes of its axes by name.
        devices: how many there are to be; None for as many as the mesh has.
        shardings: trees in which the meshes of arguments are looked for.

    Raises:
        SelectionError: it is none, shardings name several, or it has another number of devices.
    """
    named = list(dict.fromkeys(_meshes_in(shardings)))
    if asked is None:
        mesh = _only(named) or _of_context() or _of_sizes({ALONE: devices or 1})
    else:
        mesh = asked if isinstance(asked, AbstractMesh) else _abstract(asked)
        # of the same axes: the shardings' own, which says how its axes are meant too
        mesh = next((each for each in named if dict(each.shape) == dict(mesh.shape)), mesh)
    check_devices(mesh.shape, devices)
    return mesh


def check_devices(axes: Mapping[str, int], devices: int | None) -> None:
    """Check that a mesh has as many devices as there are to be; None is any number.

    Raises:
        SelectionError: it has not.
    """
    size = prod(axes.values())
    if devices is not None and size != devices:
        raise SelectionError(
            f"plan: expected a mesh of {devices} devices, found {mesh_text(axes)}, which is "
            f"{size}. Give devices={size}, or another mesh."
        )


def mesh_text(axes: Mapping[str, int]) -> str:
    """``data 4 × model 8``."""
    return " × ".join(f"{name} {size}" for name, size in axes.items())


def sharded(tree: Any, mesh: AbstractMesh) -> Any:
    """A tree in which each PartitionSpec is a sharding over the mesh."""
    return jax.tree.map(
        lambda leaf: NamedSharding(mesh, leaf) if isinstance(leaf, PartitionSpec) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
    )


def _meshes_in(tree: Any) -> Iterator[AbstractMesh]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, NamedSharding))
    for leaf in leaves:
        sharding = leaf if isinstance(leaf, NamedSharding) else getattr(leaf, "sharding", None)
        is_array = isinstance(leaf, jax.Array)  # where it lies now, which may be one device
        if isinstance(sharding, NamedSharding) and not (is_array and sharding.mesh.size == 1):
            mesh = sharding.mesh
            yield mesh if isinstance(mesh, AbstractMesh) else mesh.abstract_mesh


def _only(named: list[AbstractMesh]) -> AbstractMesh | None:
    if len(named) > 1:
        found = ", ".join(mesh_text(mesh.shape) for mesh in named)
        raise SelectionError(
            f"plan: expected shardings over one mesh, found {found}. Put all arguments on one."
        )
    return named[0] if named else None


def _of_context() -> AbstractMesh | None:
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else mesh


def _abstract(asked: object) -> AbstractMesh:
    if isinstance(asked, Mesh):
        abstract: AbstractMesh = asked.abstract_mesh
        return abstract
    sizes = dict(asked) if isinstance(asked, Mapping) else {}
    is_whole = all(isinstance(s, int | np.integer) and s > 0 for s in sizes.values())
    if not sizes or not is_whole or not all(isinstance(name, str) for name in sizes):
        raise SelectionError(
            "plan: expected mesh to be a mesh of JAX or sizes by the names of its axes, as "
            f"{{'data': 8, 'model': 8}}, found {asked!r}."
        )
    return _of_sizes({name: int(size) for name, size in sizes.items()})


def _of_sizes(sizes: Mapping[str, int]) -> AbstractMesh:
    types = (AxisType.Auto,) * len(sizes)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=types)


# Where arrays of a script lie.


def default_sharding() -> Sharding:
    """Where an array is that nobody puts anywhere."""
    device = getattr(jax.config, "jax_default_device", None)
    if isinstance(device, str):
        device = here().cpu if device == "cpu" else None
    return SingleDeviceSharding(device or here().devices[0])


def meshes_of(like: Sequence[Any]) -> list[Mesh]:
    """The meshes that arrays were put on."""
    found = [x.sharding for x in like if is_absent(x) and x.committed]
    named = [s.mesh for s in found if isinstance(s, NamedSharding)]
    return [mesh for mesh in named if isinstance(mesh, Mesh)]


def sharding_like(aval: Any, like: Sequence[Any]) -> Sharding | None:
    """That of an argument of the same shape; else all of it on each of the same devices."""
    placed = [x for x in like if is_absent(x) and x.committed]
    for one in placed:
        if one.shape == aval.shape:
            return one.sharding  # type: ignore[no-any-return]
    meshes = meshes_of(placed)
    if meshes:
        return NamedSharding(meshes[0], PartitionSpec())  # type: ignore[no-untyped-call]
    return placed[0].sharding if placed else None


def is_over_devices(sharding: Any) -> bool:
    """Whether it is a sharding that names devices, and not the axes of an abstract mesh alone."""
    if isinstance(sharding, NamedSharding):
        return isinstance(sharding.mesh, Mesh)
    return isinstance(sharding, Sharding)


def is_on_host(args: Sequence[Any]) -> bool:
    """Whether the host's own device computes it."""
    placed = [value.sharding for value in args if is_absent(value) and value.committed]
    return bool((placed or [default_sharding()])[0].device_set == {here().cpu})


def spec_of(value: Any, told: Sharding | None) -> Spec:
    """What a program is told of an argument: the sharding of its own, unless one is told."""
    aval = jax.typeof(value)
    own = value.sharding if is_absent(value) and value.committed else None
    return Spec(tuple(aval.shape), aval.dtype, bool(aval.weak_type), told or own)


def alive_beside(args: Sequence[Any], results: Sequence[Sharding | None]) -> Counter[str]:
    """Bytes of arrays that are no arguments, by the line that made them.

    On the one of the program's devices that holds most of them.
    """
    given = {serial for value in args if is_absent(value) for serial in value.owners()}
    made: dict[frozenset[Any], Counter[str]] = defaultdict(Counter)
    for each in list(here().live.values()):
        if each._serial not in given and each.device_bytes:
            made[each.places][each.made_at] += each.device_bytes
    told = [*results, *(x.sharding for x in args if is_absent(x) and x.committed)]
    over = frozenset().union(*(places_of(each) for each in told if each is not None))
    held = by_device({places: lines.total() for places, lines in made.items()})
    among = [device for device in held if device in over or not over]
    fullest = max(among, key=lambda device: (held[device], -device.id), default=None)
    return sum((lines for places, lines in made.items() if fullest in places), Counter())


def by_device(held: Mapping[frozenset[Any], int]) -> Counter[Any]:
    """Bytes of each device, of those that arrays hold of all devices of a set."""
    found: Counter[Any] = Counter()
    for places, size in held.items():
        for device in places:
            found[device] += size
    return found
