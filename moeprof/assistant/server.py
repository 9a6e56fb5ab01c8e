"""Question: how do the tools reach an assistant, by the Model Context Protocol over stdio?

Standard output carries the protocol alone. One call is answered at a time, beside the loop that
talks to the client.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

from moeprof import __version__
from moeprof.answers.values import printable, shortened
from moeprof.assistant.fit import text_of
from moeprof.assistant.place import OpenRuns
from moeprof.assistant.tools import INSTRUCTIONS, TOOLS, called
from moeprof.errors import MoeprofError

_LONGEST_ERROR = 2_000
_READS_ALONE = types.ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)


def serve(root: Path) -> None:
    """Answer over stdin and stdout until the client closes them.

    `root` is free of links; nothing outside of it is read. Ctrl-C ends it at once, as nothing is
    ever half written; Python would wait for the next line of the client.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        anyio.run(_serve, OpenRuns(root))
    except* BrokenPipeError:  # the client has gone
        pass


async def _serve(runs: OpenRuns) -> None:
    one_at_a_time = anyio.CapacityLimiter(1)

    async def call(
        _: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        answer = functools.partial(result, runs, params.name, params.arguments or {})
        return await anyio.to_thread.run_sync(answer, limiter=one_at_a_time)

    server: Server[Any] = Server(
        "moeprof",
        version=__version__,
        title="moeprof",
        instructions=INSTRUCTIONS,
        on_list_tools=_list,
        on_call_tool=call,
    )
    async with stdio_server() as (read, write):
        with contextlib.redirect_stdout(sys.stderr):  # what libraries print is no protocol
            await server.run(read, write, server.create_initialization_options())


async def _list(
    _: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    return types.ListToolsResult(
        tools=[
            types.Tool(
                name=tool.name,
                title=tool.title,
                description=tool.description,
                input_schema=tool.arguments.model_json_schema(),
                annotations=_READS_ALONE,
            )
            for tool in TOOLS
        ]
    )


def result(runs: OpenRuns, name: str, given: Mapping[str, Any]) -> types.CallToolResult:
    """The answer of a tool as JSON; or one line, marked as an error, that says what is wrong."""
    try:
        return _said(text_of(called(runs, name, given)))
    except MoeprofError as error:
        return _said(_one_line(str(error)), is_error=True)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        fault = f"{name}: moeprof failed ({type(error).__name__}: {error}); its stderr has more"
        return _said(_one_line(fault), is_error=True)


def _said(text: str, *, is_error: bool = False) -> types.CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
    return types.CallToolResult(content=content, is_error=is_error)


def _one_line(text: str) -> str:
    return shortened(printable(" ".join(text.split())), _LONGEST_ERROR)
