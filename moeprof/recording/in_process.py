"""Question: how does training that no command can start record itself? `with moeprof.capture():`.

For notebooks, services and launchers of their own. The block's steps are seen as those of a script
under `moeprof capture` are, and the same run folder comes of them. Nothing is left behind: hooks in
JAX and environment variables are taken back as the block is left, and signals are never handled.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from moeprof.errors import CaptureError
from moeprof.recording import routing as routing_log
from moeprof.recording.host_facts import preflight
from moeprof.recording.options import (
    LEAST_STEPS,
    RECORDING_VARIABLE,
    RUN_DIR_VARIABLE,
    CaptureOptions,
    Value,
    parse_profiler_options,
)
from moeprof.recording.progress import HEARTBEAT_S, Progress, unfailing
from moeprof.recording.run_folder import Launch, claim_free, default_run_dir, leave, write_meta

if TYPE_CHECKING:
    from typing import Self

    from moeprof.recording.watcher import Watcher

RECORDED_BY = "moeprof.capture"
_STEP = "step"
_lock = threading.Lock()
_running: Recording | None = None
_written: set[Path] = set()
"""Run folders of this process: a launcher's marker in them invites siblings, not us again."""


def capture(
    out: str | os.PathLike[str] | None = None,
    *,
    steps: int | None = None,
    skip: int = 1,
    seconds: float | None = None,
    every: int | None = None,
    hosts: Collection[int] | None = None,
    export_timeout: float | None = None,
    options: Mapping[str, Value] | None = None,
    routing: str = "off",
    say: Callable[[str], None] | None = None,
) -> Recording:
    """Record some steps of the training that runs in a ``with`` block.

    Recording begins at a step, once compilation has settled, and ends after `steps`; the training
    then goes on at full speed. A step is a `jax.profiler.StepTraceAnnotation`, or a call of the
    largest jitted function, whether it was jitted before the block or in it. Where neither tells
    (each step is many small programs, say), call `Recording.step` as each step begins.

    Where recording would disturb another profiler (`jax.profiler.trace`, `moeprof capture`, a block
    around this one) or no run folder can be made, one line says so and the block runs unrecorded.

    Args:
        out: run folder to write; ``out-2`` and so on where it has files in it, as when a job is
            started again. Default: ``runs/<script>-<time>``.
        steps: steps to record. Default: 8; 3 to 7 where more would take over 20 s, or over 512 MiB
            of memory.
        skip: settled steps to let pass before.
        seconds: record whole steps for so long instead.
        every: record a further window every so many steps.
        hosts: process indices that record. Default: all.
        export_timeout: seconds after which an export is given up. Default: none.
        options: profiler options, as ``{"python_tracer_level": 1}``.
        routing: ``"auto"`` makes the indices of the step's routers results of it until the window
            closes, so that tokens are counted per expert; of steps jitted in the block.
        say: takes each line of progress. Default: prints it to stderr.

    Returns:
        What the ``with`` statement needs: entering it begins.

    Raises:
        CaptureError: an argument cannot be. Entering raises it where jax or wrapt is missing.

    Example:
        >>> with moeprof.capture("runs/moe", steps=3) as recording:
        ...     for batch in data:
        ...         state = train_step(state, batch)
        >>> recording.path
        PosixPath('runs/moe')
    """
    _at_least("steps", steps, 1)
    _at_least("skip", skip, 0)
    _above_zero("seconds", seconds)
    _above_zero("export_timeout", export_timeout)
    _at_least("every", every if seconds is None else None, (steps or LEAST_STEPS) + 1)
    if routing not in ("off", "auto"):
        raise CaptureError(f"capture: routing: expected 'off' or 'auto', found {routing!r}.")
    settings = (options or {}).items()
    asked = {
        "asked_for": "" if out is None else str(Path(out).absolute()),
        "skip_steps": skip,
        "record_steps": steps,
        "record_seconds": seconds,
        "every_steps": every,
        "hosts": None if hosts is None else tuple(sorted(hosts)),
        "export_timeout_s": export_timeout,
        "routing": routing,
        "profiler": parse_profiler_options(f"{name}={value}" for name, value in settings),
    }
    return Recording(None if out is None else Path(out), asked, unfailing(say or _print))


