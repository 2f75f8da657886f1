// The ways in which a model or its server misbehaves, each as what it does to one reply. Names follow the matrix of what
// real OpenClaw rejects. Used by scripted-upstream.mjs (`misbehave` of an order) and turns.mjs.

// What the assistant message becomes: {content, reasoning, tool_calls, finish}. `right` is the message it should have been.
const call = (right, change) => ({ ...right, content: null, tool_calls: right.tool_calls.map((it, at) => ({ ...it, ...change(it, at) })) });
const args = (change) => (right) => call(right, (it) => ({ function: { ...it.function, arguments: change(it.function.arguments) } }));
const text = (write) => (right) => {
  const { name, arguments: json } = right.tool_calls[0].function;
  return { content: write(name, json), reasoning: null, finish: 'stop' };
};

export const MESSAGES = {
  empty: () => ({ content: '', reasoning: null, finish: 'stop', tokens: 1 }),
  lost: () => ({ content: null, reasoning: null, finish: 'stop', tokens: 40 }),
  'only-reasoning': () => ({ content: null, reasoning: 'The file must be read.', finish: 'stop' }),
  'cut-reasoning': () => ({ content: null, reasoning: 'The file must', finish: 'length' }),
  'finish-eos': (right) => ({ ...right, finish: 'eos' }),
  'finish-abort': (right) => ({ ...right, finish: 'abort' }),
  'finish-length': (right) => ({ ...right, finish: 'length' }),
  'finish-stop-and-text': (right) => ({ ...right, content: 'I will read it.', finish: 'stop' }),
  'cut-arguments': (right) => ({ ...args((json) => json.slice(0, 14))(right), finish: 'length' }),
  'arguments-unquoted': args((json) => json.replaceAll('"', '').replace(':', ': ')),
  'arguments-unclosed': args((json) => json.slice(0, -1)),
  'arguments-object': args((json) => JSON.parse(json)),
  'arguments-empty': args(() => ''),
  'arguments-garbage': args(() => '{"path": ]['),
  'arguments-wrong-name': args(() => '{"file": 7}'),
  'same-id': (right) => call(right, () => ({ id: 'chatcmpl-tool-same' })),
  'no-id': (right) => call(right, () => ({ id: undefined })),
  'unknown-tool': (right) => call(right, (it) => ({ function: { ...it.function, name: 'open_the_file' } })),
  'polluted-name': (right) => call(right, (it) => ({ function: { ...it.function, name: `functions.${it.function.name}<|channel|>commentary` } })),
  'text-hermes': text((name, json) => `<tool_call>{"name":"${name}","arguments":${json}}</tool_call>`),
  'text-harmony': text((name, json) => `<|channel|>commentary to=functions.${name} <|constrain|>json<|message|>${json}<|call|>`),
  'text-harmony-stripped': text((name, json) => `commentary to=functions.${name} json${json}`),
};

// What the whole answer becomes, instead of a message.
export const ANSWERS = {
  glitch: { status: 500, message: 'unexpected tokens remaining in message header: Some("to=functions.read")' },
  'glitch-200': 'ok-error',
  '500': { status: 500, message: 'Internal server error' },
  '500-html': 'html',
  '502': { status: 502 },
  '503': { status: 503 },
  '504': { status: 504 },
  drop: 'reset',
  cut: 'cut',
  'bad-json': 'bad-json',
  nothing: 'nothing',
  'no-choices': 'no-choices',
};

// The same in a stream, after its head.
export const STREAMS = {
  'event-error': (send) => send({ error: { message: 'unexpected tokens remaining in message header', type: 'BadRequestError', param: null, code: 400 } }),
  'event-error-500': (send) => send({ error: { message: 'EngineCore encountered an issue.', type: 'InternalServerError', param: null, code: 500 } }),
  'drop-after-role': (send, res) => res.destroy(),
  'bad-line': (send) => send('{"id": broken'),
  'only-done': (send) => send('[DONE]'),
};

// The 22 ways in which replies are spoilt on a bad day (`run.sh DIR long-turns`): a call that comes out wrong, and what happens to any reply.
export const SPOILT_CALLS = ['text-hermes', 'text-harmony', 'text-harmony-stripped', 'cut-arguments', 'arguments-unclosed', 'arguments-unquoted',
  'arguments-empty', 'arguments-garbage', 'arguments-wrong-name', 'unknown-tool', 'polluted-name'];
export const SPOILT_REPLIES = ['cut-reasoning', 'glitch', 'glitch-200', 'empty', 'lost', 'only-reasoning', 'no-choices', '500', '503', 'drop', 'cut'];
// What of these has another form in a stream.
export const IN_STREAM = { 'glitch-200': 'event-error', 'no-choices': 'only-done', cut: 'drop-after-role' };
