"""A translation beside what it was translated from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders.translated import translated


@pytest.fixture
def same():
    """`same(f, *args)`: the translation of f's HLO, as written and as compiled, is f."""

    def check(function, *args, is_compiled=True) -> set[str]:
        lowered = jax.jit(function).lower(*args)
        modules = [lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()]
        if is_compiled:
            (module,) = lowered.compile().runtime_executable().hlo_modules()
            modules.append(module.as_serialized_hlo_module_proto())
        expected = jax.tree.leaves(jax.jit(function)(*args))
        opcodes = set()
        for module in modules:
            again, more = translated(module)
            opcodes |= more
            for one, other in zip(jax.tree.leaves(again(*args)), expected, strict=True):
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
                close = {"rtol": 1e-2 if one.dtype == jnp.bfloat16 else 1e-5, "atol": 1e-5}
                np.testing.assert_allclose(one.astype("float64"), other.astype("float64"), **close)
        return opcodes

    return check
