"""Question: of how many microbatches does each chunk of a stage hold activations at its peak?

Interleaved 1F1B runs 2 · (p − 1 − s) + (v − 1) · p forwards ahead and has one more at work; p
microbatches of a chunk follow one another (Narayanan et al. 2021, arXiv 2104.04473, section 2.2),
so the last chunk, which has the head, holds fewer than the first. For the others the peak of
`moeprof.specs.in_flight` is spread evenly.
"""

from __future__ import annotations

from moeprof.specs.in_flight import in_flight


def flight_of_chunks(schedule: str, p: int, v: int, m: int, stage: int) -> tuple[float, ...]:
    """Microbatches in flight of each chunk of a stage, first chunk first; never more than m.

    Args:
        schedule: of `moeprof.specs.in_flight`; "1f1b" with several chunks is the interleaved one.
        p: stages of the pipeline.
        v: chunks of layers per stage.
        m: microbatches per iteration.
        stage: from 0.
    """
    if schedule != "interleaved" and (schedule != "1f1b" or v == 1):
        return (in_flight(schedule, p, v, m, stage),) * v
    begun = min(2 * (p - 1 - stage) + (v - 1) * p + 1, m * v)
    rounds, rest = divmod(begun, p * v)
    return tuple(float(rounds * p + min(max(rest - chunk * p, 0), p)) for chunk in range(v))
