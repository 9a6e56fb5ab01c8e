"""Question: which words of a command line say what was asked, and not how it is shown?"""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.core import ParameterSource

from moeprof.tables.name_rule import NameRules


def given_words(ctx: click.Context, leave_out: Sequence[str]) -> list[str]:
    """Options that stood on the command line with their values, in the order of the help text.

    ``leave_out`` names parameters that only say how the answer is shown.
    """
    words: list[str] = []
    for option in ctx.command.params:
        name = option.name or ""
        is_given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not isinstance(option, click.Option) or name in leave_out or not is_given:
            continue
        value, flag = ctx.params[name], option.opts[-1]
        if isinstance(value, NameRules):
            value = value.file
        if option.is_flag:
            words.append(flag)
        elif option.multiple:
            words += [word for each in value for word in (flag, str(each))]
        else:
            words += [flag, _written(value)]
    return words


def _written(value: object) -> str:
    """A value as it may be given again: numbers in a row with commas between."""
    if isinstance(value, tuple):
        return ",".join(map(_written, value))
    return f"{value:.15g}" if isinstance(value, float) else str(value)
