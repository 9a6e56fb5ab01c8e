"""Question: which whole number does a text of a profile say, if any that a table can hold?

Profiles are input from anywhere: a name may hold digits by the thousand.
"""

from __future__ import annotations

_MOST_DIGITS = 18
"""Every number of so many digits fits into 64 bits."""


def number_in(text: str, default: int = -1) -> int:
    """The number that the text is; `default` where it is none or has more than 18 digits."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else default
