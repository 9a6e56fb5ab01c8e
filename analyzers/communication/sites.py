"""Question: what does each collective of a program send, and among which devices?

Bytes come from the shapes of the operands, so every dtype that has a size counts. They follow the
convention of NVIDIA's nccl-tests (doc/PERFORMANCE.md): S is what a device holds of the whole
message, which for an all-gather is the gathered result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from moeprof.analyzers.classify.components import COLLECTIVES
from moeprof.analyzers.classify.targets import exchange_of

NOT_KNOWN = -1
Groups = tuple[tuple[int, ...], ...]

_UNKNOWN_TYPE = re.compile(r"type\d")
_POINT_TO_POINT = frozenset({"send", "recv"})
_GROUPED = COLLECTIVES - {"collective-permute"}
_RECEIVED = re.compile(r", ?u32\[\](?:\{[^}]*\})?, ?token\[\]\)$")
_CONTEXT_BYTES = 4
_EP_SIZE = re.compile(r"\bep_size = (\d+)")
_EP_GROUPS = re.compile(
    r"\bep_groups = dense<(?:\"0x(?P<bytes>(?:[0-9A-Fa-f]{16})+)\"|(?P<list>[\d\s,\[\]]+))>"
)
_DEEPEST = 4


@dataclass(frozen=True)
class Site:
    """One collective in a program.

    ``bytes`` is S, `NOT_KNOWN` where the shapes do not say it; ``bytes_bound`` is the most that
    it can be, equal to ``bytes`` where those are known. ``groups`` holds ranks; it is empty for
    point-to-point transfers, which know pairs and no groups, and where nothing tells how many
    devices take part.
    """

    row: int
    module: int
    op: str
    opcode: str
    groups: Groups
    bytes: int
    bytes_bound: int

    @property
    def group_size(self) -> int:
        """Devices in the largest group; 0 where there are no groups."""
        return max(map(len, self.groups), default=0)

    @property
    def is_grouped(self) -> bool:
        """Whether all devices of a group take part together, be the groups known or not."""
        return self.opcode in _GROUPED or bool(self.groups)


def sites_of(hlo_ops: pd.DataFrame, rows: Iterable[int], ranks: Mapping[int, int]) -> list[Site]:
    """The collectives among the given rows of `HLO_OPS`, in order of row.

    Args:
        hlo_ops: `HLO_OPS`.
        rows: rows that device work resolves to; those without a collective are left out.
        ranks: by module the devices that run it together, which form the one group of ops that
            name none; a module that is not in it runs on nobody knows how many.
    """
    programs: dict[int, _Program] = {}
    found = []
    for row in sorted(set(rows)):
        module = int(hlo_ops["module"].iloc[row])
        if module not in programs:
            programs[module] = _Program(hlo_ops[hlo_ops["module"] == module])
        site = programs[module].site(row, ranks.get(module, 0))
        if site is not None:
            found.append(site)
    return found


def message_bytes(opcode: str, operand_bytes: int, group_size: int) -> int:
    """S of nccl-tests from the bytes that each device puts in; `NOT_KNOWN` stays that."""
    if operand_bytes != NOT_KNOWN and opcode == "all-gather":
        return operand_bytes * group_size if group_size else NOT_KNOWN
    return operand_bytes


def groups_of(text: str, ranks: int) -> Groups:
    """``{{0,1},{2,3}}`` as tuples of ranks; an empty text is one group of all `ranks`.

    Of none where `ranks` is 0, as how many there are is not known, or where the text is written
    in another form: those are no group of all.
    """
    named = tuple(
        tuple(int(rank) for rank in group.split(",") if rank.strip())
        for group in re.findall(r"\{([\d,\s]+)\}", text)
    )
    is_all = not text.strip(" {}") and ranks > 0
    return named or ((tuple(range(ranks)),) if is_all else ())


def groups_of_call(backend_config: str, ranks: int) -> Groups:
    """Groups of a token exchange by custom call; none where its attributes do not tell them.

    They do where they name each of the `ranks` devices of the program once: with several
    processes a call numbers those of its own.

    ``ep_groups`` lists the ranks of all groups, ``ep_size`` of them in each, as in
    ``{ep_groups = dense<[0, 2, 1, 3]> : tensor<4xi64>, ep_size = 2 : i64}``: {0,2} and {1,3}.
    MLIR prints long lists as bytes in hexadecimal.
    """
    size, listed = _EP_SIZE.search(backend_config), _EP_GROUPS.search(backend_config)
    if size is None or listed is None:
        return ()
    if listed["bytes"]:
        members = np.frombuffer(bytes.fromhex(listed["bytes"]), "<i8").tolist()
    else:
        members = [int(rank) for rank in re.findall(r"\d+", listed["list"])]
    each = int(size[1])
    if not each or len(members) % each or sorted(members) != list(range(ranks)):
        return ()
    return tuple(tuple(members[at : at + each]) for at in range(0, len(members), each))


class _Program:
    """The instructions of one module, to find operands and wrapped collectives by name."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self._rows = rows
        self._row_of = dict(zip(rows["op"], rows.index, strict=True))

    def site(self, row: int, ranks: int) -> Site | None:
        """The collective that a row is or wraps; None for the second half of a pair, too."""
        inner = self._collective(row, 0)
        if inner is None:
            return None
        opcode = str(self._rows["opcode"].at[inner]).removesuffix("-start")
        text = str(self._rows["replica_groups"].at[inner])
        groups = groups_of(text, ranks) if opcode in _GROUPED else ()
        if opcode == "custom-call":
            groups = groups_of_call(str(self._rows["backend_config"].at[inner]), ranks)
        size = max(map(len, groups), default=0)
        bound = message_bytes(opcode, self._operand_bytes(inner, opcode), size)
        is_known = opcode not in ("ragged-all-to-all", "custom-call")
        return Site(
            row=row,
            module=int(str(self._rows["module"].at[row])),
            op=str(self._rows["op"].at[row]),
            opcode=opcode,
            groups=groups,
            bytes=bound if is_known else NOT_KNOWN,
            bytes_bound=bound,
        )

    def _collective(self, row: int, depth: int) -> int | None:
        """The row itself, or the one in the computation that an async start or fusion wraps."""
        opcode = str(self._rows["opcode"].at[row]).removesuffix("-start")
        if opcode in COLLECTIVES | _POINT_TO_POINT:
            return row
        if opcode == "custom-call":
            return row if exchange_of(str(self._rows["custom_call_target"].at[row])) else None
        if opcode not in ("async", "fusion") or depth == _DEEPEST:
            return None
        called = str(self._rows["called"].at[row]).split()
        for inner in self._rows.index[self._rows["computation"].isin(called)]:
            found = self._collective(int(inner), depth + 1)
            if found is not None:
                return found
        return None

    def _operand_bytes(self, row: int, opcode: str) -> int:
        """What a device puts in; `NOT_KNOWN` for an unknown operand, dtype or custom call."""
        if opcode == "recv":
            return self._received_bytes(row)
        names = str(self._rows["operands"].at[row]).split()
        if opcode == "ragged-all-to-all":
            names = names[:1]  # input, then the output buffer, offsets and sizes
        rows = [self._row_of.get(name, -1) for name in names]
        if opcode == "custom-call" or not rows or -1 in rows:
            return NOT_KNOWN
        sizes = [int(str(self._rows["size_bytes"].at[r])) for r in rows]
        shapes = [str(self._rows["shape"].at[r]) for r in rows]
        if any(size < 0 for size in sizes) or any(map(_UNKNOWN_TYPE.search, shapes)):
            return NOT_KNOWN
        return sum(sizes)

    def _received_bytes(self, row: int) -> int:
        """What a ``recv`` brings: it puts in nothing but a token.

        Its result is (data, context, token), of which only the data crosses a link.
        """
        shape = str(self._rows["shape"].at[row])
        size = int(str(self._rows["size_bytes"].at[row]))
        if not _RECEIVED.search(shape) or _UNKNOWN_TYPE.search(shape) or size <= _CONTEXT_BYTES:
            return NOT_KNOWN
        return size - _CONTEXT_BYTES