class Recording:
    """One block under `capture`, and what may be asked of it."""

    def __init__(
        self, out: Path | None, asked: Mapping[str, Any], say: Callable[[str], None]
    ) -> None:
        """Made by `capture`."""
        self._out = out
        self._asked = asked
        self._say = say
        self._path: Path | None = None
        self._watcher: Watcher | None = None
        self._meta: _Meta | None = None
        self._environment: dict[str, str | None] = {}
        self._step: Any = None
        self._steps = 0
        self._owner = os.getpid()

    @property
    def path(self) -> Path | None:
        """The run folder; None before the block, and where nothing is recorded."""
        return self._path if self._watcher is None else self._watcher.options.run_dir

    def __enter__(self) -> Self:
        """Begin to watch.

        Raises:
            CaptureError: jax or wrapt is missing.
        """
        global _running
        _require_packages()
        with _lock:
            obstacle = _other_recorder() or self._claim()
            if obstacle is not None:
                self._path = self._path if self._watcher is not None else None
                self._say(f"moeprof: warning: {obstacle}: nothing is recorded here")
                return self
            try:
                self._begin()
            except BaseException:
                self._restore_environment()
                if self._path is not None:
                    leave(self._path)
                raise
            _running = self
        return self

    def _claim(self) -> str | None:
        """Why there is no run folder; training that was started again must run all the same."""
        try:
            self._path = _claimed(self._out, self._say)
        except CaptureError as error:
            return str(error)
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Save what there is; an error of the block goes on."""
        self._end(error)

    def stop(self) -> None:
        """End the recording now and save it; the block runs on unrecorded."""
        self._end(None)

    def step(self) -> None:
        """Say that a step begins, which lasts until the next one.

        For loops whose steps cannot be seen: they are annotated as steps in the profile.
        """
        watcher = self._watcher
        if watcher is None:
            return
        self._end_step()
        if watcher.is_watching:
            import jax

            self._step = jax.profiler.StepTraceAnnotation(_STEP, step_num=self._steps)
            self._step.__enter__()
        self._steps += 1

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def _begin(self) -> None:
        """Put the hooks in."""
        from moeprof.recording.watcher import Watcher

        assert self._path is not None
        options = CaptureOptions(run_dir=self._path, in_process=True, **self._asked)
        for obstacle in preflight(os.environ):
            self._say(f"moeprof: warning: {obstacle.name}: {obstacle.text}")
        self._set_environment(
            {RUN_DIR_VARIABLE: str(self._path), RECORDING_VARIABLE: options.recording}
        )
        self._meta = _Meta(options, self._say)
        watcher = Watcher(options, self._meta)
        try:
            watcher.install()
        except BaseException:
            watcher.remove()  # what was put in before it failed
            raise
        self._watcher = watcher
        atexit.register(self._end, None)  # a block that is never left, as one of a notebook

    def _end(self, error: BaseException | None) -> None:
        """Finish once, in the process that began; whatever goes wrong, the hooks are out."""
        global _running
        watcher, self._watcher = self._watcher, None
        if watcher is None or self._meta is None or self._path is None:
            return
        if os.getpid() != self._owner:
            return  # a forked worker that leaves the block is not the training
        atexit.unregister(self._end)
        try:
            with contextlib.suppress(Exception):
                self._end_step()
            watcher.finish(error)
        finally:
            self._path = watcher.options.run_dir
            _written.add(self._path)
            try:
                self._finish_routing()
                self._meta.end()
            finally:
                self._restore_environment()
                with _lock:
                    _running = None

    def _finish_routing(self) -> None:
        assert self._path is not None
        try:
            routing_log.finish(self._path)
        except Exception as fault:  # the training goes on
            self._say(f"moeprof: routing was not saved: {type(fault).__name__}: {fault}")

    def _set_environment(self, values: Mapping[str, str]) -> None:
        self._environment = {name: os.environ.get(name) for name in values}
        os.environ.update(values)

    def _restore_environment(self) -> None:
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Meta:
    """What the command's parent process does: says how it goes, and keeps meta.json.

    It is written whenever more is known, so that it is right if the process dies.
    """

    def __init__(self, options: CaptureOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._progress = Progress(say)
        self._started = datetime.now().astimezone()
        self._ended: datetime | None = None
        self._lock = threading.RLock()  # an export tells of its end on a thread of its own
        self._exported = threading.Event()
        self._owner = os.getpid()
        self._has_failed = False
        self._status = "empty"

    def send(self, kind: str, values: Mapping[str, object] | None = None) -> None:
        """Take a message of the watcher in; forked copies of the process stay silent."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._progress.on_message({"kind": kind, **(values or {})}, time.monotonic())
            self._progress.tick(time.monotonic())
            if kind == "moved":
                leave(self._options.run_dir)
            if kind in ("process", "introduced"):
                self._write()
        if kind == "exporting":
            self._exported.clear()
            threading.Thread(target=self._beat, name="moeprof-progress", daemon=True).start()
        elif kind in ("exported", "given_up"):
            self._exported.set()

    def end(self) -> None:
        """Write the last word, and say where it all lies."""
        self._ended = datetime.now().astimezone()
        self._exported.set()
        with self._lock:
            self._write()
        self._say(f"moeprof: run folder {self._run_dir} ({self._status})")

    @property
    def _run_dir(self) -> Path:
        return self._progress.run_dir or self._options.run_dir

    def _beat(self) -> None:
        """Let a long export be seen to go on."""
        while not self._exported.wait(HEARTBEAT_S):
            with self._lock:
                self._progress.tick(time.monotonic())

    def _write(self) -> None:
        launch = Launch(
            [sys.executable, *sys.orig_argv[1:]],
            self._started,
            self._ended,
            recording=self._options.recording,
            recorded_by=RECORDED_BY,
        )
        process = self._progress.process
        versions = self._progress.versions
        try:
            run_dir, environment = self._run_dir, os.environ
            meta = write_meta(run_dir, launch, process, versions=versions, environment=environment)
            self._status = str(meta["status"])
        except OSError as error:
            if not self._has_failed:
                self._say(f"moeprof: meta.json cannot be written: {error}")
            self._has_failed = True


