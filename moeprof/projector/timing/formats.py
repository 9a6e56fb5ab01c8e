"""Question: in which formats does a step compute and move, and how fast can products in them be?"""

from __future__ import annotations

from moeprof.errors import SpecError
from moeprof.projector.setting import Setting
from moeprof.specs import DTYPE_BYTES

_HLO_NAMES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float8_e4m3fn": "f8e4m3fn",
    "float8_e5m2": "f8e5m2",
}


def item_bytes(setting: Setting) -> int:
    """Bytes of one activation."""
    return DTYPE_BYTES[setting.precision.compute]


def expert_item_bytes(setting: Setting) -> int:
    """Bytes of one operand of the experts' products."""
    return DTYPE_BYTES[setting.precision.experts or setting.precision.compute]


def peak_flops_per_s(setting: Setting, dtype: str) -> float:
    """The device's peak for products of a format.

    Raises:
        SpecError: the vendor states none.
    """
    peak = setting.hardware.flops_per_s(_HLO_NAMES.get(dtype, dtype))
    if peak is None:
        raise SpecError(
            f"step time: no peak of {setting.hardware.name} for {dtype} is known. "
            "Estimate in bfloat16."
        )
    return peak
