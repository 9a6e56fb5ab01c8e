import contextlib

import pytest
from builders.protobuf import field, message, packed, varint
from hypothesis import given
from hypothesis import strategies as st

from moeprof.ingest.xspace import wire

VALUES = st.one_of(st.integers(0, 2**64 - 1), st.floats(allow_nan=False), st.binary(max_size=300))
FIELDS = st.lists(st.tuples(st.integers(1, 2**29 - 1), VALUES), max_size=20)


def read(data: bytes) -> list[tuple[int, object]]:
    """Numbers and values as the builder was given them."""
    found: list[tuple[int, object]] = []
    for number, kind, value, end in wire.fields(data, 0, len(data)):
        if kind == wire.BYTES:
            found.append((number, data[value:end]))
        else:
            found.append((number, wire.float64(value) if kind == wire.FIXED64 else value))
    return found


def test_an_empty_message_has_no_field():
    assert read(b"") == []


def test_a_varint_is_read_to_its_last_group():
    assert wire.varint(bytes([0x96, 0x01]), 0, 2) == (150, 2)  # 0x16 + (1 << 7)


def test_minus_one_takes_ten_bytes_and_comes_back():
    (item,) = wire.fields(data := field(4, -1), 0, len(data))
    assert len(data) == 11
    assert wire.signed(item[2]) == -1


@given(FIELDS)
def test_what_was_written_is_read(pairs):
    assert read(message(*pairs)) == pairs


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_packed_and_single_numbers_are_the_same(numbers):
    data = packed(numbers)
    assert list(wire.packed(data, wire.BYTES, 0, len(data))) == numbers
    assert [n for v in numbers for n in wire.packed(b"", wire.VARINT, v % 2**64, 0)] == numbers


@given(st.binary(max_size=400))
def test_any_bytes_end_in_fields_or_in_one_error(data):
    with contextlib.suppress(wire.WireError):
        for _, kind, value, end in wire.fields(data, 0, len(data)):
            assert kind != wire.BYTES or 0 <= value <= end <= len(data)


@given(FIELDS, st.data())
def test_a_cut_message_gives_the_fields_before_the_cut(pairs, data):
    whole = message(*pairs)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    found = []
    try:
        for number, kind, value, end in wire.fields(cut, 0, len(cut)):
            found.append((number, kind, value, end))
    except wire.WireError:
        pass
    assert found == list(wire.fields(whole, 0, len(whole)))[: len(found)]


def test_a_length_beyond_the_end_is_refused_without_reading_it():
    data = varint(3 << 3 | 2) + varint(2**62) + b"ab"
    with pytest.raises(wire.CutError, match="byte 0: field 3 goes on past the end") as caught:
        list(wire.fields(data, 0, len(data)))
    assert (caught.value.number, caught.value.start) == (3, 10)


def test_an_endless_varint_is_refused():
    with pytest.raises(wire.WireError, match="more than 10 bytes"):
        wire.varint(b"\xff" * 11, 0, 11)


def test_a_field_never_reads_past_its_stretch():
    data = field(1, "inner") + field(2, 300)
    with pytest.raises(wire.CutError):
        list(wire.fields(data, 0, 4))


def test_unknown_wire_types_are_refused():
    with pytest.raises(wire.WireError, match="wire type 3"):
        list(wire.fields(bytes([1 << 3 | 3]), 0, 1))


def test_text_that_is_no_utf8_keeps_its_readable_part():
    assert wire.text(b"k\x9fk", 0, 3) == "k\ufffdk"
