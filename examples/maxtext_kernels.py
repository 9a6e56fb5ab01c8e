"""Train with MaxText 0.2.5, its routed experts exchanged and multiplied by `moeprof.kernels`.

    python examples/maxtext_kernels.py base.yml sparse_matmul=True ici_expert_parallelism=8 …

The command line is that of `python -m maxtext.trainers.pre_train.train`. In place of
`RoutedMoE.sparse_matmul` come `moe_dispatch`, `grouped_gemm` and `moe_combine`: no token is
dropped, each travels once per rank and not once per expert, and no ragged_all_to_all is left.
Routing, its losses and the bias update stay MaxText's. From a script of your own:

    import maxtext_kernels

    maxtext_kernels.install()  # before the model is built

Where the kernels run, and how fast: docs/kernels.md. What this layer does not do is refused in one
line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from moeprof.kernels import grouped_gemm, moe_combine, moe_dispatch, setup
from moeprof.model.rows import add_rows, order_by_expert, take_rows

AXIS = "expert"
# What the layer below does not do, as MaxText's base.yml has it where it is off.
OFF = {
    "mlp_bias": False,
    "quantization": "",
    "use_ring_of_experts": False,
    "num_moe_emb_chunks": 0,
    "shard_exp_on_fsdp": False,
    "shard_embed_moe_on_fsdp": False,
    "use_2d_fsdp_sharding": False,
    "ragged_buffer_factor": -1.0,
}


def install() -> None:
    """Give MaxText's routed experts the layer of this module, once per process."""
    from maxtext.layers import moe

    moe.RoutedMoE.sparse_matmul = sparse_matmul


