"""Question: how is expert parallelism set up in this process?

`setup` decides once and freezes; everything else reads the frozen state. The order of the checks
and their kinds of error are Primus-Turbo's (a6a16cdce, primus_turbo/jax/lax/moe). Two things are
better here: a mesh is honoured inside one process, and EP sizes from 1 to 8 all work.
"""

from __future__ import annotations

import enum
import os
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from moeprof.errors import SpecError
from moeprof.kernels.arguments import instance, integer, integers
from moeprof.kernels.backends import gpu_library
from moeprof.kernels.preflight import PreflightError
from moeprof.kernels.runtime import process_group
from moeprof.kernels.runtime.config import (
    DEFAULT_NUM_SMS,
    MAX_NVL_RANKS,
    Config,
    check_hidden_bytes,
    check_num_sms,
    check_per_process_size,
    dispatch_config,
    nvl_buffer_size_bytes,
    rdma_buffer_size_bytes,
)
from moeprof.kernels.runtime.ep_groups import (
    EpGroups,
    groups_along,
    lines_along,
    local_group,
    planned_groups,
)
from moeprof.kernels.runtime.process_group import abort_waiting_ranks, agree, timeout_ms

MODE_VARIABLE = "PRIMUS_TURBO_JAX_DEEPEP_MODE"
_MODES = ("inproc", "per_process")


class SetupError(SpecError, RuntimeError):
    """Expert parallelism is not set up, or is set up otherwise."""


class LaunchMode(enum.IntEnum):
    """Where the ranks of a group live."""

    INPROC = 0
    PER_PROCESS = 1


@dataclass(frozen=True)
class FrozenRuntimeState:
    """What `setup` decided.

    Attributes:
        mode: where the ranks live; ``launch_mode`` is the same as an integer.
        ep_size: ranks per EP group.
        is_internode: whether a group spans nodes.
        num_sms: compute units given to the transport.
        source_meta_bytes: 8 where a group spans nodes, else 0.
        groups: the EP groups of this process.
        ep_axis_name: the mesh axis that experts are sharded over.
    """

    mode: LaunchMode
    launch_mode: int
    ep_size: int
    is_internode: bool
    num_sms: int
    source_meta_bytes: int
    groups: EpGroups
    ep_axis_name: str


@dataclass(frozen=True)
class _Request:
    """The arguments of `setup`, to tell a repeated call from a different one."""

    hidden_bytes: int | None
    mesh: jax.sharding.Mesh | None
    ep_ranks: tuple[int, ...] | None
    ep_axis_name: str
    num_sms: int
    mode: LaunchMode


_lock = threading.Lock()
_frozen: tuple[_Request, FrozenRuntimeState] | None = None
_ep_ranks: tuple[int, ...] | None = None


def setup(
    *,
    hidden_bytes: int | None = None,
    mesh: jax.sharding.Mesh | None = None,
    ep_ranks: Sequence[int] | None = None,
    ep_axis_name: str = "expert",
    num_sms: int | None = None,
    mode: str | None = None,
) -> None:
    """Decide how tokens travel, once per process.

    The same call again changes nothing; another one is refused until `reset_runtime`.

    Args:
        hidden_bytes: ``hidden × max(itemsize, 2)``, the bytes of a token's row. PER_PROCESS needs
            it, as Primus-Turbo does to size its buffers. Ours needs none: ranks read and write each
            other's arrays where XLA put them.
        mesh: mesh whose ``ep_axis_name`` axis makes the EP groups. Without it all devices of this
            process are one group.
        ep_ranks: process indices of the EP group in rank order (PER_PROCESS); not together with
            ``mesh``.
        ep_axis_name: the mesh axis that experts are sharded over.
        num_sms: compute units for the transport, even; 64 by default.
        mode: "inproc" or "per_process"; by default what the environment variable
            ``PRIMUS_TURBO_JAX_DEEPEP_MODE`` says, else "inproc" unless every process has one
            device.

    PER_PROCESS takes GPUs of one host, one per process, and EP 2 to 8; all processes of the job
    must call `setup`, since they agree on the groups and connect here.

    Raises:
        PreflightError: (a ValueError) an argument that cannot be, or processes that contradict.
        SetupError: (a RuntimeError) set up differently before, or this build has no such transport.
        JoinError: (a RuntimeError) a process of the EP group does not come.
    """
    global _frozen
    launch = _check_mode(mesh, ep_ranks, mode)
    if mesh is not None:
        instance("setup: mesh", mesh, jax.sharding.Mesh, "a jax.sharding.Mesh or None")
    request = _Request(
        None if hidden_bytes is None else integer("setup: hidden_bytes", hidden_bytes),
        mesh,
        None if ep_ranks is None else integers("setup: ep_ranks", ep_ranks),
        instance("setup: ep_axis_name", ep_axis_name, str, "the name of a mesh axis"),
        DEFAULT_NUM_SMS if num_sms is None else integer("setup: num_sms", num_sms),
        launch,
    )
    check_num_sms(request.num_sms)
    with _lock:
        if _frozen is not None:
            _require_same(_frozen[0], request)
            return
        state = _inproc(request) if launch is LaunchMode.INPROC else _per_process(request)
        _frozen = (request, state)


