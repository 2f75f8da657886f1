"""The rules and the dashboard's queries in a real Prometheus that reads a real respool: all are evaluated, and a model server that stops
while nobody asks is an alert."""
import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from model_server import ModelServer  # noqa: E402
from raw_http import free_port  # noqa: E402

work = pathlib.Path(sys.argv[1]) / "prometheus"
root = pathlib.Path(__file__).resolve().parent.parent.parent
work.mkdir()
REPLY = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
         "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Paris"}}]}


class Model(ModelServer):
    models = [{"id": "m", "object": "model"}]

    def do_POST(self):
        self.read_json()
        self.send_json(200, REPLY)


def get(url, body=None):
    request = urllib.request.Request(url, data=body and json.dumps(body).encode(), headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def wait(what, look, seconds=120):
    end = time.monotonic() + seconds
    while True:
        try:
            if found := look():
                return found
        except OSError:
            pass
        if time.monotonic() > end:
            sys.exit(f"{what}: not within {seconds} s; log:\n{(work / 'prometheus.log').read_text()[-2000:]}")
        time.sleep(0.3)


model = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
threading.Thread(target=model.serve_forever, daemon=True).start()
respool_port, port = free_port(), free_port()
(work / "respool.toml").write_text(
    f'listen = "127.0.0.1:{respool_port}"\nstate_dir = "{work}/state"\n[[upstream]]\nname = "gpu"\nurl = "http://127.0.0.1:{model.server_port}"\n')
(work / "prometheus.yml").write_text(json.dumps({
    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
    "rule_files": [str(root / "deploy/prometheus/respool.rules.yml")],
    "scrape_configs": [{"job_name": "respool", "static_configs": [{"targets": [f"127.0.0.1:{respool_port}"]}]}]}))
environment = {"PATH": os.environ["PATH"], "HOME": str(work)}
respool = subprocess.Popen([os.environ["RESPOOL"], "serve", "--config", work / "respool.toml"], env=environment,
                           stderr=(work / "respool.log").open("w"))
prometheus = subprocess.Popen(["prometheus", f"--config.file={work}/prometheus.yml", f"--storage.tsdb.path={work}/data",
                               f"--web.listen-address=127.0.0.1:{port}"], env=environment, stdout=subprocess.DEVNULL,
                              stderr=(work / "prometheus.log").open("w"))
api = f"http://127.0.0.1:{port}/api/v1"


def query(text):
    return get(f"{api}/query?{urllib.parse.urlencode({'query': text})}")["data"]["result"]


try:
    chat = f"http://127.0.0.1:{respool_port}/v1/chat/completions"
    wait("respool", lambda: get(f"http://127.0.0.1:{respool_port}/v1/models"))
    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]
    # A rate needs two readings with something between them.
    for round in (1, 2):
        for number in range(6):
            get(chat, {"model": "m", "messages": [{"role": "user", "content": f"What is {number}?"}], "tools": tools})
        wait("what respool counts", lambda: query(f"respool_requests_total >= {round * 6}") and query("respool_upstream_up == 1"))

    dashboard = json.loads((root / "deploy/grafana/respool.json").read_text())
    asked = empty = 0
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            text = re.sub(r"\$__(rate_interval|interval|range)", "1m", target["expr"])
            if "$" in text:
                sys.exit(f"{panel['title']}: a variable that this test does not know: {text}")
            asked += 1
            empty += not query(text)
    rules = [rule for group in get(f"{api}/rules")["data"]["groups"] for rule in group["rules"]]
    wait("all rules are evaluated", lambda: all(
        rule["health"] == "ok" for group in get(f"{api}/rules")["data"]["groups"] for rule in group["rules"]))

    def firing():
        return {alert["labels"]["alertname"] for alert in get(f"{api}/alerts")["data"]["alerts"] if alert["state"] == "firing"}

    assert not firing(), firing()
    begun = time.monotonic()
    model.shutdown()
    model.server_close()
    wait("RespoolUpstreamDown", lambda: "RespoolUpstreamDown" in firing())
    took = time.monotonic() - begun
    assert firing() == {"RespoolUpstreamDown"}, firing()
    print(f"Prometheus: {len(rules)} rules are sound, {asked} queries of the dashboard are answered "
          f"({empty} with nothing yet), a model server that stopped while idle fired after {took:.0f} s")
finally:
    for process in (respool, prometheus):
        process.terminate()
        process.wait(60)
