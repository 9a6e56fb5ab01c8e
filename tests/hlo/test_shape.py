"""Shapes: their text both ways, their sizes, and what no shape is."""

from dataclasses import replace
from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprof.hlo.shape import (
    BITS,
    UNBOUNDED,
    UNKNOWN_SIZE,
    Shape,
    arrays_of,
    laid_out,
    parse_shape,
    row_by_row,
    unknown_types,
)


@st.composite
def arrays(draw):
    dims = tuple(draw(st.lists(st.integers(0, 1 << 40), max_size=4)))
    order = tuple(draw(st.permutations(range(len(dims)))))
    dynamic = frozenset(draw(st.sets(st.integers(0, len(dims) - 1)))) if dims else frozenset()
    dtype = draw(st.sampled_from([*BITS, "type91"]))
    layout = () if row_by_row(order) else order
    return Shape(dtype, dims, (), dynamic, layout, draw(st.sampled_from([0, 0, 1, 5])))


def shapes():
    def around(inside):
        parts = st.lists(inside, max_size=4).map(tuple)
        return st.builds(Shape, st.sampled_from(["tuple", "buffer"]), parts=parts)

    return st.recursive(arrays(), around, max_leaves=12)


@given(shapes())
def test_a_shape_is_what_its_texts_say(shape):
    assert laid_out(shape.text, *shape.layout_texts) == shape


@given(st.text(alphabet="fs32[](){},:<=?b 1S/*", max_size=40))
def test_any_text_is_kept(text):
    shape = parse_shape(text)
    assert shape.text == text or parse_shape(shape.text) == replace_layouts(shape)


def replace_layouts(shape):
    bare = replace(shape, parts=tuple(map(replace_layouts, shape.parts)))
    return replace(bare, layout=(), space=0) if shape.is_array else bare


def test_layouts_tiles_and_comments_are_read_or_passed_over():
    shape = parse_shape("(bf16[8,4]{0,1:T(8,128)(2,1)S(5)}, /*index=1*/s32[]{:T(256)}, u8[2]{0})")
    assert shape.text == "(bf16[8,4], s32[], u8[2])"
    first, second, third = shape.parts
    assert (first.layout, first.space) == ((0, 1), 5)
    assert (second.layout, second.space, third.layout) == ((), 0, ())


def test_an_order_of_dimensions_in_memory():
    shape = laid_out("f32[2,3,5]", "1,2,0", "")  # dimension 1 lies side by side, 0 is outermost
    assert shape.stored_order == (0, 2, 1)
    assert shape.stored_dims == (2, 5, 3)
    assert parse_shape("f32[2,3]").stored_dims == (2, 3)


def test_layouts_of_parts_stand_in_their_order():
    shape = laid_out("(f32[2,3], s32[], (f32[4,5]))", ";;0,1", "5;;")
    assert shape.layout_texts == (";;0,1", "5;;")
    assert [leaf.layout for leaf in shape.leaves] == [(), (), (0, 1)]
    assert [leaf.space for leaf in shape.leaves] == [5, 0, 0]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[]", 4),
        ("bf16[3,5]", 30),
        ("s4[3]", 2),  # packed: 12 bits
        ("f32[4,<=8]", 128),
        ("(f32[2], (pred[3], token[]))", 11),
        ("f32[4,?]", UNKNOWN_SIZE),
        ("(type91[2], f32[2])", UNKNOWN_SIZE),
        ("()", 0),
    ],
)
def test_sizes(text, size):
    assert parse_shape(text).size_bytes == size


def test_a_sum_with_an_unknown_size_is_unknown():
    assert isnan(sum(part.known_bytes for part in parse_shape("(f32[2], type91[2])").parts))
    assert parse_shape("f32[2]").known_bytes == 8


def test_a_layout_may_widen_elements():
    assert Shape("s4", (3,), width=8).size_bytes == 3


def test_arrays_of_a_shape_are_all_with_known_dimensions():
    found = arrays_of("(f32[2,3], (s32[<=7]), bf16[?])")
    assert [(array.dtype, array.dims) for array in found] == [("f32", (2, 3)), ("s32", (7,))]
    assert parse_shape("bf16[?]").dims == (UNBOUNDED,)


def test_what_is_no_shape_keeps_its_text_and_the_arrays_in_it():
    shape = parse_shape("f32[8] of what?")
    assert (shape.text, shape.is_array, shape.dims) == ("f32[8] of what?", False, ())
    assert [array.text for array in shape.arrays] == ["f32[8]"]
    assert parse_shape("").text == ""


@pytest.mark.parametrize("text", ["(" * 10_000, f"f32[{'9' * 5000}]", "((f32[2])", "f32[2])"])
def test_hostile_texts_are_no_shapes(text):
    assert parse_shape(text).text == text


def test_unknown_types_are_named_once():
    assert unknown_types("(f32[2], type16[4], type16[8], token[])") == ("type16",)
