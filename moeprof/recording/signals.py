"""Question: how does a recording live with signals that belong to the script?

All that moeprof does about signals is here. It never takes one away: a signal that someone handles,
be it in Python or in C as JAX's preemption notice, is left as it is. What counts is therefore the
handler that the kernel knows, which `signal.getsignal` cannot tell. Why so:
docs/why/capture-signals-belong-to-the-script.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

_Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None
_BUFFER = 1024  # no libc has a longer struct sigaction
_REPEAT_S = 2.0  # a scheduler that signals a whole process group does so once, we relay it again
_TAKES_EFFECT_S = 1.0
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)


# What the kernel does on a signal, read and put back past Python's own table.


def kernel_action(number: int) -> bytes:
    """The ``struct sigaction`` in force; empty where there is no libc to ask."""
    action = ctypes.create_string_buffer(_BUFFER)
    try:
        failed = ctypes.CDLL(None).sigaction(number, None, action)
    except (AttributeError, OSError):
        return b""
    return b"" if failed else action.raw


def handler_of(action: bytes) -> int:
    """The handler's address: the first member with every libc, 0 for the default."""
    return int.from_bytes(action[: ctypes.sizeof(ctypes.c_void_p)], "little")


def _put_back(number: int, action: bytes) -> None:
    if action:
        ctypes.CDLL(None).sigaction(number, ctypes.create_string_buffer(action, _BUFFER), None)


def _is_default(number: int) -> bool:
    """Whether the process would die of it now: nobody handles, ignores or blocks it."""
    masks = _masks("self")
    return len(masks) == len(_MASKS) and not any(_has(mask, number) for mask in masks.values())


def _is_ignored(pid: int, number: int) -> bool:
    """Whether a process is known to be as if the signal had not come."""
    return _has(_masks(pid).get("SigIgn", 0), number)


def _masks(pid: int | str) -> dict[str, int]:
    """The signals that a process blocks, ignores and catches; empty where nothing tells."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    rows = (line.split() for line in status.splitlines() if line[:6] in _MASKS)
    return {name.rstrip(":"): int(mask, 16) for name, mask in rows}


def _has(mask: int, number: int) -> bool:
    return bool(mask & 1 << (number - 1))


_MASKS = ("SigBlk", "SigIgn", "SigCgt")


# SIGTERM in the window


class Termination:
    """While a window is open, SIGTERM saves it first and then does what it always does.

    The kernel's handler is that of `faulthandler`, which writes into a pipe: unlike one of Python's
    it shows in no table that the script may read or save, and acts although the main thread waits
    in XLA. A thread reads the pipe, saves and lets the process die. The training is held at its
    next step meanwhile.
    """

    def __init__(self, save: Callable[[], None]) -> None:
        """Call `save` on SIGTERM, from `watch` to `undo`."""
        self.is_dying = False
        self._save = save
        self._handler = 0
        self._pipe: Callable[[], _Pipe | None] = lambda: None
        self._is_saved = threading.Event()
        self._reading: int | None = None
        self._saver: threading.Thread | None = None
        self._listener: threading.Thread | None = None

    def watch(self) -> None:
        """A window has opened: see to SIGTERM, if nobody else does."""
        if _is_default(signal.SIGTERM):
            self._is_saved.clear()
            self._install()

    def undo(self) -> None:
        """Everything is saved: SIGTERM is as it was, unless someone handles it by now."""
        if threading.current_thread() is self._saver:
            return  # the end of the process undoes it
        is_gone = self._release()
        self._reading = None
        self._is_saved.set()
        listener, self._listener = self._listener, None
        if listener is not None and is_gone:
            listener.join()  # one that has been signalled ends us here

    def hold(self) -> None:
        """Wait for the end if it is coming: the process would train no more without us."""
        while self.is_dying or _has_bytes(self._reading):  # the thread may not have run yet
            time.sleep(0.02)

    def _install(self) -> None:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)  # a handler must not wait for a reader
        pipe = _Pipe(writing)
        faulthandler.unregister(signal.SIGTERM)  # one that somebody has since put aside
        faulthandler.register(signal.SIGTERM, file=pipe, all_threads=False)
        self._handler = handler_of(kernel_action(signal.SIGTERM))
        self._pipe = weakref.ref(pipe)  # faulthandler alone holds it, until it is told another
        self._reading = reading
        self._listener = threading.Thread(
            target=self._listen, args=(reading,), name="moeprof-terminate", daemon=True
        )
        _installed.add(self)
        self._listener.start()

    def _release(self) -> bool:
        """Take our handler out; False where somebody has put another over it, which stays.

        Ours is then kept ready below: whoever covered it may put it back as the one it found.
        """
        is_covered = handler_of(kernel_action(signal.SIGTERM)) != self._handler
        if self._pipe() is not None and is_covered:
            return False
        _installed.discard(self)
        if self._pipe() is not None:
            faulthandler.unregister(signal.SIGTERM)
        return True

    def leave_worker(self) -> None:
        """This process is a fork: SIGTERM is its own matter, and no word of it for the training."""
        pipe = self._pipe()
        if not self._release() and pipe is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), pipe.fileno())
        self.is_dying, self._reading = False, None

    def _listen(self, reading: int) -> None:
        try:
            if not _has_bytes(reading, wait_ms=None):
                return  # undone
            self.is_dying = True
            os.read(reading, 65536)  # only now: what is in the pipe holds the training too
            saver = threading.Thread(target=self._try_to_save, name="moeprof-save", daemon=True)
            self._saver = saver
            with contextlib.suppress(RuntimeError):  # Python is ending and starts no thread
                saver.start()
            self._await_saved(saver, reading)
        finally:
            self._reading = None if self._reading == reading else self._reading
            os.close(reading)
        self._die()

    def _await_saved(self, saver: threading.Thread, reading: int) -> None:
        """Until it is saved, by whichever thread, or SIGTERM comes once more."""
        began = time.monotonic()
        os.set_blocking(reading, False)
        while saver.is_alive() and not self._is_saved.wait(0.02):
            with contextlib.suppress(BlockingIOError):
                is_again = bool(os.read(reading, 65536))
                if is_again and time.monotonic() - began > _REPEAT_S:
                    return

    def _try_to_save(self) -> None:
        with contextlib.suppress(Exception):
            self._save()

    def _die(self) -> None:
        self._release()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_TAKES_EFFECT_S)
        self.is_dying = False  # somebody handles it by now: the script goes on


def _has_bytes(reading: int | None, wait_ms: int | None = 0) -> bool:
    """Whether the handler has written; False at the end of the pipe too."""
    if reading is None:
        return False
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(wait_ms))


class _Pipe:
    """The writing end, closed as nobody holds it any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """What `faulthandler` writes to."""
        return self._descriptor

    def flush(self) -> None:
        """Asked for by `faulthandler`; nothing is buffered."""

    def __del__(self) -> None:
        os.close(self._descriptor)


