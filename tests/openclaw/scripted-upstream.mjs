// A scripted upstream that speaks and refuses as vLLM 0.32 does. usage: node scripted-upstream.mjs [PORT] [--direct|--live]
// First stdout line: its base URL. Then one line per request. Listens on loopback only.
//
// The last real user text decides. `SCRIPT {json}` in it (on one line) orders the reply, anything else gives
// `PLAIN <first line>`; once the tool results are there, the reply is `TOOL SAID <results>`. Fields of the order:
//   tag        name under which GET /stats/TAG counts the requests
//   calls      [[name, arguments], ...]; arguments that are a string go out as they stand
//   form       native (default) | tools (`<tools>` tags) | bare (one JSON object) | lines (one object a line)
//   text       content beside native calls         finish   finish_reason in place of the right one
//   reasoning  reasoning beside it                  silent   seconds of silence before the first reply
//   slow       seconds of silence before each reply
//   rounds     how often the calls are made, each time when the results are there (1)
//   fail       reset | cut (half a body, then reset) | ok-error (200 with an error body)
//              | {status, message, type, code}
//              | {event:true, ...those, after} (an error event in a stream, after some text; --direct only)
//   misbehave  [name, ...] of misbehaviour.mjs: the first requests of this order are answered so, then it is right
//   parts      in place of calls: part-0.txt, part-1.txt and so on are read, one call at a time, and then comes ALL PARTS READ
//   spoil      the probability with which each reply is spoilt, in a way of misbehaviour.mjs; the tag is the seed
//
// Under /healthy/v1 the same orders are answered without `fail` and `misbehave`: what a fallback model would say.
//
// It is strict: what vLLM refuses gets vLLM's 400. A request with tools and stream:true is refused too, as that is what a
// relay must never send (not with --direct, where no relay stands between, nor with --live, for `tools_mode = "live"`).
import http from 'node:http';
import { ANSWERS, IN_STREAM, MESSAGES, SPOILT_CALLS, SPOILT_REPLIES, STREAMS } from './misbehaviour.mjs';
import { MODEL, base, completion, error, errorType, events, json, models, plain, stream } from './replies.mjs';

const DIRECT = process.argv.includes('--direct');
const LIVE = process.argv.includes('--live');
const INTERNAL = /<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>[\s\S]*?<<<END_OPENCLAW_INTERNAL_CONTEXT>>>/g;
const NOTE = /\[Automatic note, not from the user: [\s\S]*?\]$/; // respool's, of a second attempt
// OpenClaw's own, where it asks the model once more.
const ONCE_MORE = /^(\[[^\]]*\] )?(The previous (assistant turn|attempt) |Continue the current task from the existing transcript)/;
const EFFORTS = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'];
const ROLES = ['system', 'developer', 'user', 'assistant', 'tool'];
const stats = new Map();
let calls = 0;

const textOf = (content) => typeof content === 'string' ? content : (content ?? []).map((part) => part.text ?? '').join('');

// What a real server would refuse about this request, or what no relay may send; undefined when it is right.
function problem(body) {
  const { model, messages, tools, stream, stream_options: options, tool_choice: choice, reasoning_effort: effort } = body;
  if (typeof model !== 'string' || !Array.isArray(messages) || !messages.length) return 'model and messages are required';
  if (model !== MODEL) return `The model \`${model}\` does not exist.`;
  if (stream && tools?.length && !DIRECT && !LIVE) return 'stream:true together with tools';
  if (!stream && options != null) return 'Stream options can only be defined when `stream=True`.';
  if (tools && !tools.length) return '`tools` must not be an empty array';
  if (choice != null && choice !== 'none' && !tools) return 'When using `tool_choice`, `tools` must be set.';
  if (effort != null && !EFFORTS.includes(effort)) return `reasoning_effort ${effort}`;
  return historyProblem(messages);
}

function historyProblem(messages) {
  const open = new Set();
  for (const message of messages) {
    if (!ROLES.includes(message.role)) return `role ${message.role}`;
    for (const call of message.tool_calls ?? []) {
      if (open.has(call.id)) return `call id ${call.id} twice`;
      open.add(call.id);
      if (!isObject(call.function.arguments)) return `arguments of ${call.id} are not a JSON object`;
    }
    if (message.role === 'tool' && !open.delete(message.tool_call_id)) return `tool message ${message.tool_call_id} answers no open call`;
    if (message.role === 'user' && open.size) return `calls left without a result: ${[...open]}`;
  }
}

