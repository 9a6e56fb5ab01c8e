"""Question: where does a run go, and may it go there?"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from moeprof.errors import CaptureError

_LAUNCHES = (
    ("MOEPROF_LAUNCH_ID",),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid",),
)
_RANKS = ("JAX_PROCESS_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def default_run_dir(script: str, now: datetime) -> Path:
    """``runs/<script stem>-<time>``; a module's stem is its last name that says something."""
    name = Path(script).stem if script.endswith(".py") else script.removesuffix(".__main__")
    return Path("runs") / f"{Path(name).name.rpartition('.')[2]}-{now:%Y-%m-%dT%H-%M-%S}"


def claim(run_dir: Path, environment: Mapping[str, str]) -> None:
    """Create `run_dir`, or join it where a sibling of the same launch has.

    Raises:
        CaptureError: something else lies there.
    """
    try:
        is_taken = run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir()))
        if is_taken and not _is_of_same_launch(run_dir, environment):
            raise CaptureError(
                f"run folder {run_dir}: expected none or an empty one, found files. "
                "Choose another --out or remove it."
            )
        run_dir.mkdir(parents=True, exist_ok=True)
        marker = _launch_marker(run_dir, environment)
        if marker is not None:
            marker.touch()
    except OSError as error:
        raise CaptureError(f"run folder {run_dir} cannot be made: {error}") from error


def launch_id(environment: Mapping[str, str]) -> str | None:
    """What all processes of one launch share, None where no launcher says.

    ``MOEPROF_LAUNCH_ID`` serves launchers that moeprof does not know.
    """
    for names in _LAUNCHES:
        if all(environment.get(name) for name in names):
            return ".".join(environment[name] for name in names)
    return None


def launcher_rank(environment: Mapping[str, str]) -> int:
    """The rank that a launcher gave this process, 0 without one."""
    for name in _RANKS:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return 0


def _is_of_same_launch(run_dir: Path, environment: Mapping[str, str]) -> bool:
    marker = _launch_marker(run_dir, environment)
    return marker is not None and marker.is_file()


def _launch_marker(run_dir: Path, environment: Mapping[str, str]) -> Path | None:
    """An empty file whose name is the launch: it appears at once or not at all."""
    launch = launch_id(environment)
    if launch is None:
        return None
    return run_dir / f".launch-{''.join(c if c.isalnum() or c in '.-' else '_' for c in launch)}"
