"""What click refuses is told as what moeprof refuses is: one line, exit code 2, nothing printed."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--nope",), "moeprof: No such option '--nope'. Try 'moeprof --help'."),
        (("nope",), "moeprof: No such command 'nope'. Try 'moeprof --help'."),
        (
            ("analyze",),
            "moeprof: analyze: Missing argument 'RUN...'. Try 'moeprof analyze --help'.",
        ),
        (
            ("memory", "--pdbs"),
            "moeprof: memory: Option '--pdbs' requires an argument. Try 'moeprof memory --help'.",
        ),
        (
            ("memory", "search", "--devices", "x"),
            "moeprof: memory search: Invalid value for '--devices': 'x' is not a valid integer "
            "range. Try 'moeprof memory search --help'.",
        ),
    ],
)
def test_wrong_usage_is_one_line(ran, arguments, line):
    code, out, err = ran(*arguments)
    assert (code, out, err) == (2, "", f"{line}\n")


def test_without_a_command_the_help_is_shown(ran):
    code, out, err = ran()
    assert code == 2
    assert "Commands:" in out + err
    assert ran("memory", "--help")[0] == 0
