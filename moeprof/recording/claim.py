"""Question: is a run folder that is still empty the folder of a capture that runs?

Nothing is written into it until the window closes, so a capture leaves its claim there as it
begins. A claim is a symbolic link whose target is text: it appears with all that it says or not at
all, and one process alone can make it, on NFS too. It goes as meta.json comes, which says as much.

A process that died cannot take its claim away. Whoever comes next does, where the claim is of this
machine; what runs on another one cannot be seen, so a claim of that one stands.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moeprof.recording.host_facts import machine_id

NAME = ".claim"
_STAT_START = 19  # of /proc/PID/stat, counted from behind the name: when it started
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Claim:
    """Who has a folder: a process of a machine, and the launch whose processes share it."""

    machine: str
    pid: int
    started: str
    launch: str

    @property
    def text(self) -> str:
        """As it stands in the folder."""
        return " ".join([self.machine, str(self.pid), self.started, self.launch])

    @property
    def is_over(self) -> bool:
        """Whether its process is known to have ended."""
        if not self.machine or self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # somebody else's process
            pass
        return _started(self.pid) not in ("", self.started)


_UNREADABLE = Claim("", 0, "", "")
"""Something of that name that says nothing: it is not ours."""


def own_claim(launch: str = "") -> Claim:
    """That of this process."""
    return Claim(_machine(), os.getpid(), _started(os.getpid()), launch)


def read_claim(folder: Path) -> Claim | None:
    """Who has `folder`; None where nobody says so."""
    try:
        machine, pid, started, launch = os.readlink(folder / NAME).split(" ")
        return Claim(machine, int(pid), started, launch)
    except (OSError, ValueError):
        return None


def stake(folder: Path, launch: str) -> Claim | None:
    """Leave the claim of this process in `folder`; the one that stands there already, else None.

    Raises:
        OSError: the folder cannot be written to. A full disk, or one that has no links, gets none.
    """
    own = own_claim(launch)
    while True:
        try:
            os.symlink(own.text, folder / NAME)
        except FileExistsError:
            if not clear_if_over(folder) and os.path.lexists(folder / NAME):
                return read_claim(folder) or _UNREADABLE
        except OSError as error:
            if error.errno not in (*_NO_LINKS, *_NO_ROOM):
                raise
            return None
        else:
            return None


def clear_if_over(folder: Path) -> bool:
    """Take a claim away whose process ended; whether there was one.

    Only processes of its machine can tell, so a lock that holds on one machine is enough.
    """
    with contextlib.suppress(OSError), locked(folder):
        found = read_claim(folder)
        if found is not None and found.is_over:
            os.unlink(folder / NAME)
            return True
    return False


def release(folder: Path) -> None:
    """Take the claim away, whosever it is: what lies in the folder says that it is taken."""
    with contextlib.suppress(OSError):
        os.unlink(folder / NAME)


def release_own(folder: Path) -> None:
    """Take the claim away where it is that of this process, which goes elsewhere."""
    found = read_claim(folder)
    if found is not None and found == own_claim(found.launch):
        release(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder` against other processes of this machine that change what all share in it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _machine() -> str:
    """The machine as it was booted and the processes that this one sees: those of its container.

    Empty where the system does not tell; then nothing is known of any other process.
    """
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    return f"{machine_id()}-{space}" if machine_id() else ""


def _started(pid: int) -> str:
    """When a process began, in ticks since the machine did: numbers of processes come again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[_STAT_START]
