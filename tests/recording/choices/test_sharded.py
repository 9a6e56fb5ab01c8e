"""Over eight devices: equal counts, equal results, and nothing more is sent."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders import quick
from jax.sharding import NamedSharding, PartitionSpec

from moeprof.recording.choices.outputs import Chosen
from moeprof.recording.choices.stand_in import stand_in_for

from . import models

_COLLECTIVE = re.compile(
    r"= .*? (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("
)


def mesh():
    return jax.make_mesh((2, 4), ("data", "expert"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def placed(values, specs):
    where = mesh()
    return jax.tree.map(
        lambda value, spec: jax.device_put(value, NamedSharding(where, spec)), values, specs
    )


EXPERT_PARALLEL = {
    "router": PartitionSpec(),
    "up": PartitionSpec(None, "expert"),
    "down": PartitionSpec(None, "expert"),
    "head": PartitionSpec(),
    "embed": PartitionSpec(),
}
FULLY_SHARDED = {
    "router": PartitionSpec(None, ("data", "expert")),
    "up": PartitionSpec(None, None, ("data", "expert")),
    "down": PartitionSpec(None, None, None, ("data", "expert")),
    "head": PartitionSpec(("data", "expert")),
    "embed": PartitionSpec(),
}
ROWS = PartitionSpec(("data", "expert"))


def collectives(text):
    return sorted(_COLLECTIVE.findall(text))


def compiled(run, leaves):
    """The optimised program of a stand-in: of its one function.

    Of it collectives are read, which are there before the compiler comes to what is made quick.
    """
    return jax.jit(run).lower(*leaves).compile(compiler_options=quick.options()).as_text()


def told(forward, arguments):
    """What the model itself says it chose."""
    step = models.step_of(forward, returns_indices=True).lower(*arguments)
    *_, oracle = step.compile(compiler_options=quick.options())(*arguments)
    return models.counted(oracle).tolist()


@pytest.mark.parametrize("one", [models.layer, jax.checkpoint(models.layer)], ids=["", "remat"])
@pytest.mark.parametrize("specs", [EXPERT_PARALLEL, FULLY_SHARDED], ids=["ep", "fsdp"])
def test_a_program_that_the_compiler_shares_out(specs, one):
    where = NamedSharding(mesh(), ROWS)

    def layer(x, weights):
        x = jax.lax.with_sharding_constraint(x, where)
        return models.layer(x, weights, dispatch=models.capacity)

    layer = jax.checkpoint(layer) if one is not models.layer else layer
    forward = functools.partial(models.scanned, one=layer)

    def arguments():
        return placed(models.parameters(), specs), placed(models.batch(), ROWS)

    oracle = told(forward, arguments())
    step = models.step_of(forward)
    program = step.lower(*arguments()).compile()
    plain = program(*arguments())
    found = stand_in_for(step, (arguments(), {}))
    leaves = jax.tree.leaves(arguments())
    own = collectives(program.as_text())
    assert own
    assert collectives(compiled(found.run, leaves)) == own
    results, indices = found(found.leaves((arguments(), {})))
    chosen = Chosen(found.layout)
    chosen.add(indices)
    assert np.asarray(chosen).tolist() == oracle
    jax.tree.map(np.testing.assert_array_equal, results, plain)
    same_places = jax.tree.map(lambda a, b: a.sharding == b.sharding, results, plain)
    assert all(jax.tree.leaves(same_places))
    assert len(indices[0].sharding.device_set) == 8
    assert not indices[0].sharding.is_fully_replicated


def exchanging(x, weights, choose=models.top_k):
    """One shard's layer: tokens of this device, experts of this rank, two exchanges."""
    ranks = jax.lax.axis_size("expert")
    best, chosen = choose(x @ weights["router"])
    share = (jax.nn.one_hot(chosen, models.EXPERTS) * best[..., None]).sum(1)
    rows = jax.lax.all_gather(x, "expert", tiled=True)
    shares = jax.lax.all_gather(share, "expert", tiled=True)
    local = weights["up"].shape[0]
    assert local == models.EXPERTS // ranks
    mine = jax.lax.dynamic_slice_in_dim(shares, jax.lax.axis_index("expert") * local, local, axis=1)
    y = jax.nn.relu(jnp.einsum("td,edf->tef", rows, weights["up"]))
    y = jnp.einsum("te,ted->td", mine, jnp.einsum("tef,efd->ted", y, weights["down"]))
    return x + jax.lax.psum_scatter(y, "expert", tiled=True), chosen


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("outside", [True, False], ids=["loop of shards", "shards of a loop"])
def test_shards_of_a_mesh_count_their_own_tokens(checks, outside):
    of_layer = {
        "router": PartitionSpec(),
        "up": PartitionSpec("expert"),
        "down": PartitionSpec("expert"),
    }
    of_stack = {name: EXPERT_PARALLEL[name] for name in of_layer}
    if outside:
        one = jax.shard_map(
            exchanging,
            mesh=mesh(),
            in_specs=(ROWS, of_layer),
            out_specs=(ROWS, ROWS),
            check_vma=checks,
        )
        forward = functools.partial(models.scanned, one=one)
    else:

        def shards(weights, x):
            return jax.shard_map(
                functools.partial(models.scanned, one=exchanging),
                mesh=mesh(),
                in_specs=(of_stack, ROWS),
                out_specs=(ROWS, PartitionSpec(None, ("data", "expert"))),
                check_vma=checks,
            )(models.stacks(weights), x)

        forward = shards

    def arguments():
        return placed(models.parameters(), EXPERT_PARALLEL), placed(models.batch(), ROWS)

    oracle = told(forward, arguments())
    step = models.step_of(forward)
    program = step.lower(*arguments()).compile()
    plain = program(*arguments())
    found = stand_in_for(step, (arguments(), {}))
    assert found.layout.ranks == 4
    own = collectives(program.as_text())
    assert collectives(compiled(found.run, jax.tree.leaves(arguments()))) == own
    results, indices = found(found.leaves((arguments(), {})))
    chosen = Chosen(found.layout)
    chosen.add(indices)
    assert np.asarray(chosen).tolist() == oracle
    jax.tree.map(np.testing.assert_array_equal, results, plain)


