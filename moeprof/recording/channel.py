"""Question: how does the profiled process tell its parent what it is doing? One JSON line each."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Mapping


class Channel:
    """The writing end. A parent that is gone, or a closed descriptor, is silently accepted."""

    def __init__(self, descriptor: int) -> None:
        """Write to `descriptor`, which programs started by the script do not inherit."""
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._pipe = _identity(descriptor)
        os.set_inheritable(descriptor, False)

    def send(self, kind: str, values: Mapping[str, object] | None = None) -> None:
        """Send one message; forked copies of the process stay silent."""
        if os.getpid() != self._owner:
            return
        line = json.dumps({"kind": kind, **(values or {})}).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):
            # A script that closes all descriptors may since have opened a file of this number.
            while line and _identity(self._descriptor) == self._pipe:
                line = line[os.write(self._descriptor, line) :]


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


class MessageReader:
    """Cuts the bytes that arrive at the reading end into messages."""

    def __init__(self) -> None:
        """Start with no bytes."""
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, object]]:
        """Messages completed by `data`; a line that is no JSON object is dropped."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    messages.append(message)
        return messages
