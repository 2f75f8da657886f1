// One turn of a real OpenClaw through the HTTP surface of its gateway, and what the scripted upstream saw of it.
// Used by turns.mjs and statuses.mjs. Settings come from run.sh: GATEWAY_PORT, GATEWAY_TOKEN, OC_VERSION, UPSTREAM.
import { randomUUID } from 'node:crypto';

const { GATEWAY_PORT: port, GATEWAY_TOKEN: token, OC_VERSION: version, UPSTREAM: upstream, FALLBACK: fallback } = process.env;
const BY_AGENT = version === '2026.2.26' || fallback; // one agent for each provider (kit/config.mjs); else a header picks the model
const MODEL = 'gpt-oss-120b';
const modelOf = (provider) => provider.endsWith('-agent') ? 'helper' : provider.endsWith('-expert') ? 'expert/desk' : MODEL;

// The user text that orders a reply from the scripted upstream.
export const script = (order) => `SCRIPT ${JSON.stringify(order)}`;

// Sends `prompt` to the model of `provider`, in a new session unless it has a `name`. Never throws: `status` 0 tells that no answer came, because of
// `seconds` or because `leave` (an AbortSignal) fired.
export async function turn(prompt, { provider = 'respool', seconds = 240, leave, name = `e2e-${randomUUID()}` } = {}) {
  const session = BY_AGENT ? `agent:${provider}:${name}` : name;
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json', 'x-openclaw-session-key': session };
  if (!BY_AGENT) headers['x-openclaw-model'] = `${provider}/${modelOf(provider)}`;
  const body = JSON.stringify({ model: BY_AGENT ? `openclaw${version === '2026.2.26' ? ':' : '/'}${provider}` : 'openclaw/default', messages: [{ role: 'user', content: prompt }] });
  const began = Date.now();
  const signal = AbortSignal.any([AbortSignal.timeout(seconds * 1000), ...(leave ? [leave] : [])]);
  try {
    const reply = await fetch(`http://127.0.0.1:${port}/v1/chat/completions`, { method: 'POST', headers, body, signal });
    const raw = await reply.text();
    return { status: reply.status, text: textOf(raw), seconds: (Date.now() - began) / 1000 };
  } catch (error) {
    return { status: 0, text: String(error), seconds: (Date.now() - began) / 1000 };
  }
}

function textOf(raw) {
  try {
    const body = JSON.parse(raw);
    return body.choices?.[0]?.message?.content ?? body.error?.message ?? raw;
  } catch { return raw; }
}

// What reached the upstream under this tag: {requests, refused, aborted}.
export async function seen(tag) {
  const origin = new URL(upstream).origin;
  return (await fetch(`${origin}/stats/${tag}`)).json();
}

export const wait = (seconds) => new Promise((wake) => setTimeout(wake, seconds * 1000));
