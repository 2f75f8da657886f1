// The error cases of `run.sh DIR statuses`: [provider name, the upstream's `fail` order]. Run alone it prints the names.
// CASES=REGEX picks some.
import { pathToFileURL } from 'node:url';

const REFUSED = 'the model server "box" does not accept the API key that it was sent. Set or correct `api_key` of this upstream.';
const STATUSES = [400, 401, 402, 403, 404, 405, 409, 410, 412, 417, 421, 422, 423, 424, 425, 426, 428, 431, 451];
const OVERFLOW = "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input tokens.";

const all = [
  ...STATUSES.map((status) => [`s${status}`, { status, message: `scripted ${status}: the model server said no` }]),
  // Words alone make OpenClaw punish the provider ...
  ['w422-unauthorized', { status: 422, message: 'upstream "box" answered 401 Unauthorized' }],
  ['w422-invalid-key', { status: 422, message: 'Incorrect API key provided: invalid_api_key, authentication failed' }],
  ['w422-billing', { status: 422, message: 'upstream answered 402: insufficient credits, billing' }],
  ['w422-forbidden', { status: 422, message: 'upstream answered 403 Forbidden: permission denied' }],
  ['w400-echo', { status: 400, message: 'validation error, input: "the user said that access was forbidden and his token expired"' }],
  // ... or retry; these do neither.
  ['w422-timeout', { status: 422, message: 'the request timed out' }],
  ['w422-safe', { status: 422, message: REFUSED }],
  ['t422-upstream', { status: 422, type: 'upstream_error', message: REFUSED }],
  ['t422-invalid', { status: 422, type: 'invalid_request_error', code: 'upstream_key_refused', message: REFUSED }],
  ['w400-overflow', { status: 400, message: OVERFLOW }],
  ['w400-overflow-code', { status: 400, type: 'invalid_request_error', code: 'context_length_exceeded', message: OVERFLOW }],
  // The same after the head, as an error event with `code`.
  ...[400, 422].flatMap((status) => ['invalid_request_error', 'BadRequestError', 'upstream_error'].map((type) =>
    [`e${status}-${type}`, { event: true, status, type, message: 'the model server said no' }])),
  ['e422-text', { event: true, status: 422, type: 'invalid_request_error', after: 'part of an answer', message: 'the model server said no' }],
  ['e422-safe', { event: true, status: 422, type: 'invalid_request_error', message: REFUSED }],
  ['e422-words', { event: true, status: 422, type: 'invalid_request_error', message: 'upstream "box" answered 401 Unauthorized' }],
  ['e400-overflow', { event: true, status: 400, type: 'invalid_request_error', code: 'context_length_exceeded', message: OVERFLOW }],
  ['e502', { event: true, status: 502, type: 'server_error', message: 'the model server closed the connection' }],
];

export const CASES = all.filter(([name]) => new RegExp(process.env.CASES ?? '').test(name));

if (import.meta.url === pathToFileURL(process.argv[1]).href) for (const [name] of CASES) console.log(name);
