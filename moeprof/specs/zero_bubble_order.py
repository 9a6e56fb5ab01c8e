"""Question: in which order do stages work that run the gradients of weights apart?

Backward work is split into B, the gradient of the input, for which the stage before waits, and W,
the gradient of the weights, for which nobody waits, so that W fills what would be a bubble.

ZB-H1 and ZB-H2 (Qi et al. 2023, arXiv 2401.10241, section 2) are 1F1B with W held back: H1 runs
p − 1 − s forwards ahead on stage s and keeps s pieces of W, so that all stages hold p microbatches;
H2 runs 2 · (p − 1 − s) ahead and keeps 2 · s, so that all hold 2 · p − 1.

In the other three a stage has two chunks, and a microbatch goes down the stages through the first
and back up through the second (a V). ZBV (the same paper, section "ZB-V") repeats F B W of the
first chunk, F B W of the second; V-Half and V-Min (Qi et al. 2024, arXiv 2405.15362, section 3)
repeat one building block every 6 pieces of work, see `moeprof.specs.building_block`.

All functions give the place of each piece in the order of a stage, int64 [kinds F B W, chunks,
microbatches]; places are distinct and otherwise only their order matters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from moeprof.specs.building_block import BLOCKS, PERIOD, Offsets, block_of


def _h1(stages: int, microbatches: int, stage: int) -> np.ndarray:
    return _one_chunk(microbatches, ahead=stages - 1 - stage, held=stage)


def _h2(stages: int, microbatches: int, stage: int) -> np.ndarray:
    return _one_chunk(microbatches, ahead=2 * (stages - 1 - stage), held=2 * stage)


def _one_chunk(microbatches: int, ahead: int, held: int) -> np.ndarray:
    """Rounds of F, B, W: in round r F of r + ahead, B of r, W of r − held."""
    j = np.arange(microbatches)
    return np.stack([3 * (j - ahead), 3 * j + 1, 3 * (j + held) + 2])[:, None]


def _zbv(stages: int, microbatches: int, stage: int) -> np.ndarray:
    """Rounds of F0 B0 W0 F1 B1 W1: in round r F0 of r + 2p − 1 − s, B0 and W0 of r, F1 of r + p,
    B1 and W1 of r + p − s.

    In warm-up the stage runs 2 · (p − s) − 1 pieces F0 before the first F1, one after each of the s
    next. In the drain B goes first: W0 is s rounds later, W1 comes last.
    """
    p, s = stages, stage
    many = max(microbatches, 2 * p)  # a shorter pipeline is the beginning of a long one
    j = np.arange(many)
    fill = 2 * p - 1 - s
    first = np.where(j < fill, 6 * (j - 2 * (p - s) + 1 - p) + 4, 6 * (j - fill))
    first_w = 6 * np.where(j < many - p, j, j + s) + 2
    second_w = np.where(j < many - s, 6 * (j - p + s) + 5, 6 * (j + s) + 1)
    places = [
        [first, 6 * (j - p) + 3],
        [6 * j + 1, 6 * (j - p + s) + 4],
        [first_w, second_w],
    ]
    return np.array(places)[:, :, :microbatches]


def _repeated(offsets: Offsets) -> Callable[[int, int, int], np.ndarray]:
    def places(stages: int, microbatches: int, stage: int) -> np.ndarray:
        block = np.array(block_of(offsets, stages, stage))
        return block[:, :, None] + PERIOD * np.arange(microbatches)

    return places


PLACES: Mapping[str, Callable[[int, int, int], np.ndarray]] = {
    "zb-h1": _h1,
    "zb-h2": _h2,
    "zbv": _zbv,
    **{name: _repeated(offsets) for name, offsets in BLOCKS.items()},
}
"""By schedule: places of a stage, from stages, microbatches and the stage."""
