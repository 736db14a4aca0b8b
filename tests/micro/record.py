"""Records `trace.txt`: what three shims and a server of the official SDK say to a daemon, and when.

Usage: target/interop/venv/bin/python tests/micro/record.py EVERMUX > tests/micro/trace.txt   (`tests/run` installs the venv)

By hand, and seldom: the trace is an input that must stay the same, or numbers of before and after cannot be compared. A relay
between daemon and server sees the upstream's side, this program is the clients. Names that another run has otherwise are taken
out: a request's id and progress token towards the server (`$id`, `$token`; a request is named by its method and its place among
those of that method, in the order of their ids) and the id of a question to a client (`$ask`).
"""

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
events, began = [], time.monotonic()


def note(kind, who, what):
    events.append((int((time.monotonic() - began) * 1000), kind, who, what))


class Relay:
    """Passes HTTP/1.1 on to the server's unix socket, one exchange after another on each connection, and notes it."""

    def __init__(self, socket):
        self.socket = socket

    async def head(self, reader, writer):
        raw = await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        first, *lines = raw.decode().rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return first.split(" "), headers

    async def body(self, reader, writer, headers, seen):
        if headers.get("transfer-encoding") == "chunked":
            while True:
                line = await reader.readuntil(b"\r\n")
                data = await reader.readexactly(int(line, 16) + 2)
                writer.write(line + data)
                await writer.drain()
                if len(data) == 2:
                    return
                seen(data[:-2])
        length = int(headers.get("content-length", 0))
        if length:
            data = await reader.readexactly(length)
            writer.write(data)
            seen(data)
        await writer.drain()

    async def exchange(self, client, server):
        (reader, writer), (upstream, downstream) = client, server
        (method, *_), headers = await self.head(reader, downstream)
        request = []
        await self.body(reader, downstream, headers, request.append)
        text = b"".join(request).decode()
        message = json.loads(text) if text else {"method": method}
        message.setdefault("method", "response")
        note("request", message, text)
        (_, status, *_), headers = await self.head(upstream, writer)
        kind = headers.get("content-type", "-").split(";")[0].split("/")[-1]
        note("head", message, f"{status} {kind} {headers.get('mcp-session-id', '-')}")
        await self.body(upstream, writer, headers, lambda data: note("chunk", message, data.decode()))
        note("end", message, "")

    async def serve(self, reader, writer):
        upstream, downstream = await asyncio.open_unix_connection(self.socket)
        try:
            while True:
                await self.exchange((reader, writer), (upstream, downstream))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            downstream.close()


class Shim:
    """One client, on `evermux connect`. What it is asked it answers."""

    CAPABILITIES = {"elicitation": {}, "sampling": {}, "roots": {"listChanged": True}}

    def __init__(self, name):
        self.name, self.ids, self.pending, self.heard = name, 0, {}, 0

    async def start(self, evermux, environment):
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            evermux, "connect", "up", stdin=pipe, stdout=pipe, env=environment, limit=1 << 24
        )
        self.reading = asyncio.create_task(self.read())
        hello = {"name": f"client-{self.name}", "version": "1.0.0"}
        await self.ask("initialize", protocolVersion="2025-11-25", capabilities=self.CAPABILITIES, clientInfo=hello)
        self.send({"method": "notifications/initialized"})
        # The shim does so by itself, once that is taken.
        note("client", self.name, "GET")
        await asyncio.sleep(0.3)

    def send(self, message):
        text = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":"))
        note("client", self.name, re.sub(r'"id":"[^"]{40,}"', '"id":$ask', text))
        self.process.stdin.write(text.encode() + b"\n")

    async def read(self):
        async for line in self.process.stdout:
            message = json.loads(line)
            if "method" not in message:
                self.pending.pop(message["id"]).set_result(message)
            elif "id" in message:
                content = {"type": "text", "text": "Nineteen."}
                sampled = {"role": "assistant", "model": "m-1", "content": content, "stopReason": "endTurn"}
                asked = message["method"] == "elicitation/create"
                self.send({"id": message["id"], "result": {"action": "accept", "content": {"word": "yes"}} if asked else sampled})
            else:
                self.heard += 1

    def begin(self, method, **params):
        number, self.ids = self.ids, self.ids + 1
        self.pending[number] = asyncio.get_running_loop().create_future()
        self.send({"id": number, "method": method, **({"params": params} if params else {})})
        return number, self.pending[number]

    async def ask(self, method, **params):
        return await self.begin(method, **params)[1]

    def call(self, tool, /, token=None, **arguments):
        meta = {"_meta": {"progressToken": token}} if token is not None else {}
        return self.begin("tools/call", name=tool, arguments=arguments, **meta)

    async def end(self):
        self.process.stdin.close()
        note("client", self.name, "DELETE")
        await self.process.wait()


