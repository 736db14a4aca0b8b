"""The official Python SDK as an MCP host: the same steps as client.mjs, see there.

Usage: python client.py COMMAND ARGUMENT...
"""

import json
import sys

import anyio
from mcp import ClientSession, McpError, StdioServerParameters
from mcp.client.stdio import stdio_client


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def act(session, request):
    match request["do"]:
        case "list":
            return await session.list_tools()
        case "call":

            async def progressed(progress, total, message):
                say({"step": request["step"], "progress": progress})

            callback = progressed if request.get("progress") else None
            return await session.call_tool(request["tool"], request["arguments"], progress_callback=callback)
        case "resources":
            return await session.list_resources()
        case "read":
            return await session.read_resource(request["uri"])
        case "prompts":
            return await session.list_prompts()
        case "prompt":
            return await session.get_prompt(request["name"], request["arguments"])


async def run(session, request):
    step = request["step"]
    try:
        result = await act(session, request)
        say({"step": step, "ok": result.model_dump(mode="json", by_alias=True, exclude_none=True)})
    except McpError as error:
        say({"step": step, "error": error.error.model_dump(mode="json", exclude_none=True)})


async def main():
    # No env: the SDK then hands on only what it deems safe, which is what hosts do.
    server = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        initialized = await session.initialize()
        ready = initialized.model_dump(mode="json", by_alias=True, exclude_none=True)
        say({"ready": {"server": ready["serverInfo"], "capabilities": ready["capabilities"]}})
        async with anyio.create_task_group() as steps:
            async for line in anyio.wrap_file(sys.stdin):
                steps.start_soon(run, session, json.loads(line))


anyio.run(main)
