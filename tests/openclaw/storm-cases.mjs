// What a broken model server does for as long as a user turn lasts, for `run.sh DIR storms`: each case answers a request wrongly
// through storm-upstream.mjs. Four groups:
//   storm    it stays broken: how often is it asked, and when does the user know the true cause?
//   waiting  it comes back after BACK seconds: does the user get the answer?
//   dies     one reply is wrong in a way that used to end the turn, although something could be done about it
//   final    every reply is a call that must not be made: nothing is done, and the user knows the cause
// Fields: `wrong(reply)` writes one wrong reply; `health` is the status of GET /health while it is broken (200); `isDown` closes
// the port; `cause` is what the user must read of the true cause; `result` is what the client's tool says to the wrong call; `at` is the
// number of the only request that is answered wrongly; `metrics` are lines that respool's GET /metrics must hold afterwards.
import { base, completion, error, events, json, plain, stream } from './replies.mjs';

export const BACK = 20;
const FIXTURE_PATH = 'fixture.txt';
let calls = 0;

export const call = (name, args, finish = 'tool_calls') => ({
  content: null, reasoning: null, finish,
  tool_calls: [{ id: `chatcmpl-tool-${(++calls).toString(16).padStart(32, 'c')}`, type: 'function', function: { name, arguments: typeof args === 'string' ? args : JSON.stringify(args) } }],
});
export const RIGHT_CALL = () => call('read', { path: FIXTURE_PATH });

// Sends a message in the form that was asked for.
export const say = (message) => ({ res, body }) => body.stream ? stream(res, body, [message()]) : json(res, 200, completion(body, [message()]));
const status = (code, message, headers = {}) => ({ res }) => {
  for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
  error(res, code, message ?? `scripted ${code}`);
};
const page = (code, title) => ({ res }) => plain(res, code, 'text/html', `<html><head><title>${title}</title></head><body><h1>${title}</h1></body></html>`);

// The first chunk of a stream, then what `next` does; a whole reply gets half of its body, then the connection is dropped.
const broken = (message, next) => ({ res, body }) => {
  if (!body.stream) return half(res, JSON.stringify(completion(body, [message])));
  const send = events(res);
  const delta = (value) => send(base('chat.completion.chunk', body, [{ index: 0, delta: value, logprobs: null, finish_reason: null }]));
  delta({ role: 'assistant', content: '' });
  if (message.content) delta({ content: message.content.slice(0, 30) });
  if (message.tool_calls) delta({ tool_calls: [{ index: 0, ...message.tool_calls[0], function: { name: message.tool_calls[0].function.name, arguments: '{"path": "fix' } }] });
  setTimeout(() => next(send, res), 50);
};
const drop = (_, res) => res.destroy();
const half = (res, text) => {
  res.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) });
  res.write(text.slice(0, text.length / 2), () => setTimeout(() => res.destroy(), 50));
};
const TEXT = { content: 'The file says that something is in it, and then', reasoning: null, finish: 'stop' };

// A complete JSON reply whose body never ends.
const endless = (headers) => (reply) => {
  const { res, body } = reply;
  if (body.stream) return say(RIGHT_CALL)(reply);
  const text = JSON.stringify(completion(body, [RIGHT_CALL()]));
  res.writeHead(200, { 'content-type': 'application/json', ...headers(text) });
  res.write(text);
};
const noChoices = ({ res, body }) => {
  if (!body.stream) return json(res, 200, { ...completion(body, []), choices: [], usage: { prompt_tokens: 100, completion_tokens: 0, total_tokens: 100 } });
  const send = events(res);
  send({ ...base('chat.completion.chunk', body, []), usage: { prompt_tokens: 100, completion_tokens: 0, total_tokens: 100 } });
  send('[DONE]');
  res.end();
};

// Calls in the text of a reply, as Hermes models write them.
const written = (...calls) => say(() => ({
  content: calls.map(([name, args]) => `<tool_call>\n${JSON.stringify({ name, arguments: args })}\n</tool_call>`).join('\n'), reasoning: null, finish: 'stop',
}));
// More than `limits.max_body` (run.sh sets 2 MiB; of much more text OpenClaw itself dies), by which respool bounds a reply.
const HUGE = () => ({ content: `${'far_too_much_'.repeat(10_000)} `.repeat(20), reasoning: null, finish: 'stop' });

const storm = (name, wrong, more = {}) => ({ name, group: 'storm', wrong, health: 200, ...more });
const waiting = (name, wrong, more = {}) => ({ name, group: 'waiting', wrong, health: 200, ...more });
const dies = (name, wrong, more = {}) => ({ name, group: 'dies', wrong, health: 200, ...more });
const final = (name, wrong, more = {}) => ({ name, group: 'final', wrong, health: 200, ...more });

