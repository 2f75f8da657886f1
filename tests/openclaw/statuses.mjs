// Measures how OpenClaw takes an error of its model endpoint: how many requests one turn costs, what the owner is told,
// and whether the next, healthy turn of the same provider still works. No relay stands between: this is where respool's
// choice of statuses and words comes from. Started by `run.sh DIR statuses`; each case has a provider of its own.
import { script, seen, turn } from './gateway-client.mjs';
import { CASES } from './status-cases.mjs';

const cell = (text) => text.replace(/\s+/g, ' ').replaceAll('|', '/').slice(0, 200);

console.log('| case | requests | OpenClaw answers | text | next turn | its requests |');
console.log('|---|---|---|---|---|---|');
for (const [provider, fail] of CASES) {
  const failing = await turn(script({ tag: provider, fail }), { provider });
  const healthy = await turn(script({ tag: `${provider}-next`, text: 'still here' }), { provider });
  const [first, next] = await Promise.all([seen(provider), seen(`${provider}-next`)]);
  const requests = `${first.requests.length} in ${failing.seconds.toFixed(1)} s`;
  console.log(`| ${provider} | ${requests} | ${failing.status} | ${cell(failing.text)} | ${healthy.status} ${cell(healthy.text)} | ${next.requests.length} |`);
}
