"""Question: how fast and how even is the work of the experts, in one sentence per question?"""

from __future__ import annotations

from moeprof.answers.document import Document, headline
from moeprof.answers.story import basis
from moeprof.answers.values import NONE, is_number, written


def expert_load(document: Document) -> str:
    """The busiest expert and rank against the mean, and experts without a token."""
    found = headline(document, "expert_load")
    if found.get("worst_expert_imbalance") is None:
        return "Not known: the notes say why."
    told = (
        f"The busiest expert of a layer gets {_times(found['worst_expert_imbalance'])} the tokens "
        "of the mean one"
    )
    if found["worst_rank_imbalance"] is not None:
        share = found.get("worst_rank_share")
        is_one = not is_number(share) or share == 1
        rank = f"rank {found['worst_rank']}" if is_one else "the fullest rank of each step"
        told += (
            f"; ranks differ most in layer {found['worst_layer']}, where {rank} gets "
            f"{_times(found['worst_rank_imbalance'])} the mean"
        )
    dead = found["dead_experts"]
    return f"{told}; experts without a token: {written(dead, 'count') if dead else 'none'}."


def grouped_gemm(document: Document) -> str:
    """Time and rate of the experts' products, and what is known of their waste."""
    found = headline(document, "grouped_gemm")
    if not found.get("call_sites"):
        return NONE
    told = [
        f"The experts' products take {written(found['grouped_gemm_time'], 'ns')} {basis(document)}"
    ]
    if found["rate"] is not None:
        told.append(f" at {written(found['rate'], 'TFLOP/s')}")
    if found["peak_share"] is not None:
        told.append(f", {written(found['peak_share'], 'share')} of the device's peak")
    wasted = found["fallback_wasted_time"]
    if is_number(wasted) and wasted:
        told.append(f"; {written(wasted, 'ns')} of it multiplies zeros, as ragged_dot runs dense")
    if found["padding_share"]:
        told.append(f"; {written(found['padding_share'], 'share')} of their rows are padding")
    return f"{''.join(told)}."


def _times(ratio: object) -> str:
    return f"{ratio:.2f} ×" if isinstance(ratio, int | float) else "not known how many times"
