"""Question: what stays allocated between steps that is neither weight, gradient nor optimizer?

Megatron-LM's functional tests log it: ``mem-allocated-bytes`` after a step is more than the state.
Where it can be told apart, it is of two kinds. A copy of embedding and head in the compute format:
0.50 GiB of gpt3_7b_tp4_pp1 on A100 (0.50 by this), 0.19 of mixtral_8x22b_tp2pp8 (0.19). And, on
Hopper and later with experts, 0.20 to 0.22 GiB in the two smallest tests (0.19 by this): workspaces
of 32 MiB each, one of cuBLAS, one of TransformerEngine and one per stream of its grouped GEMM
(TransformerEngine, module/base.py: 32 MiB on Hopper, 4 MiB before).
"""

from __future__ import annotations

from collections.abc import Sequence

from moeprof.projector.accounts.megatron.sizes import Sizes
from moeprof.projector.breakdown import Row
from moeprof.projector.rows import ceil_div
from moeprof.projector.setting import Setting
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.parameters import Parameter

ENDS = ("embedding", "head", "embedding_copy", "head_copy")
NAMES = ("gradients of embedding and head, not accumulated", "GEMM workspaces")
MIB = 2**20
_TESTS = "Megatron-LM, tests/functional_tests: mem-allocated-bytes after a step"
_STREAMS = 4
_BEFORE_HOPPER = ("a100_40", "a100_80")


def between_steps(setting: Setting, parameters: Sequence[Parameter], sizes: Sizes) -> list[Row]:
    """Rows; none for other accounts, workspaces of NVIDIA's devices alone."""
    if setting.megatron.account != "megatron":
        return []
    rows = []
    ends = sum(p.size for p in parameters if p.path[0] in ENDS)
    if ends:
        width = max(DTYPE_BYTES[setting.precision.compute], 2)
        size, formula = ceil_div(ends, sizes.tensor) * width, f"V · d / TP · {width} B"
        rows.append(Row(NAMES[0], "temp", "temporaries", size, formula, _TESTS, "medium"))
    if setting.hardware.vendor == "NVIDIA":
        rows.append(_workspaces(setting))
    return rows


def _workspaces(setting: Setting) -> Row:
    count = 2 + (_STREAMS if setting.model.experts else 0)
    each = 4 if setting.hardware.key in _BEFORE_HOPPER else 32
    formula = f"{count} · {each} MiB"
    size = count * each * MIB
    return Row(NAMES[1], "temp", "temporaries", size, formula, _TESTS, "medium")
