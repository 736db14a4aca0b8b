// The official TypeScript SDK as an MCP host, driven step by step over its own stdin and stdout (one JSON object a line), so that the
// test can do something to evermux between two steps, and while one runs.
//
// Usage: node client.mjs NODE_DIR (asks|plain) COMMAND ARGUMENT...
//        node client.mjs NODE_DIR (asks|plain) URL [TOKEN]
//   in:  {"step": 1, "do": "call", "tool": "echo", "arguments": {...}, "progress": true}
//   out: {"ready": {...}}, then per step any {"step": 1, "progress": 1} and one {"step": 1, "ok": ...} or {"step": 1, "error": {...}};
//        {"notice": METHOD, "params": {...}} for every other notification;
//        {"ask": 1, "method": METHOD, "params": {...}} for what the server asks; the step "answer" with its number gives the result
// Steps run side by side. The end of stdin closes the client. With `asks` it declares elicitation and sampling.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const [nodeDirectory, mode, ...target] = process.argv.slice(2);
const load = createRequire(`${nodeDirectory}/from-here.js`);
const { Client } = load('@modelcontextprotocol/sdk/client/index.js');
const { StdioClientTransport } = load('@modelcontextprotocol/sdk/client/stdio.js');
const { StreamableHTTPClientTransport } = load('@modelcontextprotocol/sdk/client/streamableHttp.js');
const { CreateMessageRequestSchema, ElicitRequestSchema } = load('@modelcontextprotocol/sdk/types.js');

const say = message => process.stdout.write(`${JSON.stringify(message)}\n`);
const capabilities = mode === 'asks' ? { elicitation: {}, sampling: {} } : {};
const client = new Client({ name: 'interop-typescript', version: '1' }, { capabilities });
client.onerror = error => process.stderr.write(`client: ${error}\n`);
client.onclose = () => say({ closed: true });
client.fallbackNotificationHandler = async ({ method, params }) => say({ notice: method, params: params ?? {} });

const answers = [];
const asked = ({ method, params }) => new Promise(resolve => say({ ask: answers.push(resolve), method, params }));
if (mode === 'asks') {
  client.setRequestHandler(ElicitRequestSchema, asked);
  client.setRequestHandler(CreateMessageRequestSchema, asked);
}

const bearer = token => (token ? { Authorization: `Bearer ${token}` } : {});
const [command, ...commandArguments] = target;
await client.connect(command.startsWith('http://')
  ? new StreamableHTTPClientTransport(new URL(command), { requestInit: { headers: bearer(commandArguments[0]) } })
  // No env: the SDK then hands on only what it deems safe, which is what hosts do.
  : new StdioClientTransport({ command, args: commandArguments, stderr: 'inherit' }));

const actions = {
  list: () => client.listTools(),
  call: ({ step, tool, arguments: toolArguments, progress }) =>
    client.callTool({ name: tool, arguments: toolArguments }, undefined,
      progress ? { onprogress: update => say({ step, progress: update.progress }) } : undefined),
  resources: ({ cursor }) => client.listResources({ cursor }),
  templates: () => client.listResourceTemplates(),
  read: ({ uri }) => client.readResource({ uri }),
  subscribe: ({ uri }) => client.subscribeResource({ uri }),
  unsubscribe: ({ uri }) => client.unsubscribeResource({ uri }),
  prompts: () => client.listPrompts(),
  prompt: ({ name, arguments: promptArguments }) => client.getPrompt({ name, arguments: promptArguments }),
  complete: ({ prompt, argument, value }) =>
    client.complete({ ref: { type: 'ref/prompt', name: prompt }, argument: { name: argument, value } }),
  level: ({ level }) => client.setLoggingLevel(level),
  answer: async ({ ask, result }) => answers[ask - 1](result) ?? {},
};

say({ ready: { server: client.getServerVersion(), capabilities: client.getServerCapabilities() } });
for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  const { step } = request;
  actions[request.do](request).then(
    ok => say({ step, ok }),
    ({ code, message, data }) => say({ step, error: { code, message, data } }),
  );
}
await client.close();
