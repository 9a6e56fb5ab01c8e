"""MaxText's routed experts on moeprof's kernels, in a layer that has what they ask MaxText's for.

That they train as MaxText's dense path does is seen in MaxText itself: `make maxtext-check`.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from moeprof.kernels import reset_runtime

from .running import EXAMPLES

pytestmark = pytest.mark.quick

EXPERTS, TOP_K, WIDTH, HIDDEN = 16, 3, 32, 16
RULES = {"activation_batch": ("fsdp", "expert"), "exp": "expert", "mlp_no_fsdp": None}
OPTIONS = {"load_balance_loss_weight": 0.0, "gradient_accumulation_steps": 1, "mlp_bias": False}


@pytest.fixture
def kernels(monkeypatch):
    """The example, beside a stand-in for MaxText's module of MoE layers."""
    moe = ModuleType("maxtext.layers.moe")
    moe.RoutedMoE = type("RoutedMoE", (), {})
    layers = ModuleType("maxtext.layers")
    layers.moe = moe
    for name, module in (("maxtext", ModuleType("maxtext")), (layers.__name__, layers)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, moe.__name__, moe)
    place = EXAMPLES / "maxtext_kernels.py"
    spec = importlib.util.spec_from_file_location(place.stem, place)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    yield example
    reset_runtime()


def layer(fsdp=2, expert=4, **options):
    devices = np.array(jax.devices()[: fsdp * expert]).reshape(fsdp, expert, 1)
    block = SimpleNamespace(value="deepseek")
    return SimpleNamespace(
        mesh=jax.sharding.Mesh(devices, ("fsdp", "expert", "tensor")),
        config=SimpleNamespace(**(OPTIONS | {"decoder_block": block} | options)),
        num_experts=EXPERTS,
        dtype=jnp.float32,
        rngs=None,
        is_hash_routing=False,
        _expert_parallelism_name="expert",
        _logical_to_mesh_axes=lambda names: PartitionSpec(*(RULES.get(name) for name in names)),
        apply_ffn_activation=lambda gate, up: jax.nn.silu(gate) * up,
        should_update_load_balance=lambda: False,
        get_topk=lambda logits, *_: jax.lax.top_k(jax.nn.softmax(logits), TOP_K),
    )


def operands(seed=0):
    keys = jax.random.split(jax.random.key(seed), 5)
    shapes = [(8, 6, WIDTH), (8, 6, EXPERTS), (EXPERTS, WIDTH, HIDDEN), (EXPERTS, WIDTH, HIDDEN)]
    shapes.append((EXPERTS, HIDDEN, WIDTH))
    return [jax.random.normal(key, shape) / 2 for key, shape in zip(keys, shapes, strict=True)]


def dense(x, logits, w0, w1, wo):
    """Every token through every expert, as MaxText's dense_matmul without a capacity."""
    scores, experts = jax.lax.top_k(jax.nn.softmax(logits), TOP_K)
    weights = jnp.sum(jax.nn.one_hot(experts, EXPERTS) * scores[..., None], axis=2)
    hidden = jax.nn.silu(jnp.einsum("bsm,emh->bseh", x, w0)) * jnp.einsum("bsm,emh->bseh", x, w1)
    return jnp.einsum("bseh,ehm,bse->bsm", hidden, wo, weights)


@pytest.mark.cpu("on eight virtual devices")
def test_outputs_and_gradients_are_those_of_the_dense_path(kernels):
    kernels.install()
    moe = sys.modules["maxtext.layers.moe"]
    layer_of_this_mesh = layer(fsdp=2, expert=4)

    def ours(x, logits, *matrices):
        out, loss, update = moe.RoutedMoE.sparse_matmul(
            layer_of_this_mesh, x, logits, None, *matrices, None, None, None, input_ids=None
        )
        assert loss is None
        assert update is None
        return out

    def with_gradients(function):
        total = lambda *all_operands: jnp.sum(jnp.sin(function(*all_operands)))  # noqa: E731
        return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2, 3, 4)))(*operands())

    for mine, right in zip(*map(jax.tree.leaves, map(with_gradients, (ours, dense))), strict=True):
        np.testing.assert_allclose(mine, right, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("options", "word"),
    [({"mlp_bias": True}, "mlp_bias=True"), ({"ragged_buffer_factor": 2.0}, "2.0 (expected -1.0)")],
)
def test_what_the_layer_does_not_do_is_refused_in_one_line(kernels, options, word):
    with pytest.raises(SystemExit, match="not done by moeprof's kernels") as refused:
        kernels.refuse(layer(1, 1, **options))
    assert word in str(refused.value)
    assert "\n" not in str(refused.value)
