"""Random XSpaces: fields in any order, twice or missing, unknown ones, extreme numbers and ids."""

from __future__ import annotations

import struct

from builders.protobuf import field, varint
from hypothesis import strategies as st

# Few ids, so that names, references and events meet; the last ones are extremes.
IDS = st.one_of(
    st.sampled_from([1, 2, 3]), st.sampled_from([0, 4, -1, 70_000, 2**63 - 1, -(2**63)])
)
INT64S = st.one_of(
    st.integers(-3, 3000), st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**63 - 1, -(2**63)])
)
UNICODE = st.sampled_from(["", "k", "op", "run_id", "dot.1", "é€😀", "a" * 130])
BROKEN = st.sampled_from([b"k\x9f", b"k\x9e", b"k\xff", b"\xed\xa0\x80"])
DOUBLES = st.floats(width=64)
ASKED = ("op", "run_id", "", "5")


def fixed32(number: int, value: int) -> bytes:
    return varint(number << 3 | 5) + struct.pack("<I", value)


def one(number: int, values: st.SearchStrategy) -> st.SearchStrategy[bytes]:
    return values.map(lambda value: field(number, value))


@st.composite
def shuffled(draw: st.DrawFn, parts: list[bytes]) -> bytes:
    return b"".join(draw(st.permutations(parts)) if draw(st.booleans()) else parts)


UNKNOWN = st.one_of(
    one(13, INT64S),
    one(14, st.binary(max_size=9)),
    one(2**29 - 1, DOUBLES),
    st.integers(0, 2**32 - 1).map(lambda value: fixed32(15, value)),
)
# A known number with a content of another kind than the format's.
MISPLACED = st.one_of(
    *(st.integers(0, 2**32 - 1).map(lambda v, n=n: fixed32(n, v)) for n in range(1, 8))
)
NOISE = st.lists(st.one_of(UNKNOWN, MISPLACED), max_size=1)


@st.composite
def stats(draw: st.DrawFn, texts: st.SearchStrategy) -> bytes:
    value = st.one_of(
        one(2, DOUBLES),
        one(3, INT64S),
        one(4, INT64S),
        one(5, texts),
        one(5, texts),
        one(6, st.one_of(UNICODE, BROKEN)),
        one(7, IDS),
    )
    ids = draw(st.lists(one(1, IDS), min_size=1, max_size=1 + (draw(st.integers(0, 9)) == 0)))
    return draw(shuffled([*ids, *draw(st.lists(value, max_size=2)), *draw(NOISE)]))


@st.composite
def events(draw: st.DrawFn, texts: st.SearchStrategy) -> bytes:
    numbers = [draw(one(1, IDS)), draw(one(2, INT64S)), draw(one(3, INT64S))]
    own = [field(4, stat) for stat in draw(st.lists(stats(texts), max_size=3))]
    return draw(shuffled([*numbers, *own, *draw(NOISE)]))


@st.composite
def lines(draw: st.DrawFn, texts: st.SearchStrategy) -> bytes:
    head = [draw(one(1, IDS)), draw(one(2, texts)), draw(one(3, INT64S))]
    own = [field(4, event) for event in draw(st.lists(events(texts), max_size=4))]
    return draw(shuffled([*head, *own, *draw(NOISE)]))


@st.composite
def entries(draw: st.DrawFn, texts: st.SearchStrategy, *, with_stats: bool) -> bytes:
    parts = [draw(one(2, texts)), *draw(NOISE)]
    if with_stats:
        parts += [field(5, stat) for stat in draw(st.lists(stats(texts), max_size=2))]
    metadata = draw(shuffled(parts))
    keys = draw(st.lists(one(1, IDS), max_size=1))
    values = [field(2, metadata)] if draw(st.integers(0, 9)) else []
    return draw(shuffled([*keys, *values]))


@st.composite
def planes(draw: st.DrawFn, texts: st.SearchStrategy) -> bytes:
    names = st.lists(entries(texts, with_stats=True), max_size=4)
    stat_names = st.lists(entries(st.sampled_from(ASKED), with_stats=False), max_size=6)
    parts = [
        draw(one(2, texts)),
        *(field(3, line) for line in draw(st.lists(lines(texts), max_size=3))),
        *(field(4, entry) for entry in draw(names)),
        *(field(5, entry) for entry in draw(stat_names)),
        *(field(6, stat) for stat in draw(st.lists(stats(texts), max_size=2))),
        *draw(NOISE),
    ]
    return draw(shuffled(parts))


@st.composite
def spaces(draw: st.DrawFn, texts: st.SearchStrategy = UNICODE) -> bytes:
    """A valid XSpace; `texts` are its names and strings."""
    own = [field(1, plane) for plane in draw(st.lists(planes(texts), max_size=3))]
    messages = draw(st.lists(st.one_of(*(one(n, texts) for n in (2, 3, 4))), max_size=2))
    return draw(shuffled([*own, *messages, *draw(NOISE)]))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An XSpace with bytes changed, taken out or put in, then perhaps cut."""
    data = bytearray(draw(spaces(st.one_of(UNICODE, BROKEN))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)