def _require_packages() -> None:
    for package in ("jax", "wrapt"):
        if importlib.util.find_spec(package) is None:
            raise CaptureError(
                f"capture: expected the package {package}, found none. Install it with "
                "`pip install 'moeprof[jax]'`."
            )


def _other_recorder() -> str | None:
    """Who records in this process already: only one profiler can run at a time."""
    from moeprof.recording import child, jax_private

    if _running is not None and _running._owner == os.getpid():
        return f"another block records into {_running.path}"
    if child.is_started():
        return "`moeprof capture` records this process"
    if jax_private.script_session_is_active():
        return "another profile is active in this process"
    return None


def _claimed(out: Path | None, say: Callable[[str], None]) -> Path:
    """The run folder, absolute: the training may change its working directory.

    Raises:
        CaptureError: it cannot be made.
    """
    name = sys.argv[0] if sys.argv and sys.argv[0].endswith(".py") else "notebook"
    wanted = (out or default_run_dir(name, datetime.now())).absolute()
    run_dir = claim_free(wanted, os.environ, say, {one for one in _written if one.exists()})
    _written.add(run_dir)
    return run_dir


def _print(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr may be gone: training goes on
        print(line, file=sys.stderr, flush=True)


def _at_least(name: str, value: int | None, least: int) -> None:
    is_one = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and (not is_one or value < least):
        raise CaptureError(f"capture: {name}: expected a number from {least} up, found {value!r}.")


def _above_zero(name: str, value: float | None) -> None:
    if value is not None and not (isinstance(value, int | float) and value > 0):
        raise CaptureError(f"capture: {name}: expected seconds above 0, found {value!r}.")
