// The plugin without a gateway: its jail under races, its environment, its limits. `node --test tests/openclaw/plugin.test.mjs`
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readFileSync, realpathSync, renameSync, rmSync, symlinkSync, writeFileSync, existsSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import test from "node:test";

import plugin from "../../deploy/openclaw-plugin/index.js";

function workspace(t) {
  const outer = realpathSync(mkdtempSync(path.join(tmpdir(), "plugin-")));
  t.after(() => rmSync(outer, { recursive: true, force: true }));
  const root = path.join(outer, "work");
  mkdirSync(root);
  writeFileSync(path.join(outer, "secret"), "TOP SECRET");
  const tools = {};
  plugin.register({ pluginConfig: { workspace: root }, registerTool: (make, { name }) => (tools[name] = make({})) });
  const call = async (name, args) => (await tools[name].execute("id", args)).content[0].text;
  return { outer, root, call };
}

test("files are read, written, edited and listed", async (t) => {
  const { root, call } = workspace(t);
  assert.match(await call("host_write", { path: "a/b/c.txt", content: "one\ntwo" }), /Wrote 7 bytes/);
  assert.equal(await call("host_read", { path: "a/b/c.txt", offset: 2 }), "two");
  await call("host_edit", { path: path.join(root, "a/b/c.txt"), edits: [{ oldText: "two", newText: "2" }] });
  assert.equal(readFileSync(path.join(root, "a/b/c.txt"), "utf8"), "one\n2");
  symlinkSync("a/b", path.join(root, "link"));
  assert.equal(await call("host_read", { path: "link/c.txt" }), "one\n2");
  assert.equal(await call("host_ls", { path: "a" }), "b/");
  assert.equal(await call("host_exec", { command: "cat c.txt; pwd", workdir: "link" }), `one\n2${root}/a/b\n`);
});

test("no path leads out", async (t) => {
  const { outer, root, call } = workspace(t);
  symlinkSync("../secret", path.join(root, "out"));
  symlinkSync("..", path.join(root, "up"));
  for (const name of ["../secret", "out", "up/secret", path.join(outer, "secret"), "/etc/passwd"]) {
    for (const [tool, more] of [["host_read", {}], ["host_write", { content: "x" }], ["host_edit", { edits: [{ oldText: "TOP", newText: "x" }] }], ["host_ls", {}]]) {
      await assert.rejects(call(tool, { path: name, ...more }), /outside the workspace/, `${tool} ${name}`);
    }
  }
  assert.equal(readFileSync(path.join(outer, "secret"), "utf8"), "TOP SECRET");
});

// Without this, 2,119 racing reads left the workspace.
test("no race leads out", { skip: !existsSync("/proc/self/fd") }, async (t) => {
  const { outer, root, call } = workspace(t);
  for (const folder of ["good", "spare"]) mkdirSync(path.join(root, folder));
  writeFileSync(path.join(root, "good/secret"), "harmless");
  // Another process changes a directory into a link that leads out, and back, as fast as it can.
  const script = `const fs = require("node:fs");
    const pause = () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    for (const end = Date.now() + 120_000; Date.now() < end; ) {
      fs.renameSync("good", "kept");
      try { fs.symlinkSync("..", "good"); } catch {}
      // A write may make a directory at any moment.
      while (fs.existsSync("kept")) {
        try { fs.rmSync("good", { recursive: true, force: true }); fs.renameSync("kept", "good"); } catch {}
      }
      pause();
    }`;
  const racer = spawn(process.execPath, ["-e", script], { cwd: root, stdio: "ignore" });
  const ended = once(racer, "exit");
  const seen = { harmless: 0, refused: 0 };
  const begun = Date.now();
  // A loaded machine needs longer to meet both sides of the race.
  const goesOn = () => Date.now() - begun < 3000 || (Math.min(seen.harmless, seen.refused) <= 20 && Date.now() - begun < 60_000);
  try {
    while (goesOn()) {
      await call("host_read", { path: "good/secret" }).then((text) => {
        assert.equal(text, "harmless");
        seen.harmless += 1;
      }, (error) => (assert.ok(!(error instanceof assert.AssertionError), error), (seen.refused += 1)));
      await call("host_write", { path: "good/written", content: "x" }).catch(() => {});
      const listed = await call("host_ls", { path: "good" }).catch(() => "");
      assert.ok(!listed.includes("work/"), listed);
    }
  } finally {
    // The workspace is removed next: nothing may still be changing it.
    racer.kill("SIGKILL");
    await ended;
  }
  assert.ok(seen.harmless > 20 && seen.refused > 20, JSON.stringify(seen));
  assert.ok(!existsSync(path.join(outer, "written")));
  assert.equal(readFileSync(path.join(outer, "secret"), "utf8"), "TOP SECRET");
});

test("git's own files are not written", async (t) => {
  const { root, call } = workspace(t);
  mkdirSync(path.join(root, ".git/hooks"), { recursive: true });
  writeFileSync(path.join(root, ".git/config"), "[core]\n");
  for (const name of [".git/hooks/pre-commit", ".git/config", "sub/.GIT/config"]) {
    await assert.rejects(call("host_write", { path: name, content: "x" }), /git's own/, name);
  }
  await assert.rejects(call("host_edit", { path: ".git/config", edits: [{ oldText: "core", newText: "x" }] }), /git's own/);
});

test("huge and strange numbers are refused", async (t) => {
  const { call } = workspace(t);
  for (const timeout of [3601, 2 ** 31, 1e300, Infinity, 0, -1, 1.5, "60"]) {
    await assert.rejects(call("host_exec", { command: "true", timeout }), /timeout has to be a whole number from 1 to 3600/);
  }
  await assert.rejects(call("host_read", { path: "x", offset: 0 }), /offset has to be/);
});

const isAlone = spawnSync("unshare", ["--user", "--map-current-user", "--pid", "--fork", "--mount-proc", "--", "true"]).status === 0;

test("a command cannot read the gateway's environment", { skip: !isAlone }, async (t) => {
  const { call } = workspace(t);
  process.env.PLUGIN_TEST_TOKEN = "hidden";
  assert.ok(!(await call("host_exec", { command: "env" })).includes("hidden"));
  const found = await call("host_exec", { command: `cat /proc/${process.pid}/environ /proc/$PPID/environ 2>&1 | tr '\\0' '\\n'` });
  const [name, value] = Object.entries(process.env).find(([name]) => /^(npm_|NODE_TEST|CARGO|OLDPWD)/.test(name)) ?? ["HOSTNAME_X", "none"];
  assert.ok(!found.includes(`${name}=${value}`), found);
  assert.match(found, /No such file/);
});

test("nothing outlives its call", { skip: !isAlone }, async (t) => {
  const { root, call } = workspace(t);
  await call("host_exec", { command: "setsid sh -c 'sleep 0.5; touch late' >/dev/null 2>&1 & set -m; (sleep 0.5; touch later) & echo begun" });
  await new Promise((resolve) => setTimeout(resolve, 900));
  assert.ok(!existsSync(path.join(root, "late")) && !existsSync(path.join(root, "later")));
});
