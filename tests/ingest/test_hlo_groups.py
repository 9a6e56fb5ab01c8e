import numpy as np
import pytest
from builders.protobuf import message, packed

from moeprof.hlo.instruction import groups_text
from moeprof.ingest.hlo.replica_groups import (
    GROUPS,
    MeshAxis,
    SubAxis,
    collective_groups,
    iota_groups,
    mesh_groups,
    parse_device_list,
    parse_mesh_axes,
)
from moeprof.ingest.xspace.wire import read_message


def groups_of(instruction: bytes):
    return collective_groups(instruction, read_message(instruction, 0, len(instruction), (GROUPS,)))


def group(*ids: int) -> bytes:
    return message((1, packed(list(ids))))


def mesh_list(sizes: list[int], axes: list[bytes], *more: tuple[int, bytes]) -> bytes:
    mesh = message(*((1, message((1, f"axis_{n}"), (2, size))) for n, size in enumerate(sizes)))
    return message((1, mesh + message(*more)), *((2, axis) for axis in axes))


def along(sizes: list[int], *axes: MeshAxis) -> list[list[int]]:
    found = mesh_groups(np.arange(int(np.prod(sizes))), sizes, list(axes))
    assert found is not None
    return found.tolist()


def test_iota_groups_in_rows():
    assert iota_groups(2, 4, (8,), ()) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_transposed_iota_groups():
    # [4,2]<=[2,4]T(1,0): 0..7 as 2 rows of 4, read by columns
    assert iota_groups(4, 2, (2, 4), (1, 0)) == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_an_iota_over_three_axes():
    # [2,4]<=[2,2,2]T(1,0,2): the middle axis is slowest, then the first, then the last
    assert iota_groups(2, 4, (2, 2, 2), (1, 0, 2)) == ((0, 1, 4, 5), (2, 3, 6, 7))


def test_an_iota_that_does_not_add_up_has_no_groups():
    assert iota_groups(2, 4, (9,), ()) == ()
    assert iota_groups(2, 4, (8,), (1,)) == ()
    assert iota_groups(2, 4, (-2, -4), ()) == ()
    assert iota_groups(2**40, 2**40, (2**40,), ()) == ()


def test_explicit_groups_are_written_as_hlo_does():
    data = message((1, group(0, 1)), (1, group(2, 3)))
    assert groups_text(parse_device_list(data, 0, len(data))) == "{{0,1},{2,3}}"


def test_every_form_in_an_instruction_gives_the_same_groups():
    expected = ((0, 1), (2, 3))
    explicit = [(1, group(0, 1)), (1, group(2, 3))]
    iota = message((1, 2), (2, 2), (3, packed([4])))
    in_mesh = mesh_list([2, 2], [message((1, 1))])
    assert groups_of(message((49, group(0, 1)), (49, group(2, 3)))) == expected
    assert groups_of(message((87, message(*explicit)))) == expected
    assert groups_of(message((87, message((2, iota))))) == expected
    assert groups_of(message((92, iota))) == expected
    assert groups_of(message((93, in_mesh))) == expected


def test_no_group_means_all_devices():
    assert groups_of(message((1, "all-reduce"))) == ()
    assert groups_text(()) == ""


def test_devices_that_differ_along_the_first_axis_only_form_a_group():
    # 2 × 3: device = 3 * row + column
    assert along([2, 3], MeshAxis(0)) == [[0, 3], [1, 4], [2, 5]]
    assert along([2, 3], MeshAxis(1)) == [[0, 1, 2], [3, 4, 5]]
    assert along([2, 3], MeshAxis(0), MeshAxis(1)) == [[0, 1, 2, 3, 4, 5]]


def test_a_part_of_an_axis_groups_within_the_rest():
    # 8 as [2, 2, 2]: the middle bit is (2)2
    assert along([8], MeshAxis(0, SubAxis(2, 2))) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert along([8], MeshAxis(0, SubAxis(1, 2))) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert along([8], MeshAxis(0, SubAxis(4, 2))) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_two_parts_of_an_axis_keep_the_order_given():
    first, last = MeshAxis(0, SubAxis(1, 2)), MeshAxis(0, SubAxis(4, 2))
    assert along([8], first, last) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert along([8], last, first) == [[0, 4, 1, 5], [2, 6, 3, 7]]


@pytest.mark.parametrize(
    "axes",
    [[], [MeshAxis(1)], [MeshAxis(0, SubAxis(3, 2))], [MeshAxis(0), MeshAxis(0, SubAxis(1, 2))]],
)
def test_axes_that_the_mesh_does_not_have_give_no_groups(axes):
    assert mesh_groups(np.arange(8), [8], axes) is None


def test_a_mesh_may_number_its_devices_itself():
    listed = mesh_list([2, 2], [message((1, 0))], (2, packed([3, 2, 1, 0])))
    assert parse_mesh_axes(listed, 0, len(listed)) == ((3, 1), (2, 0))


def test_a_mesh_may_transpose_its_devices():
    # [2,2]T(1,0): 0 2 / 1 3
    transform = message((1, packed([2, 2])), (2, packed([1, 0])))
    listed = mesh_list([2, 2], [message((1, 1))], (3, transform))
    assert parse_mesh_axes(listed, 0, len(listed)) == ((0, 2), (1, 3))


def test_a_sub_axis_is_read_from_its_message():
    part = message((1, 0), (2, message((1, 2), (2, 2))))
    listed = mesh_list([8], [part])
    assert parse_mesh_axes(listed, 0, len(listed)) == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_a_mesh_of_more_devices_than_there_are_gives_no_groups():
    listed = mesh_list([1 << 30, 1 << 30], [message((1, 0))])
    assert parse_mesh_axes(listed, 0, len(listed)) == ()
