"""Ranks that come late, never, twice, in another order or with faults: nothing may hang."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from moeprof.kernels import setup

from .devices import devices, ranks
from .moe_cases import HIDDEN, Tokens, draw, mesh_of, on_ranks, round_trip

JaxError = (ValueError, jax.errors.JaxRuntimeError)
Layer = Callable[[jax.Array, jax.Array], jax.Array]


def all_used(tokens: Tokens) -> Tokens:
    return tokens._replace(topk_idx=np.maximum(tokens.topk_idx, 0))


def thousand_rounds(layer: Layer) -> Layer:
    """Forward and backward a thousand times. Each round returns the tokens that it was given."""

    def one(x: jax.Array, idx: jax.Array) -> jax.Array:
        out, pull = jax.vjp(lambda x: layer(x, idx), x)
        return pull(out)[0]

    def loop(x: jax.Array, idx: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 1000, lambda _, x: one(x, idx), x)

    return loop


def busy_ranks_first(x: jax.Array, rounds: int = 60) -> jax.Array:
    """The same tokens, later on some ranks: rank r multiplies r × rounds small matrices first."""
    matrix = jnp.eye(64) + x[0, 0] * 0
    steps = jax.lax.axis_index("expert") * rounds
    busy = jax.lax.fori_loop(0, steps, lambda _, m: m @ jnp.eye(64), matrix)
    return x + (busy[0, 0] - busy[1, 1])


@pytest.mark.parametrize("routing", ["random", "one rank receives everything"])
def test_a_thousand_rounds_forward_and_backward_return_the_tokens(routing: str):
    tokens = all_used(draw(ranks(8), 16, 2, 16))
    if routing != "random":
        tokens.topk_idx[:] = 15
    mesh = mesh_of(ranks(8))
    setup()
    out = on_ranks(thousand_rounds(round_trip), mesh)(tokens.x, tokens.topk_idx)
    np.testing.assert_allclose(out, tokens.x, rtol=1e-5)


def test_ranks_that_arrive_at_different_times_return_the_tokens():
    tokens, mesh = all_used(draw(ranks(8), 16, 2, 16)), mesh_of(ranks(8))
    setup()

    def late(x: jax.Array, idx: jax.Array) -> jax.Array:
        return round_trip(busy_ranks_first(x), idx)

    def loop(x: jax.Array, idx: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 50, lambda _, x: late(x, idx), x)

    out = on_ranks(loop, mesh)(tokens.x, tokens.topk_idx)
    np.testing.assert_allclose(out, tokens.x, rtol=1e-5)


def test_independent_exchanges_between_collectives_never_starve_each_other():
    # 24 exchanges and 12 collectives with no order between them: far more waits than XLA's pools
    # of 8 threads have threads. Handlers that simply block hang here for good.
    tokens, mesh = all_used(draw(ranks(8), 16, 2, 16)), mesh_of(ranks(8))
    setup()

    def many(x: jax.Array, idx: jax.Array) -> jax.Array:
        mean = [jax.lax.pmean(x * i, "expert") for i in range(12)]
        swap = [
            jax.lax.all_to_all(x.reshape(ranks(8), -1, HIDDEN), "expert", 0, 0).reshape(16, HIDDEN)
            for _ in range(2)
        ]
        back = [round_trip(x * (i + 1), idx) for i in range(12)]
        return sum(back), sum(mean) + sum(swap)

    run = on_ranks(many, mesh)
    for _ in range(20):
        out, _ = run(tokens.x, tokens.topk_idx)
        np.testing.assert_allclose(out, tokens.x * 78, rtol=1e-5)  # 1 + … + 12


def test_a_jitted_layer_called_twice_keeps_its_two_exchanges_apart():
    # Both calls come from one lowered function: the same target, the same attributes.
    tokens, mesh = all_used(draw(ranks(8), 16, 2, 16)), mesh_of(ranks(8))
    setup()
    layer = jax.jit(round_trip)

    def twice(x: jax.Array, idx: jax.Array) -> tuple[jax.Array, jax.Array]:
        return layer(x, idx), layer(-2 * x, idx)

    run = on_ranks(twice, mesh)
    for _ in range(50):
        once, other = run(tokens.x, tokens.topk_idx)
        np.testing.assert_allclose(once, tokens.x, rtol=1e-5)
        np.testing.assert_allclose(other, -2 * tokens.x, rtol=1e-5)


def test_programs_in_flight_together_do_not_mix():
    tokens, mesh = all_used(draw(ranks(8), 16, 2, 16)), mesh_of(ranks(8))
    setup()
    one = on_ranks(lambda x, idx: round_trip(x, idx), mesh)
    two = on_ranks(lambda x, idx: round_trip(3 * x, idx), mesh)
    # 30 at a time: from the 33rd on XLA:CPU waits in the threads that those before it need, and its
    # own collectives hang as well.
    for _ in range(4):
        given = tokens.x, tokens.topk_idx
        results = [(one(*given), two(*given)) for _ in range(15)]
        for first, second in results:
            np.testing.assert_allclose(first, tokens.x, rtol=1e-5)
            np.testing.assert_allclose(second, 3 * tokens.x, rtol=1e-5)


def skip_on(rank: int) -> Layer:
    def layer(x: jax.Array, idx: jax.Array) -> jax.Array:
        me = jax.lax.axis_index("expert")
        return jax.lax.cond(me == rank, lambda x, idx: x, round_trip, x, idx)

    return layer


def test_a_rank_that_never_arrives_is_named_after_the_timeout(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MOEPROF_EP_TIMEOUT_S", "0.5")
    tokens, mesh = all_used(draw(4, 16, 2, 16)), mesh_of(4)
    setup(mesh=mesh)
    with pytest.raises(
        JaxError,
        match=r"EP rank 2 \(device 2\) did not arrive within 0\.5 s: expected 4 ranks, got 3: "
        r"0 \(device 0\), 1 \(device 1\), 3 \(device 3\)",
    ):
        jax.block_until_ready(on_ranks(skip_on(2), mesh)(tokens.x, tokens.topk_idx))
    out = on_ranks(round_trip, mesh)(tokens.x, tokens.topk_idx)  # the state is clean afterwards
    np.testing.assert_allclose(out, tokens.x, rtol=1e-5)


def test_a_rank_with_a_fault_fails_the_others_at_once():
    # The timeout is the default of minutes; the test's own limit is seconds.
    tokens, mesh = all_used(draw(ranks(4), 16, 2, 16)), mesh_of(ranks(4))
    setup(mesh=mesh)
    bad = tokens.topk_idx.copy()
    bad[1, 3, 0] = 99

    def outcome_of(rank: int) -> str:
        out = run(tokens.x, bad)
        shard = next(s for s in out.addressable_shards if s.device.id == rank)
        with pytest.raises(JaxError) as caught:
            np.asarray(shard.data)
        return str(caught.value)

    run = on_ranks(round_trip, mesh)
    text = "topk_idx of token 3, slot 0 is 99, outside [0, 16)"
    try:
        texts = [outcome_of(rank) for rank in range(ranks(4))]
    except JaxError as error:  # some versions report at the call, for all devices together
        texts = [str(error)]
    assert all(text in found for found in texts)
    np.testing.assert_allclose(run(tokens.x, tokens.topk_idx), tokens.x, rtol=1e-5)


@pytest.mark.cpu("four ranks in a process of its own")
def test_resetting_the_runtime_fails_ranks_that_wait():
    # In a process of its own: a thread is left inside XLA until the reset.
    script = """
        import threading, time
        import jax, numpy as np
        from moeprof.kernels import reset_runtime, setup
        from tests.kernels.moe_cases import draw, mesh_of, on_ranks
        from tests.kernels.test_rendezvous import all_used, skip_on
        tokens, mesh = all_used(draw(4, 16, 2, 16)), mesh_of(4)
        setup(mesh=mesh)
        run = on_ranks(skip_on(2), mesh).lower(tokens.x, tokens.topk_idx).compile()
        def reset_often():
            while True:
                time.sleep(0.1)
                reset_runtime()
        threading.Thread(target=reset_often, daemon=True).start()
        try:
            jax.block_until_ready(run(tokens.x, tokens.topk_idx))
        except Exception as error:
            assert "the runtime was reset while ranks waited" in str(error), error
            print("failed as it should")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "failed as it should", done.stderr


def test_only_the_group_of_the_missing_rank_fails(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MOEPROF_EP_TIMEOUT_S", "0.5")
    mesh = jax.sharding.Mesh(np.array(devices(4)).reshape(2, 2), ("expert", "fsdp"))
    setup(mesh=mesh)
    tokens, spec = all_used(draw(4, 16, 2, 16)), PartitionSpec(("expert", "fsdp"))

    def per_rank(x: jax.Array, idx: jax.Array) -> jax.Array:
        absent = (jax.lax.axis_index("fsdp") == 1) & (jax.lax.axis_index("expert") == 0)
        return jax.lax.cond(absent, lambda x, idx: x, round_trip, x[0], idx[0])[None]

    run = jax.jit(
        jax.shard_map(per_rank, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    )
    # Devices 1 and 3 are the second group; its rank 0 is device 1.
    with pytest.raises(JaxError, match=r"EP rank 0 \(device 1\) did not arrive .* got 1: 1 \(dev"):
        jax.block_until_ready(run(tokens.x, tokens.topk_idx))
