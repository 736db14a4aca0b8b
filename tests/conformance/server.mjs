// A server on the official TypeScript SDK with what the conformance suite asks for. Serves at the unix socket given.
//
// Sessions, and a store of events for each stream, so that a stream can be left and taken up again: the SDK leaves both
// to whoever uses it. What it offers is in offers.json, as for the Rust server.
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

// The packages lie where the caller is, not beside this file.
const packages = createRequire(`${process.env.EVERMUX_INTEROP_NODE}/package.json`);
const load = (name) => import(pathToFileURL(packages.resolve(`@modelcontextprotocol/sdk/${name}`)));
const { Server } = await load('server/index.js');
const { StreamableHTTPServerTransport } = await load('server/streamableHttp.js');
const schemas = await load('types.js');

const offers = JSON.parse(readFileSync(new URL('offers.json', import.meta.url), 'utf8'));
const said = (text) => ({ content: [{ type: 'text', text }] });
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

class Events {
  streams = new Map();

  async storeEvent(stream, message) {
    const events = this.streams.get(stream) ?? [];
    this.streams.set(stream, events);
    events.push(message);
    return `${stream}/${events.length}`;
  }

  async getStreamIdForEventId(id) {
    const stream = id.slice(0, id.lastIndexOf('/'));
    return this.streams.has(stream) ? stream : undefined;
  }

  async replayEventsAfter(id, { send }) {
    const stream = await this.getStreamIdForEventId(id);
    const seen = Number(id.slice(id.lastIndexOf('/') + 1));
    for (const [place, message] of (this.streams.get(stream) ?? []).entries()) {
      // An empty one only gave an id to come back with.
      if (place >= seen && message.jsonrpc) await send(`${stream}/${place + 1}`, message);
    }
    return stream;
  }
}

async function ask(extra, method, params, schema) {
  return await extra.sendRequest({ method, params }, schema);
}

const moving = {
  async test_tool_with_logging(_, extra) {
    for (const data of ['Tool execution started', 'Tool processing data', 'Tool execution completed']) {
      const params = { level: 'info', logger: 'conformance', data };
      await extra.sendNotification({ method: 'notifications/message', params });
      await pause(50);
    }
    return said('logged');
  },
  async test_tool_with_progress(_, extra) {
    const progressToken = extra._meta?.progressToken;
    for (const progress of [0, 50, 100]) {
      const params = { progressToken, progress, total: 100 };
      if (progressToken !== undefined) await extra.sendNotification({ method: 'notifications/progress', params });
      await pause(50);
    }
    return said('done');
  },
  async test_sampling({ prompt }, extra) {
    const messages = [{ role: 'user', content: { type: 'text', text: prompt } }];
    const params = { messages, maxTokens: 100 };
    const { content } = await ask(extra, 'sampling/createMessage', params, schemas.CreateMessageResultSchema);
    return said(`LLM response: ${content.text}`);
  },
  async test_reconnection(_, extra) {
    extra.closeSSEStream?.();
    await pause(100);
    return said('came back');
  },
};

for (const [tool, requestedSchema] of Object.entries(offers.questions)) {
  moving[tool] = async ({ message = 'Please answer.' }, extra) => {
    const params = { message, requestedSchema };
    const answer = await ask(extra, 'elicitation/create', params, schemas.ElicitResultSchema);
    return said(`action=${answer.action}, content=${JSON.stringify(answer.content ?? {})}`);
  };
}

function contents(uri) {
  if (offers.contents[uri]) return offers.contents[uri];
  const id = /^test:\/\/template\/([^/]+)\/data$/.exec(uri)?.[1];
  if (!id) throw new schemas.McpError(-32002, 'no such resource', { uri });
  const text = JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` });
  return { mimeType: 'application/json', text };
}

function messages(name, given = {}) {
  if (!offers.messages[name]) throw new schemas.McpError(-32602, 'no such prompt');
  const text = JSON.stringify(offers.messages[name]);
  const filled = text.replace(/\{(arg1|arg2|resourceUri)\}/g, (_, key) => JSON.stringify(given[key] ?? '').slice(1, -1));
  return JSON.parse(filled);
}

function makeServer() {
  const capabilities = { completions: {}, logging: {}, prompts: {}, resources: { subscribe: true }, tools: {} };
  const server = new Server({ name: 'conformance-typescript', version: '1' }, { capabilities });
  const on = (schema, answer) => server.setRequestHandler(schemas[schema], ({ params }, extra) => answer(params, extra));
  on('ListToolsRequestSchema', () => ({ tools: offers.tools }));
  on('CallToolRequestSchema', async ({ name, arguments: given = {} }, extra) => {
    if (offers.results[name]) return offers.results[name];
    return moving[name] ? await moving[name](given, extra) : { ...said(`no tool ${name}`), isError: true };
  });
  on('ListResourcesRequestSchema', () => ({ resources: offers.resources }));
  on('ListResourceTemplatesRequestSchema', () => ({ resourceTemplates: offers.resourceTemplates }));
  on('ReadResourceRequestSchema', ({ uri }) => ({ contents: [{ uri, ...contents(uri) }] }));
  on('SubscribeRequestSchema', () => ({}));
  on('UnsubscribeRequestSchema', () => ({}));
  on('ListPromptsRequestSchema', () => ({ prompts: offers.prompts }));
  on('GetPromptRequestSchema', ({ name, arguments: given }) => ({ messages: messages(name, given) }));
  on('CompleteRequestSchema', ({ argument: { value } }) => ({ completion: { values: [value], total: 1, hasMore: false } }));
  return server;
}

const sessions = new Map();

async function newSession() {
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new Events(),
    retryInterval: 200,
    onsessioninitialized: (id) => sessions.set(id, transport),
    onsessionclosed: (id) => sessions.delete(id),
  });
  await makeServer().connect(transport);
  return transport;
}

function refuse(response, status, message) {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify({ jsonrpc: '2.0', id: null, error: { code: -32000, message } }));
}

const isLocal = (host) => /^(127\.0\.0\.1|localhost|\[::1\])(:\d+)?$/.test(host ?? '');

createServer(async (request, response) => {
  const { host, origin } = request.headers;
  if (!isLocal(host) || (origin && !isLocal(origin.replace('http://', '')))) return refuse(response, 403, 'not local');
  const id = request.headers['mcp-session-id'];
  if (id && !sessions.has(id)) return refuse(response, 404, 'no such session');
  const transport = id ? sessions.get(id) : await newSession();
  await transport.handleRequest(request, response);
}).listen(process.argv[2]);