async def hour(shim):
    """What an agent does with a server, in short."""
    await shim.ask("tools/list")
    await shim.ask("resources/list")
    await shim.ask("resources/list", cursor="2")
    await shim.ask("prompts/list")
    await shim.ask("resources/read", uri="note://1")
    for size in (10, 100, 1000):
        await shim.call("echo", message=f"{shim.name}{size} ".ljust(size, "x"))[1]
    await asyncio.gather(*(shim.call("echo", token=f"{shim.name}-{n}", message=f"together {n}")[1] for n in range(8)))
    await shim.call("slow", token=7, key=f"{shim.name}-1", steps=3)[1]
    await shim.call("odd")[1]
    await shim.call("fail")[1]
    await shim.call("log", level="warning", message="a word")[1]


async def play(shims):
    first, second, third = shims
    for shim in shims:
        await hour(shim)
    await asyncio.gather(*(hour(shim) for shim in shims))
    await first.call("ask", question="Go on?")[1]
    await second.call("sample", prompt="How many?")[1]
    number, _ = third.call("slow", token="long", key="c-2", steps=8)
    await asyncio.sleep(0.6)
    third.send({"method": "notifications/cancelled", "params": {"requestId": number, "reason": "enough"}})
    await first.ask("resources/subscribe", uri="note://2")
    await second.ask("resources/subscribe", uri="note://2")
    await third.call("touch", uri="note://2")[1]
    await third.call("grow", name="grown")[1]
    await first.ask("tools/list")
    await first.ask("logging/setLevel", level="debug")
    await second.ask("ping")
    await asyncio.sleep(0.3)


def names():
    """A name for each exchange, by the order in which the daemon numbered or sent it."""
    requests = [message for _, kind, message, _ in events if kind == "request"]
    requests.sort(key=lambda message: message["id"] if message["method"] != "response" and "id" in message else -1)
    named, count = {}, {}
    for message in requests:
        method = message["method"]
        count[method] = count.get(method, 0) + 1
        named[id(message)] = f"{method}#{count[method]}"
    return named


def masked(text, message):
    if "id" in message and message["method"] != "response":
        text = re.sub(rf'("id":){message["id"]}(,"(?:result|error)")', r"\1$id\2", text)
    token = message.get("params", {}).get("_meta", {}).get("progressToken")
    return text if token is None else text.replace(f'"progressToken":{json.dumps(token)}', '"progressToken":$token')


def write():
    print("# Recorded by record.py, which says what this is; replayed by src/replay.rs, which says how it is read.")
    named = names()
    for at, kind, who, what in events:
        if kind == "client":
            print(f"{at} > {who} {what}")
        elif kind == "chunk":
            print(f"{at} < {named[id(who)]} chunk")
            assert what.replace("\r\n", "").count("\n") == 0 and what.endswith("\r\n"), what
            print("".join(f"|{line}\n" for line in masked(what, who).split("\r\n")[:-1]), end="")
        elif kind != "request":
            print(f"{at} < {named[id(who)]} {kind} {what}".rstrip())


async def main():
    with tempfile.TemporaryDirectory(prefix="em-") as place:
        socket = f"{place}/up.sock"
        server = await asyncio.create_subprocess_exec(sys.executable, str(HERE.parent / "interop/server.py"), socket, "events")
        while not os.path.exists(socket):
            await asyncio.sleep(0.05)
        relay = await asyncio.start_server(Relay(socket).serve, "127.0.0.1", 0)
        port = relay.sockets[0].getsockname()[1]
        config = Path(place, "config.toml")
        config.write_text(f'[upstream.up]\nurl = "http://127.0.0.1:{port}/mcp"\n')
        environment = {"PATH": os.environ["PATH"], "EVERMUX_CONFIG": str(config), "EVERMUX_STATE_DIR": f"{place}/state"}
        daemon = await asyncio.create_subprocess_exec(sys.argv[1], "daemon", env=environment)
        try:
            shims = [Shim(name) for name in "abc"]
            for shim in shims:
                await shim.start(sys.argv[1], environment)
            await play(shims)
            for shim in shims:
                await shim.end()
        finally:
            for process in (daemon, server):
                process.terminate()
                await process.wait()
    write()


asyncio.run(main())