const all = [
  storm('429', status(429, 'scripted server: its queue is full'), { cause: /queue is full|limit|429|busy|too many/i }),
  storm('429 with Retry-After', status(429, 'scripted server: its queue is full', { 'retry-after': '3' }), { cause: /queue is full|limit|429|busy|too many/i }),
  storm('500', status(500, 'EngineCore encountered an issue.'), { cause: /EngineCore/ }),
  storm('502', status(502, 'scripted gateway: no server behind it'), { cause: /no server behind it/ }),
  storm('503', status(503, 'scripted server: shutting down'), { cause: /shutting down/ }),
  storm('503 with Retry-After', status(503, 'scripted server: shutting down', { 'retry-after': '3' }), { cause: /shutting down/ }),
  storm('504', status(504, 'scripted gateway: the server was silent'), { cause: /was silent/ }),
  storm('500 as HTML', page(500, 'Oops from the proxy'), { cause: /Oops/ }),
  storm('error event in the stream', (reply) => reply.body.stream
    ? broken(TEXT, (send, res) => { send({ error: { message: 'EngineCore encountered an issue.', type: 'InternalServerError', param: null, code: 500 } }); send('[DONE]'); res.end(); })(reply)
    : error(reply.res, 500, 'EngineCore encountered an issue.'), { cause: /EngineCore/ }),
  storm('dropped before the head', ({ res }) => res.destroy(), { cause: /closed|connection/i }),
  storm('dropped in the text', broken(TEXT, drop), { cause: /closed|connection|broke|incomplete/i }),
  storm('dropped in a call', broken(RIGHT_CALL(), drop), { cause: /closed|connection|broke|incomplete/i }),
  storm('a chunk of broken JSON', (reply) => reply.body.stream
    ? broken(TEXT, (send, res) => { send('{"id": broken'); send('[DONE]'); res.end(); })(reply)
    : plain(reply.res, 200, 'application/json', '{"id": "chatcmpl-1", "choices": [{"index"'), { cause: /JSON|not a chat completion/i }),
  storm('no choices', noChoices, { cause: /without a (choice|single chunk)/i }),
  storm('down: connection refused', undefined, { isDown: true, waits: true, cause: /refus|reach|connect/i }),
  storm('502, and /health fails', status(502, 'scripted gateway: no server behind it'), { health: 502, waits: true, cause: /no server behind it/ }),
  storm('503, and /health fails', status(503, 'scripted server: loading the model'), { health: 503, waits: true, cause: /loading the model/ }),
  storm('504, and /health fails', status(504, 'scripted gateway: the server was silent'), { health: 504, waits: true, cause: /was silent/ }),

  waiting('starts: connection refused', undefined, { isDown: true }),
  waiting('starts: 503 while it loads', status(503, 'scripted server: loading the model'), { health: 503 }),
  waiting('starts: 502 of a gateway', status(502, 'scripted gateway: no server behind it'), { health: 502 }),

  dies('chunked body without end', endless(() => ({ 'transfer-encoding': 'chunked' })), { at: 1 }),
  dies('content-length too large', endless((text) => ({ 'content-length': Buffer.byteLength(text) + 10 })), { at: 1 }),
  dies('no choices, once', noChoices, { at: 1 }),
  dies('undeclared tool', say(() => call('open_the_file', { name: FIXTURE_PATH }))),
  dies('required argument missing', say(() => call('exec', { title: 'list' }))),
  dies('not renamed: two could be meant', say(() => call('read', { file: FIXTURE_PATH, filename: 'draft.txt' })), { result: /path/i, isNewOnly: true }),
  dies('renamed: file_path for path', say(() => call('read', { file_path: FIXTURE_PATH }))),
  dies('renamed: cmd for command', say(() => call('exec', { cmd: `cat ${FIXTURE_PATH}` }))),
  dies('renamed: old_string for oldText', say(() => call('edit', { path: 'draft.txt', edits: [{ old_string: 'draft', new_string: 'draft.' }] })), { result: /replaced/i, isNewOnly: true }),
  dies('arguments as a bare text', say(() => call('exec', `cat ${FIXTURE_PATH}`))),
  dies('arguments as path=fixture.txt', say(() => call('read', `path=${FIXTURE_PATH}`))),
  dies('arguments not closed, a whole value', say(() => call('read', `{"path": "${FIXTURE_PATH}"`))),
  dies('arguments not closed, an open string, once', say(() => call('exec', '{"command": "cat fixt')), { at: 1 }),
  dies('kept connection closed under the next request', ({ res }) => res.socket.destroy(), { at: 2 }),
  dies('three calls in one text', written(['read', { path: FIXTURE_PATH }], ['exec', { command: 'echo one' }], ['exec', { command: 'echo two' }]), {
    metrics: [/^respool_tool_calls_total\{dialect="hermes"[^}]*\} 3$/m, /^respool_requests_total\{[^}]*model="gpt-oss-120b"/m, /^respool_tokens_total\{[^}]*model="gpt-oss-120b"[^}]*upstream="[^"]/m],
  }),
  dies('1,000 calls in one text, all but two repeated', written(...Array.from({ length: 1_000 }, (_, at) => at % 2 ? ['exec', { command: 'echo one' }] : ['read', { path: FIXTURE_PATH }]))),

  final('arguments not closed, an open string', say(() => call('exec', `{"command": "cat ${FIXTURE_PATH}`)), { cause: /exec/ }),
  final('a call cut by the token limit', say(() => call('exec', `{"command": "cat ${FIXTURE_PATH}`, 'length')), { cause: /limit/ }),
  final('undeclared tool, named nearly as a declared one', say(() => call('execute_shell', { command: `cat ${FIXTURE_PATH}` })), { cause: /execute_shell/ }),
  final('a reply larger than limits.max_body', say(HUGE), { cause: /more than/ }),
];

// The old client's `read` and `edit` require no argument.
const isOld = process.env.OC_VERSION === '2026.2.26';
export const CASES = all.filter(({ name, isNewOnly }) => new RegExp(process.env.ONLY ?? '').test(name) && !(isNewOnly && isOld));
