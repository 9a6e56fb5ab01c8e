"""What op_names tell: the rules by which a user names parts of the step, and names XLA merged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NameRule:
    """The component of every op on which all conditions hold; an empty one is none.

    ``scope`` is a regular expression that is searched in the op_name. ``function`` is a function of
    the source frames. ``source`` is the source line, as file.py, file.py:12 or file.py:12-20.
    ``op`` is a regular expression for the whole name of the instruction.
    """

    component: str
    scope: str = ""
    function: str = ""
    source: str = ""
    op: str = ""

    @property
    def conditions(self) -> dict[str, str]:
        """The conditions that it has, by their names."""
        every = {"scope": self.scope, "function": self.function}
        every |= {"source": self.source, "op": self.op}
        return {name: text for name, text in every.items() if text}


@dataclass(frozen=True)
class NameRules:
    """Rules in their order, the first that matches decides, and the file that they are from."""

    file: str = ""
    rules: tuple[NameRule, ...] = ()


# Which op_names did XLA merge into one?
#
# Where XLA combines instructions it merges their names behind what they share:
# ``jit(step)/(jvp()/moe/mul:transpose(jvp())/moe/mul)``. The group stands at the end, and may
# hold groups of its own.

_OPENING, _CLOSING = "([{", ")]}"


def op_name_parts(op_name: str, deepest: int = 8) -> tuple[str, ...]:
    """The names that were merged into `op_name`, in order, each with the shared beginning.

    A name that is none of several comes back alone, as does a group within more than `deepest`
    others. Brackets inside the parts need not balance,
    as a shared beginning may end between two of them: a colon counts as long as no bracket that
    its own part opened is open; where that splits nothing, every colon counts.
    """
    start = 0 if op_name.startswith("(") else op_name.find("/(") + 1
    is_merged = op_name[start : start + 1] == "(" and ":" in op_name
    if not is_merged or not deepest:
        return (op_name,)
    prefix, group = op_name[:start], op_name[start + 1 :]
    if group.endswith(")") and _depth(group) < 0:
        group = group[:-1]
    parts = _split(group)
    if len(parts) == 1 and _depth(group) > 0:
        parts = group.split(":")
    if len(parts) == 1:
        return (op_name,)
    return tuple(prefix + name for part in parts for name in op_name_parts(part, deepest - 1))


def _split(group: str) -> list[str]:
    """Cut at the colons outside the brackets of each part."""
    parts, depth, begin = [], 0, 0
    for place, letter in enumerate(group):
        if letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
        elif letter == ":" and depth <= 0:
            parts.append(group[begin:place])
            depth, begin = 0, place + 1
    return [*parts, group[begin:]]


def _depth(text: str) -> int:
    """Opened brackets less closed ones."""
    return sum(map(text.count, _OPENING)) - sum(map(text.count, _CLOSING))
