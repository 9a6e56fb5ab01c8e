"""Rules by which a user names parts of the step, as they travel with a trace."""

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
