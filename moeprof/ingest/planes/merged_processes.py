"""What a reader found out about several processes that lie in one file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MergedProcesses:
    """``found`` counts the processes of a run that a file holds.

    ``mixed`` says why work of several cannot be told apart, ``unpaired`` of which part it is not
    known whose it is or what is missing, ``strange`` names processes that are neither a device that
    moeprof knows nor a host. Each is empty where there is nothing to say.
    """

    found: int = 1
    mixed: str = ""
    unpaired: tuple[str, ...] = ()
    strange: tuple[str, ...] = ()
