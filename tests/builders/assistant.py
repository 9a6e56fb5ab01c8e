"""`moeprof mcp` in a process of its own, and the official client that talks to it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client


class Served:
    """A client that is connected; `stderr` is the file that has the server's."""

    def __init__(self, portal, client, stderr: Path) -> None:
        self._portal, self.client, self.stderr = portal, client, stderr

    def tools(self) -> dict[str, object]:
        listed = self._portal.call(self.client.list_tools)
        return {tool.name: tool for tool in listed.tools}

    def called(self, tool: str, **arguments: object) -> tuple[str, bool]:
        """The text of an answer, and whether it is an error."""
        found = self._portal.call(self.client.call_tool, tool, arguments)
        (content,) = found.content
        assert found.structured_content is None
        return content.text, bool(found.is_error)

    def answer(self, tool: str, **arguments: object) -> dict:
        text, is_error = self.called(tool, **arguments)
        assert not is_error, text
        assert len(text.encode()) <= 20_000
        return json.loads(text, parse_constant=pytest.fail)

    def error(self, tool: str, **arguments: object) -> str:
        text, is_error = self.called(tool, **arguments)
        assert is_error, text
        (line,) = text.splitlines()
        assert "Traceback" not in line
        return line


@contextmanager
def serving(root: Path, stderr: Path) -> Iterator[Served]:
    """A server of the runs below a folder, initialized."""
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "moeprof", "mcp", "--root", str(root)]
    )
    with (
        stderr.open("w") as log,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(stdio_client(command, errlog=log))) as client,
    ):
        yield Served(portal, client, stderr)
