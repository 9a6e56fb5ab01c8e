"""Groups of devices that take part in a collective together, as values and as text."""

from __future__ import annotations

import functools
import re

Groups = tuple[tuple[int, ...], ...]
"""Device ids of each group; of a permutation the pairs (source, target)."""

_GROUP = re.compile(r"\{([\d,\s]+)\}")


def groups_text(groups: Groups) -> str:
    """``{{0,1},{2,3}}``, as HLO writes explicit groups; empty for none."""
    if not groups:
        return ""
    return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"


@functools.lru_cache(maxsize=256)
def parse_groups(text: str) -> Groups:
    """The groups that a text names; none where it names none, or is written in another form."""
    return tuple(
        tuple(int(rank) for rank in group.split(",") if rank.strip())
        for group in _GROUP.findall(text)
    )
