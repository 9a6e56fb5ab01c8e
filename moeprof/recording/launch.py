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
from moeprof.recording.run_folder import Launch, launcher_rank, write_meta

_INJECT = Path(__file__).parent / "inject"
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_POLL_S = 0.1


@dataclass(frozen=True)
class Outcome:
    """How one process of a run ended: exit code, its index, and meta.json as it then was."""

    exit_code: int
    process_index: int
    meta: dict[str, Any]


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
    child, reading_end = _start(command, options)
    try:
        exit_code = _watch(child, reading_end, progress)
    finally:
        os.close(reading_end)
    ended = datetime.now().astimezone()
    launch = Launch([sys.executable, *command], started, ended, exit_code, options.recording)
    process = _process(progress, exit_code, child.returncode, say)
    meta = write_meta(
        options.run_dir,
        launch,
        process,
        versions=progress.versions or {"python": sys.version.split()[0]},
        environment=os.environ,
    )
    return Outcome(exit_code, int(str(process["process_index"])), meta)


def _start(command: Sequence[str], options: CaptureOptions) -> tuple[subprocess.Popen[bytes], int]:
    """Start the child with signals as they were; the parent's stay blocked until `_watch` ends."""
    reading_end, writing_end = os.pipe()
    os.set_blocking(reading_end, False)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    try:
        child = subprocess.Popen(
            [sys.executable, *command],
            env=child_environment(os.environ, options, writing_end),
            pass_fds=[writing_end],
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
        )
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
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


def _watch(child: subprocess.Popen[bytes], reading_end: int, progress: Progress) -> int:
    """Relay messages and signals until the child has ended; its exit code."""
    reader = MessageReader()
    is_open = True
    try:
        while child.poll() is None:
            if is_open:
                select.select([reading_end], [], [], _POLL_S)
                is_open = _relay(reading_end, reader, progress)
            else:
                time.sleep(_POLL_S)
            _forward_signals(child)
            progress.tick(time.monotonic())
        _relay(reading_end, reader, progress)
    finally:
        _forget_signals()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    return 128 - child.returncode if child.returncode < 0 else child.returncode


def _relay(reading_end: int, reader: MessageReader, progress: Progress) -> bool:
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


def _forward_signals(child: subprocess.Popen[bytes]) -> None:
    """Pass on what was sent to the parent alone.

    A key on the terminal reaches every process of the group by itself; the kernel marks such a
    signal by a positive code (si_code of sigaction(2)).
    """
    while (info := signal.sigtimedwait(_FORWARDED, 0)) is not None:
        if info.si_code <= 0:
            child.send_signal(info.si_signo)


def _forget_signals() -> None:
    """Drop signals that arrived for a child that is gone."""
    while signal.sigtimedwait(_FORWARDED, 0) is not None:
        pass


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
    elif progress.process:
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
