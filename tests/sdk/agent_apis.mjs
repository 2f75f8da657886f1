// The official JavaScript SDKs of OpenAI (Responses) and Anthropic (Messages) read what respool makes of a vLLM-like upstream that knows
// chat completions only. Started by run.sh, which sets BASE_URL. Every stream goes through the SDK's own accumulator.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const MODEL = 'gpt-oss-120b';
const parameters = { type: 'object', properties: { path: { type: 'string' } }, required: ['path'], additionalProperties: false };
const FUNCTIONS = ['read', 'stat'].map((name) => ({ type: 'function', name, description: `${name} a file`, parameters, strict: true }));
const TOOLS = ['read', 'stat'].map((name) => ({ name, description: `${name} a file`, input_schema: parameters }));
const READ = ['read', { path: 'a.txt' }];
const STAT = ['stat', { path: 'ä.txt' }];
const settings = { apiKey: 'sk-test', maxRetries: 0, timeout: 30_000 };
const { responses } = new OpenAI({ baseURL: process.env.BASE_URL, ...settings });
const { messages } = new Anthropic({ baseURL: process.env.BASE_URL.replace(/\/v1$/, ''), ...settings });

const order = (script) => `SCRIPT ${JSON.stringify(script)}`;
const toldResponse = ({ status, output, usage }) => ({
  end: status,
  text: output.flatMap((item) => (item.type === 'message' ? item.content.map((part) => part.text) : [])).join(''),
  calls: output.filter((item) => item.type === 'function_call').map((item) => [item.name, JSON.parse(item.arguments)]),
  thought: output.flatMap((item) => (item.type === 'reasoning' ? item.content.map((part) => part.text) : [])).join(''),
  tokens: usage.total_tokens,
});
const toldMessage = ({ stop_reason, content, usage }) => ({
  end: stop_reason,
  text: content.filter((block) => block.type === 'text').map((block) => block.text).join(''),
  calls: content.filter((block) => block.type === 'tool_use').map((block) => [block.name, block.input]),
  thought: content.filter((block) => block.type === 'thinking').map((block) => block.thinking).join(''),
  tokens: usage.input_tokens + usage.output_tokens,
});

async function response(script, fields, expected) {
  const request = { model: MODEL, input: order(script), ...fields };
  const streamed = toldResponse(await responses.stream(request).finalResponse());
  assert.deepEqual(streamed, toldResponse(await responses.create(request)));
  assert.deepEqual(streamed, { text: '', calls: [], thought: '', tokens: 110, ...expected });
}

async function message(script, fields, expected) {
  const request = { model: MODEL, max_tokens: 1000, messages: [{ role: 'user', content: order(script) }], ...fields };
  const streamed = toldMessage(await messages.stream(request).finalMessage());
  assert.deepEqual(streamed, toldMessage(await messages.create(request)));
  assert.deepEqual(streamed, { text: '', calls: [], thought: '', tokens: 110, ...expected });
}

const script = { calls: [READ, STAT], text: 'I look.', reasoning: 'Two files.' };
const TESTS = {
  'responses, tools': () => response(script, { tools: FUNCTIONS }, { end: 'completed', text: 'I look.', calls: [READ, STAT], thought: 'Two files.' }),
  'responses, plain': () => response({ text: 'one two three' }, {}, { end: 'completed', text: 'one two three' }),
  'responses, silence': () => response({ calls: [READ], silent: 1 }, { tools: FUNCTIONS }, { end: 'completed', calls: [READ] }),
  'responses, leaked call': () => response({ calls: [READ, STAT], form: 'tools' }, { tools: FUNCTIONS }, { end: 'completed', calls: [READ, STAT] }),
  'messages, tools': () => message(script, { tools: TOOLS, thinking: { type: 'enabled', budget_tokens: 1024 } }, { end: 'tool_use', text: 'I look.', calls: [READ, STAT], thought: 'Two files.' }),
  'messages, plain': () => message({ text: 'one two three' }, {}, { end: 'end_turn', text: 'one two three' }),
  'messages, silence': () => message({ calls: [READ], silent: 1 }, { tools: TOOLS }, { end: 'tool_use', calls: [READ] }),
  'messages, leaked call': () => message({ calls: [READ, STAT], form: 'tools' }, { tools: TOOLS }, { end: 'tool_use', calls: [READ, STAT] }),
};

let failed = 0;
for (const [name, test] of Object.entries(TESTS)) {
  const started = Date.now();
  const error = await test().then(() => null, (reason) => reason);
  if (error) failed += 1;
  console.log(`${error ? `FAIL ${error.stack.split('\n').slice(0, 12).join('\n')}\n    ` : 'ok  '} js ${name} ${((Date.now() - started) / 1000).toFixed(1)} s`);
}
process.exit(failed ? 1 : 0);
