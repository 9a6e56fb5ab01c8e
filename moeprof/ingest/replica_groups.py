"""Question: which devices take part in a collective?

Reads every form that XLA writes (xla/xla_data.proto): explicit groups, the collective device
list, and the iota form ``[groups,size]<=[dims]T(perm)``.
"""

from __future__ import annotations

import numpy as np

from moeprof.ingest.wire import BYTES, fields, packed

Groups = tuple[tuple[int, ...], ...]
_MOST_DEVICES = 1 << 20  # far beyond any mesh; a larger claim is a damaged file


def parse_group(data: bytes, start: int, end: int) -> tuple[int, ...]:
    """One ReplicaGroup: the ids of its devices."""
    ids: list[int] = []
    for number, kind, value, stop in fields(data, start, end):
        if number == 1:
            ids.extend(packed(data, kind, value, stop))
    return tuple(ids)


def parse_device_list(data: bytes, start: int, end: int) -> Groups:
    """A CollectiveDeviceListProto: explicit groups, else its iota list."""
    groups: list[tuple[int, ...]] = []
    for number, kind, value, stop in fields(data, start, end):
        if number == 1 and kind == BYTES:
            groups.append(parse_group(data, value, stop))
        elif number == 2 and kind == BYTES:
            groups.extend(parse_iota(data, value, stop))
    return tuple(groups)


def parse_iota(data: bytes, start: int, end: int) -> Groups:
    """An IotaReplicaGroupListProto."""
    count = size = 0
    dims: list[int] = []
    order: list[int] = []
    for number, kind, value, stop in fields(data, start, end):
        if number == 1:
            count = value
        elif number == 2:
            size = value
        elif number == 3:
            dims.extend(packed(data, kind, value, stop))
        elif number == 4:
            order.extend(packed(data, kind, value, stop))
    return iota_groups(count, size, dims, order)


def iota_groups(count: int, size: int, dims: list[int], order: list[int]) -> Groups:
    """``[count,size]<=[dims]T(order)``: number the devices, transpose, cut into groups.

    Returns no group where the numbers do not fit together.
    """
    devices = count * size
    shape = dims or [devices]
    axes = order or list(range(len(shape)))
    if not 0 < devices <= _MOST_DEVICES or int(np.prod(shape)) != devices:
        return ()
    if sorted(axes) != list(range(len(shape))):
        return ()
    ids = np.arange(devices).reshape(shape).transpose(axes).reshape(count, size)
    return tuple(tuple(int(i) for i in row) for row in ids)


def groups_text(groups: Groups) -> str:
    """``{{0,1},{2,3}}``, as HLO writes explicit groups; empty for none."""
    if not groups:
        return ""
    return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"
