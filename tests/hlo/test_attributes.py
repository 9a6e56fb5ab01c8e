"""What instructions say, as values and as the two texts of `HLO_OPS`."""

from math import nan

import pytest

from moeprof.hlo.attributes import (
    NO_ATTRIBUTES,
    Attributes,
    DotDims,
    GatherDims,
    ScatterDims,
    attributes_text,
    parse_attributes,
)
from moeprof.hlo.shape import Shape, parse_shape

SAID = [
    (Attributes(fusion_kind="kLoop"), "kind=kLoop", ""),
    (Attributes(tuple_index=0), "index=0", ""),
    (Attributes(constant=-3), "value=-3", ""),
    (Attributes(dimensions=(2, 0)), "dimensions=2,0", ""),
    (Attributes(direction="GE", comparison="TOTALORDER"), "direction=GE", "comparison=TOTALORDER"),
    (
        Attributes(dot=DotDims((1,), (2,), (0,), (0,)), precision=(0, 2), algorithm=3),
        "lhs_contracting=1 rhs_contracting=2 lhs_batch=0 rhs_batch=0",
        "precision=0,2 algorithm=3",
    ),
    (
        Attributes(dot=DotDims((1,), (1,), lhs_ragged=(0,), rhs_group=(0,))),
        "lhs_contracting=1 rhs_contracting=1 lhs_ragged=0 rhs_group=0",
        "",
    ),
    (Attributes(kernel_output=3), "kernel_output=3", ""),
    (
        Attributes(is_stable=True, is_sorted=True, is_unique=True),
        "",
        "stable=1 sorted=1 unique=1",
    ),
    (Attributes(exponent_bits=8, mantissa_bits=0), "", "exponent_bits=8 mantissa_bits=0"),
    (Attributes(splits=(16, 1)), "", "splits=16,1"),
    (Attributes(literal=-0.1), "", "literal=-0.1"),
    (Attributes(literal=float("inf")), "", "literal=inf"),
    (Attributes(literal=nan), "", "literal=nan"),
    (Attributes(slices=((0, 4, 1), (2, 8, 2))), "", "slice=0:4:1,2:8:2"),
    (Attributes(padding=((-1, 0, 2),)), "", "padding=-1:0:2"),
    (Attributes(window=((3, 1, 1, 1, 1, 1, 0),)), "", "window=3:1:1:1:1:1:0"),
    (
        Attributes(gather=GatherDims((1,), (0,), (0,), (), (), 1, (1, 128))),
        "",
        "offset_dims=1 collapsed=0 start_map=0 index_vector=1 sizes=1,128",
    ),
    (
        Attributes(scatter=ScatterDims((), (0,), (0,), (1,), (1,), 2)),
        "",
        "inserted=0 to_operand=0 input_batching=1 indices_batching=1 index_vector=2",
    ),
]


@pytest.mark.parametrize(("said", "details", "more"), SAID)
def test_what_is_said_is_written_and_read_back(said, details, more):
    assert said.details_text == details
    assert attributes_text(said, Shape("f32", (2, 3))) == more
    assert parse_attributes(details, more) == (said, "", "")


def test_where_the_result_lies_stands_before_the_rest():
    shape = parse_shape("f32[2,3]{0,1:S(5)}")
    assert attributes_text(Attributes(literal=0.5), shape) == "layout=0,1 space=5 literal=0.5"
    assert parse_attributes("", "layout=0,1 space=5") == (NO_ATTRIBUTES, "0,1", "5")


def test_a_scalar_gather_has_no_sizes_and_stays_a_gather():
    said = Attributes(gather=GatherDims(index_vector=1))
    assert attributes_text(said, Shape("f32")) == "index_vector=1 sizes="
    assert parse_attributes("", "index_vector=1 sizes=").attributes == said


def test_details_by_key_are_those_of_the_text():
    said = Attributes(dimensions=(0, 1), direction="LT")
    assert said.details == {"dimensions": "0,1", "direction": "LT"}


@pytest.mark.parametrize(
    "text", ["index=x", "slice=a:b", "literal=much", "dimensions=,", "=", "new=1"]
)
def test_what_is_no_number_says_nothing(text):
    said = parse_attributes(text, text).attributes
    assert said.tuple_index == -1
    assert said.literal is None
    assert said.dimensions == ()
