"""Parts of each dimension of an argument, in every form that XLA writes them."""

import pytest
from builders.hlo import computation, hlo_proto, op
from builders.protobuf import message, packed

from moeprof.ingest.hlo.programs import parse_program
from moeprof.ingest.hlo.replica_groups import parse_splits

OTHER, MAXIMAL, TUPLE = 3, 1, 2
MANUAL = 4


def axis(name: str, size: int) -> bytes:
    return message((1, name), (2, size))


MESH = message((1, axis("data", 2)), (1, axis("fsdp", 3)), (1, axis("expert", 8)))


def along(*places: int) -> bytes:
    """A dimension that is split along these axes of the mesh."""
    return message(*((1, message((1, place))) for place in places), (2, 1))


def named(*dims: bytes, mesh: bytes = MESH, more=()) -> bytes:
    return message((14, message((2, mesh), *((3, dim) for dim in dims), *more)))


@pytest.mark.parametrize(
    ("written", "rank", "parts"),
    [
        (b"", 2, (1, 1)),  # replicated is the default
        (message((1, OTHER), (3, packed([4, 1]))), 2, (4, 1)),
        (message((1, OTHER), (3, 4), (3, 2)), 2, (4, 2)),
        (message((1, OTHER), (3, packed([4, 1, 2])), (6, 1)), 2, (4, 1)),  # 2 copies of each
        (message((1, OTHER), (3, packed([4, 1, 2])), (8, packed([0]))), 2, (4, 1)),
        (message((1, OTHER), (3, packed([4, 1, 2])), (8, packed([MANUAL]))), 2, ()),
        (message((1, OTHER), (3, packed([4, 1, 2]))), 2, ()),
        (message((1, OTHER), (3, packed([4, 0]))), 2, ()),
        (message((1, OTHER), (3, packed([1 << 20, 1]))), 2, ()),  # more than any machine has
        (message((1, MAXIMAL), (4, packed([0]))), 2, ()),
        (message((1, TUPLE), (5, b"")), 2, ()),
        (message((14, message((2, b"")))), 2, (1, 1)),  # a mesh without axes
        (named(along(0, 2), along()), 2, (16, 1)),
        (named(along(1)), 3, (3, 1, 1)),
        (named(along(), along(2)), 2, (1, 8)),
        (named(message((1, message((1, 2), (2, message((1, 2), (2, 4))))))), 1, (4,)),  # part of 8
        (named(along(3)), 1, ()),  # no such axis
        (named(along(0), along(1)), 1, ()),  # more dimensions than there are
        (named(along(0), more=((5, message((1, 1))),)), 1, ()),  # not summed yet
        (named(along(0), more=((7, message((1, 1))),)), 1, ()),
        (b"\xff", 1, ()),  # damaged: known as little as one that is not there
    ],
)
def test_parts_of_dimensions(written, rank, parts):
    assert parse_splits(written, 0, len(written), rank) == parts


def entry(*shardings: bytes):
    proto = hlo_proto(
        computation(
            "main",
            op("batch", "parameter", "s32[2,513]", extra=((9, 1),)),
            op("weight", "parameter", "bf16[16,8]", extra=((9, 0),)),
            op("sum", "add", "bf16[16,8]", "weight", "weight"),
        ),
        more=[(14, each) for each in shardings],
    )
    return {item.name: item.attributes.splits for item in parse_program(proto).module.instructions}


def test_arguments_are_split_by_their_number():
    assert entry(named(along(1), along(2)), named(along(0))) == {
        "batch": (2, 1),
        "weight": (3, 8),
        "sum": (),
    }


def test_a_list_of_another_length_says_nothing():
    assert set(entry(named(along(0))).values()) == {()}
    assert set(entry().values()) == {()}
