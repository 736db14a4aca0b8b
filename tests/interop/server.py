"""A FastMCP server: streamable HTTP with sessions but without event ids, so that nothing of a cut stream can be had again.

Usage: python server.py SOCKET
"""

import asyncio
import sys

import uvicorn
from mcp.server.fastmcp import Context, FastMCP

server = FastMCP("interop-python")
runs = {}


@server.tool()
def echo(message: str) -> str:
    return f"Echo: {message}"


@server.tool()
async def slow(key: str, steps: int, ctx: Context) -> str:
    runs[key] = runs.get(key, 0) + 1
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps)
        await asyncio.sleep(0.25)
    return f"slow {key} done"


@server.tool()
def runs_of(key: str) -> str:
    return str(runs.get(key, 0))


uvicorn.run(server.streamable_http_app(), uds=sys.argv[1], log_level="warning")
