// Clicks through the page in Chromium. Started by run.sh.
import { spawn, execFileSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import http from "node:http";
import { join } from "node:path";
import { createRequire } from "node:module";

const work = process.argv[2];
const load = createRequire(join(work, "package.json"));
const { chromium } = load("playwright-core");
const AXE = readFileSync(load.resolve("axe-core/axe.min.js"), "utf8");
const shots = process.env.SHOTS;
const OPERATOR = "sk-operator-0123456789";
const problems = [];
const expect = (is, what) => { if (!is) { problems.push(what); console.log("FAILED", what); } };

// A model that answers when it is told to, so that something runs as long as it is looked at.
let answerNow;
const told = new Promise((done) => { answerNow = done; });
const model = http.createServer((request, response) => {
    const answer = (body) => { response.setHeader("content-type", "application/json"); response.end(JSON.stringify(body)); };
    if (request.url.startsWith("/v1/models")) return answer({ object: "list", data: [{ id: "gpt-oss-120b", object: "model" }] });
    if (request.url === "/health") return answer({});
    if (request.method !== "POST") { response.statusCode = 404; return answer({}); }
    told.then(() => answer({ id: "c", object: "chat.completion", created: 1, model: "gpt-oss-120b",
        choices: [{ index: 0, finish_reason: "stop", message: { role: "assistant", content: "Paris" } }],
        usage: { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 } }));
});
await new Promise((done) => model.listen(0, "127.0.0.1", done));

async function serve(withKeys) {
    const home = mkdtempSync(join(work, "home-"));
    const config = join(home, "respool.toml");
    const keys = withKeys ? 'operator_keys_env = "OPERATOR"\nclient_keys_env = "CLIENT"\n' : "";
    writeFileSync(config, `${keys}state_dir = "${home}/state"\nlisten = "127.0.0.1:0"\n[prices."glm-5.3"]\ninput = 1.4\ncached_input = 0.26\noutput = 4.4\n` +
        `[usage]\ncurrency = "EUR"\n[prices."gpt-oss-120b"]\ninput = 0.15\noutput = 0.6\n[budgets]\nday = 50.0\n[agents.helper]\nmodel = "gpt-oss-120b"\n` +
        `[experts]\nmodel = "gpt-oss-120b"\ndir = "${home}/experts"\nworkspace = "${home}/workspace"\n[[upstream]]\nname = "box"\nurl = "http://127.0.0.1:${model.address().port}"\n`);
    cpSync(process.env.EXPERT, join(home, "experts", "support-desk"), { recursive: true });
    const env = { PATH: process.env.PATH, HOME: home, OPERATOR, CLIENT: "sk-client-0123456789" };
    const child = spawn(process.env.RESPOOL, ["serve", "--config", config], { env, stdio: ["ignore", "ignore", "pipe"] });
    const address = await new Promise((done, fail) => {
        let log = "";
        child.stderr.on("data", (piece) => {
            log += piece;
            const ready = log.split("\n").filter((line) => line.includes('"ready"')).map((line) => JSON.parse(line))[0];
            if (ready) done(ready.listen);
        });
        child.on("exit", () => fail(new Error(log)));
    });
    return { child, url: `http://${address}`, state: `${home}/state` };
}

// Containers often have 64 MiB of /dev/shm, in which a renderer with a long page dies. The timeouts are for slow machines: nothing here
// is about speed.
const PATIENCE = 120_000;
const launch = () => chromium.launch({ executablePath: "/usr/bin/chromium", headless: true, timeout: PATIENCE,
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync"] });
let browser = await launch();

// Looks once more with a new browser when the browser itself has died: that says nothing about the page.
async function look(...what) {
    const known = problems.length;
    try {
        await lookOnce(...what);
    } catch (error) {
        if (browser.isConnected() && !/crashed|has been closed/.test(String(error))) throw error;
        console.log(`${what[1]}: the browser died (${String(error).split("\n")[0]}); once more`);
        problems.length = known;
        await browser.close().catch(() => {});
        browser = await launch();
        await lookOnce(...what);
    }
}

async function lookOnce(server, name, size, scheme, act) {
    const begun = Date.now();
    const context = await browser.newContext({ viewport: size, colorScheme: scheme, reducedMotion: "reduce" });
    context.setDefaultTimeout(PATIENCE);
    const page = await context.newPage();
    page.on("crash", () => console.log(`${name}: the page crashed`));
    page.on("console", (message) => { if (["error", "warning"].includes(message.type())) problems.push(`${name}: console: ${message.text()}`); });
    page.on("pageerror", (error) => problems.push(`${name}: ${error}`));
    page.on("request", (request) => { if (!request.url().startsWith(server.url)) problems.push(`${name}: loads ${request.url()}`); });
    const shot = async (what) => {
        const wide = await page.evaluate(() => document.documentElement.scrollWidth > window.innerWidth);
        expect(!wide, `${name} ${what}: wider than the screen`);
        const unnamed = await page.evaluate(() => [...document.querySelectorAll("button, a, input:not([type=hidden])")]
            .filter((it) => !(it.getAttribute("aria-label") || it.textContent.trim() || it.closest("label") || document.querySelector(`label[for="${it.id}"]`))).length);
        expect(unnamed === 0, `${name} ${what}: ${unnamed} controls have no name`);
        // WCAG 2.2 AA, as far as a program can check it. The page's policy does not hold for what the debugger runs.
        await page.evaluate(AXE);
        const { violations } = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }));
        for (const it of violations) { expect(false, `${name} ${what}: ${it.id}: ${it.help}: ${it.nodes.slice(0, 3).map((node) => node.html).join(" ")}`); }
        if (shots) { mkdirSync(shots, { recursive: true }); await page.screenshot({ path: join(shots, `${name}-${what}.png`), fullPage: true }); }
    };
    await act(page, shot);
    await context.close();
    console.log(`${name}: ${((Date.now() - begun) / 1000).toFixed(1)} s`);
}

