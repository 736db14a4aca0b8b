#!/usr/bin/env python3
"""Runs evermux in front of the published executor 1.5.9, which counts its ids from one again after a restart.

By hand, not in CI: the package is 242 MB. planning/executor.md has what it showed.

    npm install --ignore-scripts executor@1.5.9
    cargo build -p evermux
    tests/hostile/executor.py --executor node_modules/executor-linux-x64/bin/executor --evermux target/debug/evermux

Needs Linux, and `unshare` for a network of its own: the server is to reach nobody. Everything it writes is under a
temporary directory.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

PORT = 4788
TOKEN = "token-of-this-run"


def wait_until(what, look, seconds=20):
    end = time.monotonic() + seconds
    while not look():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds} s")
        time.sleep(0.05)


class Executor:
    """The server; what it has in memory is lost with each restart."""

    def __init__(self, binary, root):
        self.command = [binary, "daemon", "run", "--foreground", "--port", str(PORT), "--hostname", "127.0.0.1",
                        "--auth-token", TOKEN, "--scope", f"{root}/scope"]
        self.environment = dict(PATH=os.environ["PATH"], HOME=f"{root}/home", EXECUTOR_DATA_DIR=f"{root}/data",
                                DO_NOT_TRACK="1", EXECUTOR_DISABLE_ANALYTICS="1")
        for name in ("home", "data", "scope"):
            os.makedirs(f"{root}/{name}")
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, env=self.environment, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        wait_until("the server listens", self.listens)

    @staticmethod
    def listens():
        try:
            socket.create_connection(("127.0.0.1", PORT), 1).close()
            return True
        except OSError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Evermux:
    def __init__(self, binary, root, share, rule):
        self.binary, self.state = binary, f"{root}/state"
        config = (f'[upstream.executor]\nurl = "http://127.0.0.1:{PORT}/mcp"\nshare = "{share}"\n'
                  f'headers.Authorization = "Bearer {TOKEN}"\n')
        if rule:
            config += '[[upstream.executor.handle]]\npreset = "executor"\n'
        with open(f"{root}/config.toml", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(config)
        self.environment = dict(PATH=os.environ["PATH"], HOME=root, EVERMUX_CONFIG=f"{root}/config.toml",
                                EVERMUX_STATE_DIR=self.state, EVERMUX_RUNTIME_DIR=f"{root}/run")

    def run(self, *arguments):
        return subprocess.run([self.binary, *arguments], env=self.environment, capture_output=True, text=True).stdout

    def status(self):
        return json.loads(self.run("status", "--json"))

    def kill(self):
        pid = self.status()["daemon"]["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until("the daemon is gone", lambda: not os.path.exists(f"/proc/{pid}"))

    def sessions(self):
        members = ("status", "reason", "handshake", "initializes", "handles")
        return [{name: session[name] for name in members} for session in self.status()["sessions"]]


class Client:
    """An MCP client over stdio, through `evermux connect`."""

    def __init__(self, evermux):
        self.process = subprocess.Popen([evermux.binary, "connect", "executor"], env=evermux.environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.count = 0
        about = dict(name="hostile-test", version="1")
        self.request("initialize", dict(protocolVersion="2025-11-25", capabilities={}, clientInfo=about))
        self.send(dict(jsonrpc="2.0", method="notifications/initialized"))

    def send(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def request(self, method, params):
        self.count += 1
        self.send(dict(jsonrpc="2.0", id=self.count, method=method, params=params))
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("id") == self.count and "method" not in message:
                return message
        raise SystemExit("the client's process ended")

    def call(self, tool, **arguments):
        """The answer's status and execution id; or the kind of an error of evermux's own, or the server's text."""
        message = self.request("tools/call", dict(name=tool, arguments=arguments))
        if "error" in message:
            return message["error"].get("data", {}).get("evermux", {}).get("kind", "error"), None
        result = message["result"]
        said = result.get("structuredContent") or {}
        text = "".join(part.get("text", "") for part in result.get("content", []))
        return said.get("status") or text, said.get("executionId")

    def pause(self, slug):
        """Adds an integration, which waits for an approval; it stands in the list once it has run."""
        api = json.dumps(dict(openapi="3.0.0", info=dict(title=slug, version="1"), servers=[dict(url="http://127.0.0.1:1")],
                              paths={"/x": dict(get=dict(operationId="x", responses={"200": dict(description="ok")}))}))
        spec = f'{{kind:"blob",value:{json.dumps(api)}}}'
        code = f'return await tools.executor.openapi.addSpec({{spec:{spec},slug:"{slug}"}})'
        return self.call("execute", code=code)[1]

    def accept(self, execution):
        return self.call("resume", executionId=execution, action="accept")[0]

    def ran(self, slugs):
        message = self.request("tools/call", dict(name="execute", arguments=dict(
            code="return await tools.executor.coreTools.integrations.list({})")))
        text = json.dumps(message)
        return [slug for slug in slugs if f'\\"{slug}\\"' in text or f'"{slug}"' in text]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def run(executor, evermux, say):
    slugs = ["one", "two", "three", "four", "five", "six"]
    a = Client(evermux)
    a.request("tools/list", {})
    first = a.pause("one")
    a.end()
    b = Client(evermux)
    say(f"A pauses under {first} and ends; B approves", b.accept(first))
    c = Client(evermux)
    second = c.pause("two")
    evermux.kill()
    say(f"C pauses under {second}, evermux is killed; C approves", c.accept(second))
    say("sessions", evermux.sessions())
    stale = c.pause("three")
    executor.stop()
    executor.start()
    d = Client(evermux)
    again = [d.pause(slug) for slug in slugs[3:]]
    say(f"C pauses under {stale}, the server is restarted; D pauses under", again)
    before = d.ran(slugs)
    say("C approves its old id", c.accept(stale))
    say("... which ran", [slug for slug in d.ran(slugs) if slug not in before])
    before = d.ran(slugs)
    e = Client(evermux)
    say("E, which was told of none, approves the same id", e.accept(stale))
    say("... which ran", [slug for slug in d.ran(slugs) if slug not in before])
    say(f"D approves its own {again[0]}", d.accept(again[0]))
    say("all that ran", d.ran(slugs))
    for client in (b, c, d, e):
        client.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", required=True, help="the server's binary")
    parser.add_argument("--evermux", required=True, help="evermux's binary")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.inside:
        command = ["unshare", "--net", "--map-root-user", sys.executable, os.path.abspath(__file__), "--inside",
                   "--executor", os.path.abspath(arguments.executor), "--evermux", os.path.abspath(arguments.evermux)]
        raise SystemExit(subprocess.call(command))
    subprocess.check_call(["ip", "link", "set", "lo", "up"])
    for share, rule in (("pool", True), ("client", True), ("pool", False), ("client", False)):
        print(f"\n== share = {share}, handle rule {'on' if rule else 'off'}")
        with tempfile.TemporaryDirectory() as root:
            executor = Executor(arguments.executor, root)
            evermux = Evermux(arguments.evermux, root, share, rule)
            try:
                run(executor, evermux, lambda what, came: print(f"{what}: {came}", flush=True))
            finally:
                evermux.run("stop")
                executor.stop()


main()
