// Calls a method of a gateway with scopes of the caller's choice, by OpenClaw's own client library; its command line has no option for that.
// usage: node gateway-call.mjs OPENCLAW_PACKAGE METHOD PARAMS URL TOKEN SCOPE[,SCOPE...]
const [root, method, params, url, token, scopes] = process.argv.slice(2);
const { callGatewayFromCli } = await import(`${root}/dist/plugin-sdk/gateway-runtime.js`);
const answer = await callGatewayFromCli(method, { url, token, json: true, timeout: '30000' }, JSON.parse(params), { scopes: scopes.split(',') });
console.log(JSON.stringify(answer));
process.exit(0);
