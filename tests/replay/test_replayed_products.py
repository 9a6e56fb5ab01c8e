"""Products of a vendor's library, and of groups of rows, ask for what the trace asks for."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders.work import hlo, kernel, traced

from moeprof.errors import ReplayError
from moeprof.replay.script import script_of
from moeprof.replay.target import Target

DIMENSIONS = {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["0"]}


@pytest.fixture(autouse=True)
def _own_settings():
    """A script that is loaded sets JAX to 64 bits, for this process."""
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


def written(*ops):
    """The script of the op ``product``."""
    trace = traced([kernel("product", 0, 1)], ops, {0: (0, 1)})
    known = {"platform": "gpu", "device": "", "jax_version": "", "notes": (), "op_name": ""}
    target = Target(module=7, op="product", median_ns=1, calls=1, **known)
    return script_of(trace.programs[7], target, 1, "")


def gemm(precision=("DEFAULT", "DEFAULT"), algorithm="ALG_UNSET"):
    asked = {"operand_precision": list(precision), "algorithm": algorithm}
    config = {"alpha_real": 1, "beta": 0, "epilogue": "DEFAULT"}
    config |= {"dot_dimension_numbers": DIMENSIONS, "precision_config": asked}
    return written(
        hlo("a", "parameter", shape="f32[8,16]", parameter=0),
        hlo("b", "parameter", shape="f32[16,4]", parameter=1),
        hlo("product", "custom-call", "a b", shape="(f32[8,4], s8[64])",
            custom_call_target="__cublas$lt$matmul",
            backend_config=json.dumps({"gemm_backend_config": config})),
    )  # fmt: skip


def run(script):
    names = {"__name__": "script"}
    exec(script.text, names)
    operands = names["inputs"](0)
    return operands, names["run"](*operands), jax.make_jaxpr(names["run"])(*operands)


def precision_of(jaxpr):
    (product,) = (e for e in jaxpr.eqns if e.primitive.name == "dot_general")
    return product.params["precision"]


def test_a_library_call_is_a_product():
    (a, b), (out,), jaxpr = run(gemm())
    np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-5)
    assert precision_of(jaxpr) is None


def test_a_library_call_keeps_its_precision():
    """An NVIDIA GPU multiplies float32 in TF32 by default, several times as fast as in float32."""
    found = precision_of(run(gemm(("HIGHEST", "HIGHEST")))[2])
    assert found == (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"algorithm": "ALG_DOT_BF16_BF16_F32_X3"}, "with ALG_DOT_BF16_BF16_F32_X3"),
        ({"precision": ("PACKED_NIBBLE", "DEFAULT")}, "precision PACKED_NIBBLE"),
    ],
)
def test_another_arithmetic_is_refused(asked, said):
    with pytest.raises(ReplayError, match=said):
        gemm(**asked)


def test_groups_of_a_ragged_product_have_all_rows():
    """Random sizes would leave rows out, whose time would be missing: 3 groups of 2048 rows."""
    script = written(
        hlo("x", "parameter", shape="f32[2048,16]", parameter=0),
        hlo("w", "parameter", shape="f32[3,16,4]", parameter=1),
        hlo("sizes", "parameter", shape="s32[3]", parameter=2),
        hlo("product", "ragged-dot", "x w sizes", shape="f32[2048,4]",
            details="lhs_contracting=1 rhs_contracting=1 lhs_ragged=0 rhs_group=0 precision=2,2"),
    )  # fmt: skip
    (x, w, sizes), out, jaxpr = run(script)
    assert sizes.tolist() == [684, 682, 682]
    assert sizes.dtype == jnp.int32
    np.testing.assert_allclose(out[-1], x[-1] @ w[2], rtol=1e-5, atol=1e-5)
    assert "HIGHEST" in str(jaxpr)
    assert any("groups of equal size" in note for note in script.notes)
    assert not any("random" in note for note in script.notes)
