"""Question: what does Primus's own projection count, whose figures AMD published?

The account that its bars for MoE-1T and MoE-2T on 768 GPUs follow (AMD-AGI/Primus,
examples/moe_package/images/moe-{1t,2t}-memory-projection.png), each to the printed digit and in
decimal GB. It is here to read those figures, not to project with: attention weights are those of
keys and values alone, router, norms and head are left out, gradients are in bf16, nothing is said
of stages but the first. Per layer and microbatch it keeps, in bf16,

    T · (5 · d + 2 · kv_heads · head_dim) + T · heads · 4 B + T · top-k · (d + 3 · f)

of as many layers as the model has, times 1 + (p − 1) / (p · v), and the logits in 6 bytes once.
Optimizer state: 2 B of a master copy (the lower half; the bf16 weight is the upper) and 8 B of
moments, over EDP for all weights. Full recomputation leaves T · d.
"""

from __future__ import annotations

from moeprof.errors import SpecError
from moeprof.projector.accounts.megatron.ranks import Sizes, sizes_of, times
from moeprof.projector.breakdown import Peak, Row, StageBreakdown, ceil_div
from moeprof.projector.setting import Amount, Count, Degrees, Setting
from moeprof.specs.model import GqaSpec, ModelSpec

SOURCE = "AMD-AGI/Primus, examples/moe_package: moe-1t and moe-2t memory projection figures"
_STATE = (
    ("weights", "params", 2),
    ("gradients", "grads", 2),
    ("lower halves of master weights", "optimizer", 2),
    ("moments", "optimizer", 8),
)


def primus_stage(setting: Setting, degrees: Degrees) -> StageBreakdown:
    """What Primus projects for one device.

    Raises:
        SpecError: attention is not grouped-query: no figure of such a model is published.
    """
    model = setting.model
    if not isinstance(model.attention, GqaSpec):
        raise SpecError("account primus: known for grouped-query attention alone, found MLA.")
    sizes = sizes_of(setting, degrees)
    held = _parameters(model, model.attention, sizes, degrees.pipeline)
    args = []
    for name, kind, width in _STATE:
        shards = sizes.expert_data if kind == "optimizer" else 1
        over = " / EDP" if kind == "optimizer" else ""
        args.append(
            _row(name, "args", kind, ceil_div(held * width, shards), f"P{over} · {width} B")
        )
    return StageBreakdown(0, tuple(args), (Peak("projected", _activations(setting, degrees)),), ())


def _parameters(model: ModelSpec, gqa: GqaSpec, sizes: Sizes, pipeline: Count) -> Count:
    """Weights of L / PP layers and the embedding."""
    attention = 2 * model.hidden * gqa.kv_heads * gqa.head_dim
    experts = ceil_div(model.experts * model.feedforward_matrices * model.moe_ffn, sizes.expert)
    shared = model.feedforward_matrices * model.shared_width
    layer = attention + (experts + shared) * model.hidden
    return ceil_div(model.layers, pipeline) * layer + model.vocab * model.hidden


def _activations(setting: Setting, degrees: Degrees) -> tuple[Row, ...]:
    model, sizes = setting.model, sizes_of(setting, degrees)
    assert isinstance(model.attention, GqaSpec)
    if sizes.tokens is None:
        missing = "cannot estimate activations: sequence or batch per device is not given"
        return (Row("activations", "temp", "activations", None, missing, SOURCE, "unknown"),)
    p, v = int(degrees.pipeline), int(degrees.virtual)
    flight = model.layers * (1 + (p - 1) / (p * v)) * min(1, int(degrees.microbatches) / p)
    rows = []
    if setting.plan.remat.text == "full":
        rows.append(("layer inputs", sizes.tokens * model.hidden * 2, "T · d · 2 B"))
    else:
        kv = 2 * model.attention.kv_heads * model.attention.head_dim
        block = sizes.tokens * ((5 * model.hidden + kv) * 2 + model.heads * 4)
        routed = sizes.tokens * model.top_k * (model.hidden + 3 * model.moe_ffn) * 2
        rows.append(("attention and residuals", block, "T · ((5 · d + 2 · kv) · 2 + heads · 4) B"))
        rows.append(("experts", routed, "T · top-k · (d + 3 · f) · 2 B"))
    logits = sizes.tokens * model.vocab * 6
    return (
        *(
            _row(name, "temp", "activations", times(size, flight), f"{formula} · {flight:g}")
            for name, size, formula in rows
        ),
        _row("logits", "temp", "activations", logits, "T · V · 6 B"),
    )


def _row(name: str, pool: str, kind: str, size: Amount, formula: str) -> Row:
    return Row(name, pool, kind, size, formula, SOURCE, "low")  # type: ignore[arg-type]
