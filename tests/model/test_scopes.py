"""The names that analyzers rely on stand in the program, forward and backward, per strategy."""

from __future__ import annotations

import functools
import re

import pytest

from moeprof.kernels import reset_runtime
from moeprof.model.layout import build_mesh, put_batch
from moeprof.model.train import init_state, make_job, make_step
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.strategy import parse_strategy

from .builders import random_batch, tiny

ALWAYS = {
    "embedding",
    "norm",
    "self_attention/q",
    "self_attention/kv",
    "self_attention/core",
    "self_attention/out",
    "dense_mlp",
    "shared_expert",
    "moe/router",
    "moe/permute",
    "moe/dispatch",
    "moe/experts",
    "moe/combine",
    "moe/unpermute",
    "head",
    "loss",
    "grad_sync",
    "optimizer",
}
SORTED = {"moe/local_permute"}
STRATEGIES = {
    "dense-cf1.25": ALWAYS,
    "sparse-ragged-dot": ALWAYS | SORTED,
    "sparse-gmm": ALWAYS | SORTED,
    "sparse-gmm-deepep": ALWAYS - {"moe/permute"} | SORTED,
}
UPDATE_ONLY = {"grad_sync", "optimizer"}


@functools.cache
def program(strategy: str) -> str:
    """The lowered step with its locations."""
    reset_runtime()
    model, plan = tiny(), ParallelPlan(fsdp=2, expert=4)
    mesh = build_mesh(plan, model)
    job = make_job(model, plan, parse_strategy(strategy), mesh)
    batch = put_batch(random_batch(model), mesh)
    return make_step(job, mesh).lower(init_state(job, mesh), batch).as_text(debug_info=True)


def scope_paths(strategy: str) -> tuple[set[str], set[str]]:
    """Scope paths of forward and of backward operations, as ``a/b/…`` without wrappers.

    Inside a scanned layer a path starts at the layer; the backward pass of a rematerialised one
    starts at ``checkpoint``.
    """
    names = set(re.findall(r'loc\("([^"]*)"', program(strategy)))
    backward = {name for name in names if "transpose(" in name or name.startswith("checkpoint/")}
    return {clean(name) for name in names - backward}, {clean(name) for name in backward}


def clean(name: str) -> str:
    return re.sub(r"(transpose|jvp|jit)\(|\)", "", name)


def lacking(scopes: set[str], paths: set[str]) -> set[str]:
    return {s for s in scopes if not any(f"/{s}/" in f"/{path}/" for path in paths)}


@pytest.mark.parametrize(("strategy", "scopes"), STRATEGIES.items())
def test_every_scope_stands_in_the_program(strategy, scopes):
    forward, backward = scope_paths(strategy)
    assert not lacking(scopes, forward)
    assert not lacking(scopes - UPDATE_ONLY, backward)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_only_the_embedding_gradient_is_a_scatter(strategy):
    """Everything between router and combine is a gather or a masked sum, also in the backward."""
    assert program(strategy).count('"stablehlo.scatter"(') == 1
