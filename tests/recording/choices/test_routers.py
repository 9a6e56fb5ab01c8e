"""Routers are found whatever the model's form is, or it is said why not."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moeprof.recording.choices.outputs import Chosen
from moeprof.recording.choices.routers import NotRecorded
from moeprof.recording.choices.stand_in import stand_in_for

from . import models

pytestmark = pytest.mark.quick


def recorded(step, *arguments):
    """What the step returns, and the counts by its stand-in."""
    found = stand_in_for(step, (arguments, {}))
    results, indices = found(found.leaves((arguments, {})))
    chosen = Chosen(found.layout)
    chosen.add(indices)
    return results, np.asarray(chosen)


def same_as_the_model(forward, experts=models.EXPERTS):
    """The counts are those of the indices that the model itself returns, in one program."""
    arguments = models.parameters(experts=experts), models.batch()
    (*_, oracle), counts = recorded(models.step_of(forward, returns_indices=True), *arguments)
    assert counts.tolist() == models.counted(oracle, experts).tolist()


@pytest.mark.parametrize("choose", models.CHOICES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("forward", [models.scanned, models.unrolled], ids=["scan", "unrolled"])
def test_every_form_of_choice(choose, forward):
    one = functools.partial(models.layer, choose=choose)
    same_as_the_model(functools.partial(forward, one=one))


@pytest.mark.parametrize("dispatch", models.DISPATCHES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("forward", [models.scanned, models.unrolled], ids=["scan", "unrolled"])
def test_every_form_of_dispatch(dispatch, forward):
    one = functools.partial(models.layer, dispatch=dispatch)
    same_as_the_model(functools.partial(forward, one=one))


@pytest.mark.parametrize("forward", [models.scanned, models.unrolled], ids=["scan", "unrolled"])
def test_what_a_checkpoint_computes_again_is_counted_once(forward):
    same_as_the_model(functools.partial(forward, one=jax.checkpoint(models.layer)))


def test_a_checkpoint_around_all_layers():
    same_as_the_model(jax.checkpoint(models.scanned))


def test_a_router_of_128_experts():
    same_as_the_model(models.scanned, experts=128)


def test_layers_inside_loops_over_blocks_are_numbered_as_they_run():
    def blocks(weights, x):
        both = jax.tree.map(lambda a: jnp.concatenate([a, a + 0.01])[:4], models.stacks(weights))
        return both, x

    def forward(weights, x):
        stack, x = blocks(weights, x)
        pairs = jax.tree.map(lambda a: a.reshape(2, 2, *a.shape[1:]), stack)

        def block(x, pair):
            chosen = []
            for number in range(2):
                x, one = models.layer(x, jax.tree.map(lambda a, n=number: a[n], pair))
                chosen.append(one)
            return x, jnp.stack(chosen)

        x, chosen = jax.lax.scan(block, x, pairs)
        return x, chosen.reshape(4, *chosen.shape[2:])

    same_as_the_model(forward)


def test_microbatches_in_a_loop_are_added_up():
    def forward(weights, x):
        def micro(total, part):
            y, chosen = models.scanned(weights, part)
            return total + y.sum(), (y, chosen)

        _, (y, chosen) = jax.lax.scan(micro, 0.0, x.reshape(4, -1, models.WIDTH))
        return y.reshape(x.shape), jnp.swapaxes(chosen, 0, 1)

    same_as_the_model(forward)


def test_a_loop_that_reads_its_layer_by_number():
    def forward(weights, x):
        def body(carry, number):
            one = jax.tree.map(lambda stack: stack[number], models.stacks(weights))
            return models.layer(carry, one)

        return jax.lax.scan(body, x, jnp.arange(models.LAYERS))

    same_as_the_model(forward)


def test_a_function_with_a_derivative_of_its_own_that_is_not_differentiated():
    @jax.custom_vjp
    def routed(x, weights):
        return models.layer(x, weights)

    routed.defvjp(lambda x, weights: (routed(x, weights), None), lambda _, slope: (slope[0], None))
    weights, x = models.parameters(), models.batch()

    def forward(weights, x):
        return jax.lax.scan(routed, x, models.stacks(weights))

    _, counts = recorded(jax.jit(lambda weights, x: forward(weights, x)[0]), weights, x)
    assert counts.tolist() == models.counted(forward(weights, x)[1]).tolist()


def test_static_and_named_arguments_and_numbers_of_python():
    @functools.partial(jax.jit, static_argnames=("top",), static_argnums=(1,))
    def step(weights, name, x, scale, *, top):
        assert name == "static"

        def one(x, layer):
            best, chosen = jax.lax.top_k(x @ layer["router"], top)
            return x + scale * models.ragged(x, layer, best, chosen), None

        return models.scanned(weights, x, one)[0]

    arguments = ((models.parameters(), "static", np.asarray(models.batch(), np.float64), 2), {})
    arguments[1]["top"] = 1
    found = stand_in_for(step, arguments)
    results, indices = found(found.leaves(arguments))
    np.testing.assert_array_equal(results, step(*arguments[0], **arguments[1]))
    assert indices[0].shape == (models.LAYERS, models.TOKENS, 1)
    assert found.fits(arguments)
    assert not found.fits((arguments[0], {"top": 2}))


def test_the_measure_of_balance_is_no_second_choice():
    def balanced(x, weights):
        scores = jax.nn.softmax(x @ weights["router"])
        best, chosen = jax.lax.top_k(scores, models.TOP)
        first = jax.nn.one_hot(jnp.argmax(scores, -1), scores.shape[-1]).mean(0)
        x = x + models.capacity(x, weights, best, chosen) + (first * scores.mean(0)).sum()
        return x, chosen

    same_as_the_model(functools.partial(models.scanned, one=balanced))


def test_the_measure_of_balance_over_all_layers_is_no_further_router():
    def forward(weights, x):
        scores = []

        def one(x, layer):
            scores.append(x @ layer["router"])
            return models.layer(x, layer)

        x, chosen = models.unrolled(weights, x, one)
        _, every = jax.lax.top_k(jnp.concatenate(scores), models.TOP)
        share = jax.nn.one_hot(every, models.EXPERTS).mean((0, 1))
        return x + (share * jnp.concatenate(scores).mean(0)).sum(), chosen

    same_as_the_model(forward)


def refusal(step, *arguments):
    with pytest.raises(NotRecorded) as why:
        stand_in_for(step, (arguments, {}))
    return str(why.value)


def test_experts_that_choose_tokens_are_named():
    def one(x, weights):
        scores = jax.nn.softmax(x @ weights["router"])
        best, rows = jax.lax.top_k(scores.T, models.TOKENS // 4)
        y = jax.nn.relu(jnp.einsum("ecd,edf->ecf", x[rows], weights["up"]))
        y = jnp.einsum("ecf,efd->ecd", y, weights["down"]) * best[..., None]
        return x.at[rows].add(y), rows

    step = models.step_of(functools.partial(models.scanned, one=one))
    why = refusal(step, models.parameters(), models.batch())
    assert why == "expert choice: not recorded (4 experts choose tokens)"


def test_a_dense_model_that_samples_has_no_router():
    @jax.jit
    def sample(weights, x):
        logits = x @ weights["head"]
        _, beams = jax.lax.top_k(logits, 3)
        return weights["head"].T[beams].sum(1)

    why = refusal(sample, models.parameters(), models.batch())
    assert why == (
        "none found: what is chosen among columns of a weight steers no experts' weights"
    )


def again(times):
    """The same layer, several times."""

    def forward(weights, x):
        one = jax.tree.map(lambda stack: stack[0], models.stacks(weights))
        every = []
        for _ in range(times):
            x, chosen = models.layer(x, one)
            every.append(chosen)
        return x, jnp.stack(every)

    return forward


def carried(weights, x):
    one = jax.tree.map(lambda stack: stack[0], models.stacks(weights))
    return jax.lax.scan(lambda x, _: models.layer(x, one), x, None, length=2)


def in_a_branch(weights, x):
    def one(x, layer):
        return jax.lax.cond(
            x.sum() > 0, models.layer, lambda x, _: (x, jnp.zeros((x.shape[0], 2), int)), x, layer
        )

    return models.scanned(weights, x, one)


def in_two_steps(weights, x):
    def one(x, layer):
        group = jnp.argmax(x @ layer["router"], -1)
        scores = jnp.einsum("td,edf->tef", x, layer["up"])
        within = jnp.take_along_axis(scores, group[:, None, None], 1)[:, 0]
        best, chosen = jax.lax.top_k(within, 2)
        y = models.capacity(x, layer, best, chosen % 4)
        return x + y * (group[:, None] + 1), chosen

    return models.scanned(weights, x, one)


def by_a_bound(weights, x):
    """Indices that nobody reads need not be what the model does, as with equal scores."""

    def one(x, layer):
        scores = jax.nn.softmax(x @ layer["router"])
        best, _ = jax.lax.top_k(scores, models.TOP)
        mask = jnp.where(scores >= best[:, -1:], scores, 0.0)
        y = jax.nn.relu(jnp.einsum("te,td,edf->etf", mask, x, layer["up"]))
        return x + jnp.einsum("etf,efd->td", y, layer["down"]), mask

    return models.scanned(weights, x, one)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (again(2), "a router is applied 2 times"),
        (carried, "a loop carries tokens past the same router again"),
        (in_a_branch, "a router stands in a branch"),
        (in_two_steps, "experts are chosen in two steps"),
        (by_a_bound, "experts are taken by a bound on scores"),
    ],
)
def test_what_is_not_certain_is_not_recorded(forward, reason):
    why = refusal(models.step_of(forward), models.parameters(), models.batch())
    assert why.startswith(f"none found: {reason}")


def of_groups(scores):
    """A group's places are closed before experts are chosen, in the shape of groups."""
    chances = jax.nn.sigmoid(scores)
    groups = chances.reshape(-1, 2, 2)
    _, best = jax.lax.top_k(jax.lax.top_k(groups, 2)[0].sum(-1), 1)
    is_open = jnp.any(best[..., None] == jnp.arange(2), 1)[..., None]
    masked = jnp.where(is_open, groups, -jnp.inf).reshape(chances.shape)
    _, chosen = jax.lax.top_k(masked, models.TOP)
    return jnp.take_along_axis(chances, chosen, -1), chosen


