"""A server on the official Python SDK, over streamable HTTP with sessions. `rmcp`'s twin in tests/peers has the same tools.

Usage: python server.py SOCKET [events]

Without `events` no event has an id, so that nothing of a cut stream can be had again; with it every stream can be replayed.
The low-level server, not FastMCP: only here can lists have pages and resources be subscribed to.
"""

import asyncio
import contextlib
import sys

import uvicorn
from mcp import McpError, types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.streamable_http import EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import AnyUrl
from starlette.applications import Starlette
from starlette.routing import Mount

PAGE = 2
NOTES = {f"note://{number}": f"Note {number}: {'.' * number} é \u2028 🦀" for number in range(1, 6)}
CITIES = ["Ulm", "Utrecht", "Uppsala", "Vienna"]
ODD = {
    "zebra": 1.0,
    "alpha": 1e16,
    "small": 1e-7,
    "tenth": 0.1,
    "large": 2**53 + 1,
    "negative": -0.0,
    "text": "é \u2028 🦀 \"quoted\" \\ \n \u0001 </script> \uffff",
    "empty": [{}, [], "", None, False],
}


class Interop(Server):
    """What the SDK's own `get_capabilities` cannot say: that lists change and resources can be subscribed to."""

    def create_initialization_options(self, notification_options=None, experimental_capabilities=None):
        changing = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        options = super().create_initialization_options(changing, experimental_capabilities)
        options.capabilities.resources.subscribe = True
        return options


class Events(EventStore):
    """Every event of every stream, for ever. An id is `STREAM/PLACE`."""

    def __init__(self):
        self.streams = {}

    async def store_event(self, stream_id, message):
        events = self.streams.setdefault(stream_id, [])
        events.append(message)
        return f"{stream_id}/{len(events)}"

    async def replay_events_after(self, last_event_id, send_callback):
        stream_id, _, place = last_event_id.rpartition("/")
        for number, message in enumerate(self.streams.get(stream_id, []), 1):
            if number > int(place) and message is not None:
                await send_callback(EventMessage(message, f"{stream_id}/{number}"))
        return stream_id if stream_id in self.streams else None


server = Interop("interop-python", version="1", instructions="The notes are under note://. é \u2028 🦀")
runs = {}
grown = []
subscribers = {}


def tool(name, /, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return types.Tool(name=name, description=f"The tool {name}.", inputSchema=schema)


STRING, INTEGER = {"type": "string"}, {"type": "integer", "minimum": 1}


@server.list_tools()
async def list_tools():
    tools = [
        tool("echo", message=STRING),
        tool("slow", key=STRING, steps=INTEGER),
        tool("runs_of", key=STRING),
        tool("odd"),
        tool("fail"),
        tool("ask", question=STRING),
        tool("sample", prompt=STRING),
        tool("touch", uri=STRING),
        tool("grow", name=STRING),
        tool("log", level=STRING, message=STRING),
    ]
    return tools + [tool(name) for name in grown]


def said(text):
    return [types.TextContent(type="text", text=text)]


async def slow(context, key, steps):
    runs[key] = runs.get(key, 0) + 1
    token = context.meta.progressToken if context.meta else None
    for step in range(1, steps + 1):
        if token is not None:
            await context.session.send_progress_notification(token, step, steps, f"step {step}", str(context.request_id))
        await asyncio.sleep(0.25)
    return said(f"slow {key} done")


async def ask(context, question):
    schema = {"type": "object", "properties": {"word": STRING}, "required": ["word"]}
    answer = await context.session.elicit(question, schema, context.request_id)
    return said(f"{answer.action}: {(answer.content or {}).get('word')}")


async def sample(context, prompt):
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=prompt))
    answer = await context.session.create_message([message], max_tokens=9, related_request_id=context.request_id)
    return said(f"{answer.model}: {answer.content.text}")


async def touch(uri):
    for session in subscribers.get(uri, []):
        await session.send_resource_updated(AnyUrl(uri))
    return said(f"touched {uri}")


async def grow(context, name):
    grown.append(name)
    await context.session.send_tool_list_changed()
    return said(f"grown {name}")


async def log(context, level, message):
    await context.session.send_log_message(level, message, "interop", context.request_id)
    return said("logged")


@server.call_tool()
async def call_tool(name, arguments):
    context = server.request_context
    match name:
        case "echo":
            return said(f"Echo: {arguments['message']}")
        case "slow":
            return await slow(context, **arguments)
        case "runs_of":
            return said(str(runs.get(arguments["key"], 0)))
        case "odd":
            return said("odd"), ODD
        case "ask":
            return await ask(context, **arguments)
        case "sample":
            return await sample(context, **arguments)
        case "touch":
            return await touch(**arguments)
        case "grow":
            return await grow(context, **arguments)
        case "log":
            return await log(context, **arguments)
    raise ValueError(f"{name} is no good")


@server.list_resources()
async def list_resources(request: types.ListResourcesRequest):
    start = int(request.params.cursor) if request.params and request.params.cursor else 0
    page = [types.Resource(uri=AnyUrl(uri), name=uri) for uri in list(NOTES)[start : start + PAGE]]
    following = start + PAGE
    return types.ListResourcesResult(resources=page, nextCursor=str(following) if following < len(NOTES) else None)


@server.list_resource_templates()
async def list_resource_templates():
    return [types.ResourceTemplate(uriTemplate="note://{number}", name="a note")]


# Straight into the table: the decorator for reads could not say that a note is unknown.
async def read_resource(request):
    text = NOTES.get(str(request.params.uri))
    if text is None:
        raise McpError(types.ErrorData(code=-32002, message="no such note", data={"uri": str(request.params.uri)}))
    contents = types.TextResourceContents(uri=request.params.uri, mimeType="text/plain", text=text)
    return types.ServerResult(types.ReadResourceResult(contents=[contents]))


server.request_handlers[types.ReadResourceRequest] = read_resource


@server.subscribe_resource()
async def subscribe(uri):
    subscribers.setdefault(str(uri), set()).add(server.request_context.session)


@server.unsubscribe_resource()
async def unsubscribe(uri):
    subscribers.get(str(uri), set()).discard(server.request_context.session)


@server.list_prompts()
async def list_prompts():
    argument = types.PromptArgument(name="city", description="Where.", required=True)
    return [types.Prompt(name="greet", arguments=[argument]), types.Prompt(name="plain")]


@server.get_prompt()
async def get_prompt(name, arguments):
    if name not in ("greet", "plain"):
        raise McpError(types.ErrorData(code=-32602, message="no such prompt"))
    text = f"Greet {(arguments or {}).get('city', 'nobody')}."
    message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
    return types.GetPromptResult(description="A greeting.", messages=[message])


@server.completion()
async def complete(_reference, argument, _context):
    values = [city for city in CITIES if city.startswith(argument.value)]
    return types.Completion(values=values, total=len(values), hasMore=False)


@server.set_logging_level()
async def set_logging_level(_level):
    pass


sessions = StreamableHTTPSessionManager(server, event_store=Events() if sys.argv[2:] == ["events"] else None)


@contextlib.asynccontextmanager
async def lifespan(_app):
    async with sessions.run():
        yield


async def mcp(scope, receive, send):
    await sessions.handle_request(scope, receive, send)


# A mount's own path would be redirected to `/mcp/`.
app = Starlette(routes=[Mount("/", app=mcp)], lifespan=lifespan)
uvicorn.run(app, uds=sys.argv[1], log_level="warning")
