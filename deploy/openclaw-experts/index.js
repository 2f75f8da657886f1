// respool's experts in OpenClaw: `/experts` lists what waits for a person's consent and decides about it, past every model; and messages of
// named channels start channel triggers. The key and the secrets come from the gateway's environment, which no model reads.
const LONGEST = 3000; // characters of an answer
const PAGE = 2500; // characters of a request on one page
const PATIENCE = 15_000; // milliseconds for one request
const PAUSES = [1_000, 2_000, 4_000, 8_000, 16_000]; // milliseconds before a message is forwarded again
const USAGE = "Usage: /experts (what waits), /experts show ID [PAGE], /experts approve ID, /experts reject ID [why], /experts outbox";

const short = (text, longest = LONGEST) => (text.length > longest ? `${text.slice(0, longest)}…` : text);
// Characters that cannot be seen, or that change the direction of what follows.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u034f\u115f\u1160\u3164\uffa0]|[\ufe00-\ufe0f]/gu;
// What a mail or a model wrote stays on its line, forms no markup and hides nothing.
const plain = (value) => JSON.stringify(value).replaceAll("`", "'").replace(HIDDEN, (char) => `\\u{${char.codePointAt(0).toString(16)}}`);

/** respool's answer; an error is told in its own words. */
async function ask(settings, method, path, body) {
  const key = process.env[settings.keyEnv ?? "RESPOOL_OPERATOR_KEY"];
  if (!key) throw new Error(`the gateway's environment has no ${settings.keyEnv ?? "RESPOOL_OPERATOR_KEY"}: set it to a key of respool's operator_keys_env`);
  const url = new URL(path, settings.url ?? "http://127.0.0.1:8003");
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  const reply = await fetch(url, { method, headers, body: body && JSON.stringify(body), signal: AbortSignal.timeout(PATIENCE) });
  const answer = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Error(answer.error?.message ?? `respool answered ${reply.status}`);
  return answer;
}

const callsOf = (approval) => approval.calls.map((call) => `${call.tool} ${plain(call.arguments)}`).join("\n  ");

const requesterOf = (approval) => (approval.requester ? `  ${approval.requester}${approval.process ? ` ${plain(approval.process)}` : ""}` : "");

function listed(approvals) {
  if (!approvals.length) return "Nothing waits for consent.";
  const line = (approval) => `${approval.id}  ${approval.agent}${requesterOf(approval)}\n  ${short(callsOf(approval), 400)}`;
  return `${approvals.map(line).join("\n")}\nThe whole request: /experts show ID`;
}

/** A request with its exact inputs, in pages that are never cut. */
function pagesOf(approval) {
  const pages = [""];
  for (const char of `${callsOf(approval)}\nThe model's reason: ${plain(approval.reason)}`) {
    if (pages.at(-1).length + char.length > PAGE) pages.push("");
    pages[pages.length - 1] += char;
  }
  return pages;
}

// The pages that were shown of each request, by its id.
const shown = new Map();

function showPage(approval, number) {
  const pages = pagesOf(approval);
  if (!(number >= 1 && number <= pages.length)) return `${approval.id} has ${pages.length} page(s): /experts show ${approval.id} PAGE`;
  if (!shown.has(approval.id)) shown.set(approval.id, new Set());
  shown.get(approval.id).add(number);
  const more = number < pages.length ? `\nNext: /experts show ${approval.id} ${number + 1}` : "";
  return `${approval.id}  ${approval.agent}${requesterOf(approval)}  ${approval.state}  page ${number} of ${pages.length}\n  ${pages[number - 1]}${more}`;
}

/** The first page that was not shown. What stands in the chat beside it was written by a model. */
function unseenPage(approval) {
  const seen = shown.get(approval.id) ?? new Set();
  return pagesOf(approval).map((_, index) => index + 1).find((number) => !seen.has(number));
}

/** Who sees what waits and decides: an owner in a channel (commands.ownerAllowFrom), or a client of the gateway that may decide about OpenClaw's own
 * approvals. What a model sends with a tool is neither, and respool keeps all of it for operators too. */
