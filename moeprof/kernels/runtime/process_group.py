"""Question: which processes exchange tokens, how do they meet, wait for each other and part?

Each process knows its own EP group. One gather over all processes of the job tells each of them all
groups, where every process runs, and a random token per group, under which its processes find each
other. Groups that cannot be are refused in every process alike.

The GPU library keeps the connection: sockets and shared memory between the processes, and each
other's GPU memory mapped. See docs/why/exchange-between-processes.md.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from moeprof.errors import SpecError
from moeprof.kernels.backends import cpu_library, gpu_library
from moeprof.kernels.preflight import PreflightError
from moeprof.kernels.runtime.config import MAX_NVL_RANKS
from moeprof.kernels.runtime.ep_groups import local_ordinal

TIMEOUT_VARIABLE = "MOEPROF_EP_TIMEOUT_S"
_DEFAULT_TIMEOUT_S = 300.0  # as Primus-Turbo's device and host timeouts
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TOKEN_BYTES = 16
_NO_RANK = np.uint32(0xFFFFFFFF)
_TEXT_BYTES = 4096


@dataclass(frozen=True)
class Agreement:
    """What all processes know after the gather.

    Attributes:
        groups: the EP groups of the job: process indices in rank order.
        token: names this process's group, and no other of any job.
    """

    groups: tuple[tuple[int, ...], ...]
    token: str


@dataclass(frozen=True)
class _Card:
    """What one process says of itself."""

    process: int
    group: tuple[int, ...]
    host: str
    token: str


def agree(own_group: Sequence[int]) -> Agreement:
    """Gather the EP groups of all processes; all of them must call this.

    Args:
        own_group: the process indices of this process's group, in rank order; at most 8.

    Raises:
        PreflightError: processes differ in what they say of a group, or a group spans hosts.
    """
    here = _Card(jax.process_index(), tuple(own_group), _host(), secrets.token_hex(_TOKEN_BYTES))
    gathered = multihost_utils.process_allgather(_to_words(here))
    cards = {card.process: card for card in map(_from_words, np.asarray(gathered))}
    for card in cards.values():
        _check_same_group(card, cards)
        _check_one_host(card, cards)
    groups = tuple(dict.fromkeys(cards[process].group for process in sorted(cards)))
    return Agreement(groups, cards[here.group[0]].token)


def _host() -> str:
    """A number of 128 bits, in hexadecimal, that the kernel drew when it started."""
    return _BOOT_ID.read_text().strip().replace("-", "")


def _to_words(card: _Card) -> np.ndarray:
    """The card as uint32, which JAX gathers whatever ``jax_enable_x64`` says."""
    group = np.full(MAX_NVL_RANKS, _NO_RANK, np.uint32)
    group[: len(card.group)] = card.group
    names = bytes.fromhex(card.host) + bytes.fromhex(card.token)
    return np.concatenate([[np.uint32(card.process)], group, np.frombuffer(names, np.uint32)])


def _from_words(words: np.ndarray) -> _Card:
    group = words[1 : 1 + MAX_NVL_RANKS]
    names = words[1 + MAX_NVL_RANKS :].astype(np.uint32).tobytes().hex()
    return _Card(
        int(words[0]),
        tuple(int(rank) for rank in group if rank != _NO_RANK),
        names[: -2 * _TOKEN_BYTES],
        names[-2 * _TOKEN_BYTES :],
    )


def _check_same_group(card: _Card, cards: dict[int, _Card]) -> None:
    for rank in card.group:
        found = cards[rank].group if rank in cards else None
        if found != card.group:
            raise PreflightError(
                f"setup(mode='per_process'): the EP group of process {card.process} is "
                f"{card.group}, but process {rank} has {found}. Pass the same mesh or matching "
                "ep_ranks in all processes."
            )


def _check_one_host(card: _Card, cards: dict[int, _Card]) -> None:
    by_host: dict[str, list[int]] = {}
    for rank in card.group:
        by_host.setdefault(cards[rank].host, []).append(rank)
    if len(by_host) > 1:
        raise PreflightError(
            f"setup(mode='per_process'): EP group spans hosts; expected the processes {card.group} "
            f"on one host, found {' and '.join(map(str, by_host.values()))} on different ones. "
            "Order the mesh so that the expert axis stays inside a host."
        )


def timeout_ms() -> int:
    """How long a rank waits for the others, from ``MOEPROF_EP_TIMEOUT_S``; read when compiling.

    Raises:
        PreflightError: the variable is no positive number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, str(_DEFAULT_TIMEOUT_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise PreflightError(
            f"{TIMEOUT_VARIABLE}: expected a positive number of seconds, found {text!r}."
        )
    return max(1, round(seconds * 1000))


def abort_waiting_ranks() -> None:
    """Fail every rank that waits in a dispatch or combine of this process."""
    if cpu_library.load.cache_info().currsize:
        cpu_library.load().MoeprofAbortRendezvous()
    if gpu_library.is_loaded():
        gpu_library.load().MoeprofGpuAbortLocalExchanges()


class JoinError(SpecError, RuntimeError):
    """The processes of an EP group do not come together."""


def join(agreement: Agreement, own_group: tuple[int, ...], timeout_ms: int) -> None:
    """Connect with the other processes of the group; all of them must call this.

    Args:
        agreement: what all processes agreed on.
        own_group: process indices in rank order.
        timeout_ms: how long to wait for the others.

    Raises:
        JoinError: (a RuntimeError) a process does not come, or its memory cannot be reached.
        NativeError: there is no GPU library, or it does not load.
    """
    library = gpu_library.load()
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    failed = library.MoeprofGpuJoinProcesses(
        agreement.token.encode(),
        (ctypes.c_int64 * len(own_group))(*own_group),
        ctypes.c_int64(len(own_group)),
        ctypes.c_int64(jax.process_index()),
        ctypes.c_int64(local_ordinal(jax.local_devices()[0])),
        ctypes.c_int64(timeout_ms),
        text,
        ctypes.c_int64(_TEXT_BYTES),
    )
    if failed:
        raise JoinError(f"setup(mode='per_process'): {text.value.decode(errors='replace')}")
    # Before the CUDA runtime ends, and with the others' knowledge. One registration counts.
    atexit.unregister(leave)
    atexit.register(leave)


def leave() -> None:
    """Leave the group, if this process is in one. Ends waits of this process first."""
    if gpu_library.is_loaded():
        gpu_library.load().MoeprofGpuLeaveProcesses()
