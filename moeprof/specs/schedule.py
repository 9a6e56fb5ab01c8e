"""Question: how much of a pipeline's time must be a bubble, whatever its stages do?

With equal stages, p of them, m microbatches and v chunks of layers per stage, a stage works m·v
times and must wait p − 1 times while the pipeline fills and drains:

    bubble = (p − 1) / (m · v + p − 1)

v = 1 for GPipe (Huang et al. 2019, arXiv 1811.06965, section 2.3) and for 1F1B, which has the same
bubble and holds fewer activations (Narayanan et al. 2021, arXiv 2104.04473, section 2.2); v > 1
for the interleaved schedule (the same, section 2.2) and for the circular one of GSPMD
(Xu et al. 2021, arXiv 2105.04663, section 3.3), where each microbatch goes round v times.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.errors import SpecError

SINGLE = ("gpipe", "1f1b")
REPEATED = ("interleaved", "circular")


@dataclass(frozen=True)
class Schedule:
    """A pipeline's order of work.

    Raises:
        SpecError: the name is none of the four, a count is below 1, or a schedule that goes
            through each stage once has several chunks.
    """

    name: str
    stages: int
    microbatches: int
    chunks: int = 1

    def __post_init__(self) -> None:
        """Refuse what no pipeline can be."""
        if self.name not in SINGLE + REPEATED:
            known = ", ".join(SINGLE + REPEATED)
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

    def check_groups(self) -> None:
        """Refuse microbatches that the interleaved schedule cannot group by stages.

        Raises:
            SpecError: they are not a multiple of the stages.
        """
        if self.name == "interleaved" and self.microbatches % self.stages:
            raise SpecError(
                f"interleaved: microbatches must be a multiple of the {self.stages} stages, "
                f"found {self.microbatches}."
            )

    @property
    def rounds(self) -> int:
        """Times that each stage would work if there were no bubble: m · v."""
        return self.microbatches * self.chunks

    @property
    def bubble(self) -> float:
        """Share of the time in which a stage must wait, in [0, 1)."""
        return (self.stages - 1) / (self.rounds + self.stages - 1)
