// The official TypeScript SDK as an MCP host, driven step by step over its own stdin and stdout (one JSON object a line), so that the
// test can do something to evermux between two steps, and while one runs.
//
// Usage: node client.mjs NODE_DIR COMMAND ARGUMENT...
//   in:  {"step": 1, "do": "call", "tool": "echo", "arguments": {...}, "progress": true}
//   out: {"ready": {...}}, then per step any {"step": 1, "progress": 1} and one {"step": 1, "ok": ...} or {"step": 1, "error": {...}}
// Steps run side by side. The end of stdin closes the client.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const [nodeDirectory, command, ...commandArguments] = process.argv.slice(2);
const load = createRequire(`${nodeDirectory}/from-here.js`);
const { Client } = load('@modelcontextprotocol/sdk/client/index.js');
const { StdioClientTransport } = load('@modelcontextprotocol/sdk/client/stdio.js');

const say = message => process.stdout.write(`${JSON.stringify(message)}\n`);
// No env: the SDK then hands on only what it deems safe, which is what hosts do.
const client = new Client({ name: 'interop-typescript', version: '1' });
client.onerror = error => process.stderr.write(`client: ${error}\n`);
client.onclose = () => say({ closed: true });
await client.connect(new StdioClientTransport({ command, args: commandArguments, stderr: 'inherit' }));

const actions = {
  list: () => client.listTools(),
  call: ({ step, tool, arguments: toolArguments, progress }) =>
    client.callTool({ name: tool, arguments: toolArguments }, undefined,
      progress ? { onprogress: update => say({ step, progress: update.progress }) } : undefined),
  resources: () => client.listResources(),
  read: ({ uri }) => client.readResource({ uri }),
  prompts: () => client.listPrompts(),
  prompt: ({ name, arguments: promptArguments }) => client.getPrompt({ name, arguments: promptArguments }),
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
