// A real channel: the real OpenClaw's Telegram in front of a Bot API on loopback (telegram-api.mjs). A message starts an expert's process; only an
// owner's command sees and decides what waits; an alert of respool's arrives while the model server is down. Prints a line for each step, exits 0
// only if all are right. Started by run.sh.
import fs from 'node:fs';
import { spawnSync } from 'node:child_process';
import { wait } from './gateway-client.mjs';

const { RELAY, RESPOOL, RESPOOL_CONFIG, RESPOOL_OPERATOR_KEY, JOURNAL, TELEGRAM, UPSTREAM_PID } = process.env;
const OWNER = 4711;
const STRANGER = 4712;
const steps = [];

await say(OWNER, 'Move the deal, please');
const approval = await until(async () => (await outbox('approval'))[0]);
step(approval, 'a message in Telegram starts the process, which asks', JSON.stringify(approval?.body.calls));
const id = approval?.body.id;
for (const command of ['/experts', `/experts approve ${id}`]) {
  const before = (await sent(STRANGER)).length;
  await say(STRANGER, command);
  const answers = await until(async () => { const all = (await sent(STRANGER)).slice(before); return all.length ? all : undefined; }, 20) ?? [];
  step(answers.length && !answers.join('\n').includes('update_deal_stage') && !effects().length, `a stranger's ${command.split(' ').slice(0, 2).join(' ')} shows and decides nothing`, answers.join(' ') || 'no answer');
}
await say(OWNER, '/experts');
step(await until(async () => (await sent(OWNER)).some((text) => text.includes(id) && text.includes('update_deal_stage'))), 'the owner\'s command lists it', (await sent(OWNER)).at(-1));
await say(OWNER, `/experts approve ${id}`);
step(await until(async () => (await sent(OWNER)).some((text) => text.includes('Not approved yet') && text.includes('page 1 of 1'))) && !effects().length, 'the command shows the request before it approves it', (await sent(OWNER)).at(-1));
await say(OWNER, `/experts approve ${id}`);
step(await until(async () => (await outbox('result'))[0] && effects().length), 'the owner\'s command approves it', (await sent(OWNER)).at(-1));
step(effects().length === 1, 'and the call runs once', effects().join(' '));

const tried = spawnSync(RESPOOL, ['alerts', 'test', '--config', RESPOOL_CONFIG], { encoding: 'utf8', timeout: 60_000 });
step(await until(async () => (await sent(OWNER)).some((text) => /test/i.test(text))), '`alerts test` arrives', `${tried.stdout} ${tried.stderr}`);
process.kill(Number(UPSTREAM_PID));
step(await until(async () => (await sent(OWNER)).find((text) => text.includes('upstream_down') || /does not answer|down/i.test(text)), 60), 'so does an alert while the model server is down', (await sent(OWNER)).at(-1));

const failed = steps.filter((ok) => !ok).length;
console.log(failed ? `${failed} of ${steps.length} failed` : `all ${steps.length} passed`);
process.exitCode = failed ? 1 : 0;

function step(ok, name, detail = '') {
  console.log(`${ok ? 'pass' : 'FAIL'}  ${name}: ${String(detail).replace(/\s+/g, ' ').slice(0, 240)}`);
  steps.push(Boolean(ok));
}

async function say(from, text) {
  await fetch(`${TELEGRAM}/say`, { method: 'POST', body: JSON.stringify({ from, text }) });
}

async function sent(to) {
  return (await (await fetch(`${TELEGRAM}/sent`)).json()).filter(({ chat }) => chat === String(to)).map(({ text }) => text);
}

async function outbox(kind) {
  const reply = await fetch(`${RELAY.replace(/\/v1$/, '')}/v1/outbox?kind=${kind}`, { headers: { authorization: `Bearer ${RESPOOL_OPERATOR_KEY}` } });
  return (await reply.json()).data ?? [];
}

function effects() {
  return fs.existsSync(JOURNAL) ? fs.readFileSync(JOURNAL, 'utf8').trim().split('\n') : [];
}

async function until(look, seconds = 60) {
  for (let second = 0; second < seconds; second += 1) {
    const found = await look();
    if (found) return found;
    await wait(1);
  }
}