def _check_mode(
    mesh: jax.sharding.Mesh | None, ep_ranks: Sequence[int] | None, mode: str | None
) -> LaunchMode:
    if mesh is not None and ep_ranks is not None:
        raise PreflightError("Pass either `mesh` or `ep_ranks`, not both.")
    if mode is not None and mode not in _MODES:
        raise PreflightError(f"`mode` must be one of {_MODES} or None, found {mode!r}.")
    if mode == "inproc" and jax.process_count() > 1:
        raise PreflightError(
            f"`mode='inproc'` needs a single process, found {jax.process_count()}. Leave `mode` "
            "out where each process holds whole EP groups, else use mode='per_process'."
        )
    if mode == "per_process" and jax.process_count() == 1 and jax.local_device_count() > 1:
        raise PreflightError(
            f"`mode='per_process'` needs one process per device, found one process with "
            f"{jax.local_device_count()} devices. Use mode='inproc'."
        )
    return _resolve_mode(mode)


def _resolve_mode(mode: str | None) -> LaunchMode:
    chosen = mode or os.environ.get(MODE_VARIABLE)
    if chosen is None:
        alone = jax.local_device_count() == 1 and jax.process_count() > 1
        chosen = "per_process" if alone else "inproc"
    if chosen not in _MODES:
        raise PreflightError(f"{MODE_VARIABLE} must be one of {_MODES}, found {chosen!r}.")
    return LaunchMode[chosen.upper()]


def _require_same(before: _Request, now: _Request) -> None:
    if before == now:
        return
    changed = [name for name in before.__dict__ if getattr(before, name) != getattr(now, name)]
    raise SetupError(
        f"setup() called with different configuration: {', '.join(changed)} changed "
        f"(was {[getattr(before, name) for name in changed]}, "
        f"now {[getattr(now, name) for name in changed]}). Call reset_runtime() first."
    )


def _inproc(request: _Request) -> FrozenRuntimeState:
    if request.ep_ranks is not None:
        warnings.warn(
            "setup: `ep_ranks` are process indices and mean nothing inside one process; ignored. "
            "Pass `mesh` to choose the EP groups.",
            stacklevel=3,
        )
    if request.mesh is None:
        groups = local_group(request.ep_axis_name)
    else:
        groups = groups_along(request.mesh, request.ep_axis_name)
    _check_inproc_size(groups.ep_size, request)
    return FrozenRuntimeState(
        mode=LaunchMode.INPROC,
        launch_mode=int(LaunchMode.INPROC),
        ep_size=groups.ep_size,
        is_internode=False,
        num_sms=request.num_sms,
        source_meta_bytes=0,
        groups=groups,
        ep_axis_name=request.ep_axis_name,
    )


def _check_inproc_size(ep_size: int, request: _Request) -> None:
    if 1 <= ep_size <= MAX_NVL_RANKS:
        return
    origin = "the devices of this process" if request.mesh is None else "the mesh axis"
    raise PreflightError(
        f"setup(mode='inproc'): expected an EP size from 1 to {MAX_NVL_RANKS}, found {ep_size} "
        f"({origin}). Nearest valid choice: {MAX_NVL_RANKS}."
    )


def _per_process(request: _Request) -> FrozenRuntimeState:
    ranks = _pinned_ranks(request)
    ep_size = len(ranks) if ranks else jax.process_count()
    config = dispatch_config(check_per_process_size(ep_size), request.num_sms)
    if request.hidden_bytes is None:
        raise PreflightError(
            "setup(mode='per_process'): `hidden_bytes` is needed to size the buffers; pass "
            "hidden × max(itemsize, 2)."
        )
    check_hidden_bytes(request.hidden_bytes)
    _check_transport(ep_size, request.hidden_bytes, config)
    own_group = ranks or tuple(range(jax.process_count()))
    agreement = agree(own_group)
    process_group.join(agreement, own_group, timeout_ms())
    groups = EpGroups(agreement.groups, request.ep_axis_name, of_processes=True, platform="gpu")
    return FrozenRuntimeState(
        mode=LaunchMode.PER_PROCESS,
        launch_mode=int(LaunchMode.PER_PROCESS),
        ep_size=ep_size,
        is_internode=False,
        num_sms=request.num_sms,
        source_meta_bytes=0,
        groups=groups,
        ep_axis_name=request.ep_axis_name,
    )


