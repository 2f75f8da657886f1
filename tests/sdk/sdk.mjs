// The official OpenAI JavaScript SDK (the one OpenClaw uses) reads what respool makes of a vLLM-like upstream.
// Started by run.sh, which sets BASE_URL. Every reply goes through the SDK's own accumulators and tool runner.
import assert from 'node:assert/strict';
import OpenAI from 'openai';

const MODEL = 'gpt-oss-120b';
const AGENT = 'helper'; // an agent of respool's: runs `read` itself, in a workspace that holds a.txt
const parameters = { type: 'object', properties: { path: { type: 'string' } }, required: ['path'], additionalProperties: false };
const TOOLS = ['read', 'stat'].map((name) => ({ type: 'function', function: { name, description: `${name} a file`, parameters, strict: true } }));
const READ = ['read', { path: 'a.txt' }];
const STAT = ['stat', { path: 'ä.txt' }];
const OVERFLOW = "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input tokens.";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: 'sk-test', maxRetries: 0, timeout: 30_000 });

// A request that orders a reply from the scripted upstream.
const request = (order, fields = {}) => ({ model: MODEL, messages: [{ role: 'user', content: `SCRIPT ${JSON.stringify(order)}` }], ...fields });
const streamed = (order, fields = {}) => client.chat.completions.stream(request(order, { stream_options: { include_usage: true }, ...fields })).finalChatCompletion();
const whole = (order, fields = {}) => client.chat.completions.create(request(order, fields));

function check({ choices: [{ message, finish_reason }], usage }, { calls = [], content = null, finish = 'stop' }) {
  assert.equal(finish_reason, finish);
  assert.deepEqual((message.tool_calls ?? []).map((call) => [call.function.name, JSON.parse(call.function.arguments)]), calls);
  const ids = (message.tool_calls ?? []).map((call) => call.id);
  assert.equal(new Set(ids).size, ids.length);
  for (const id of ids) assert.match(id, /^[A-Za-z0-9]{9,40}$/);
  assert.equal(message.content || null, content);
  assert.equal(usage.total_tokens, 110);
}

// The SDK's tool runner: it calls the functions, sends their results back and goes on until the model answers.
async function runTools(stream) {
  const seen = [];
  const runnable = TOOLS.map(({ type, function: definition }) => ({
    type,
    function: { ...definition, parse: JSON.parse, function: ({ path }) => { seen.push([definition.name, { path }]); return `${definition.name} of ${path}`; } },
  }));
  const runner = client.chat.completions.runTools({ ...request({ calls: [READ, STAT], text: 'I look.', finish: 'stop' }), stream, tools: runnable });
  assert.equal(await runner.finalContent(), 'TOOL SAID read of a.txt | stat of ä.txt');
  assert.deepEqual(seen, [READ, STAT]);
}

// The same with an agent: `read` runs there, `stat` here, in one turn.
async function runToolsOfBoth(stream) {
  const seen = [];
  const { type, function: definition } = TOOLS[1];
  const stat = { type, function: { ...definition, parse: JSON.parse, function: ({ path }) => { seen.push(path); return '12 bytes'; } } };
  const runner = client.chat.completions.runTools({ ...request({ calls: [READ, STAT] }), model: AGENT, stream, tools: [stat] });
  assert.equal(await runner.finalContent(), 'TOOL SAID hello from a.txt | 12 bytes');
  assert.deepEqual(seen, ['ä.txt']);
}

async function rejects(kind, send, says) {
  let thrown;
  await assert.rejects(send, (error) => { thrown = error; return error instanceof kind && says.test(error.message); }, `no ${kind.name} that says ${says}`);
  return thrown;
}

async function readAll(stream) {
  const chunks = [];
  for await (const chunk of await stream) chunks.push(chunk);
  return chunks;
}

async function statusErrors() {
  for (const fields of [{}, { tools: TOOLS }, { stream: true }, { stream: true, tools: TOOLS }]) {
    await rejects(OpenAI.BadRequestError, () => whole({ fail: { status: 400, message: 'temperature must be non-negative' } }, fields), /temperature/);
    await rejects(OpenAI.NotFoundError, () => whole({}, { ...fields, model: 'nobody' }), /does not exist/);
    await rejects(OpenAI.UnprocessableEntityError, () => whole({ fail: { status: 401 } }, fields), /key/i);
    const overflow = await rejects(OpenAI.BadRequestError, () => whole({ fail: { status: 400, message: OVERFLOW } }, fields), /maximum context length/);
    assert.equal(overflow.code, 'context_length_exceeded');
  }
}

async function streamErrors() {
  for (const fields of [{}, { tools: TOOLS }]) {
    const order = { silent: 1, fail: { status: 400, message: 'too late to say so' } };
    await rejects(OpenAI.APIError, () => readAll(whole(order, { ...fields, stream: true })), /too late/);
  }
  await rejects(OpenAI.APIError, () => readAll(whole({ silent: 1, fail: 'cut' }, { stream: true, tools: TOOLS })), /./);
}

async function models() {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert.deepEqual(ids.sort(), [MODEL, AGENT]);
  assert.equal((await client.models.retrieve(MODEL)).id, MODEL);
}

const TESTS = {
  'JSON, tools': async () => check(await whole({ calls: [READ, STAT] }, { tools: TOOLS }), { calls: [READ, STAT], finish: 'tool_calls' }),
  'JSON, plain': async () => check(await whole({ text: 'Grüße' }), { content: 'Grüße' }),
  'stream, tools': async () => check(await streamed({ calls: [READ, STAT], text: 'I look.', finish: 'stop' }, { tools: TOOLS }), { calls: [READ, STAT], content: 'I look.', finish: 'tool_calls' }),
  'stream, tools after silence': async () => check(await streamed({ calls: [READ], silent: 1 }, { tools: TOOLS }), { calls: [READ], finish: 'tool_calls' }),
  'stream, leaked call': async () => check(await streamed({ calls: [READ, STAT], form: 'tools' }, { tools: TOOLS }), { calls: [READ, STAT], finish: 'tool_calls' }),
  'stream, plain': async () => check(await streamed({ text: 'one two three' }), { content: 'one two three' }),
  'stream, plain after silence': async () => check(await streamed({ text: 'one two three', silent: 1 }), { content: 'one two three' }),
  'runTools, stream': () => runTools(true),
  'runTools, JSON': () => runTools(false),
  'agent, stream': async () => assert.equal((await streamed({ calls: [READ] }, { model: AGENT })).choices[0].message.content, 'TOOL SAID hello from a.txt'),
  'agent, runTools, stream': () => runToolsOfBoth(true),
  'agent, runTools, JSON': () => runToolsOfBoth(false),
  'status errors': statusErrors,
  'errors after the head': streamErrors,
  models,
};

let failed = 0;
for (const [name, test] of Object.entries(TESTS)) {
  const started = Date.now();
  const error = await test().then(() => null, (reason) => reason);
  if (error) failed += 1;
  console.log(`${error ? `FAIL ${error.stack.split('\n').slice(0, 6).join('\n')}\n    ` : 'ok  '} js ${name} ${((Date.now() - started) / 1000).toFixed(1)} s`);
}
process.exit(failed ? 1 : 0);
