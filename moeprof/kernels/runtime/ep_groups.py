"""Question: which devices exchange tokens with each other, here or on GPUs that are planned for?

An EP group is an ordered list of devices; the position in it is the rank, and rank ``r`` owns the
experts ``[r × E/EP, (r+1) × E/EP)``. Several groups may coexist (an ``expert`` × ``fsdp`` mesh).
The devices of a group belong to one process, or to as many processes as it has ranks.

Inside `planning` the native operations lower for CUDA and ROCm to custom calls of their shapes,
which no handler of ours computes: a program compiled so tells its memory, and nothing can come of
running it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import jax
import numpy as np

from moeprof.kernels.preflight import PreflightError

TARGETS = (
    "moeprof_grouped_gemm",
    "moeprof_grouped_gemm_variable_k",
    "moeprof_moe_dispatch",
    "moeprof_moe_cached_dispatch",
    "moeprof_moe_combine",
)
"""Custom calls of planned programs. XLA asks for a handler of each before it compiles one."""


@dataclass(frozen=True)
class EpGroups:
    """The EP groups of one process, or all EP groups of a job of processes with a device each.

    Attributes:
        members: one tuple per group, in rank order: device ordinals of this process, or process
            indices.
        axis_name: the mesh axis that experts are sharded over.
        of_processes: whether a rank is a process.
        platform: what the devices are, as JAX names it: "cpu" or "gpu".
    """

    members: tuple[tuple[int, ...], ...]
    axis_name: str
    of_processes: bool = False
    platform: str = "cpu"

    @property
    def ep_size(self) -> int:
        """Ranks per group."""
        return len(self.members[0])

    @property
    def mode(self) -> str:
        """How the ranks reach each other, as the name of a custom call ends."""
        return "per_process" if self.of_processes else "inproc"

    @property
    def num_devices(self) -> int:
        """Devices in all groups together."""
        return sum(len(group) for group in self.members)


def local_group(axis_name: str) -> EpGroups:
    """All devices of this process as one group, in the order of their ordinals."""
    devices = sorted(jax.local_devices(), key=local_ordinal)
    ordinals = tuple(map(local_ordinal, devices))
    return EpGroups((ordinals,), axis_name, platform=devices[0].platform)


def groups_along(mesh: jax.sharding.Mesh, axis_name: str) -> EpGroups:
    """Groups along one axis of a mesh, as far as they lie in this process.

    Args:
        mesh: the mesh that the training step runs on.
        axis_name: the axis that experts are sharded over.

    Raises:
        PreflightError: no such axis, or a group spans processes.
    """
    if axis_name not in mesh.axis_names:
        raise PreflightError(
            f"setup: expected `ep_axis_name` to be an axis of the mesh {tuple(mesh.axis_names)}, "
            f"found {axis_name!r}. Pass ep_axis_name=… or a mesh with that axis."
        )
    here = jax.process_index()
    lines = lines_along(mesh, axis_name)
    groups = [line for line in lines if any(device.process_index == here for device in line)]
    for group in groups:
        owners = sorted({device.process_index for device in group})
        if owners != [here]:
            raise PreflightError(
                f"setup(mode='inproc'): expected the devices along {axis_name!r} to belong to one "
                f"process, found processes {owners}. Order the mesh so that {axis_name!r} stays "
                "inside a process."
            )
    if not groups:
        raise PreflightError(f"setup: the mesh has no device of process {here}.")
    members = tuple(tuple(map(local_ordinal, group)) for group in groups)
    return EpGroups(members, axis_name, platform=groups[0][0].platform)


def lines_along(mesh: jax.sharding.Mesh, axis_name: str) -> list[tuple[jax.Device, ...]]:
    """Every line of devices along one axis of a mesh."""
    axis = mesh.axis_names.index(axis_name)
    rows = np.moveaxis(mesh.devices, axis, -1).reshape(-1, mesh.devices.shape[axis])
    return [tuple(row) for row in rows]


def require_groups_of_mesh(groups: EpGroups, mesh: jax.sharding.Mesh) -> None:
    """Refuse a mesh on which the native exchange would take other devices for the ranks.

    A group runs along the axis of `setup`, or, where the mesh has no such axis, along all its axes.

    Args:
        groups: what `setup` decided.
        mesh: of the `jax.shard_map` around a dispatch or combine.

    Raises:
        PreflightError: a line of devices of this process is no EP group, in rank order.
    """
    number = _process if groups.of_processes else local_ordinal
    lines = [tuple(map(number, line)) for line in _lines_here(mesh, groups.axis_name)]
    if set(lines) <= set(groups.members):
        return
    raise PreflightError(
        f"moe_dispatch, moe_combine: expected the devices of jax.shard_map's mesh along "
        f"{groups.axis_name!r} to be the EP groups of setup, {list(groups.members)} in rank order, "
        f"found {lines} on the mesh {dict(mesh.shape)}. Pass this mesh to setup(mesh=…, "
        "ep_axis_name=…)."
    )


def _lines_here(mesh: jax.sharding.Mesh, axis_name: str) -> list[tuple[jax.Device, ...]]:
    whole = [tuple(mesh.devices.flat)]
    lines = lines_along(mesh, axis_name) if axis_name in mesh.axis_names else whole
    here = jax.process_index()
    return [line for line in lines if any(device.process_index == here for device in line)]


def _process(device: jax.Device) -> int:
    return int(device.process_index)


def local_ordinal(device: jax.Device) -> int:
    """The number by which this process's runtime knows one of its devices."""
    ordinal = device.local_hardware_id
    return device.id if ordinal is None else int(ordinal)


_groups: ContextVar[EpGroups | None] = ContextVar("groups", default=None)


@contextmanager
def planning(ep_size: int, axis_name: str) -> Iterator[None]:
    """Compile for GPUs that are not there, with `ep_size` ranks along a mesh axis.

    `setup` is neither needed nor looked at. What JAX traced inside is forgotten afterwards.
    """
    token = _groups.set(EpGroups((tuple(range(ep_size)),), axis_name))
    try:
        yield
    finally:
        _groups.reset(token)
        jax.clear_caches()  # type: ignore[no-untyped-call]


def planned_groups() -> EpGroups | None:
    """One EP group that stands for all of the planned program; None outside `planning`."""
    return _groups.get()


def is_planning() -> bool:
    """Whether programs are compiled only to be looked at."""
    return _groups.get() is not None
