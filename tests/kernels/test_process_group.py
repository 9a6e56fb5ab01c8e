"""How a process joins its group through the GPU library, and what it says where that fails."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from types import SimpleNamespace

import jax
import pytest

from moeprof.kernels.backends import gpu_library
from moeprof.kernels.runtime import process_group
from moeprof.kernels.runtime.process_group import Agreement

AGREEMENT = Agreement(((2, 0), (1, 3)), "a1b2")


class Library:
    """Stands in for the GPU library."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failure: bytes = b"") -> None:
        self.failure = failure
        self.joined: list[tuple[object, ...]] = []
        self.left = 0
        self.at_exit: list[Callable[[], None]] = []
        monkeypatch.setattr(gpu_library, "load", lambda: self)
        monkeypatch.setattr(gpu_library, "is_loaded", lambda: True)
        monkeypatch.setattr(jax, "process_index", lambda: 0)
        device = SimpleNamespace(local_hardware_id=5, id=0)
        monkeypatch.setattr(jax, "local_devices", lambda: [device])
        monkeypatch.setattr(atexit, "register", self.at_exit.append)
        monkeypatch.setattr(atexit, "unregister", lambda _: self.at_exit.clear())

    def MoeprofGpuJoinProcesses(self, token, members, ranks, own, device, timeout, text, size):
        numbers = [number.value for number in (ranks, own, device, timeout, size)]
        self.joined.append((token, list(members), *numbers))
        text.value = self.failure
        return 2 if self.failure else 0

    def MoeprofGpuLeaveProcesses(self) -> None:
        self.left += 1


def test_the_library_gets_token_members_and_the_number_of_the_gpu(monkeypatch):
    library = Library(monkeypatch)
    process_group.join(AGREEMENT, (2, 0), 7000)
    assert library.joined == [(b"a1b2", [2, 0], 2, 0, 5, 7000, 4096)]


def test_a_process_that_ends_leaves_its_group_once(monkeypatch):
    library = Library(monkeypatch)
    for _ in range(3):
        process_group.join(AGREEMENT, (2, 0), 7000)
    (leave,) = library.at_exit
    leave()
    assert library.left == 1


def test_what_the_library_says_is_the_error(monkeypatch):
    library = Library(monkeypatch, b"EP rank 1 did not join within 7 s")
    with pytest.raises(
        RuntimeError, match=r"setup\(mode='per_process'\): EP rank 1 did not join within 7 s"
    ):
        process_group.join(AGREEMENT, (2, 0), 7000)
    assert not library.at_exit


def test_without_the_library_there_is_nothing_to_leave(monkeypatch):
    library = Library(monkeypatch)
    monkeypatch.setattr(gpu_library, "is_loaded", lambda: False)
    process_group.leave()
    assert library.left == 0
