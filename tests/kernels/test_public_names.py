"""The public operations are functions of `moeprof.kernels`, whatever its folders are called."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pytest

import moeprof.kernels

NAMES = (
    "Config",
    "compute_group_offs",
    "get_ep_size",
    "grouped_gemm",
    "grouped_gemm_variable_k",
    "is_internode",
    "moe_combine",
    "moe_dispatch",
    "reset_runtime",
    "set_ep_group",
    "setup",
)
PARTS = tuple(module.name for module in pkgutil.iter_modules(moeprof.kernels.__path__))


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_imports_as_something_to_call(name):
    found: dict[str, object] = {}
    exec(f"from moeprof.kernels import {name}", found)
    assert callable(found[name])


def test_all_names_are_those_that_are_exported():
    assert sorted(moeprof.kernels.__all__) == sorted(NAMES)


def test_no_module_or_folder_shadows_a_public_name():
    """Importing a submodule sets an attribute of its name in the package."""
    assert set(NAMES).isdisjoint(PARTS)
    for part in PARTS:
        assert isinstance(importlib.import_module(f"moeprof.kernels.{part}"), ModuleType)
    assert not any(isinstance(getattr(moeprof.kernels, name), ModuleType) for name in NAMES)
