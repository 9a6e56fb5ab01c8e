"""The law of bytes: an element type that nobody knows has no size, and no sum with it has one."""

import numpy as np
import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers.laws.figures import bytes_known
from moeprof.analyzers.questions.roofline import roofline
from moeprof.hlo.shape import UNKNOWN_SIZE, Shape, arrays_of, unknown_types

MLP, HEAD = "jit(s)/jvp()/mlp/add", "jit(s)/jvp()/head/add"
KNOWN = [
    hlo("a", "parameter", shape="f32[512]", size_bytes=2048, parameter=0),
    hlo("good", "add", "a a", shape="f32[512]", size_bytes=2048, op_name=MLP),
    hlo("head", "negate", "a", shape="f32[512]", size_bytes=2048, op_name=HEAD),
]
NEW = [
    hlo("x", "parameter", shape="type77[64]", size_bytes=-1, parameter=1),
    hlo("odd", "add", "a x", shape="f32[512]", size_bytes=2048, op_name=MLP),
]


def of_ops(ops, *ran):
    work = [kernel(name, 100 * place, 50) for place, name in enumerate(ran)]
    return traced(work, ops, models={"a": "NVIDIA H100 80GB HBM3"})


def test_known_types_are_good():
    found = bytes_known(of_ops(KNOWN, "good", "head"))
    assert found.verdict == "ok"


def test_an_unknown_type_is_named_and_only_its_op_is_withheld():
    found = bytes_known(of_ops([*KNOWN, *NEW], "good", "odd", "head"))
    assert (found.verdict, found.expected, found.found) == ("fail", 3, 2)
    assert "type77" in found.detail
    assert "odd" in found.detail
    assert not found.breaks
    assert {scope.op for scope in found.scopes if scope.chooses_rows} == {"odd"}
    assert all("flops" not in scope.figures for scope in found.scopes)


def test_an_unknown_type_that_nothing_reads_withholds_nothing():
    found = bytes_known(of_ops([*KNOWN, *NEW], "good", "head"))
    assert found.verdict == "ok"
    assert not found.scopes


def test_sums_with_an_unknown_size_are_not_known():
    """mlp holds good (2 · 2048 B) and odd (unknown), head 2 · 2048 B."""
    found = roofline(of_ops([*KNOWN, *NEW], "good", "odd", "head"))
    table = found.table
    parts = table[table["op"].eq("")].set_index("component")["bytes"]
    assert np.isnan(parts["dense_mlp"])
    assert parts["head"] == 4096
    ops = table.set_index("op")["bytes"]
    assert (ops["good"], ops["head"]) == (4096, 4096)
    assert np.isnan(ops["odd"])
    figures = {metric.metric: metric.value for metric in found.headline}
    assert figures["roofline_time"] is None
    clean = roofline(of_ops(KNOWN, "good", "head"))
    assert {m.metric: m.value for m in clean.headline}["roofline_time"] is not None


@pytest.mark.parametrize(
    ("shape", "size"), [("f8e8m0fnu[3]", 3), ("f4e2m1fn[3]", 2), ("f6e3m2fn[4]", 3), ("s1[9]", 2)]
)
def test_narrow_types_are_packed(shape, size):
    (array,) = arrays_of(shape)
    assert array.size_bytes == size


def test_the_number_of_an_unknown_type_is_no_width():
    assert Shape("type16", (4,)).size_bytes == UNKNOWN_SIZE
    assert unknown_types("(f32[2], type16[4], type16[8], token[])") == ("type16",)
