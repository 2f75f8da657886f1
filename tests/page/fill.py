"""Fills the rows of what was used: 10,000 requests of the last thirty days, of several models, keys and agents."""
import json
import random
import sqlite3
import sys
import time

random.seed(14)
models = ["gpt-oss-120b", "qwen3-coder-30b", "glm-5.3", "mistral-small"]
keys = ["alice", "bob", "ci", "openclaw"]
now = int(time.time() * 1000)
rows = []
for number in range(10_000):
    at = now - int(random.random() ** 1.3 * 30 * 86_400_000)
    model, agent = random.choice(models), random.choice(["", "", "", "helper", "reviewer"])
    fails = random.random() < 0.03
    mended = random.random() < 0.12
    again = random.random() < 0.04
    rows.append((
        at, f"request-{number}", "agent_model" if agent else "tools", random.choice(keys), model, "box", agent,
        f"run-{number // 4:032x}" if agent else "", 1, 502 if fails else 200,
        None if fails else random.randint(500, 30_000), random.randint(0, 400), random.randint(0, 300),
        None if fails else random.randint(20, 2_000), random.randint(80, 4_000), random.randint(300, 40_000), 0, 2 if again else 1,
        "hermes" if mended else "", "unclosed,coerced" if mended else "", "cut_call,more_tokens" if again else "", "",
        "error" if fails else "ok", random.choice(["upstream_timeout", "context_length_exceeded"]) if fails else "",
        "it did not answer" if fails else "",
        json.dumps({"earlier_attempts": [{"upstream": "spare", "ended": 200, "why": "cut_call", "remedy": "more_tokens"}]}) if again else "",
    ))
store = sqlite3.connect(sys.argv[1], timeout=60)
columns = ("at, request, route, key, model, upstream, agent, run, stream, status, prompt, cached, reasoning, completion, first_byte, "
           "duration, waited, attempts, dialects, repairs, recovery, loop_stopped, outcome, error_code, error, details")
store.executemany(f"INSERT INTO requests ({columns}) VALUES ({', '.join('?' * 26)})", rows)
store.commit()