const sizes = { narrow: { width: 390, height: 844 }, wide: { width: 1280, height: 900 }, widest: { width: 1920, height: 1080 } };
const pages = ["requests", "runs", "experts", "usage", "approvals"];
const through = async (server, page, shot) => {
    await page.goto(server.url);
    await shot("now");
    for (const name of pages) {
        await page.getByRole("navigation").getByRole("link", { name, exact: false }).first().click();
        await page.waitForURL(`**/ui/${name}`);
        await shot(name);
    }
};
// The request that tells most: its attempts and repairs.
const details = async (server, page, shot) => {
    await page.goto(`${server.url}/ui/requests?text=more_tokens`);
    await page.locator("tbody tr a").first().click();
    await page.getByRole("heading", { name: "Attempts" }).waitFor();
    await shot("request");
    await page.goto(`${server.url}/ui/experts`);
    await page.getByRole("link", { name: "support-desk" }).click();
    await page.getByRole("heading", { name: "Triggers" }).waitFor();
    await shot("expert");
    await page.goto(`${server.url}/ui/usage?period=24h&model=glm-5.3`);
    await shot("usage-day");
};

const open = await serve(false);
for (const [width, size] of Object.entries(sizes)) {
    await look(open, `empty-${width}`, size, "light", (page, shot) => through(open, page, shot));
}
execFileSync("python3", [join(work, "fill.py"), `${open.state}/usage.db`]);
for (const [width, size] of Object.entries(sizes)) {
    for (const scheme of ["light", "dark"]) {
        await look(open, `full-${width}-${scheme}`, size, scheme, async (page, shot) => {
            await through(open, page, shot);
            await details(open, page, shot);
        });
    }
}
await look(open, "filters", sizes.wide, "light", async (page) => {
    await page.goto(`${open.url}/ui/requests`);
    expect(await page.locator("tbody tr").count() === 100, "a page has 100 requests");
    await page.getByLabel("Outcome").selectOption("error");
    await page.waitForURL("**outcome=error**");
    expect(await page.locator("tbody .badge.good").count() === 0, "only failed requests are shown");
    await page.getByRole("link", { name: "Next" }).click();
    await page.waitForURL("**page=2**");
    await page.getByText("101 to 200").waitFor();
});
await look(open, "live", sizes.wide, "light", async (page, shot) => {
    await page.goto(open.url);
    const asked = fetch(`${open.url}/v1/chat/completions`, { method: "POST", headers: { "content-type": "application/json" },
        body: JSON.stringify({ model: "gpt-oss-120b", messages: [{ role: "user", content: "the secret word" }] }) });
    await page.getByText("waiting for the model").waitFor();
    await shot("running");
    expect(!(await page.content()).includes("secret word"), "no content is shown");
    answerNow();
    await asked;
    await page.getByText("Nothing is running").waitFor();
});
await look(open, "keyboard", sizes.wide, "light", async (page) => {
    await page.goto(open.url);
    await page.keyboard.press("Tab");
    expect(await page.evaluate(() => document.activeElement.className) === "skip", "the first key leads past the navigation");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await page.waitForURL("**/ui/requests");
    await page.locator("tbody tr a").first().focus();
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Attempts" }).waitFor();
});
open.child.kill("SIGTERM");

const closed = await serve(true);
await look(closed, "login", sizes.narrow, "dark", async (page, shot) => {
    await page.goto(`${closed.url}/ui/usage`);
    await page.waitForURL("**/ui/login");
    await shot("form");
    await page.getByLabel("Operator key").fill("sk-wrong");
    page.removeAllListeners("console"); // The browser notes the 403.
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("alert").waitFor();
    await shot("wrong");
    await page.getByLabel("Operator key").fill(OPERATOR);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.waitForURL(`${closed.url}/`);
    expect(!(await page.evaluate(() => document.cookie)).includes("respool"), "scripts do not see the cookie");
    await page.getByRole("button", { name: /Log out/ }).click();
    await page.waitForURL("**/ui/login");
    await page.goto(closed.url);
    await page.waitForURL("**/ui/login");
});
closed.child.kill("SIGTERM");
await browser.close();
model.close();
model.closeAllConnections();
if (problems.length) {
    console.error(problems.join("\n"));
    process.exit(1);
}
console.log("the page works in Chromium: empty and full, narrow and wide, light and dark, live, by keyboard, with a login, WCAG AA");
process.exit(0);
