"""Question: how much of a pipeline's time must be a bubble, whatever its stages do?

With p equal stages, m microbatches and v chunks of layers per stage, a stage works in rounds and is
idle for a number of rounds that depends on the schedule and p alone:

    bubble = idle / (rounds + idle)

    gpipe, 1f1b              rounds m      idle p − 1
    interleaved, circular    rounds m · v  idle p − 1
    zb-h1, zb-h2             rounds 3 · m  idle p − 1
    zbv, v-half, v-min       rounds 6 · m  idle p − 1, and as in `_V_IDLE`

GPipe: Huang et al. 2019, arXiv 1811.06965, section 2.3. 1F1B has the same bubble and holds fewer
activations (Narayanan et al. 2021, arXiv 2104.04473, section 2.2); interleaved: the same section.
Circular, where each microbatch goes round v times: Xu et al. 2021, arXiv 2105.04663, section 3.3.
The last two lines are of schedules that run the gradients of weights apart (see
`moeprof.specs.schedule_order`) where forward, gradient of the input and of the weights take
equally long; a round is one of these pieces.

Where they are not equally long, the idle time of zb-h1 is (p − 1) · max(F, B, F + B − W), that of
zb-h2 (p − 1) · max(F, B − F, F + B − 2 · W), from 2p − 1 microbatches on.

An iteration lasts until the last stage is done. Stages of zb-h2 and zbv work without a pause from
their first piece to their last (the published bubble of 0): the p − 1 that remain are the wait of
the last stage at the begin, which costs nothing only where the optimizer of a stage does not wait
for the others (Qi et al. 2023, arXiv 2401.10241, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from moeprof.errors import SpecError

SINGLE = ("gpipe", "1f1b", "zb-h1", "zb-h2")
REPEATED = ("interleaved", "circular")
V_SHAPED = ("zbv", "v-half", "v-min")
SCHEDULES = (*SINGLE[:2], *REPEATED, *SINGLE[2:], *V_SHAPED)
V_CHUNKS = 2
SPLIT = ("zb-h1", "zb-h2", *V_SHAPED)
"""Schedules in which the gradients of weights are work of their own."""


@dataclass(frozen=True)
class Schedule:
    """A pipeline's order of work.

    Raises:
        SpecError: the name is none of `SCHEDULES`, a count is below 1, a schedule that goes
            through each stage once has several chunks, or one that goes down and back up the
            stages has not two.
    """

    name: str
    stages: int
    microbatches: int
    chunks: int = 1

    def __post_init__(self) -> None:
        """Refuse what no pipeline can be."""
        if self.name not in SCHEDULES:
            known = ", ".join(SCHEDULES)
            raise SpecError(f"schedule: expected one of {known}, found {self.name!r}.")
        for what in ("stages", "microbatches", "chunks"):
            count = getattr(self, what)
            if count < 1:
                raise SpecError(f"{self.name}: {what} must be at least 1, found {count}.")
        if self.name in SINGLE and self.chunks > 1:
            raise SpecError(
                f"{self.name}: each stage has one chunk, found {self.chunks}. "
                f"Use {' or '.join(REPEATED)} for several."
            )
        if self.is_v_shaped and self.chunks != V_CHUNKS:
            raise SpecError(
                f"{self.name}: each stage has two chunks (virtual 2), found {self.chunks}."
            )

    def check_groups(self) -> None:
        """Refuse microbatches that the interleaved schedule cannot group by stages.

        Raises:
            SpecError: they are not a multiple of the stages.
        """
        if self.name == "interleaved" and self.microbatches % self.stages:
            raise SpecError(
                f"interleaved: microbatches must be a multiple of the {self.stages} stages, "
                f"found {self.microbatches}. Use at least {self.stages}."
            )

    @property
    def is_v_shaped(self) -> bool:
        """Whether a microbatch goes down the stages through one chunk, back up through another."""
        return self.name in V_SHAPED

    @property
    def splits_backward(self) -> bool:
        """Whether the gradients of weights are work of their own."""
        return self.name in SPLIT

    @property
    def passes(self) -> int:
        """Pieces of work per chunk and microbatch: forward and backward, or F, B and W."""
        return 3 if self.splits_backward else 2

    @property
    def rounds(self) -> int:
        """Times that each stage would work if there were no bubble.

        m · v; three times as many where gradients of weights run apart.
        """
        return self.microbatches * self.chunks * (3 if self.splits_backward else 1)

    @property
    def idle_rounds(self) -> int:
        """Rounds that each stage waits in an iteration of equal stages."""
        idle = _V_IDLE.get(self.name, _fill)
        return idle(self.stages) if self.stages > 1 else 0

    @property
    def bubble(self) -> float:
        """Share of the iteration in which a stage must wait, in [0, 1).

        Exact with at least `settled_microbatches`.
        """
        return self.idle_rounds / (self.rounds + self.idle_rounds)

    @property
    def settled_microbatches(self) -> int:
        """Microbatches from which on `bubble` is exact for equal pieces of work.

        With fewer, stages may wait longer (a single one in v-min: shorter).
        """
        p = self.stages
        needed = {
            "circular": p if self.chunks > 1 else 1,
            "zb-h1": p,
            "zb-h2": 2 * p - 1,
            "zbv": 2 * p - 1,
            "v-half": p // 2 + 1,
            "v-min": 2,
        }
        return needed.get(self.name, 1)


def stage_at(schedule: str, stages: int, depth: int) -> tuple[int, int]:
    """Stage and chunk that a microbatch passes ``depth``-th in forward, from 0 to p · v − 1."""
    chunk, along = divmod(depth, stages)
    is_upward = schedule in V_SHAPED and chunk == 1
    return (stages - 1 - along if is_upward else along), chunk


def _fill(stages: int) -> int:
    return stages - 1


def _v_min(stages: int) -> int:
    return 4 * stages - (5 if stages % 3 else 3)


def _v_half(stages: int) -> int:
    return 7 * (stages - 1) // 2


_V_IDLE: Mapping[str, Callable[[int], int]] = {"v-min": _v_min, "v-half": _v_half}


def few_microbatches(microbatches: int, stages: int) -> str:
    """What fewer microbatches than stages cost, and how many fill them."""
    noun = "microbatch" if microbatches == 1 else "microbatches"
    return (
        f"{microbatches} {noun} for {stages} pipeline stages: some always idle; use at least "
        f"{stages}"
    )