def _check_transport(ep_size: int, hidden_bytes: int, config: Config) -> None:
    """Refuse what this build or this machine cannot do between processes."""
    nvl_bytes = nvl_buffer_size_bytes(ep_size, hidden_bytes, config)
    rdma_bytes = rdma_buffer_size_bytes(ep_size, hidden_bytes, config)
    exchange = (
        f"setup(mode='per_process'): EP {ep_size} would exchange tokens between processes "
        f"(buffers of {nvl_bytes} B inside a node, {rdma_bytes} B between nodes)"
    )
    if jax.default_backend() != "gpu":
        raise SetupError(
            f"{exchange}, which needs one GPU per process; found JAX on {jax.default_backend()}. "
            "Run all EP ranks as devices of one process (mode='inproc')."
        )
    if ep_size > MAX_NVL_RANKS:
        raise SetupError(
            f"{exchange}; this build has no transport between nodes. Use an EP size of at most "
            f"{MAX_NVL_RANKS}, with the expert axis inside a host."
        )
    if jax.local_device_count() != 1:
        raise SetupError(
            f"{exchange}, which needs one GPU per process, found {jax.local_device_count()} in "
            "this one. Pass local_device_ids=[i] to jax.distributed.initialize."
        )
    reason = gpu_library.unavailable_reason()
    if reason is not None:
        raise SetupError(f"{exchange}: {reason}")


def _pinned_ranks(request: _Request) -> tuple[int, ...] | None:
    """The processes of the EP group: those of the request, else those pinned; pins none."""
    if request.mesh is not None and request.ep_axis_name in request.mesh.axis_names:
        here = jax.process_index()
        lines = [
            tuple(device.process_index for device in line)
            for line in lines_along(request.mesh, request.ep_axis_name)
        ]
        own = next((line for line in lines if here in line), None)
        if own is not None and len(set(own)) > 1:
            return _check_ep_group(own)
    elif request.ep_ranks is not None:
        return _check_ep_group(request.ep_ranks)
    return _ep_ranks


def set_ep_group(ranks: Sequence[int]) -> None:
    """Pin the processes of this process's EP group (PER_PROCESS), in rank order.

    Raises:
        PreflightError: (a ValueError) ranks repeat, or this process is not among them.
        SetupError: (a RuntimeError) another group is pinned already.
    """
    global _ep_ranks
    _ep_ranks = _check_ep_group(ranks)


def _check_ep_group(ranks: Sequence[int]) -> tuple[int, ...]:
    group = integers("set_ep_group: ranks", ranks)
    if len(set(group)) != len(group) or jax.process_index() not in group:
        raise PreflightError(
            f"set_ep_group: expected unique process indices including {jax.process_index()} "
            f"(this process), found {group}."
        )
    if _ep_ranks is not None and _ep_ranks != group:
        raise SetupError(
            f"set_ep_group: the EP group is {_ep_ranks} already, found {group}. "
            "Call reset_runtime() first."
        )
    return group


def frozen_state() -> FrozenRuntimeState:
    """What `setup` decided, or inside `planning` what it would have on the planned devices.

    Raises:
        SetupError: (a RuntimeError) `setup` has not been called.
    """
    planned = planned_groups()
    if planned is not None:
        return _planned(planned)
    if _frozen is None:
        raise SetupError(
            "setup() must be called before moe_dispatch, moe_combine, get_ep_size or is_internode; "
            "it has not been called in this process."
        )
    return _frozen[1]


def _planned(groups: EpGroups) -> FrozenRuntimeState:
    is_internode = groups.ep_size > MAX_NVL_RANKS
    return FrozenRuntimeState(
        mode=LaunchMode.PER_PROCESS,
        launch_mode=int(LaunchMode.PER_PROCESS),
        ep_size=groups.ep_size,
        is_internode=is_internode,
        num_sms=DEFAULT_NUM_SMS,
        source_meta_bytes=8 if is_internode else 0,
        groups=groups,
        ep_axis_name=groups.axis_name,
    )


def get_ep_size() -> int:
    """Ranks per EP group.

    Raises:
        SetupError: (a RuntimeError) `setup` has not been called.
    """
    return frozen_state().ep_size


def is_internode() -> bool:
    """Whether an EP group spans nodes, and the handle has its internode form.

    Raises:
        SetupError: (a RuntimeError) `setup` has not been called.
    """
    return frozen_state().is_internode


def reset_runtime() -> None:
    """Forget everything that `setup` and `set_ep_group` decided.

    Compiled programs carry the old EP
    groups inside, so JAX's caches are cleared and programs are traced anew.
    """
    global _frozen, _ep_ranks
    with _lock:
        had_state = _frozen is not None
        _frozen, _ep_ranks = None, None
    abort_waiting_ranks()
    process_group.leave()
    if had_state:
        jax.clear_caches()  # type: ignore[no-untyped-call]
