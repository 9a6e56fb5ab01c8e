"""Question: which shapes and group lengths must every grouped GEMM handle?

One table of named cases, each in two sizes: the tests run all of them small
(`GROUPED_GEMM_CASES`), the measurements some of them large (`BENCHMARK_CASES`, for two cores). How
fast a ragged product is depends on how the lengths are spread, so a case holds the lengths
themselves, not only their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np


@dataclass(frozen=True)
class GroupedGemmCase:
    """``rows`` of width ``k``, a ``k × n`` matrix per group, and the rows of each group."""

    rows: int
    k: int
    n: int
    group_lens: tuple[int, ...]

    @property
    def groups(self) -> int:
        """Number of groups, empty ones included."""
        return len(self.group_lens)

    @property
    def used_rows(self) -> int:
        """Rows that belong to a group; the rest must come out as zeros."""
        return sum(self.group_lens)

    @property
    def forward_flops(self) -> int:
        """Flops of one product, a multiply and an add counted as two."""
        return 2 * self.used_rows * self.k * self.n


def unbalanced_lens(groups: int, rows: int, seed: int = 0) -> tuple[int, ...]:
    """Lengths that sum to ``rows`` and differ by up to a factor of five.

    Weights are ``0.2 + 0.8 U`` with ``U`` uniform, normalised, the remainder to the last group:
    the generator of Primus-Turbo's own grouped GEMM tests (tests/jax).
    """
    weights = 0.2 + 0.8 * np.random.default_rng(seed).random(groups)
    lens = np.floor(weights / weights.sum() * rows).astype(np.int64)
    lens[-1] += rows - lens.sum()
    return tuple(int(length) for length in lens)


def zipf_lens(groups: int, rows: int) -> tuple[int, ...]:
    """Lengths that fall as ``1 / (g + 1)``: few busy experts and many nearly idle ones.

    The remainder of rounding goes to group 0, so the lengths sum to ``rows``.
    """
    total = sum(1 / (g + 1) for g in range(groups))
    lens = [math.floor(rows / (g + 1) / total) for g in range(groups)]
    lens[0] += rows - sum(lens)
    return tuple(lens)


@dataclass(frozen=True)
class Sizes:
    """One spread of lengths, small enough for a test and large enough for a measurement."""

    small: GroupedGemmCase
    large: GroupedGemmCase


CASES = MappingProxyType(
    {
        # Long groups of whole vectors: the product itself.
        "compute_bound": Sizes(
            GroupedGemmCase(512, 64, 96, (128,) * 4),
            GroupedGemmCase(8192, 1024, 1024, (2048,) * 4),
        ),
        # One or two rows per group: reading the matrices is the work.
        "memory_bound": Sizes(
            GroupedGemmCase(16, 128, 128, (1, 2) * 4 + (1,) * 4),
            GroupedGemmCase(96, 1024, 1024, (1, 2) * 32),
        ),
        "one_hot_expert": Sizes(
            GroupedGemmCase(200, 48, 32, (0, 0, 200, 0)),
            GroupedGemmCase(8192, 1024, 1024, (0,) * 20 + (8192,) + (0,) * 11),
        ),
        "empty_expert": Sizes(
            GroupedGemmCase(150, 32, 40, (0, 50, 0, 0, 0, 0, 99, 1, 0)),
            GroupedGemmCase(8192, 1024, 1024, (0, 512) * 16),
        ),
        "all_empty": Sizes(
            GroupedGemmCase(64, 16, 24, (0, 0, 0)),
            GroupedGemmCase(8192, 1024, 1024, (0,) * 32),
        ),
        # Rows past the sum, and no size a multiple of a vector.
        "ragged_tail": Sizes(
            GroupedGemmCase(131, 37, 29, (13, 7, 61, 5)),
            GroupedGemmCase(8191, 1021, 1019, unbalanced_lens(32, 5003)),
        ),
        "one_row": Sizes(
            GroupedGemmCase(1, 5, 3, (0, 1)),
            GroupedGemmCase(1, 1024, 1024, (0, 1)),
        ),
        # Deeper and wider than one scratch block and one 16-bit tile of the native kernel.
        "many_blocks": Sizes(
            GroupedGemmCase(1100, 1100, 530, (1050, 20)),
            GroupedGemmCase(2048, 4096, 2048, (2000, 40)),
        ),
        "unbalanced_32": Sizes(
            GroupedGemmCase(512, 48, 56, unbalanced_lens(32, 512)),
            GroupedGemmCase(8192, 1024, 1024, unbalanced_lens(32, 8192)),
        ),
        "unbalanced_64": Sizes(
            GroupedGemmCase(512, 24, 40, unbalanced_lens(64, 512)),
            GroupedGemmCase(8192, 1024, 1024, unbalanced_lens(64, 8192)),
        ),
        "unbalanced_32_wide": Sizes(
            GroupedGemmCase(256, 32, 144, unbalanced_lens(32, 256)),
            GroupedGemmCase(4096, 1024, 2048, unbalanced_lens(32, 4096)),
        ),
        "zipf_64": Sizes(
            GroupedGemmCase(512, 40, 32, zipf_lens(64, 500)),
            GroupedGemmCase(8192, 1024, 1024, zipf_lens(64, 8192)),
        ),
    }
)

GROUPED_GEMM_CASES = MappingProxyType({name: sizes.small for name, sizes in CASES.items()})

# What a router makes of real tokens; the others are edges.
_MEASURED = ("unbalanced_32", "unbalanced_64", "unbalanced_32_wide", "zipf_64")
BENCHMARK_CASES = MappingProxyType({name: CASES[name].large for name in _MEASURED})
