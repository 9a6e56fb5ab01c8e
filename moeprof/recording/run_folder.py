"""Question: where does a run go, may it go there, and what does its meta.json say?

meta.json is written by whoever outlives the training, whatever became of it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from moeprof.errors import CaptureError
from moeprof.recording.claim import NAME as CLAIM
from moeprof.recording.claim import clear_if_over, locked, release, release_own, stake
from moeprof.recordings import RECORDED_AGAIN, numbered
from moeprof.redact import redacted, redacted_argv, redacted_record

SCHEMA = "moeprof.run/1"
SIBLINGS_TIME_S = 30.0  # processes of one run end about together
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_ID")
_LAUNCHES = (
    ("MOEPROF_LAUNCH_ID",),
    _SLURM,
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
        TakenError: something else lies there.
        CaptureError: it cannot be made.
    """
    try:
        is_taken = run_dir.exists() and (not run_dir.is_dir() or _has_files(run_dir))
        if is_taken and not _invites(run_dir, environment):
            is_file = not run_dir.is_dir()
            found = ("a file", "is a file") if is_file else ("files", "has files in it")
            raise TakenError(run_dir, *found)
        run_dir.mkdir(parents=True, exist_ok=True)
        if not is_taken:
            _stake(run_dir, environment)
        for marker in _launch_markers(run_dir, environment):
            marker.touch()
    except OSError as error:
        raise CaptureError(f"run folder {run_dir} cannot be made: {error}") from error


def _has_files(run_dir: Path) -> bool:
    """Whether there is more in it than a claim; that of a process that ended is cleared away."""
    clear_if_over(run_dir)
    return any(path.name != CLAIM for path in run_dir.iterdir())


def _stake(run_dir: Path, environment: Mapping[str, str]) -> None:
    """Say that the empty `run_dir` is taken; siblings may say so together."""
    markers = _launch_markers(run_dir, environment)
    launch = markers[0].name if markers else ""
    other = stake(run_dir, launch)
    if other is not None and (not launch or other.launch != launch):
        raise TakenError(run_dir, "that of a capture that runs", "is that of a capture that runs")


class TakenError(CaptureError):
    """A run folder has files that are not of this launch, or a capture that runs has it."""

    def __init__(self, run_dir: Path, found: str, why: str) -> None:
        """`why` says the same as `found` of a folder that need not be free."""
        super().__init__(
            f"run folder {run_dir}: expected none or an empty one, found {found}. "
            "Choose another --out or remove it."
        )
        self.why = why


def claim_free(
    wanted: Path,
    environment: Mapping[str, str],
    say: Callable[[str], None],
    taken: Collection[Path] = (),
) -> Path:
    """`claim` the folder `wanted` or, as a job that is started again must train, a free one beside.

    ``RUN-2`` is the second recording of RUN, and so on; `newest_recording` finds it by RUN's name.

    Raises:
        CaptureError: it cannot be made.
    """
    why = "has files in it"
    for number in itertools.count(1):
        run_dir = wanted if number == 1 else numbered(wanted, number)
        try:
            if run_dir not in taken:
                claim(run_dir, environment)
                break
        except TakenError as error:
            why = error.why if run_dir == wanted else why
    if run_dir != wanted:
        with contextlib.suppress(OSError):
            (run_dir / RECORDED_AGAIN).write_text(wanted.name + "\n")
        say(f"moeprof: {wanted} {why}: this run goes to {run_dir}")
    return run_dir


def tried_before(run_dir: Path) -> list[Path]:
    """The folders that were not free as `run_dir` was claimed beside them, the wanted one first."""
    try:
        wanted = run_dir.with_name((run_dir / RECORDED_AGAIN).read_text().strip())
    except (OSError, ValueError):
        return []
    folders = itertools.chain([wanted], (numbered(wanted, n) for n in itertools.count(2)))
    return list(itertools.takewhile(lambda folder: folder.exists() and folder != run_dir, folders))


