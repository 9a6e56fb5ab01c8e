"""Question: is the runtime of `moe_dispatch` and `moe_combine` set up for the mesh of this job?

It serves one mesh at a time, while one process may build several jobs one after the other.
"""

from __future__ import annotations

from jax.sharding import Mesh

from moeprof.errors import SpecError
from moeprof.kernels import reset_runtime, setup
from moeprof.kernels.planning import is_planning
from moeprof.model.job import Job


def start_exchange(job: Job, mesh: Mesh) -> None:
    """Set the runtime up for ``mesh``, in place of any other mesh it was set up for.

    Raises:
        SpecError: the mesh has no groups that can exchange tokens.
    """
    try:
        _setup(job, mesh)
    except RuntimeError:  # set up otherwise, here or in Primus-Turbo
        reset_runtime()
        _setup(job, mesh)


def require_exchange(job: Job, mesh: Mesh) -> None:
    """Check that the runtime is set up for ``mesh`` when a step is about to be compiled.

    Raises:
        SpecError: another job was made since this one.
    """
    if is_planning():
        return
    try:
        _setup(job, mesh)
    except RuntimeError as error:
        raise SpecError(
            f"train step of {job.strategy.name}: expected the exchange to be set up for its mesh, "
            "found it set up for that of a job made later. Call make_job again before this step."
        ) from error


def _setup(job: Job, mesh: Mesh) -> None:
    hidden_bytes = job.model.hidden * max(job.compute_dtype.itemsize, 2)
    setup(mesh=mesh, ep_axis_name="expert", hidden_bytes=hidden_bytes)
