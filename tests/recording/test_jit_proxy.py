"""A watched jit is still that jit, in every way that scripts use one."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle

import jax
import jax.numpy as jnp
import pytest

from moeprof.recording import jax_private, jit_proxy
from moeprof.recording.jit_proxy import watch_compiled, watch_jit, watch_lowered_compile

jit = watch_jit(jax.jit)
X = jnp.arange(4.0)


class Calls:
    """An observer that lists the names of the top-level calls it sees."""

    def __init__(self):
        self.compilations = 0
        self.names: list[str] = []
        self.compiled: list[str] = []
        self.errors: list[BaseException] = []

    def is_tracing(self):
        return jax_private.is_tracing()

    def before_call(self, key, name):
        self.names.append(name.rpartition(".")[2])

    def in_place_of(self, key, name, function, arguments):
        return None

    def spent_compiling(self, key, name, seconds):
        self.compiled.append(name)

    def call_failed(self, error):
        self.errors.append(error)


@pytest.fixture
def calls():
    observer = Calls()
    jit_proxy.set_observer(observer)
    yield observer
    jit_proxy.set_observer(None)


@jit
def double(x):
    """Twice `x`."""
    return 2 * x


def test_it_is_the_jitted_function_to_everyone_who_asks():
    original = jax.jit(lambda x: x)
    assert isinstance(double, type(original))
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice `x`."
    assert list(inspect.signature(double).parameters) == ["x"]
    assert callable(double)
    assert hash(double) == hash(double.__wrapped__)
    assert double == double.__wrapped__
    assert copy.deepcopy(double) is double


def test_pickling_ends_as_it_does_for_the_jitted_function():
    def outcome(function):
        try:
            return pickle.dumps(function)
        except Exception as error:
            return type(error), str(error)

    named = jax.jit(inspect.signature)
    assert outcome(jit_proxy.JitProxy(named)) == outcome(named)


def test_a_call_is_seen_once_and_returns_what_the_function_returns(calls):
    assert double(X).tolist() == [0, 2, 4, 6]
    assert calls.names == ["double"]


def test_the_stages_of_ahead_of_time_compilation_work_and_their_calls_are_seen(calls, monkeypatch):
    compiled = jax.stages.Compiled
    lowered = jax.stages.Lowered
    monkeypatch.setattr(compiled, "__call__", watch_compiled(compiled.__call__))
    monkeypatch.setattr(lowered, "compile", watch_lowered_compile(lowered.compile))
    program = double.trace(X).lower().compile()
    assert double.lower(X).as_text().startswith("module @jit_double")
    assert double.eval_shape(X).shape == (4,)
    assert calls.names == []
    assert program(X).tolist() == [0, 2, 4, 6]
    assert calls.names == calls.compiled == ["a compiled program"]


def test_a_jitted_function_inside_another_is_no_step_of_its_own(calls):
    @jit
    def outer(x):
        return double(x) + 1

    assert outer(X).tolist() == [1, 3, 5, 7]
    assert calls.names == ["outer"]


def test_a_call_that_is_only_traced_is_not_seen(calls):
    jax.eval_shape(double, X)
    jax.make_jaxpr(double)(X)
    jax.lax.scan(lambda carry, x: (double(carry), x), X, jnp.arange(3))
    assert calls.names == []


def test_transformations_outside_of_jit_run_the_function_and_are_seen(calls):
    assert jax.grad(lambda x: double(x).sum())(X).tolist() == [2, 2, 2, 2]
    assert jax.vmap(double)(X).tolist() == [0, 2, 4, 6]
    assert calls.names == ["double", "double"]


def test_methods_are_bound(calls):
    class Model:
        scale = 3.0

        @functools.partial(jit, static_argnums=0)
        def apply(self, x):
            return self.scale * x

    assert Model().apply(X).tolist() == [0, 3, 6, 9]
    assert Model.apply(Model(), X).tolist() == [0, 3, 6, 9]
    assert calls.names == ["apply", "apply"]


def test_static_and_donated_arguments_keep_their_meaning(calls):
    power = jit(lambda x, n, *, scale=1: scale * x**n, static_argnums=1, static_argnames="scale")
    assert power(X, 2, scale=2).tolist() == [0, 2, 8, 18]
    consume = jit(lambda x: x + 1, donate_argnums=0)
    given = jnp.arange(4.0) + 0
    consume(given)
    assert given.is_deleted()


def test_a_decorator_with_arguments_alone_gives_a_watched_function(calls):
    # jax.jit(static_argnums=…) exists from jax 0.8.1; a jit of that form stands in for older ones.
    def jit_with_arguments_alone(function=None, **options):
        if function is None:
            return functools.partial(jit_with_arguments_alone, **options)
        return jax.jit(function, **options)

    @watch_jit(jit_with_arguments_alone)(static_argnums=1)
    def power(x, n):
        return x**n

    assert power(X, 2).tolist() == [0, 1, 4, 9]
    assert calls.names == ["power"]


def test_a_partial_of_a_jitted_function_and_a_jit_of_a_partial_work(calls):
    add = jit(lambda x, y: x + y)
    assert functools.partial(add, 1.0)(X).tolist() == [1, 2, 3, 4]
    assert jit(functools.partial(lambda y, x: x * y, 5.0))(X).tolist() == [0, 5, 10, 15]
    assert calls.names == ["<lambda>", "<lambda>"]


def test_an_error_passes_unchanged_and_is_shown_to_the_observer(calls):
    fail = jit(lambda x: x @ jnp.ones((3, 3)))
    with pytest.raises(TypeError) as raised:
        fail(X)
    assert calls.errors == [raised.value]


def test_without_an_observer_calls_pass_straight_through():
    assert double(X).tolist() == [0, 2, 4, 6]


def test_the_same_code_jitted_again_is_the_same_step():
    def make():
        return jit(lambda x: x + 1)

    assert make()._self_key == make()._self_key
    assert make()._self_key != jit(lambda x: x + 1)._self_key
