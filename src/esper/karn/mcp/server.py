"""The server: the tools over the Model Context Protocol, on standard input and output."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import anyio.to_thread
import msgspec

from esper.karn.mcp.messages import (
    ComparePolicies,
    CountEvents,
    DescribeRun,
    DiffRuns,
    EventCounts,
    FindEvents,
    FoundEvents,
    ListRuns,
    PolicyComparison,
    Query,
    QueryAnswer,
    RunDescription,
    RunDifference,
    RunTable,
)
from esper.karn.mcp.tools import RunTools
from esper.leyline.errors import EsperError, UnknownNameError
from esper.leyline.extras import require_packages
from esper.leyline.untyped_json import decode_json
from esper.version import __version__

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp_types import (
        CallToolRequestParams,
        CallToolResult,
        ListToolsResult,
        PaginatedRequestParams,
    )

__all__ = ["serve_runs"]

INSTRUCTIONS: Final = (
    "Runs of Esper, which trains neural networks that grow while they train. Nothing here changes "
    "a run. Rounds, steps and envs count from 0. Begin with list_runs and describe_run; query "
    "answers questions about numbers with SQL."
)


class _Tool(NamedTuple):
    question: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    run: Callable[..., msgspec.Struct]


_TOOLS: Final[Mapping[str, _Tool]] = {
    "list_runs": _Tool(ListRuns, RunTable, RunTools.list_runs),
    "describe_run": _Tool(DescribeRun, RunDescription, RunTools.describe_run),
    "query": _Tool(Query, QueryAnswer, RunTools.query),
    "count_events": _Tool(CountEvents, EventCounts, RunTools.count_events),
    "diff_runs": _Tool(DiffRuns, RunDifference, RunTools.diff_runs),
    "find_events": _Tool(FindEvents, FoundEvents, RunTools.find_events),
    "compare_policies": _Tool(ComparePolicies, PolicyComparison, RunTools.compare_policies),
}


def serve_runs(directory: Path) -> None:
    """Serve the runs of a directory until standard input ends."""
    require_packages("the command mcp", "mcp")
    anyio.run(_serve, RunTools(directory))


async def _serve(tools: RunTools) -> None:
    # Imported here because the SDK is an optional dependency.
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    server: Server[Any] = Server(
        "esper",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=_list_tools,
        on_call_tool=partial(_call_tool, tools),
    )
    async with stdio_server() as (requests, responses):
        await server.run(requests, responses, server.create_initialization_options())


async def _list_tools(
    context: "ServerRequestContext[Any]", params: "PaginatedRequestParams | None"
) -> "ListToolsResult":
    from mcp_types import ListToolsResult, Tool, ToolAnnotations  # see above

    annotations = ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    return ListToolsResult(
        tools=[
            Tool(
                name=name,
                description=tool.question.__doc__,
                input_schema=_schema(tool.question),
                output_schema=_schema(tool.answer),
                annotations=annotations,
            )
            for name, tool in _TOOLS.items()
        ]
    )


async def _call_tool(
    tools: RunTools, context: "ServerRequestContext[Any]", params: "CallToolRequestParams"
) -> "CallToolResult":
    from mcp_types import CallToolResult, TextContent  # see above

    try:
        answer = await anyio.to_thread.run_sync(_answer, tools, params.name, params.arguments or {})
    except (EsperError, msgspec.ValidationError) as error:
        return CallToolResult(content=[TextContent(text=str(error))], is_error=True)
    return CallToolResult(
        content=[TextContent(text=answer.decode())], structured_content=decode_json(answer)
    )


def _answer(tools: RunTools, name: str, arguments: Mapping[str, object]) -> bytes:
    if name not in _TOOLS:
        raise UnknownNameError("tool", name, _TOOLS)
    tool = _TOOLS[name]
    question = msgspec.convert(arguments, tool.question)
    return msgspec.json.encode(tool.run(tools, question))


def _schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a struct, whose root is an object, as the protocol requires."""
    schema = msgspec.json.schema(kind)
    definitions = schema["$defs"]
    root = definitions.pop(kind.__name__)
    return {**root, "$defs": definitions} if definitions else root