function isObject(text) {
  try { const value = JSON.parse(text); return typeof value === 'object' && value !== null && !Array.isArray(value); } catch { return false; }
}

// The order in force, and the tool results that came since it was given.
function orderOf(messages) {
  const asks = messages.map((m, at) => ({ at, text: m.role === 'user' ? textOf(m.content).replace(INTERNAL, '').replace(NOTE, '').trim() : '' }));
  const { at, text } = asks.findLast((m) => m.text && !ONCE_MORE.test(m.text)) ?? { at: 0, text: '' };
  const script = text.match(/\bSCRIPT (\{.*\})/)?.[1];
  const since = messages.slice(at);
  return {
    ...(script ? JSON.parse(script) : { plain: text.split('\n')[0].replace(/^\[[^\]]*\] /, '') }),
    results: since.filter((m) => m.role === 'tool').map((m) => textOf(m.content)),
    replayed: since.filter((m) => m.role === 'assistant' && m.tool_calls).map((m) => m.reasoning).join(' | '),
  };
}

const partsRead = (results) => results.filter((result) => /\bpart \d+ of /.test(result)).length;

// What an order with `parts` asks for next.
function nextPart({ parts, results, ...order }) {
  const read = partsRead(results);
  return read < parts ? { ...order, results: [], calls: [['read', { path: `part-${read}.txt` }]] } : { ...order, results: [], text: 'ALL PARTS READ' };
}

// The assistant message and its finish_reason.
function answer(order) {
  const { calls: asked = [], rounds = 1, form = 'native', text = null, reasoning = null, finish, results, plain, tag } = order.parts ? nextPart(order) : order;
  if (results.length && results.length >= rounds * asked.length) return { content: `TOOL SAID ${results.join(' | ')}`, reasoning: null, finish: 'stop' };
  if (!asked.length) return { content: text ?? `PLAIN ${plain ?? tag}`, reasoning, finish: finish ?? 'stop' };
  if (form !== 'native') return { content: leak(asked, form), reasoning, finish: finish ?? 'stop' };
  const tool_calls = asked.map(([name, args]) => ({
    id: `chatcmpl-tool-${(++calls).toString(16).padStart(32, 'b')}`,
    type: 'function',
    function: { name, arguments: argumentText(args) },
  }));
  return { content: text, reasoning, tool_calls, finish: finish ?? 'tool_calls' };
}

const argumentText = (args) => typeof args === 'string' ? args : JSON.stringify(args);

function leak(asked, form) {
  const texts = asked.map(([name, args]) => `{"name": "${name}", "arguments": ${argumentText(args)}}`);
  return form === 'tools' ? `<tools>\n${texts.join('\n')}\n</tools>` : texts.join('\n');
}

function fail(res, how, body) {
  if (how === 'reset') return res.destroy();
  if (how === 'html') return plain(res, 500, 'text/html', '<html><head><title>500 Internal Server Error</title></head></html>');
  if (how === 'bad-json') return plain(res, 200, 'application/json', '{"id": "chatcmpl-1", "choices": [{"index"');
  if (how === 'nothing') return plain(res, 200, 'application/json', '{}');
  if (how === 'no-choices') return json(res, 200, { ...completion(body, [{}]), choices: [] });
  if (how === 'ok-error') return error(res, 200, 'unexpected tokens remaining in message header', { code: 400 });
  if (how.event) return errorEvent(res, how, body);
  if (how.status === 401 && !how.message) return json(res, 401, { error: 'Unauthorized' }); // vLLM's own: a string
  if (how !== 'cut') return error(res, how.status, how.message ?? `scripted ${how.status}`, how);
  const text = JSON.stringify(completion(body, [{ content: 'half of a reply, '.repeat(20), reasoning: null, finish: 'stop' }]));
  res.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) });
  res.write(text.slice(0, text.length / 2), () => res.destroy());
}

// An error after the head: what a relay that has already answered 200 sends.
function errorEvent(res, { status, message, type, code, after }, body) {
  const send = events(res);
  send(base('chat.completion.chunk', body, [{ index: 0, delta: { role: 'assistant', content: after ?? '' }, finish_reason: null }]));
  send({ error: { message, type: type ?? errorType(status), param: null, code: code ?? status } });
  send('[DONE]');
  res.end();
}