def sparse_matmul(
    layer: Any,
    inputs: jax.Array,
    gate_logits: jax.Array,
    pre_bias_logits: jax.Array | None,
    w0: jax.Array,
    w1: jax.Array,
    wo: jax.Array,
    *biases: jax.Array | None,
    input_ids: jax.Array | None = None,
    forced_routed_experts: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    """The routed experts' sum for ``inputs`` [B, S, M], the balance loss and the bias update.

    Arguments and results are those of MaxText's method of the same name; ``biases`` are None.
    """
    refuse(layer)
    setup(mesh=layer.mesh, ep_axis_name=AXIS, hidden_bytes=inputs.shape[-1] * 4)
    scores, experts = layer.get_topk(
        gate_logits, pre_bias_logits, layer.rngs, input_ids, forced_routed_experts
    )
    if forced_routed_experts is not None:  # any id outside marks an unused slot
        is_real = (experts >= 0) & (experts < layer.num_experts)
        experts = jnp.where(is_real, experts, -1)
    tokens = axes(layer, "activation_batch", "activation_norm_length", None)
    up, down = axes(layer, "exp", None, "mlp_no_fsdp"), axes(layer, "exp", "mlp_no_fsdp", None)

    def run(*shards: jax.Array) -> jax.Array:
        return run_experts(layer, *shards)

    out = jax.shard_map(
        run,
        mesh=layer.mesh,
        in_specs=(tokens, tokens, tokens, up, up, down),
        out_specs=tokens,
        check_vma=False,
    )(inputs, experts.astype(jnp.int32), scores.astype(jnp.float32), w0, w1, wo)
    return out, *balance(
        layer, experts, gate_logits if pre_bias_logits is None else pre_bias_logits
    )


def run_experts(
    layer: Any,
    x: jax.Array,
    experts: jax.Array,
    scores: jax.Array,
    w0: jax.Array,
    w1: jax.Array,
    wo: jax.Array,
) -> jax.Array:
    """One device's part: its tokens ``x`` [B, S, M], and the matrices of its experts."""
    local_experts, top_k = w0.shape[0], experts.shape[-1]
    w0, w1, wo = (kernel.astype(layer.dtype) for kernel in (w0, w1, wo))
    with jax.named_scope("dispatch"):
        received, local, received_scores, handle = moe_dispatch(
            x.reshape(-1, x.shape[-1]),
            experts.reshape(-1, top_k),
            scores.reshape(-1, top_k),
            layer.num_experts,
        )
        received_rows = handle[0][-1, jax.lax.axis_index(AXIS)]
    with jax.named_scope("local_permute"):
        is_real = (jnp.arange(len(local))[:, None] < received_rows) & (local >= 0)
        order = order_by_expert(jnp.where(is_real, local, local_experts).reshape(-1), local_experts)
        # A token has no more rows on a rank than the rank has experts.
        slot_of_row = order.slot_of_row[: len(local) * min(local_experts, top_k)]
        fan_out = slot_of_row // top_k, order.row_of_slot.reshape(local.shape)
        rows = take_rows(received, *fan_out)
        row_scores = take_rows(
            received_scores.reshape(-1, 1), slot_of_row, order.row_of_slot[:, None]
        )
    lengths = order.rows_per_expert
    with jax.named_scope("experts"):
        gate = saved(grouped_gemm(rows, w0, lengths), "mlpwi_0")
        up = saved(grouped_gemm(rows, w1, lengths), "mlpwi_1")
        # Weighted before the last product, which is linear: its result is not needed again then.
        hidden = (layer.apply_ffn_activation(gate, up) * row_scores).astype(layer.dtype)
        out = saved(grouped_gemm(hidden, wo, lengths), "mlpwo")
    with jax.named_scope("unpermute"):
        summed = add_rows(out, *fan_out)
    with jax.named_scope("combine"):
        return moe_combine(summed, handle).reshape(x.shape)


def saved(x: jax.Array, name: str) -> jax.Array:
    """The same array under both names by which MaxText's remat policies save it."""
    same: jax.Array = checkpoint_name(checkpoint_name(x, name), f"moe_{name}")
    return same


def balance(
    layer: Any, experts: jax.Array, scores: jax.Array
) -> tuple[jax.Array | None, jax.Array | None]:
    """The balance loss and the bias update as MaxText has them, over all devices' tokens."""
    from maxtext.layers import moe

    config = layer.config
    loss = update = None
    if config.load_balance_loss_weight > 0.0 and not layer.is_hash_routing:
        if moe.uses_megatron_seq_aux_loss(config):
            loss = layer.megatron_seq_aux_loss(scores)
        else:
            shares = jax.nn.softmax(scores.astype(jnp.float32), axis=-1)
            loss = layer.load_balance_loss(experts, shares.astype(layer.dtype))
    if layer.should_update_load_balance():
        update = moe.calculate_expert_counts(experts, layer.num_experts)
        if config.gradient_accumulation_steps <= 1:
            update = moe.load_balance_updates_from_counts(
                update, layer.num_experts, config.routed_bias_update_rate
            )
    return loss, update


def axes(layer: Any, *names: str | None) -> PartitionSpec:
    """Mesh axes of MaxText's logical axes; experts' matrices are gathered over fsdp."""
    spec = layer._logical_to_mesh_axes(names)
    if "exp" not in names:
        return spec
    kept = [((axis,) if isinstance(axis, str) else axis or ()) for axis in spec]
    return PartitionSpec(*(tuple(a for a in axis if a != "fsdp") or None for axis in kept))


def refuse(layer: Any) -> None:
    """End the run in one line where its options ask for what this layer does not do."""
    config, mesh = layer.config, layer.mesh.shape
    wrong = [
        f"{name}={getattr(config, name)} (expected {off!r})"
        for name, off in OFF.items()
        if (getattr(config, name, off) or off) != off
    ]
    if layer._expert_parallelism_name != AXIS:
        wrong.append(f"experts over {layer._expert_parallelism_name} (expected {AXIS!r})")
    if config.decoder_block.value == "llama4":
        wrong.append("decoder_block=llama4, which weights the inputs of its experts")
    wrong += [f"{a} parallelism {n}" for a, n in mesh.items() if a.startswith("tensor") and n > 1]
    if wrong:
        raise SystemExit(f"maxtext_kernels: not done by moeprof's kernels: {'; '.join(wrong)}")


def main(argv: Sequence[str]) -> None:
    """MaxText's own main function, on the layer of this module."""
    from maxtext.trainers.pre_train import train

    install()
    train.main(argv)


if __name__ == "__main__":
    from absl import app

    app.run(main)