function assertOperator(context) {
  const scopes = context.gatewayClientScopes ?? [];
  const isClient = scopes.includes("operator.admin") || scopes.includes("operator.approvals");
  if (context.senderIsOwner !== true && !isClient) throw new Error("only an owner of this OpenClaw sees this and decides, or a client with the scope operator.approvals");
  if (context.senderIsOwner === true) context.assertOwnerCurrent?.();
}

async function decide(settings, id, body) {
  if (body.approve) {
    const approval = await ask(settings, "GET", `/v1/approvals/${encodeURIComponent(id)}`);
    const unseen = unseenPage(approval);
    if (unseen) return `Not approved yet: page ${unseen} was not shown before. If it is right: /experts approve ${id}\n${showPage(approval, unseen)}`;
  }
  const done = await ask(settings, "POST", `/v1/approvals/${encodeURIComponent(id)}`, body);
  return done.approved.length ? `${id} is approved.` : `${id} is rejected.`;
}

async function command(settings, context) {
  assertOperator(context);
  const [verb = "", id = "", ...rest] = (context.args ?? "").trim().split(/\s+/);
  switch (verb) {
    case "": return listed((await ask(settings, "GET", "/v1/approvals")).data);
    case "outbox": {
      const { data } = await ask(settings, "GET", "/v1/outbox");
      return data.slice(0, 20).map((message) => `${message.id}  ${message.kind}  ${plain(message.body)}`).join("\n") || "Nothing was delivered yet.";
    }
    case "show": case "approve": case "reject": if (id) break;
    default: return USAGE;
  }
  if (verb === "approve") return decide(settings, id, { approve: true });
  if (verb === "reject") return decide(settings, id, { approve: false, comment: rest.join(" ") || undefined });
  const approval = await ask(settings, "GET", `/v1/approvals/${encodeURIComponent(id)}`);
  return showPage(approval, Number(rest[0] ?? 1));
}

/** Sends a message to each trigger that is configured for its channel; respool itself looks whether channel and sender are named there. */
async function forward(settings, event, context, log) {
  // Commands are for this plugin, and what respool itself sent must not come back to it.
  if (/^\s*(\/experts\b|\[respool: message )/.test(event.content ?? "")) return;
  const message = { sender_id: event.senderId ?? event.from, message_text: event.content, channel_name: context.channelId, message_id: event.messageId };
  for (const { channel, url, secretEnv } of settings.triggers ?? []) {
    if (channel !== context.channelId) continue;
    const headers = { authorization: `Bearer ${process.env[secretEnv] ?? ""}`, "content-type": "application/json" };
    await post(url, headers, JSON.stringify(message), settings.pauses ?? PAUSES, log);
  }
}

/** Posts a message, again while respool restarts: a trigger with `dedupe_key: message_id` takes it once. */
async function post(url, headers, body, pauses, log) {
  for (const pause of [...pauses, undefined]) {
    let why;
    try {
      const reply = await fetch(url, { method: "POST", headers, body, signal: AbortSignal.timeout(PATIENCE) });
      if (reply.ok) return;
      why = `${reply.status}`;
      // It would be refused again.
      if (reply.status < 500 && reply.status !== 429) return void log?.warn?.(`respool did not take a message for ${url}: ${why}`);
    } catch (error) {
      why = error.message;
    }
    if (pause === undefined) return void log?.warn?.(`respool did not take a message for ${url}: ${why}`);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

export default {
  id: "respool-experts",
  name: "respool experts",
  description: "Approvals and channel triggers of respool's experts",
  register(api) {
    const settings = api.pluginConfig ?? {};
    api.registerCommand({
      name: "experts",
      description: "What respool's experts wait for: list, show, approve, reject",
      acceptsArgs: true,
      requireAuth: true,
      // OpenClaw checks it, and tells only commands with scopes whether a sender in a channel is an owner.
      requiredScopes: ["operator.approvals"],
      handler: async (context) => {
        try {
          return { text: short(await command(settings, context)) };
        } catch (error) {
          return { text: `It cannot be done: ${error.message}` };
        }
      },
    });
    if (settings.triggers?.length) api.on("message_received", (event, context) => void forward(settings, event, context, api.logger));
  },
};
