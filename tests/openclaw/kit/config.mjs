// Writes an openclaw.json (stdout) for tests: the provider entry of openclaw.example.json, once for each NAME=BASE_URL,
// with everything off that would send requests of its own (heartbeat, skill workshop, dreaming, titles, update checks).
// usage: node config.mjs VERSION LOG_FILE WORKSPACE NAME=BASE_URL...     a NAME that ends in `-plain` gets a model without
// tools (new client only), one that ends in `-minimal` the least entry that OpenClaw takes, one in `-agent` the model `helper`,
// one in `-expert` the model `expert/desk`.
// The first NAME is the primary model. The old client has no header that picks a model: there each NAME also gets an
// agent `NAME`. With FALLBACK=NAME each NAME gets an agent in both clients, which may fall back to that provider's model: a model
// picked by header has no fallback. EXTRA is JSON that is laid over the configuration.
import fs from 'node:fs';

const OLD = '2026.2.26';
// Keys of the example that the old client's schema does not have.
const NEW_ONLY = ['timeoutSeconds'];
const NEW_ONLY_COMPAT = ['supportedReasoningEfforts', 'reasoningEffortMap', 'requiresReasoningContentOnAssistantMessages', 'sendSessionAffinityHeaders'];

const [version, logFile, workspace, ...pairs] = process.argv.slice(2);
if (!pairs.length || pairs.some((pair) => !/^[\w-]+=http/.test(pair))) {
  console.error('usage: config.mjs VERSION LOG_FILE WORKSPACE NAME=BASE_URL...');
  process.exit(2);
}
const example = JSON.parse(fs.readFileSync(new URL('../../../openclaw.example.json', import.meta.url), 'utf8'));
const [recommended] = Object.values(example.models.providers);
const isOld = version === OLD;

// The least that OpenClaw takes.
const minimal = (baseUrl) => ({ baseUrl, apiKey: 'sk-local', models: [{ id: recommended.models[0].id, name: recommended.models[0].id }] });

function provider(name, baseUrl) {
  if (name.endsWith('-minimal')) return isOld ? { ...minimal(baseUrl), api: 'openai-completions' } : minimal(baseUrl);
  const entry = structuredClone({ ...recommended, baseUrl });
  const [model] = entry.models;
  if (name.endsWith('-agent')) model.id = model.name = 'helper';
  if (name.endsWith('-expert')) model.id = model.name = 'expert/desk';
  if (name.endsWith('-plain') && !isOld) model.compat.supportsTools = false;
  if (isOld) {
    for (const key of NEW_ONLY) delete entry[key];
    for (const key of NEW_ONLY_COMPAT) delete model.compat[key];
  }
  return entry;
}

const providers = Object.fromEntries(pairs.map((pair) => {
  const at = pair.indexOf('=');
  const name = pair.slice(0, at);
  return [name, provider(name, pair.slice(at + 1))];
}));
const names = Object.keys(providers);
const modelOf = (name) => `${name}/${providers[name].models[0].id}`;
const { FALLBACK: fallback } = process.env;
const chain = (name) => fallback ? { primary: modelOf(name), fallbacks: [modelOf(fallback)] } : { primary: modelOf(name) };
const defaults = { model: chain(names[0]), workspace, heartbeat: { every: '0m' }, skipBootstrap: true, maxConcurrent: 16 };
const config = {
  models: { mode: 'replace', providers },
  agents: { defaults },
  tools: { loopDetection: { enabled: false } }, // the only guard is that of the proxy under test
  update: { checkOnStart: false },
  logging: { file: logFile },
};
if (isOld) {
  config.agents.list = names.map((name) => ({ id: name, workspace, model: chain(name) }));
} else {
  defaults.utilityModel = '';
  if (fallback) Object.assign(config.agents, { ownership: 'explicit', entries: Object.fromEntries(names.map((name) => [name, { workspace, model: chain(name) }])) });
  config.models.catalogRefresh = { enabled: false };
  config.skills = { workshop: { autonomous: { mode: 'off' } } };
  config.plugins = { entries: { 'memory-core': { config: { dreaming: { enabled: false } } } } };
}
const isMap = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
function lay(under, over) {
  for (const [key, value] of Object.entries(over)) {
    if (isMap(value) && isMap(under[key])) lay(under[key], value);
    else under[key] = value;
  }
}
lay(config, JSON.parse(process.env.EXTRA ?? '{}'));
console.log(JSON.stringify(config, null, 1));
