// Every case of storm-cases.mjs with the real OpenClaw: directly, and through respool. Prints a markdown table: how often one user turn asked the
// model server, for how many seconds it did so, when the user knew, and what the user read. Exit 0 only if, through
// respool, every case ended as it should. Started by `run.sh DIR storms`, which sets ROUTES, CONTROL, FIXTURE and PROVIDERS (NAME=BASE_URL ...).
// ONLY=REGEX picks cases.
import { turn, wait } from './gateway-client.mjs';
import { CASES } from './storm-cases.mjs';

const { CONTROL, FALLBACK, FIXTURE, OC_VERSION, PROVIDERS, PARALLEL = '6' } = process.env;
const ROUTES = process.env.ROUTES.split(' ');
const PROMPT = 'Read fixture.txt and tell me what it says.';
const bases = new Map(PROVIDERS.split(' ').map((provider) => [provider.slice(0, provider.indexOf('=')), provider.slice(provider.indexOf('=') + 1)]));
const WAIT = 60; // recovery.wait_for_upstream, seconds
const rows = CASES.map(() => ({}));
const queue = CASES.flatMap((test, at) => ROUTES.map((route) => ({ test, at, route })));
await turn(PROMPT, { provider: 'cwarm-direct' });
await Promise.all(Array.from({ length: Number(PARALLEL) }, work));
report();

async function work() {
  for (let next; (next = queue.shift());) {
    const { test, at, route } = next;
    const outcome = await measure(`${at}/${route}`, `c${at}-${route}`);
    outcome.problems = judge(test, outcome);
    if (test.metrics && route !== 'direct') outcome.problems.push(...await judgeMetrics(test, `c${at}-${route}`));
    rows[at][route] = outcome;
    console.error(`${outcome.problems.length ? 'FAIL' : 'pass'}  ${route.padEnd(8)} ${test.name}: ${cellOf(outcome)}`);
  }
}

async function measure(key, provider) {
  await fetch(`${CONTROL}/begin/${key}`, { method: 'POST' });
  const reply = await turn(PROMPT, { provider, seconds: 200 });
  await wait(0.5);
  const { times, others, result } = await (await fetch(`${CONTROL}/stats/${key}`)).json();
  return { ...reply, requests: times.length, sent: times.length ? times.at(-1) - times[0] : 0, others, result };
}

async function judgeMetrics({ metrics }, provider) {
  const text = await (await fetch(new URL('/metrics', bases.get(provider)))).text();
  return metrics.filter((line) => !line.test(text)).map((line) => `no metric ${line}`);
}

// What the issue asks of respool; directly these are only observations.
function judge(test, { status, text, requests, sent, seconds, result = '' }) {
  const problems = [];
  if (test.group === 'waiting' || test.group === 'dies') {
    if (!text.includes(FIXTURE)) problems.push('not the right answer');
    if (test.result && !test.result.test(result)) problems.push(`the tool said: ${result}`);
    return problems;
  }
  if (test.group === 'final' && text.includes(FIXTURE)) problems.push('the call was made');
  const limit = test.waits ? WAIT + 20 : 20;
  if (status === 0) problems.push('no end within 200 s');
  if (requests > 9) problems.push(`${requests} requests`);
  if (sent > limit) problems.push(`sent again for ${sent.toFixed(0)} s`);
  if (seconds > limit) problems.push(`the user knows after ${seconds.toFixed(0)} s`);
  if (FALLBACK && !text.includes(FIXTURE)) problems.push('the fallback model did not answer');
  if (!FALLBACK && !test.cause.test(text)) problems.push('the cause is not told');
  return problems;
}

function cellOf({ status, text, requests, sent, seconds, others }) {
  const said = text.includes(FIXTURE) ? 'the right answer' : `${status} ${text.replace(/\s+/g, ' ').replaceAll('|', '/').slice(0, 200)}`;
  return `${requests} in ${sent.toFixed(0)} s (${others} probes), known after ${seconds.toFixed(1)} s: ${said}`;
}

function report() {
  console.log(`\nOpenClaw ${OC_VERSION}${FALLBACK ? ', with a fallback model' : ''}\n\n| the model server | ${ROUTES.join(' | ')} |\n|---|${'---|'.repeat(ROUTES.length)}`);
  for (const [at, { name }] of CASES.entries()) console.log(`| ${name} | ${ROUTES.map((route) => cellOf(rows[at][route])).join(' | ')} |`);
  const judged = ROUTES.filter((route) => route !== 'direct');
  const failed = CASES.flatMap(({ name }, at) => judged.filter((route) => rows[at][route].problems.length).map((route) => `${route} ${name}: ${rows[at][route].problems.join('; ')}`));
  for (const line of failed) console.log(`\nFAIL ${line}`);
  for (const route of ROUTES) {
    const storms = CASES.filter(({ group }, at) => group === 'storm' && rows[at][route].sent > 20).length;
    const answers = CASES.filter((_, at) => rows[at][route].text.includes(FIXTURE)).length;
    console.log(`\n${route}: ${storms} turns sent again for more than 20 s, ${answers} right answers of ${CASES.length}`);
  }
  process.exitCode = failed.length || !CASES.length ? 1 : 0;
}
