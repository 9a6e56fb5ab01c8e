"""`with moeprof.capture():` after odd things: transformations, wrong arguments, no voice."""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import moeprof
from moeprof.errors import CaptureError

from .running import environment

X = jnp.ones((32, 32))


def trained(calls: int = 10) -> None:
    step = jax.jit(lambda x: x @ x / 32)
    x = X
    for _ in range(calls):
        x = step(x)
    x.block_until_ready()


@pytest.mark.parametrize("transform", [jax.vmap, lambda f: lambda x: jax.jvp(f, (x,), (x,))])
@pytest.mark.parametrize("is_before", [True, False])
def test_transformations_do_not_hide_the_steps(tmp_path, transform, is_before):
    """JAX takes the hook of the thread away where it leaves them."""
    transformed = transform(jax.jit(lambda x: x * x))
    if is_before:
        transformed(X)
    with moeprof.capture(tmp_path / "run", steps=3, say=lambda line: None):
        if not is_before:
            transformed(X)
        trained(12)
    (process,) = json.loads((tmp_path / "run" / "meta.json").read_text())["processes"]
    assert process["window"]["last_step"] - process["window"]["first_step"] == 2


def test_a_voice_that_fails_leaves_nothing_behind(tmp_path):
    def fails(line: str) -> None:
        raise OSError(line)

    for place in ("first", "second"):
        with moeprof.capture(tmp_path / place, steps=3, say=fails) as recording:
            trained()
        assert recording.path == tmp_path / place


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": 0}, "steps: expected a number from 1 up, found 0"),
        ({"steps": 2.5}, "steps: expected a number from 1 up, found 2.5"),
        ({"skip": -1}, "skip: expected a number from 0 up, found -1"),
        ({"seconds": 0}, "seconds: expected seconds above 0, found 0"),
        ({"steps": 5, "every": 5}, "every: expected a number from 6 up, found 5"),
        ({"options": {"python_tracer_levle": 1}}, "did you mean 'python_tracer_level'"),
    ],
)
def test_an_argument_that_cannot_be_is_told_at_once(wrong, said):
    with pytest.raises(CaptureError, match=said):
        moeprof.capture(**wrong)


def test_it_is_found_without_importing_what_it_needs():
    code = (
        "import sys, moeprof\n"
        "assert 'capture' in dir(moeprof) and callable(moeprof.capture)\n"
        "assert not hasattr(moeprof, 'captrue')\n"
        "print(sorted({'jax', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    assert done.stdout == "['numpy']\n"
