"""`moeprof memory` as a shell runs it."""

import pytest

from moeprof.cli import main as command_line


@pytest.fixture
def memory(monkeypatch, capsys):
    """Run the command as a shell would: exit code, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["moeprof", "memory", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call