_installed: set[Termination] = set()


# A forked worker has the handler, but no thread that reads: it must die of SIGTERM as ever, and not
# tell the training to.


def _before_fork() -> None:
    if _installed:
        _blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]))


def _after_fork() -> None:
    if _blocked:
        signal.pthread_sigmask(signal.SIG_SETMASK, _blocked.pop())


def _after_fork_in_worker() -> None:
    for termination in list(_installed):
        termination.leave_worker()
    _after_fork()


_blocked: list[set[int]] = []
os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_worker
)


# Ctrl-C during an export


class GaveUpError(Exception):
    """The user pressed Ctrl-C twice."""


@contextmanager
def interrupt_waits(on_interrupt: Callable[[], None]) -> Iterator[None]:
    """Hold the first Ctrl-C back until the block is left; the second leaves it at once.

    Where the script ignores Ctrl-C, or handles it in C, there is nothing to hold back.

    Raises:
        GaveUpError: inside the block, on the second Ctrl-C.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    received = 0

    def hold(signum: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received > 1:
            raise GaveUpError
        on_interrupt()

    action = kernel_action(signal.SIGINT)
    previous = signal.signal(signal.SIGINT, hold)
    ours = handler_of(kernel_action(signal.SIGINT))
    is_pythons = handler_of(action) == ours
    if not is_pythons:
        _take_back(previous, action)
    try:
        yield
    finally:
        is_in_force = handler_of(kernel_action(signal.SIGINT)) == ours
        if is_pythons and is_in_force and signal.getsignal(signal.SIGINT) is hold:
            _take_back(previous, action)
        if received:
            signal.raise_signal(signal.SIGINT)


def _take_back(previous: _Handler, action: bytes) -> None:
    """Ctrl-C as it was, in Python's table and in the kernel."""
    if previous is not None:
        signal.signal(signal.SIGINT, previous)
    _put_back(signal.SIGINT, action)


# The parent of a captured script


class Relay:
    """Holds signals back from the parent and passes on to the script what reached the parent alone.

    The script is what they are meant for. What it does about them, and when, is its own matter.
    """

    def __init__(self) -> None:
        """Hold them back from now on.

        ``is_terminated``: SIGTERM came, and the script does not ignore it. One that does is not
        the training that ends because its machine is wanted back.
        """
        self.mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        self.is_terminated = False

    def forward(self, child: subprocess.Popen[bytes]) -> None:
        """Pass on what was sent to the parent alone.

        A key on the terminal reaches every process of the group by itself; the kernel marks such a
        signal by a positive code (si_code of sigaction(2)).
        """
        while (info := signal.sigtimedwait(FORWARDED, 0)) is not None:
            if info.si_code <= 0:
                is_heard = not _is_ignored(child.pid, info.si_signo)
                self.is_terminated |= is_heard and info.si_signo == signal.SIGTERM
                child.send_signal(info.si_signo)

    def end(self) -> None:
        """Drop signals that arrived for a child that is gone, and take new ones again."""
        while (info := signal.sigtimedwait(FORWARDED, 0)) is not None:
            self.is_terminated |= info.si_signo == signal.SIGTERM
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask_before)


@contextmanager
def ending_with(exit_code: int, say: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, a signal ends the process with the script's exit code; `say` its name.

    The training is over and its result is this code: who waits for it must not get ours.
    """

    def leave(signum: int, frame: FrameType | None) -> NoReturn:
        say(signal.Signals(signum).name)
        os._exit(exit_code)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in FORWARDED}
    for number, handler in before.items():
        if handler not in (None, signal.SIG_IGN):
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
