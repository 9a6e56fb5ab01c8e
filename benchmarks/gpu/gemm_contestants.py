"""Question: who computes a pass of a grouped product, each in a process of its own?

A `Kind` is one process: `moeprof` (ours and JAX's dense product), `ragged_dot`, `pallas`, and
`torch` (its grouped and its dense product). It prepares a pass, which may take long to compile, and
then gives samples of its contestants by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpu.gemm_shapes import Shape
from gpu.timing import Sample, jax_sample, telling_line


@dataclass
class Prepared:
    """Samples by contestant, why the others have none, and what is to be said of them."""

    samples: dict[str, Sample] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def take(self, name: str, sample: Callable[[], Sample]) -> None:
        """The sample after one call, which compiles it; or why there is none."""
        try:
            made = sample()
            made(1)
        except Exception as error:  # one contestant that fails leaves the others
            self.failed[name] = telling_line(error)
        else:
            self.samples[name] = made


class Kind(Protocol):
    """What a process holds for one shape."""

    def prepare(self, which: str) -> Prepared:
        """One of `PASSES`, compiled and run once."""


class OursAndDense:
    """`moeprof.kernels.grouped_gemm` and a dense product of the same flops."""

    def __init__(self, shape: Shape) -> None:
        """Compiles all passes of ours, and compares them with the host's; ours may fail."""
        from gpu.gemm_jax import Operands, calls_of, dense_calls, worst_error
        from moeprof.kernels import grouped_gemm

        operands = Operands(shape)
        self._ours, self._dense = calls_of(grouped_gemm, operands), dense_calls(operands)
        try:
            self._error: float | None = worst_error(operands, shape, self._ours)
        except Exception as error:  # the dense product is timed all the same
            self._error = None
            print(f"ours: {telling_line(error)}", flush=True)

    def prepare(self, which: str) -> Prepared:
        """`moeprof` and `dense_jax`; the note is the relative error of ours."""
        prepared = Prepared(notes={"relative_error": self._error})
        prepared.take("moeprof", lambda: jax_sample(self._ours[which]))
        prepared.take("dense_jax", lambda: jax_sample(self._dense[which]))
        return prepared


class RaggedDot:
    """`jax.lax.ragged_dot` and its derivatives."""

    def __init__(self, shape: Shape) -> None:
        """Draws the operands."""
        import jax

        from gpu.gemm_jax import Operands, calls_of

        self._calls = calls_of(jax.lax.ragged_dot, Operands(shape))

    def prepare(self, which: str) -> Prepared:
        """`ragged_dot`."""
        prepared = Prepared()
        prepared.take("ragged_dot", lambda: jax_sample(self._calls[which]))
        return prepared


class Pallas:
    """Pallas' kernels, each pass with the fastest of its tile sizes."""

    def __init__(self, shape: Shape) -> None:
        """Draws the operands."""
        from gpu.gemm_jax import Operands

        self._operands = Operands(shape)

    def prepare(self, which: str) -> Prepared:
        """`pallas`; the note is the tile size."""
        from gpu.gemm_pallas import best_pallas

        prepared = Prepared()

        def best() -> Sample:
            prepared.notes["pallas_tile"], call = best_pallas(which, self._operands)
            return jax_sample(call)

        prepared.take("pallas", best)
        return prepared


class Torch:
    """`torch._grouped_mm` and a dense product by torch."""

    def __init__(self, shape: Shape) -> None:
        """Draws the operands."""
        from gpu.gemm_torch import torch_calls

        self._calls = torch_calls(shape)

    def prepare(self, which: str) -> Prepared:
        """`torch_grouped_mm` and `dense_torch`."""
        from gpu.gemm_torch import torch_sample

        prepared = Prepared()
        for name, what in (("torch_grouped_mm", "grouped"), ("dense_torch", "dense")):
            call = self._calls[what, which]
            prepared.take(name, lambda call=call: torch_sample(call))
        return prepared


KINDS: dict[str, Callable[[Shape], Kind]] = {
    "moeprof": OursAndDense,
    "ragged_dot": RaggedDot,
    "pallas": Pallas,
    "torch": Torch,
}
