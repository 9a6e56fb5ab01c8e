"""Question: which grouped products are timed on a GPU?

Forward, dA and dB of rows [M, k] sorted by group times a matrix [k, n] per group, in bfloat16:

    forward  out[i] = a[i] b[g(i)]          dA  d_a[i] = d_out[i] b[g(i)]^T
    dB       d_b[g] = a_g^T d_out_g         each 2 · sum(lengths) · k · n flops
"""

from __future__ import annotations

from dataclasses import dataclass

from moeprof.kernels.products.cases import unbalanced_lens, zipf_lens

PASSES = ("forward", "dA", "dB")


@dataclass(frozen=True)
class Shape:
    """``rows`` of width ``k`` in ``groups`` of the named spread, a k × n matrix per group."""

    rows: int
    groups: int
    k: int
    n: int
    spread: str = "unbalanced"

    @property
    def group_lens(self) -> tuple[int, ...]:
        """Rows of each group; they sum to ``rows``."""
        lens = zipf_lens if self.spread == "zipf" else unbalanced_lens
        return lens(self.groups, self.rows)

    @property
    def flops(self) -> int:
        """Of one pass, a multiply and an add counted as two."""
        return 2 * sum(self.group_lens) * self.k * self.n


SHAPES = {
    "e32_k7168_n2048": Shape(32768, 32, 7168, 2048),
    "e32_k2048_n7168": Shape(32768, 32, 2048, 7168),
    "e8_k4096_n14336": Shape(32768, 8, 4096, 14336),
    "e256_k2048_n1024": Shape(32768, 256, 2048, 1024),
    "e32_k7168_n2048_zipf": Shape(32768, 32, 7168, 2048, "zipf"),
    "e256_k2048_n1024_zipf": Shape(32768, 256, 2048, 1024, "zipf"),
}
SMOKE_SHAPES = {"smoke": Shape(96, 4, 32, 24), "smoke_zipf": Shape(64, 8, 16, 32, "zipf")}
