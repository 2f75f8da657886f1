// A Telegram Bot API on loopback for the real OpenClaw's Telegram channel (`channels.telegram.apiRoot`): takes what the bot sends and gives it the
// messages that a test says. Prints its root URL. Nothing of it leaves the machine.
//   POST /say {from, text}    a private message of the user with this id
//   GET /sent                 what the bot has sent: [{chat, text}]
import http from 'node:http';

const TOKEN = '1:e2e';
const BOT = { id: 1, is_bot: true, first_name: 'e2e', username: 'respool_e2e_bot', can_join_groups: true, can_read_all_group_messages: false, supports_inline_queries: false };
const updates = [];
const sent = [];
let waiting = [];
let next = 1;

const now = () => Math.floor(Date.now() / 1000);
const chatOf = (id) => ({ id: Number(id), type: 'private', first_name: `user-${id}` });

function say({ from, text }) {
  const entities = text.startsWith('/') ? [{ type: 'bot_command', offset: 0, length: text.split(' ')[0].length }] : undefined;
  const message = { message_id: next, date: now(), text, entities, chat: chatOf(from), from: { id: from, is_bot: false, first_name: `user-${from}`, language_code: 'en' } };
  updates.push({ update_id: next, message });
  next += 1;
  for (const wake of waiting.splice(0)) wake();
}

async function getUpdates({ offset = 0, timeout = 0 }) {
  const due = () => updates.filter((update) => update.update_id >= offset);
  if (!due().length && timeout) {
    await new Promise((resolve) => { waiting.push(resolve); setTimeout(resolve, Math.min(timeout, 20) * 1000); });
  }
  return due();
}

const METHODS = {
  getMe: () => BOT,
  getUpdates,
  getWebhookInfo: () => ({ url: '', has_custom_certificate: false, pending_update_count: 0 }),
  sendMessage: ({ chat_id, text }) => {
    sent.push({ chat: String(chat_id), text });
    return { message_id: 100_000 + sent.length, date: now(), chat: chatOf(chat_id), from: BOT, text };
  },
  editMessageText: ({ chat_id, message_id, text }) => {
    const at = Number(message_id) - 100_001;
    if (sent[at]) sent[at].text = text;
    return { message_id: Number(message_id), date: now(), chat: chatOf(chat_id), from: BOT, text };
  },
};

// JSON, a form, or a multipart form without files.
function fields(body, type) {
  if (type.includes('json')) return JSON.parse(body || '{}');
  if (type.includes('urlencoded')) return Object.fromEntries(new URLSearchParams(body));
  return Object.fromEntries([...body.matchAll(/name="([^"]+)"\r\n\r\n([\s\S]*?)\r\n--/g)].map(([, name, value]) => [name, value]));
}

const server = http.createServer(async (request, response) => {
  let body = '';
  for await (const piece of request) body += piece;
  const reply = (value, status = 200) => response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(value));
  const { pathname, searchParams } = new URL(request.url, 'http://127.0.0.1');
  if (pathname === '/say') { say(JSON.parse(body)); return reply({}); }
  if (pathname === '/sent') return reply(sent);
  const [, token, method] = pathname.match(/^\/bot([^/]+)\/(\w+)$/) ?? [];
  if (token !== TOKEN) return reply({ ok: false, error_code: 401, description: 'Unauthorized' }, 401);
  const given = { ...Object.fromEntries(searchParams), ...fields(body, request.headers['content-type'] ?? 'json') };
  reply({ ok: true, result: await (METHODS[method] ?? (() => true))({ ...given, offset: Number(given.offset ?? 0), timeout: Number(given.timeout ?? 0) }) });
});
// channel.mjs waits for programs, longer than the usual 5 s on a busy machine, and then uses its connection again.
server.keepAliveTimeout = 120_000;
server.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}`));
