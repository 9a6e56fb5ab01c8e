"""Question: how is the script run, watched and outlived? The parent's side of a capture.

The parent never imports JAX. The script runs in a child of the same interpreter, started exactly
as the user would start it, with the same standard streams, terminal and process group.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from moeprof.recording.options import (
    CONFIG_VARIABLE,
    RECORDING_VARIABLE,
    RUN_DIR_VARIABLE,
    CaptureOptions,
)
from moeprof.recording.progress import MessageReader, Progress
from moeprof.recording.run_folder import Launch, launcher_rank, leave, write_meta
from moeprof.recording.signals import Relay

_INJECT = Path(__file__).parent / "inject"
_POLL_S = 0.1


@dataclass(frozen=True)
class Outcome:
    """How one process of a run ended: exit code, its index, and meta.json as it then was.

    ``is_terminated``: whoever sent SIGTERM wants the machine back. ``run_dir`` is where it went if
    other processes of its job had another folder, else None.
    """

    exit_code: int
    process_index: int
    meta: dict[str, Any]
    is_terminated: bool = False
    run_dir: Path | None = None


def run_script(
    command: Sequence[str], options: CaptureOptions, say: Callable[[str], None]
) -> Outcome:
    """Run ``python *command`` watched, and complete meta.json when it has ended.

    Args:
        command: what follows the interpreter: ``[script, *args]`` or ``["-m", module, *args]``.
        options: the window; `options.run_dir` exists.
        say: prints one line of progress.

    Returns:
        The outcome; its exit code is what a shell would see (128 + n after signal n).
    """
    progress = Progress(say)
    started = datetime.now().astimezone()
    relay = Relay()
    try:
        child, reading_end = _start(command, options, relay)
        try:
            exit_code = _watch(child, reading_end, progress, relay)
        finally:
            os.close(reading_end)
    finally:
        relay.end()
    ended = datetime.now().astimezone()
    launch = Launch([sys.executable, *command], started, ended, exit_code, options.recording)
    process = _process(progress, exit_code, child.returncode, say)
    versions = progress.versions or {"python": sys.version.split()[0]}
    if progress.run_dir is not None:
        leave(options.run_dir)
    meta = _write_meta(progress.run_dir or options.run_dir, launch, process, versions, say)
    index = int(str(process["process_index"]))
    return Outcome(exit_code, index, meta, relay.is_terminated, progress.run_dir)


def _write_meta(
    run_dir: Path,
    launch: Launch,
    process: dict[str, object],
    versions: Mapping[str, str],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """meta.json, or in its place that there is none: the exit code is the script's all the same."""
    try:
        return write_meta(run_dir, launch, process, versions=versions, environment=os.environ)
    except OSError as error:
        say(f"moeprof: meta.json cannot be written: {error}")
        return {"status": "empty", "processes": [process], "expected_processes": 1}


def _start(
    command: Sequence[str], options: CaptureOptions, relay: Relay
) -> tuple[subprocess.Popen[bytes], int]:
    """Start the child with signals as they were before `relay` held the parent's back."""
    reading_end, writing_end = os.pipe()
    os.set_blocking(reading_end, False)
    try:
        child = subprocess.Popen(
            [sys.executable, *command],
            env=child_environment(os.environ, options, writing_end),
            pass_fds=[writing_end],
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, relay.mask_before),
        )
    except BaseException:
        os.close(reading_end)
        raise
    finally:
        os.close(writing_end)
    return child, reading_end


def child_environment(
    environment: Mapping[str, str], options: CaptureOptions, message_fd: int
) -> dict[str, str]:
    """`environment` with what the injected module needs; it keeps no more than folder and id."""
    path = environment.get("PYTHONPATH")
    injected = {
        CONFIG_VARIABLE: options.to_json(message_fd=message_fd),
        RUN_DIR_VARIABLE: str(options.run_dir),
        RECORDING_VARIABLE: options.recording,
        "PYTHONPATH": os.pathsep.join([str(_INJECT), path] if path else [str(_INJECT)]),
    }
    if path is not None:
        injected["MOEPROF_CAPTURE_PYTHONPATH"] = path
    return {**environment, **injected}


def _watch(
    child: subprocess.Popen[bytes], reading_end: int, progress: Progress, relay: Relay
) -> int:
    """Relay messages and signals until the child has ended; its exit code."""
    reader = MessageReader()
    is_open = True
    while child.poll() is None:
        if is_open:
            select.select([reading_end], [], [], _POLL_S)
            is_open = _take_messages(reading_end, reader, progress)
        else:
            time.sleep(_POLL_S)
        relay.forward(child)
        progress.tick(time.monotonic())
    _take_messages(reading_end, reader, progress)
    return 128 - child.returncode if child.returncode < 0 else child.returncode


def _take_messages(reading_end: int, reader: MessageReader, progress: Progress) -> bool:
    """Hand over what has arrived; False once no one can write any more."""
    while True:
        try:
            data = os.read(reading_end, 65536)
        except BlockingIOError:
            return True
        if not data:
            return False
        for message in reader.feed(data):
            progress.on_message(message, time.monotonic())


def _process(
    progress: Progress, exit_code: int, returned: int, say: Callable[[str], None]
) -> dict[str, object]:
    """The child's own record, or what the parent can tell where the child could not.

    A child that ends without its interpreter, by a signal or os._exit, saves nothing any more.
    """
    if progress.unfinished:
        how = "os._exit" if returned >= 0 else _signal_name(-returned)
        text = (
            f"the process ended {progress.unfinished} by {how} (exit code {exit_code}): "
            "nothing of the window was written"
        )
    elif progress.has_saved:
        return progress.process
    elif progress.versions:
        text = f"the script died (exit code {exit_code}) before anything was recorded"
    else:
        text = "the script did not import jax: nothing recorded"
    say(f"moeprof: {text}")
    unknown = {
        "host": os.uname().nodename,
        "process_index": launcher_rank(os.environ),
        "devices": [],
        "files": [],
        "window": None,
        "windows": [],
        "problems": [],
    }
    known: dict[str, object] = {**unknown, **progress.process}
    earlier = known["problems"]
    return {**known, "problems": [*(earlier if isinstance(earlier, list) else []), text]}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
