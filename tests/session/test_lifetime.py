"""A run owns what is computed of it: nothing outlives it, and no search for garbage is needed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
from session.conftest import DEEPEP

import moeprof
from moeprof.analyzers.registry import all_names


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _nothing(run: moeprof.Run) -> None:
    pass


def _ask_everything(run: moeprof.Run) -> None:
    for name in all_names(is_drawn=True):
        answer = run.ask(name)
        assert len(answer.table) >= 0
        assert str(answer) + answer._repr_html_()
    assert str(run) + run._repr_html_() + run.trust._repr_html_()
    assert not run.steps.empty


def _draw_everything(run: moeprof.Run) -> None:
    for name in run.questions:
        for place in range(len(getattr(run, name)().figures)):
            assert run.ask(name).figure(place).to_dict()


def _write_everything(run: moeprof.Run) -> None:
    assert run.to_json()
    assert moeprof.compare(run, run).to_json()


def _fail_to_ask(run: moeprof.Run) -> None:
    with pytest.raises(AttributeError):
        run.breakdwn  # noqa: B018
    with pytest.raises(moeprof.MoeprofError):
        run.pipeline().figure()


@pytest.mark.parametrize(
    "use", [_nothing, _ask_everything, _draw_everything, _write_everything, _fail_to_ask]
)
def test_a_run_dies_with_its_last_name(use: Callable[[moeprof.Run], None]):
    run = moeprof.load(DEEPEP)
    use(run)
    dead, trace = weakref.ref(run), weakref.ref(run.trace)
    del run
    assert dead() is None
    assert trace() is None


def test_a_method_does_not_keep_the_run():
    run = moeprof.load(DEEPEP)
    ask = run.step_time
    dead = weakref.ref(run)
    del run
    assert dead() is None
    assert ask().status == "ok"


def test_an_answer_outlives_its_run():
    answer = moeprof.load(DEEPEP).breakdown()
    assert not answer.table.empty
    assert answer.figure().data


def test_nothing_is_asked_twice():
    run = moeprof.load(DEEPEP)
    assert run.breakdown() is run.ask("breakdown")
    assert run.breakdown().table.equals(run.ask("breakdown").table)
