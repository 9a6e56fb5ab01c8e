"""Question: can the bundled model train this model on this plan, or what stands against it?

A projection knows more models and plans than the bundled model implements.
"""

from __future__ import annotations

from moeprof.errors import SpecError
from moeprof.specs.model import MlaSpec, ModelSpec
from moeprof.specs.plan import ALL_AXES, AXES, ParallelPlan


def check_trainable(model: ModelSpec, plan: ParallelPlan) -> None:
    """Check that the bundled model implements all that a model and a plan ask for.

    Raises:
        SpecError: it does not; the message names all that is missing.
    """
    missing = [*_of_model(model), *_of_plan(plan)]
    if missing:
        raise SpecError(
            f"bundled model: it has no {', '.join(missing)}, which {model.name or 'this model'} on "
            "this plan needs. Project it instead of training it, or change the model or the plan."
        )


def _of_model(model: ModelSpec) -> list[str]:
    has_latent = isinstance(model.attention, MlaSpec)
    asked = {
        "feed-forward without gate": not model.is_gated,
        "multi-token prediction": model.mtp_layers > 0,
        "linear attention": model.linear_layers > 0,
        "attention gate": model.has_attention_gate,
        "soft cap of logits": model.final_softcap,
        "bias of latent attention": has_latent and model.attention_bias,
        "norm of latent queries and keys": has_latent and model.qk_norm != "none",
    }
    return [what for what, is_asked in asked.items() if is_asked]


def _of_plan(plan: ParallelPlan) -> list[str]:
    others = [axis for axis in ALL_AXES if axis not in AXES]
    return [f"{axis} parallelism" for axis in others if plan.degree((axis,)) > 1]