def test_tokens_that_are_the_same_on_several_devices_are_counted_once():
    def shards(weights, x):
        one = functools.partial(models.layer, dispatch=models.everywhere)
        return jax.shard_map(
            functools.partial(models.scanned, one=one),
            mesh=mesh(),
            in_specs=(PartitionSpec(), PartitionSpec("data")),
            out_specs=(PartitionSpec("data"), PartitionSpec(None, "data")),
            check_vma=False,
        )(models.stacks(weights), x)

    step = models.step_of(shards)
    arguments = (models.parameters(), models.batch())
    oracle = told(shards, arguments)
    arguments = (models.parameters(), models.batch())
    found = stand_in_for(step, (arguments, {}))
    _, indices = found(found.leaves((arguments, {})))
    chosen = Chosen(found.layout)
    chosen.add(indices)
    assert np.asarray(chosen).sum() == models.LAYERS * models.TOKENS * models.TOP
    assert np.asarray(chosen).tolist() == oracle


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("columns", [PartitionSpec(), PartitionSpec(None, "expert")])
def test_tokens_that_each_shard_gathers_are_counted_once(checks, columns):
    """Shards gather their neighbours' tokens, and compute those of their own experts."""

    def one(x, weights):
        x = jax.lax.all_gather(x, "expert", tiled=True)
        scores = x @ weights["router"]
        if columns:
            scores = jax.lax.all_gather(scores, "expert", axis=1, tiled=True)
        best, chosen = models.top_k(scores)
        share = (jax.nn.one_hot(chosen, models.EXPERTS) * best[..., None]).sum(1)
        own = jax.lax.dynamic_slice_in_dim(share, jax.lax.axis_index("expert"), 1, 1)
        rows = jax.nn.relu(jnp.einsum("td,edf->tef", x, weights["up"]))
        y = jnp.einsum("te,ted->td", own, jnp.einsum("tef,efd->ted", rows, weights["down"]))
        return jax.lax.psum_scatter(y, "expert", tiled=True)

    def layer(x, weights):
        specs = {
            "router": columns,
            "up": PartitionSpec("expert"),
            "down": PartitionSpec("expert"),
        }
        shards = jax.shard_map(
            one, mesh=mesh(), in_specs=(ROWS, specs), out_specs=ROWS, check_vma=checks
        )
        return x + shards(x, weights), jnp.zeros((models.TOKENS, 1), int)

    step = models.step_of(functools.partial(models.scanned, one=layer))
    found = stand_in_for(step, ((models.parameters(), models.batch()), {}))
    leaves = jax.tree.leaves((models.parameters(), models.batch()))
    *_, indices = jax.eval_shape(found.run, *leaves)
    assert indices.shape == (models.LAYERS, models.TOKENS, models.TOP)
    assert found.layout.ranks == 4
