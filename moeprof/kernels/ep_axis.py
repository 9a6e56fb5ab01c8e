"""Question: which axes of the surrounding shard_map does an EP group run along?

The slow twin exchanges rows by `jax.lax.all_gather` and needs the names; the native op finds its
group by the device it runs on.
"""

from __future__ import annotations

import jax

from moeprof.kernels.preflight import PreflightError
from moeprof.kernels.runtime import FrozenRuntimeState


def ep_axis(state: FrozenRuntimeState) -> str | tuple[str, ...]:
    """The axis of `setup`, or all axes of the shard_map where they make one group.

    Raises:
        PreflightError: not inside a shard_map whose axes make groups of the EP size.
    """
    manual = _bound_axes()
    found = manual.get(state.ep_axis_name)
    if found == state.ep_size:
        return state.ep_axis_name
    total = 1
    for size in manual.values():
        total *= size
    if found is None and manual and total == state.ep_size:
        return tuple(manual)
    raise PreflightError(
        f"moe_dispatch, moe_combine: expected to run inside jax.shard_map over an axis "
        f"{state.ep_axis_name!r} of size {state.ep_size} (from setup), found axes {manual}. "
        "Name the axis in setup(ep_axis_name=…) and shard over it."
    )


def _bound_axes() -> dict[str, int]:
    mesh = jax.sharding.get_abstract_mesh()
    return {str(name): mesh.shape[name] for name in mesh.axis_names if name in mesh.manual_axes}
