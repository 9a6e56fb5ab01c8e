"""Question: are ranks still waiting for each other, and how long may they?"""

from __future__ import annotations

import math
import os

from moeprof.kernels import native, native_gpu
from moeprof.kernels.preflight import PreflightError

TIMEOUT_VARIABLE = "MOEPROF_EP_TIMEOUT_S"
_DEFAULT_TIMEOUT_S = 300.0  # as Primus-Turbo's device and host timeouts


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
    if native.load.cache_info().currsize:
        native.load().MoeprofAbortRendezvous()
    if native_gpu.is_loaded():
        native_gpu.load().MoeprofGpuAbortLocalExchanges()