def launch_id(environment: Mapping[str, str]) -> str | None:
    """What all processes of one launch share, None where no launcher says.

    ``MOEPROF_LAUNCH_ID`` serves launchers that moeprof does not know. A job that Slurm requeues
    keeps its numbers, so it is told by how often it was.
    """
    for names in _LAUNCHES:
        if all(environment.get(name) for name in names):
            again = environment.get("SLURM_RESTART_COUNT", "0") if names == _SLURM else "0"
            return ".".join([*(environment[name] for name in names), *([again] * (again != "0"))])
    return None


def launcher_rank(environment: Mapping[str, str]) -> int:
    """The rank that a launcher gave this process, 0 without one."""
    return _told_rank(environment) or 0


def _told_rank(environment: Mapping[str, str]) -> int | None:
    for name in _RANKS:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return None


def _invites(run_dir: Path, environment: Mapping[str, str]) -> bool:
    """Whether a sibling of the same launch has made `run_dir`, and this rank is not in it yet.

    A rank that is in it was started again under the launcher's old id.
    """
    markers = _launch_markers(run_dir, environment)
    return bool(markers) and markers[0].is_file() and not any(m.exists() for m in markers[1:])


def _launch_markers(run_dir: Path, environment: Mapping[str, str]) -> list[Path]:
    """Empty files named after the launch, and the rank if it has one: each appears at once."""
    launch, rank = launch_id(environment), _told_rank(environment)
    if launch is None:
        return []
    name = f".launch-{''.join(c if c.isalnum() or c in '.-' else '_' for c in launch)}"
    return [run_dir / name, *([] if rank is None else [run_dir / f"{name}.rank{rank}"])]


def mark_launch(run_dir: Path, launch: str) -> None:
    """Invite the processes of this launch into `run_dir`, which is claimed.

    Raises:
        OSError: it cannot be written to.
    """
    for marker in _launch_markers(run_dir, {"MOEPROF_LAUNCH_ID": launch}):
        marker.touch()


def unmark_launch(run_dir: Path, launch: str) -> None:
    """Invite nobody: another process was first to."""
    for marker in _launch_markers(run_dir, {"MOEPROF_LAUNCH_ID": launch}):
        marker.unlink(missing_ok=True)


def leave(run_dir: Path) -> None:
    """Give up a claimed folder for another one; whatever else lies in it stays."""
    with contextlib.suppress(OSError):
        for marker in (*run_dir.glob(".launch-*"), run_dir / RECORDED_AGAIN):
            marker.unlink(missing_ok=True)
        release_own(run_dir)
        run_dir.rmdir()


@dataclass(frozen=True)
class Launch:
    """The command that was run, and how it ended (exit code None while it runs).

    ``recording`` is the id that all of its files bear, empty where they bear none. ``recorded_by``
    names the function of the training code that recorded, empty where the command did.
    """

    argv: Sequence[str]
    started: datetime
    ended: datetime | None = None
    exit_code: int | None = None
    recording: str = ""
    recorded_by: str = ""


def run_status(process: Mapping[str, Any]) -> str:
    """``complete``: every window holds what was asked; ``partial``: less; ``empty``: nothing."""
    windows = process.get("windows") or []
    if not process.get("files"):
        return "empty"
    is_whole = all(
        window.get("closed_because") == "complete"
        and not window.get("export_error")
        and "export_given_up_after_s" not in window
        for window in windows
    )
    return "complete" if is_whole else "partial"


