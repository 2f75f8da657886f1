// One scripted model server for each case of storm-cases.mjs and each ROUTE to it. usage: node storm-upstream.mjs ROUTE...
// Stdout: `control URL`, then `CASE_NUMBER ROUTE URL` lines, then `ready`. On the control URL: POST /begin/NUMBER/ROUTE clears a case's
// counts, GET /stats/NUMBER/ROUTE gives the times of its chat requests, the number of its other requests, and what the client's tool said
// first. Loopback only.
// The model of every case wants to `read` the fixture and tells what stands there. A case's server answers wrongly for ever, for
// BACK seconds, to one request, or (what the model itself does wrong) until a tool's result tells it so.
import http from 'node:http';
import { BACK, CASES, RIGHT_CALL, say } from './storm-cases.mjs';
import { json, models } from './replies.mjs';

const routes = process.argv.slice(2);
const servers = new Map();

async function listen(server, port = 0) {
  await new Promise((done, failed) => server.once('error', failed).listen(port, '127.0.0.1', done));
  return server.address().port;
}

class CaseServer {
  constructor(test) {
    this.test = test;
    this.times = [];
    this.others = 0;
    this.result = undefined;
    this.began = Date.now();
  }

  async open() {
    this.port = await listen(this.server = this.make());
    if (this.test.isDown) await this.close();
  }

  make() {
    return http.createServer(async (req, res) => {
      let raw = '';
      for await (const chunk of req.setEncoding('utf8')) raw += chunk;
      if (req.method !== 'POST') return this.other(req, res);
      if (!this.times.length && !this.test.isDown) this.began = Date.now();
      this.times.push((Date.now() - this.began) / 1000);
      res.on('error', () => {}); // the other side may leave first
      this.chat({ res, body: JSON.parse(raw) });
    });
  }

  close() {
    this.server.closeAllConnections();
    return new Promise((done) => this.server.close(done));
  }

  begin() {
    this.began = Date.now();
    this.times = [];
    this.others = 0;
    this.result = undefined;
    if (this.test.isDown && this.test.group === 'waiting') setTimeout(() => listen(this.server = this.make(), this.port), BACK * 1000);
  }

  isBroken() {
    const { group } = this.test;
    return group === 'storm' || group === 'waiting' && Date.now() - this.began < BACK * 1000;
  }

  other(req, res) {
    this.others += 1;
    const status = this.isBroken() ? this.test.health : 200;
    if (req.url.startsWith('/v1/models') && status === 200) return json(res, 200, models());
    res.writeHead(status).end();
  }

  chat(reply) {
    const results = reply.body.messages.filter(({ role }) => role === 'tool').map(({ content }) => typeof content === 'string' ? content : content.map(({ text }) => text).join(''));
    this.result ??= results[0];
    if (this.times.length === this.test.at) return this.test.wrong(reply);
    const fixture = results.findLast((result) => result.includes(process.env.FIXTURE));
    if (fixture && !this.isBroken()) return say(() => ({ content: `TOOL SAID ${fixture}`, reasoning: null, finish: 'stop' }))(reply);
    if (this.isWrong(results)) return this.test.wrong(reply);
    if (this.test.group === 'final') return say(() => ({ content: `TOOL SAID ${results.join(' | ')}`, reasoning: null, finish: 'stop' }))(reply);
    return say(RIGHT_CALL)(reply);
  }

  isWrong(results) {
    const { group, at } = this.test;
    return group === 'storm' || group === 'waiting' ? this.isBroken() : !at && !results.length;
  }
}

for (const [at, test] of CASES.entries()) {
  for (const route of routes) {
    const server = new CaseServer(test);
    await server.open();
    servers.set(`${at}/${route}`, server);
  }
}
// A healthy one: OpenClaw's first turn takes seconds longer than the others.
const warm = new CaseServer({ group: 'dies', wrong: say(RIGHT_CALL) });
await warm.open();
const control = http.createServer((req, res) => {
  const [, what, key] = req.url.match(/^\/(begin|stats)\/(\d+\/\w+)$/) ?? [];
  const server = servers.get(key);
  if (!server) return json(res, 404, { detail: 'Not Found' });
  if (what === 'begin') server.begin();
  json(res, 200, { times: server.times, others: server.others, result: server.result });
});
console.log(`control http://127.0.0.1:${await listen(control)}`);
for (const [key, { port }] of servers) console.log(`${key.replace('/', ' ')} http://127.0.0.1:${port}`);
console.log(`warm direct http://127.0.0.1:${warm.port}`);
console.log('ready');
