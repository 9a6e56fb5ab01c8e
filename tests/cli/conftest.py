"""What tests of whole commands share."""

from __future__ import annotations

import pytest

from moeprof.cli import main as command_line


@pytest.fixture
def ran(monkeypatch, capsys):
    """Run a command as a shell would: exit code, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["moeprof", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call
