// respool's experts in OpenClaw: `/experts` lists what waits for a person's consent and decides about it, past every model; and messages of
// named channels start channel triggers. The key and the secrets come from the gateway's environment, which no model reads.
const LONGEST = 3000; // characters of an answer
const PATIENCE = 15_000; // milliseconds for one request
const USAGE = "Usage: /experts (what waits), /experts show ID, /experts approve ID, /experts reject ID [why], /experts outbox";

const short = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text);
// What a mail or a model wrote stays on its line and forms no markup.
const plain = (value) => JSON.stringify(value).replaceAll("`", "'");

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

function listed(approvals) {
  if (!approvals.length) return "Nothing waits for consent.";
  return approvals.map((approval) => `${approval.id}  ${approval.agent}\n  ${callsOf(approval)}`).join("\n");
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
  return `${approval.id}  ${approval.state}\n  ${callsOf(approval)}\nThe model's reason: ${plain(approval.reason)}`;
}

/** Sends a message to each trigger that is configured for its channel; respool itself looks whether channel and sender are named there. */
async function forward(settings, event, context, log) {
  // Commands are for this plugin, and what respool itself sent must not come back to it.
  if (/^\s*\/experts\b|\[respool: message /.test(event.content ?? "")) return;
  const message = { sender_id: event.senderId ?? event.from, message_text: event.content, channel_name: context.channelId, message_id: event.messageId };
  for (const { channel, url, secretEnv } of settings.triggers ?? []) {
    if (channel !== context.channelId) continue;
    const headers = { authorization: `Bearer ${process.env[secretEnv] ?? ""}`, "content-type": "application/json" };
    try {
      const reply = await fetch(url, { method: "POST", headers, body: JSON.stringify(message), signal: AbortSignal.timeout(PATIENCE) });
      if (!reply.ok) log?.warn?.(`respool did not take a message for ${url}: ${reply.status}`);
    } catch (error) {
      log?.warn?.(`respool did not take a message for ${url}: ${error.message}`);
    }
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
      handler: async (context) => {
        try {
          return { text: short(await command(settings, context)) };
        } catch (error) {
          return { text: `It cannot be done: ${error.message}` };
        }
      },
    });
    if (settings.triggers?.length) api.on("message_received", (event, context) => forward(settings, event, context, api.logger));
  },
};