def balanced_by_sums(scores):
    """Sinkhorn's iterations, in a loop."""

    def body(_, scores):
        scores = scores - jax.nn.logsumexp(scores, 1, keepdims=True)
        return scores - jax.nn.logsumexp(scores, 0, keepdims=True)

    chosen = jnp.argmax(jax.lax.fori_loop(0, 3, body, jax.lax.stop_gradient(scores)), -1)[:, None]
    return jnp.take_along_axis(jax.nn.sigmoid(scores), chosen, -1), chosen


def by_priority(x, weights, best, chosen):
    """Experts fill their capacity with those of the tokens that chose them that score highest."""
    mask = (jax.nn.one_hot(chosen, models.EXPERTS) * best[..., None]).sum(1)
    share, places = jax.lax.top_k(mask.T, models.TOKENS // 2)
    rows = jax.nn.relu(jnp.einsum("ecd,edf->ecf", x[places], weights["up"]))
    rows = jnp.einsum("ecf,efd->ecd", rows, weights["down"]) * share[..., None]
    return jnp.zeros_like(x).at[places.reshape(-1)].add(rows.reshape(-1, models.WIDTH))


def apart(x, weights, best, chosen):
    """Each expert's tokens are picked by its number; its weights are values of their own."""
    total = jnp.zeros_like(x)
    for expert in range(models.EXPERTS):
        (places,) = jnp.where((chosen == expert).any(-1), size=models.TOKENS, fill_value=0)
        rows = jax.nn.relu(x[places] @ weights["up"][expert]) @ weights["down"][expert]
        total = total.at[places].add(rows * best[places].sum(-1, keepdims=True))
    return total


def found_in(forward, weights=None):
    """Routers, layers and experts of a step that is traced and never run."""
    step = models.step_of(forward)
    found = stand_in_for(step, ((weights or models.parameters(), models.batch()), {}))
    return found.chosen, found.layout.layers, found.layout.experts


@pytest.mark.parametrize(
    ("choose", "dispatch", "top"),
    [
        (of_groups, models.ragged, 2),
        (balanced_by_sums, models.ragged, 1),
        (models.top_k, by_priority, 2),
        (models.top_k, apart, 2),
    ],
)
def test_forms_of_published_models(choose, dispatch, top):
    one = functools.partial(models.layer, choose=choose, dispatch=dispatch)
    assert found_in(functools.partial(models.scanned, one=one)) == (top, 3, 4)


def test_experts_that_choose_beside_tokens_that_choose_leave_no_half_table():
    def one(x, layer):
        x, chosen = models.layer(x, layer)
        _, places = jax.lax.top_k(jax.nn.softmax(x @ layer["router"]).T, 8)
        rows = jnp.einsum("ecd,edf->ecf", x[places], layer["up"])
        rows = jnp.einsum("ecf,efd->ecd", rows, layer["down"])
        return x.at[places.reshape(-1)].add(rows.reshape(-1, models.WIDTH)), chosen

    step = models.step_of(functools.partial(models.scanned, one=one))
    why = refusal(step, models.parameters(), models.batch())
    assert why == "expert choice: not recorded (4 experts choose tokens)"


def test_a_second_choice_by_weights_that_the_first_one_took():
    """The first choice is among groups, and no table of experts."""

    def one(x, layer):
        group = jnp.argmax(x @ layer["router"], -1)
        inner = jnp.einsum("td,tde->te", x, layer["inner"][group])
        return x + models.everywhere(x, layer, jnp.ones((32, 1)), group[:, None]) * (
            jnp.argmax(inner, -1, keepdims=True)
        ), group[:, None]

    weights = models.parameters()
    weights["inner"] = jnp.ones((models.LAYERS, models.EXPERTS, models.WIDTH, 3))
    step = models.step_of(functools.partial(models.scanned, one=one))
    why = refusal(step, weights, models.batch())
    assert why == "none found: experts are chosen in two steps"


def test_what_is_no_function_of_jit_is_left_alone():
    assert "jax.jit" in refusal(lambda x: x, models.batch())


def test_a_function_that_is_differentiated_from_outside_is_left_alone():
    reasons = []

    def value(weights, x):
        step = jax.jit(lambda weights, x: models.scanned(weights, x)[0].sum())
        reasons.append(refusal(step, weights, x))
        return step(weights, x)

    jax.grad(value)(models.parameters(), models.batch())
    assert "outside of jax.jit" in reasons[0]