// Answers wrongly, as the name says; false when the name is of a stream, and this is none.
function misbehave(res, name, body, order) {
  const right = answer(order.parts ? order : { ...order, results: [] });
  if (MESSAGES[name]) {
    const wrong = [MESSAGES[name](right)];
    return body.stream ? stream(res, body, wrong) : json(res, 200, completion(body, wrong));
  }
  if (ANSWERS[name]) return fail(res, ANSWERS[name], body);
  const send = events(res);
  if (name !== 'only-done') send(base('chat.completion.chunk', body, [{ index: 0, delta: { role: 'assistant', content: '' }, finish_reason: null }]));
  setTimeout(() => { STREAMS[name](send, res); res.end(); }, 50);
}

// A generator of numbers from 0 to 1 that gives the same ones for the same seed (mulberry32).
function randomOf(seed) {
  let state = [...seed].reduce((hash, letter) => Math.imul(hash ^ letter.codePointAt(0), 0x01000193), 0x811c9dc5);
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

// How this reply is spoilt; undefined when it is right.
function spoiltWay({ spoil, parts, results }, seen, isStream) {
  const [luck, pick] = [seen.random(), seen.random()];
  if (!(luck < spoil)) return undefined;
  const ways = partsRead(results) < parts ? [...SPOILT_CALLS, ...SPOILT_REPLIES] : SPOILT_REPLIES;
  const way = ways[Math.floor(pick * ways.length)];
  return isStream ? IN_STREAM[way] ?? way : way;
}

function note(tag, body, order, wrong) {
  const seen = stats.get(tag) ?? { requests: [], refused: [], aborted: 0, random: randomOf(tag) };
  stats.set(tag, seen);
  seen.started ??= Date.now();
  const entry = { after: (Date.now() - seen.started) / 1000, stream: body.stream === true, tools: body.tools?.length ?? 0, messages: body.messages?.length, role: body.messages?.[0]?.role, reasoning: order.replayed, keys: Object.keys(body).join(' ') };
  seen.requests.push(entry);
  if (wrong) seen.refused.push(wrong);
  console.log(`${tag} ${JSON.stringify(entry)}${wrong ? ` REFUSED ${wrong}` : ''}`);
  return seen;
}

async function chat(req, res, raw, isHealthy) {
  let body = {}, order = { results: [] }, wrong;
  try { body = JSON.parse(raw); wrong = problem(body); order = orderOf(body.messages ?? []); } catch (e) { wrong = `malformed body: ${e.message}`; }
  if (isHealthy) order = { tag: `${order.tag}-healthy`, text: `HEALTHY ${order.tag}`, results: order.results };
  const seen = note(order.tag ?? 'untagged', body, order, wrong);
  res.on('close', () => { if (!res.writableFinished && !order.fail && !order.misbehave && !order.spoil) { seen.aborted += 1; console.log(`${order.tag} ABORTED`); } });
  if (wrong) return error(res, wrong.endsWith('does not exist.') ? 404 : 400, wrong);
  const silent = order.results.length ? order.slow : order.silent ?? order.slow;
  if (silent) await new Promise((wake) => setTimeout(wake, silent * 1000));
  if (res.destroyed) return;
  if (order.fail) return fail(res, order.fail, body);
  const first = order.results.length ? undefined : order.misbehave?.[seen.requests.length - 1];
  const wrongly = order.spoil ? spoiltWay(order, seen, body.stream) : first;
  if (wrongly) return misbehave(res, wrongly, body, order);
  const messages = Array.from({ length: body.n ?? 1 }, () => answer(order));
  if (body.stream) stream(res, body, messages); else json(res, 200, completion(body, messages));
}

const server = http.createServer(async (req, res) => {
  let raw = '';
  for await (const chunk of req.setEncoding('utf8')) raw += chunk;
  const [, tag] = req.url.match(/^\/stats\/([\w-]+)$/) ?? [];
  if (tag) return json(res, 200, stats.get(tag) ?? { requests: [], refused: [], aborted: 0 });
  if (req.method === 'GET' && req.url === '/health') return res.end();
  if (req.method === 'GET' && req.url === '/v1/models') return json(res, 200, models());
  const chatUrl = req.method === 'POST' && req.url.match(/^(\/healthy)?\/v1\/chat\/completions$/);
  if (chatUrl) return chat(req, res, raw, Boolean(chatUrl[1]));
  json(res, 404, { detail: 'Not Found' });
});
const port = Number(process.argv.slice(2).find((arg) => /^\d+$/.test(arg)) ?? 0);
server.listen(port, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}/v1`));