def write_meta(
    run_dir: Path,
    launch: Launch,
    process: Mapping[str, Any],
    *,
    versions: Mapping[str, str],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Write meta.json, or add `process` to the one that siblings of the launch share."""
    path = run_dir / "meta.json"
    try:
        with locked(run_dir):
            earlier = recorded_processes(run_dir)
            index = process.get("process_index", 0)
            others = [other for other in earlier if other.get("process_index") != index]
            told = cast("dict[str, Any]", redacted_record(dict(process)))
            own = {**told, **_launched(launch)}
            processes = sorted([*others, own], key=lambda one: one.get("process_index", 0))
            meta = _meta(processes, versions, environment)
            write_whole(path, (json.dumps(meta, allow_nan=False, indent=1) + "\n").encode())
    finally:
        if launch.ended is not None or path.exists():
            release(run_dir)
    return meta


def write_whole(path: Path, content: bytes) -> int:
    """Write `content` so that a reader sees all of it or no file; its size in bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content)
        partial.rename(path)
    except OSError:
        partial.unlink(missing_ok=True)  # a full disk gets its room back
        raise
    return len(content)


def wait_for_siblings(
    run_dir: Path, meta: dict[str, Any], timeout_s: float = SIBLINGS_TIME_S
) -> dict[str, Any]:
    """meta.json once every expected process has added itself, or as it is after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while len(meta["processes"]) < meta["expected_processes"] and time.monotonic() < end:
        time.sleep(0.1)
        meta = json.loads((run_dir / "meta.json").read_text())
    return meta


def _launched(launch: Launch) -> dict[str, Any]:
    """What one process of the run adds of its own launch."""
    return {
        "recording": launch.recording,
        **({"recorded_by": launch.recorded_by} if launch.recorded_by else {}),
        "argv": redacted_argv(launch.argv),
        "exit_code": launch.exit_code,
        "started": launch.started.astimezone(UTC).isoformat(),
        "ended": None if launch.ended is None else launch.ended.astimezone(UTC).isoformat(),
    }


def _launch_of_all(processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Argv of the first process, first exit code that is not 0, earliest start, latest end.

    The same whichever process was the last to add itself.
    """
    argv = processes[0]["argv"]
    codes = [one["exit_code"] for one in processes]
    started = min((one["started"] for one in processes), key=datetime.fromisoformat)
    ends = [one["ended"] for one in processes if one["ended"] is not None]
    ended = max(ends, key=datetime.fromisoformat, default=None)
    duration = None
    if ended is not None:
        span = datetime.fromisoformat(ended) - datetime.fromisoformat(started)
        duration = span.total_seconds()
    return {
        "command": shlex.join(["python", *argv[1:]]),
        "argv": argv,
        "exit_code": next((code for code in codes if code), codes[0]),
        "started": started,
        "ended": ended,
        "duration_s": duration,
    }


def _meta(
    processes: list[dict[str, Any]],
    versions: Mapping[str, str],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    # A process that was not asked to record (--hosts) makes no run partial.
    asked = [process for process in processes if process.get("records", True)]
    statuses = {run_status(process) for process in asked} or {"empty"}
    expected = max(int(process.get("process_count", 1)) for process in processes)
    return {
        "schema": SCHEMA,
        **_launch_of_all(processes),
        "status": statuses.pop() if len(statuses) == 1 else "partial",
        "versions": dict(versions),
        "window": _described(processes),
        "xla_flags": next(
            (one["xla_flags"] for one in processes if "xla_flags" in one),
            redacted(environment.get("XLA_FLAGS", "")),
        ),
        "mesh": next((one["mesh"] for one in processes if one.get("mesh")), None),
        "expected_processes": expected,
        "processes": processes,
    }


def _described(processes: Sequence[Mapping[str, Any]]) -> str | None:
    """The recorded steps in words: ``steps 9 to 11, counted by calls of train_step``."""
    for window in (one.get("window") for one in processes):
        if window and window.get("last_step") is not None:
            steps = f"steps {window['first_step']} to {window['last_step']}"
            return f"{steps}, counted by {window['counted_by']}"
    return None


def recorded_processes(run_dir: Path) -> list[dict[str, Any]]:
    """What meta.json has of each process by now; nothing where there is none yet."""
    try:
        found = json.loads((run_dir / "meta.json").read_text())["processes"]
    except (OSError, ValueError, KeyError):
        return []
    return list(found)
