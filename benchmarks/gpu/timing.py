"""Question: how long does work on a GPU take beside its peers?

Contestants take turns sample by sample, so that a clock that falls or a neighbour that works hits
all alike. A sample is several calls sent off without waiting, then one wait: host time, in which
the device never idles as long as a call takes it longer than it takes the host to send the next.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# One sample: runs that many calls, waits for them and returns seconds per call.
Sample = Callable[[int], float]


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median over the samples and the middle half's bounds."""

    median_s: float
    lower_quartile_s: float
    upper_quartile_s: float
    samples: int
    calls: int

    def as_json(self) -> dict[str, Any]:
        """Microseconds, rounded to a hundredth, and how many calls were timed."""
        return {
            "median_us": round(self.median_s * 1e6, 2),
            "lower_quartile_us": round(self.lower_quartile_s * 1e6, 2),
            "upper_quartile_us": round(self.upper_quartile_s * 1e6, 2),
            "samples": self.samples,
            "calls": self.calls,
        }


@dataclass(frozen=True)
class Contestant:
    """What is timed, under the name that results are reported by."""

    name: str
    sample: Sample


def jax_sample(call: Callable[[], Any]) -> Sample:
    """A sample of ``call``, which sends work off and returns its arrays.

    On the CPU it waits for every call: virtual devices share threads, and the ranks of one program
    must not hold those that another's need to meet.
    """
    import jax

    waits_for_each = jax.default_backend() == "cpu"

    def sample(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            out = call()
            if waits_for_each:
                jax.block_until_ready(out)
        jax.block_until_ready(out)
        return (time.perf_counter() - began) / calls

    return sample


def take_turns(
    contestants: list[Contestant],
    samples: int,
    sample_s: float,
    limit_s: float,
    least_calls: int = 1,
) -> tuple[dict[str, Timing], dict[str, str]]:
    """Timings by name, and why the others have none.

    Each is called twice before it is timed. A sample has as many calls as fit into ``sample_s``
    seconds, at least ``least_calls``; a contestant whose samples would take more than ``limit_s``
    seconds in all has fewer of them, at least three.
    """
    calls: dict[str, int] = {}
    rounds: dict[str, int] = {}
    failed: dict[str, str] = {}
    for contestant in contestants:
        try:
            contestant.sample(1)
            once_s = contestant.sample(2)
        except Exception as error:  # a peer that fails is a result; the others go on
            failed[contestant.name] = telling_line(error)
            continue
        calls[contestant.name] = max(least_calls, int(sample_s / once_s))
        spent_s = once_s * calls[contestant.name]
        rounds[contestant.name] = max(3, min(samples, int(limit_s / spent_s)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(max(rounds.values(), default=0)):
        for contestant in contestants:
            name = contestant.name
            if name in failed or index >= rounds.get(name, 0):
                continue
            try:
                times[name].append(contestant.sample(calls[name]))
            except Exception as error:
                failed[name] = telling_line(error)
    timings = {
        name: _timing(values, calls[name]) for name, values in times.items() if name not in failed
    }
    return timings, failed


def telling_line(error: BaseException) -> str:
    """The first line of an error, cut to 300 characters."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no text'}"[:300]


def _timing(values: list[float], calls: int) -> Timing:
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(statistics.median(values), lower, upper, len(values), calls * len(values))
