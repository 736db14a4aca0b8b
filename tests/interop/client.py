"""The official Python SDK as an MCP host: the same steps as client.mjs, see there.

Usage: python client.py (asks|plain) COMMAND ARGUMENT...
       python client.py (asks|plain) URL [TOKEN]
"""

import json
import sys
from contextlib import asynccontextmanager

import anyio
import httpx
from mcp import ClientSession, McpError, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

asks = {}


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def plain(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def notice(message):
    root = getattr(message, "root", None)
    if isinstance(message, types.ServerNotification) and root.method != "notifications/progress":
        say({"notice": root.method, "params": plain(root.params) if root.params else {}})


def asked(method, result):
    async def callback(_context, params):
        number = len(asks) + 1
        asks[number] = answered = {"event": anyio.Event()}
        say({"ask": number, "method": method, "params": plain(params)})
        await answered["event"].wait()
        return result.model_validate(answered["result"])

    return callback


async def call(session, request):
    async def progressed(progress, total, message):
        say({"step": request["step"], "progress": progress})

    callback = progressed if request.get("progress") else None
    return await session.call_tool(request["tool"], request["arguments"], progress_callback=callback)


async def act(session, request):
    match request["do"]:
        case "list":
            return await session.list_tools()
        case "call":
            return await call(session, request)
        case "resources":
            return await session.list_resources(params=types.PaginatedRequestParams(cursor=request.get("cursor")))
        case "templates":
            return await session.list_resource_templates()
        case "read":
            return await session.read_resource(request["uri"])
        case "subscribe":
            return await session.subscribe_resource(request["uri"])
        case "unsubscribe":
            return await session.unsubscribe_resource(request["uri"])
        case "prompts":
            return await session.list_prompts()
        case "prompt":
            return await session.get_prompt(request["name"], request["arguments"])
        case "complete":
            reference = types.PromptReference(type="ref/prompt", name=request["prompt"])
            return await session.complete(reference, {"name": request["argument"], "value": request["value"]})
        case "level":
            return await session.set_logging_level(request["level"])
        case "answer":
            asks[request["ask"]]["result"] = request["result"]
            asks[request["ask"]]["event"].set()
            return types.EmptyResult()


async def run(session, request):
    step = request["step"]
    try:
        say({"step": step, "ok": plain(await act(session, request))})
    except McpError as error:
        say({"step": step, "error": error.error.model_dump(mode="json", exclude_none=True)})


@asynccontextmanager
async def over_http(url, token):
    timeout = httpx.Timeout(30, read=300)
    async with (
        httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=timeout) as http,
        streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams


def transport(target):
    if target[0].startswith("http://"):
        return over_http(*target) if target[1:] else streamable_http_client(target[0])
    # No env: the SDK then hands on only what it deems safe, which is what hosts do.
    return stdio_client(StdioServerParameters(command=target[0], args=target[1:]))


over = False


def is_late(error):
    within = getattr(error, "exceptions", None)
    return all(map(is_late, within)) if within else isinstance(error, anyio.BrokenResourceError)


async def main():
    global over
    callbacks = {"message_handler": notice}
    if sys.argv[1] == "asks":
        callbacks["elicitation_callback"] = asked("elicitation/create", types.ElicitResult)
        callbacks["sampling_callback"] = asked("sampling/createMessage", types.CreateMessageResult)
    async with transport(sys.argv[2:]) as (read, write, *_), ClientSession(read, write, **callbacks) as session:
        initialized = await session.initialize()
        ready = plain(initialized)
        say({"ready": {"server": ready["serverInfo"], "capabilities": ready["capabilities"]}})
        async with anyio.create_task_group() as steps:
            async for line in anyio.wrap_file(sys.stdin):
                steps.start_soon(run, session, json.loads(line))
        over = True


try:
    anyio.run(main)
except Exception as error:
    # The SDK's reader falls over a message that comes while the session closes: one nobody waits for any more.
    if not (over and is_late(error)):
        raise
