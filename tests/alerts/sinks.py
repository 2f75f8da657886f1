"""respool's alerts against a real mail server and a strict ntfy: told within 30 s of the first failure, once, and when it is over."""
import email
import http.server
import os
import pathlib
import subprocess
import sys
import threading
import time

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from model_server import ModelServer  # noqa: E402
from raw_http import free_port  # noqa: E402

work = pathlib.Path(sys.argv[1])
mails, notes, problems = [], [], []


class Mailbox:
    async def handle_DATA(self, server, session, envelope):
        mails.append((time.monotonic(), session.authenticated, envelope))
        return "250 OK"


def password(server, session, envelope, mechanism, data):
    return AuthResult(success=mechanism in ("PLAIN", "LOGIN") and data.password == b"mail-password")


class Ntfy(http.server.BaseHTTPRequestHandler):
    """What ntfy takes to publish: a topic in the path, a title of ASCII, a known priority, at most 4 KiB."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        rules = {
            "topic": self.path == "/owner-alerts",
            "token": self.headers["authorization"] == "Bearer tk_0123456789",
            "title": (self.headers["title"] or "").isascii() and self.headers["title"],
            "priority": self.headers["priority"] in ("min", "low", "default", "high", "urgent"),
            "length": 0 < len(body) <= 4096,
            "text": body.decode().strip() != "",
            "click": (self.headers["click"] or "").startswith("http"),
        }
        problems.extend(f"ntfy: {name}" for name, is_right in rules.items() if not is_right)
        notes.append((time.monotonic(), self.headers["title"], body.decode()))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def wait(what, is_so, seconds):
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            sys.exit(f"{what}: not within {seconds} s; log:\n{(work / 'log').read_text()[-3000:]}")
        time.sleep(0.1)


mail_port, model_port = free_port(), free_port()
smtp = Controller(Mailbox(), hostname="127.0.0.1", port=mail_port, authenticator=password, auth_required=True, auth_require_tls=False)
smtp.start()
ntfy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ntfy)
threading.Thread(target=ntfy.serve_forever, daemon=True).start()
model = http.server.ThreadingHTTPServer(("127.0.0.1", model_port), ModelServer)
threading.Thread(target=model.serve_forever, daemon=True).start()

config = work / "respool.toml"
config.write_text(f"""
listen = "127.0.0.1:0"
state_dir = "{work}/state"
[alerts]
link = "http://box.lan:8003"
[[alerts.sink]]
type = "email"
url = "smtp://127.0.0.1:{mail_port}"
user = "respool"
token = "mail-password"
from = "respool <respool@example.org>"
to = "owner@example.org"
[[alerts.sink]]
type = "ntfy"
url = "http://127.0.0.1:{ntfy.server_port}/owner-alerts"
token = "tk_0123456789"
[[upstream]]
name = "box"
url = "http://127.0.0.1:{model_port}"
""")
env = {"PATH": os.environ["PATH"], "HOME": str(work)}
tested = subprocess.run([os.environ["RESPOOL"], "alerts", "test", "--config", config], env=env, capture_output=True, text=True)
if tested.returncode or len(mails) != 1 or len(notes) != 1:
    sys.exit(f"`respool alerts test`: {tested.stdout}{tested.stderr} {len(mails)} mails, {len(notes)} notes")
log = open(work / "log", "w")
respool = subprocess.Popen([os.environ["RESPOOL"], "serve", "--config", config], env=env, stderr=log)
try:
    wait("ready", lambda: '"ready"' in (work / "log").read_text(), 60)
    time.sleep(12)
    if len(mails) != 1 or len(notes) != 1:
        sys.exit("told of a server that works")
    failed = time.monotonic()
    model.shutdown()
    model.server_close()
    wait("mail and note of the failure", lambda: len(mails) == 2 and len(notes) == 2, 30)
    within = max(mails[1][0], notes[1][0]) - failed
    time.sleep(15)
    if len(mails) != 2 or len(notes) != 2:
        sys.exit("told more than once")
    model = http.server.ThreadingHTTPServer(("127.0.0.1", model_port), ModelServer)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    wait("mail and note of the end", lambda: len(mails) == 3 and len(notes) == 3, 60)
finally:
    respool.terminate()
    respool.wait(30)
    smtp.stop()
for _, authenticated, envelope in mails:
    mail = email.message_from_bytes(envelope.content)
    text = mail.get_payload(decode=True).decode()
    if not (authenticated and envelope.rcpt_tos == ["owner@example.org"] and mail["subject"] and text.strip() and mail["date"]):
        problems.append(f"mail: {envelope.content!r}")
text = email.message_from_bytes(mails[1][2].content).get_payload(decode=True).decode()
if "box" not in text or "http://box.lan:8003" not in text:
    problems.append(f"the mail does not say what, or has no link: {text}")
if problems:
    sys.exit("\n".join(problems))
print(f"mail and ntfy: told {within:.0f} s after the first failure, once, and when it was over")
