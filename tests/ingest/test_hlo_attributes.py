import pytest
from builders.hlo import shape_proto
from builders.protobuf import message, packed

from moeprof.ingest.hlo.attributes import read_shape
from moeprof.ingest.xspace.wire import WireError

S4, F4, F6, F8E8M0, TOKEN, OPAQUE, C64, BUFFER, TUPLE = 21, 32, 35, 33, 17, 14, 15, 34, 13


def shape(data: bytes):
    return read_shape(data, 0, len(data))


def array(element: int, *dims: int, layout: bytes = b"") -> bytes:
    return message((2, element), (3, packed(list(dims)))) + (
        message((5, layout)) if layout else b""
    )


def test_an_array_takes_elements_times_width():
    found = shape(shape_proto("bf16[8,128]"))
    assert (str(found), found.size_bytes) == ("bf16[8,128]", 8 * 128 * 2)


def test_a_scalar_is_one_element():
    assert shape(shape_proto("f32[]")).size_bytes == 4


def test_an_array_with_an_empty_dimension_takes_nothing():
    assert shape(shape_proto("f32[0,8]")).size_bytes == 0


def test_a_tuple_takes_the_sum_of_its_parts():
    found = shape(shape_proto("(f32[8], pred[3], f8e4m3fn[16])"))
    assert str(found) == "(f32[8], pred[3], f8e4m3fn[16])"
    assert found.size_bytes == 8 * 4 + 3 + 16


def test_tuples_nest():
    inner = shape_proto("(f32[2], s32[])")
    found = shape(message((2, TUPLE), (4, inner), (4, shape_proto("u8[3]"))))
    assert (str(found), found.size_bytes) == ("((f32[2], s32[]), u8[3])", 8 + 4 + 3)


@pytest.mark.parametrize("element", [S4, F4])
def test_four_bit_elements_take_a_byte_unless_the_layout_packs_them(element):
    assert shape(array(element, 3, 5)).size_bytes == 15
    assert shape(array(element, 3, 5, layout=message((7, 4)))).size_bytes == 8  # 60 bits


@pytest.mark.parametrize(
    ("element", "text", "size_bytes"),
    [
        (F6, "f6e3m2fn[8]", 8),
        (F8E8M0, "f8e8m0fnu[8]", 8),
        (C64, "c64[8]", 64),
        (TOKEN, "token[8]", 0),
        (OPAQUE, "opaque[8]", 0),
    ],
)
def test_every_element_type_has_its_name_and_width(element, text, size_bytes):
    found = shape(array(element, 8))
    assert (str(found), found.size_bytes) == (text, size_bytes)


def test_an_unknown_element_type_keeps_its_number_and_has_no_size():
    found = shape(array(99, 4))
    assert (str(found), found.size_bytes) == ("type99[4]", -1)


def test_a_tuple_with_a_part_of_unknown_size_has_no_size():
    found = shape(message((2, TUPLE), (4, array(99, 4)), (4, shape_proto("f32[2]"))))
    assert (str(found), found.size_bytes) == ("(type99[4], f32[2])", -1)


def test_a_dynamic_dimension_counts_at_its_bound():
    found = shape(message((2, 11), (3, packed([4, 8])), (6, packed([0, 1]))))
    assert (str(found), found.size_bytes) == ("f32[4,<=8]", 4 * 8 * 4)


def test_an_unbounded_dimension_leaves_the_size_unknown():
    found = shape(message((2, 11), (3, packed([4, -(1 << 63)])), (6, packed([0, 1]))))
    assert (str(found), found.size_bytes) == ("f32[4,?]", -1)


def test_a_buffer_is_written_around_its_array():
    found = shape(message((2, BUFFER), (4, shape_proto("f32[8]"))))
    assert (str(found), found.size_bytes) == ("b(f32[8])", 32)


def test_dimensions_may_stand_alone_instead_of_packed():
    assert str(shape(message((2, 11), (3, 2), (3, 300)))) == "f32[2,300]"


@pytest.mark.parametrize("dims", [[-2], [1 << 40, 1 << 40], [1] * 100])
def test_a_shape_that_no_memory_holds_is_damage(dims):
    with pytest.raises(WireError, match="no memory holds"):
        shape(array(11, *dims))


def test_tuples_nested_without_end_are_damage():
    data = shape_proto("f32[]")
    for _ in range(100):
        data = message((2, TUPLE), (4, data))
    with pytest.raises(WireError, match="nested deeper"):
        shape(data)
