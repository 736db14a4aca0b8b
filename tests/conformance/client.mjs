// A known-good client for the suite's client role, on the official TypeScript SDK, and evermux between it and the suite's server.
//
// The suite runs it as `CMD URL` and names the scenario in MCP_CONFORMANCE_SCENARIO. What the suite judges is what comes to its server;
// that the answers found their way back is judged here: the exit code is 0 only then.
//
// Usage: node client.mjs NODE_DIR WAY EVERMUX ROOT URL
//   WAY  direct   to URL itself, as without evermux: what is expected of evermux must hold here
//        stdio    through `evermux connect`
//        http     through the daemon's TCP listener
//        killed   as stdio, and the daemon is killed and started anew before the tool call
//   EVERMUX, ROOT  the binary, and a directory in which each run makes one of its own, all but the lines on stderr
// The end of stdin, SIGTERM and a deadline end it with everything it started: the suite may be killed itself.
import { spawn } from 'node:child_process';
import { mkdtempSync, openSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [nodeDirectory, way, evermux, root, url] = process.argv.slice(2);
const load = createRequire(`${nodeDirectory}/from-here.js`);
const { Client } = load('@modelcontextprotocol/sdk/client/index.js');
const { StdioClientTransport } = load('@modelcontextprotocol/sdk/client/stdio.js');
const { StreamableHTTPClientTransport } = load('@modelcontextprotocol/sdk/client/streamableHttp.js');
const { ElicitRequestSchema } = load('@modelcontextprotocol/sdk/types.js');

const NAME = 'mock';
// Below the suite's own limit of 30 s, so that what happened is said here.
const DEADLINE = 25_000;
const STOP = 10_000;

// ---- evermux ----

/** A daemon on a fresh state directory, with the suite's server as its only upstream. */
class Daemon {
  #child;

  constructor() {
    // Short: a unix socket's path has about a hundred bytes.
    this.directory = mkdtempSync(join(root, 'r'));
    this.log = join(this.directory, 'daemon.err');
    const config = join(this.directory, 'config.toml');
    const listener = way === 'http' ? '[http]\nlisten = "127.0.0.1:0"\n' : '';
    writeFileSync(config, `${listener}[upstream.${NAME}]\nurl = ${JSON.stringify(url)}\n`);
    this.state = join(this.directory, 's');
    this.environment = {
      HOME: this.directory, PATH: '/usr/bin:/bin', EVERMUX_CONFIG: config, EVERMUX_STATE_DIR: this.state,
    };
  }

  async start() {
    const said = openSync(this.log, 'a');
    const child = spawn(evermux, ['daemon'], { env: this.environment, stdio: ['ignore', said, said] });
    this.#child = child;
    child.ended = new Promise((resolve, reject) => {
      child.on('exit', (code, signal) => resolve(code ?? signal));
      child.on('error', reject);
    });
    child.ended.catch(() => {});
    while (child.exitCode === null && child.signalCode === null) {
      const { daemon } = await this.#status();
      if (daemon?.phase === 'serving' && daemon.pid === child.pid) return daemon;
    }
    throw new Error(`the daemon ended: ${await child.ended}`);
  }

  async #status() {
    const child = spawn(evermux, ['status', '--json'], { env: this.environment, stdio: ['ignore', 'pipe', 'inherit'] });
    let text = '';
    child.stdout.on('data', data => { text += data; });
    await new Promise(resolve => child.on('close', resolve));
    return text ? JSON.parse(text) : {};
  }

  async kill() {
    this.#child.kill('SIGKILL');
    await this.#child.ended;
  }

  /** By handle, as a service manager does; a daemon that does not end in order fails the run. */
  async stop() {
    this.#child.kill('SIGTERM');
    const late = setTimeout(() => this.#child.kill('SIGKILL'), STOP);
    const how = await this.#child.ended;
    clearTimeout(late);
    if (how !== 0) throw new Error(`the daemon ended with ${how}`);
  }

  /** For the moment before this process ends, when nothing can be waited for. */
  abandon() {
    this.#child?.kill('SIGKILL');
  }

  words() {
    const logs = join(this.state, 'log');
    const files = [this.log];
    try {
      files.push(...readdirSync(logs).map(name => join(logs, name)));
    } catch { /* it did not come to write one */ }
    return files.map(file => `---- ${file}\n${readFileSync(file, 'utf8')}`).join('\n');
  }

  transport({ http }) {
    if (way === 'http') {
      const token = readFileSync(join(this.state, 'http-token'), 'utf8').trim();
      const requestInit = { headers: { Authorization: `Bearer ${token}` } };
      return new StreamableHTTPClientTransport(new URL(`http://${http}/mcp/${NAME}`), { requestInit });
    }
    const args = ['connect', NAME, '--no-start'];
    return new StdioClientTransport({ command: evermux, args, env: this.environment, stderr: 'inherit' });
  }
}

// ---- the client ----

const capabilities = { elicitation: { form: { applyDefaults: true } } };
const text = ({ content }) => content?.[0]?.text;

function expect(what, is, wanted) {
  if (is !== wanted) throw new Error(`${what} is ${JSON.stringify(is)}, not ${JSON.stringify(wanted)}`);
}

async function tool(client, name) {
  const { tools } = await client.listTools();
  const found = tools.find(one => one.name === name);
  if (!found) throw new Error(`there is no tool ${name} in ${JSON.stringify(tools)}`);
  return found;
}

/** What each scenario asks of a client; `pause` stands before its tool call. */
const scenarios = {
  initialize: async client => {
    expect('the server', client.getServerVersion()?.name, 'test-server');
    expect('the number of tools', (await client.listTools()).tools.length, 0);
  },
  tools_call: async (client, pause) => {
    const { name } = await tool(client, 'add_numbers');
    await pause();
    expect('the sum', text(await client.callTool({ name, arguments: { a: 5, b: 3 } })), 'The sum of 5 and 3 is 8');
  },
  'elicitation-sep1034-client-defaults': async (client, pause) => {
    // Nothing of its own: the SDK fills in the defaults of the schema, if the whole schema came.
    client.setRequestHandler(ElicitRequestSchema, async () => ({ action: 'accept', content: {} }));
    const { name } = await tool(client, 'test_client_elicitation_defaults');
    await pause();
    const answer = text(await client.callTool({ name, arguments: {} }));
    const filled = { name: 'John Doe', age: 30, score: 95.5, status: 'active', verified: true };
    expect('the answer', answer, `Elicitation completed: ${JSON.stringify(filled)}`);
  },
  'sse-retry': async (client, pause) => {
    const { name } = await tool(client, 'test_reconnection');
    await pause();
    expect('the answer', text(await client.callTool({ name, arguments: {} })), 'Reconnection test completed successfully');
  },
  'json-schema-2020-12-preservation': async (client, pause) => {
    const { inputSchema } = await tool(client, 'json_schema_2020_12_tool');
    await pause();
    const answer = await client.callTool({ name: 'json_schema_echo', arguments: { schema: inputSchema } });
    expect('the answer', text(answer), 'echoed');
  },
};

async function play(transport, pause) {
  const scenario = scenarios[process.env.MCP_CONFORMANCE_SCENARIO];
  if (!scenario) throw new Error(`scenario ${process.env.MCP_CONFORMANCE_SCENARIO} is not written here`);
  const client = new Client({ name: 'conformance', version: '1' }, { capabilities });
  client.onerror = error => process.stderr.write(`client: ${error}\n`);
  await client.connect(transport);
  await scenario(client, pause);
  await client.close();
}

// ---- the run ----

let daemon;

function giveUp(why) {
  daemon?.abandon();
  process.stderr.write(`given up: ${why}\n${daemon?.words() ?? ''}\n`);
  process.exit(1);
}

setTimeout(() => giveUp('it takes too long'), DEADLINE);
process.on('SIGTERM', () => giveUp('SIGTERM'));
process.stdin.on('error', () => {}).on('close', () => giveUp('whoever started this is gone')).resume();

async function run() {
  if (way === 'direct') return play(new StreamableHTTPClientTransport(new URL(url)), async () => {});
  daemon = new Daemon();
  const serving = await daemon.start();
  const restart = async () => {
    await daemon.kill();
    await daemon.start();
  };
  await play(daemon.transport(serving), way === 'killed' ? restart : async () => {});
  await daemon.stop();
}

run().then(() => process.exit(0), error => giveUp(error.stack));
