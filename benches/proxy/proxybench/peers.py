"""The proxies that can be measured: how each is started and what a right answer through it looks like."""

import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from .lab import KIT, free_port

DEFAULT_PEERS = "direct,nginx,hyper,respool,earlier"


@dataclass
class Peer:
    name: str
    port: int
    argv: list = None
    """None: the mock itself."""
    env: dict = field(default_factory=dict)
    health: str = "/health"
    key: str = "sk-bench"
    start_seconds: int = 30
    relays_chunks: bool = True
    """Native SSE chunks come through one by one, so their number is known."""
    strips_fields: bool = False
    """No field that only vLLM has may come out."""
    extracts_calls: bool = False
    """A tool call that leaked into the text comes out as tool_calls."""


@dataclass(frozen=True)
class Binaries:
    """Programs that the command line names."""

    product: str = None
    earlier: str = None
    database: str = None
    """The URL of an empty PostgreSQL database."""


class NotInstalled(Exception):
    """Why a peer cannot take part."""


def direct(lab, _binaries):
    return Peer("direct", lab.mock_port)


def nginx(lab, _binaries):
    port = free_port()
    program = installed(lab.directory / "bin" / "nginx")
    config = fill_template("nginx.conf", lab, port)
    return Peer("nginx", port, [program, "-c", config, "-p", lab.folder("run"), "-e", "stderr"])


def hyper(lab, _binaries):
    port = free_port()
    return Peer("hyper", port, [lab.tool("refproxy"), "--port", port, "--upstream-port", lab.mock_port])


def hyper_with(*features):
    """Bare hyper with these features of refproxy's: `hyper-log` writes a log line."""
    def build(lab, _binaries):
        peer = hyper(lab, None)
        peer.name = "-".join(["hyper", *features])
        peer.argv += [word for feature in features for word in (f"--{feature}", "1")]
        peer.argv += ["--dir", lab.folder("run")] if "row" in features else []
        return peer
    return build


def respool(lab, binaries):
    program = binaries.product or shutil.which("respool")
    if not program:
        raise NotInstalled("no --bin given and no respool on PATH")
    return serving("respool", lab, program)


def earlier(lab, binaries):
    """Another build of respool, to compare with in the same run."""
    if not binaries.earlier:
        raise NotInstalled("no --earlier given")
    return serving("earlier", lab, binaries.earlier)


def postgres(lab, binaries):
    """The same build with its store in PostgreSQL."""
    if not binaries.product or not binaries.database:
        raise NotInstalled("it needs --bin and --database")
    peer = serving("postgres", lab, binaries.product)
    peer.env["RESPOOL__STORE__URL"] = binaries.database
    return peer


def serving(name, lab, program):
    port = free_port()
    argv = [installed(Path(program).resolve()), "serve", "--listen", f"127.0.0.1:{port}",
            "--upstream", f"http://127.0.0.1:{lab.mock_port}"]
    # What it keeps on disk is this run's.
    home = lab.folder("run") / name
    env = {"HOME": str(home), "XDG_STATE_HOME": str(home), "XDG_DATA_HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    return Peer(name, port, argv, env, relays_chunks=False, strips_fields=True, extracts_calls=True)


def smg(lab, _binaries):
    port = free_port()
    argv = [installed(lab.directory / "venv-smg" / "bin" / "smg"), "launch", "--host", "127.0.0.1", "--port", port,
            "--worker-urls", f"http://127.0.0.1:{lab.mock_port}", "--backend", "vllm", "--policy", "round_robin",
            "--prometheus-host", "127.0.0.1", "--prometheus-port", free_port(), "--log-level", "warn"]
    return Peer("smg", port, argv)


def litellm(lab, _binaries):
    port = free_port()
    program = installed(lab.directory / "venv-litellm" / "bin" / "litellm")
    key = "sk-" + secrets.token_hex(24)
    env = {"LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False",
           "LITELLM_LOG": "ERROR", "HF_HUB_OFFLINE": "1",
           # It takes 100 equal chunks, which is what the mock sends, for a model that repeats itself.
           "REPEATED_STREAMING_CHUNK_LIMIT": "1000000"}
    argv = [program, "--config", fill_template("litellm.yaml", lab, port), "--host", "127.0.0.1", "--port", port,
            "--num_workers", "1"]
    return Peer("litellm", port, argv, env, "/health/liveliness", key, start_seconds=90, relays_chunks=False)


BUILDERS = {"direct": direct, "nginx": nginx, "hyper": hyper, "hyper-json": hyper_with("json"),
            "hyper-read": hyper_with("read"), "hyper-log": hyper_with("log"), "hyper-row": hyper_with("row"),
            "hyper-all": hyper_with("json", "read", "log", "row"), "respool": respool, "earlier": earlier,
            "postgres": postgres,
            "smg": smg, "litellm": litellm}


def choose_peers(lab, names, binaries):
    """The peers of these names that are installed; says which are left out and why."""
    chosen = []
    for name in names:
        try:
            chosen.append(BUILDERS[name](lab, binaries))
        except NotInstalled as reason:
            print(f"{name}: skipped, {reason}", flush=True)
    return chosen


def installed(path):
    if not path.exists():
        raise NotInstalled(f"{path} does not exist (setup.sh installs the peers, --bin names the product)")
    return path


def fill_template(name, lab, port):
    text = (KIT / "peers" / name).read_text()
    values = {"@PORT@": port, "@MOCK_PORT@": lab.mock_port, "@RUN@": lab.folder("run")}
    for mark, value in values.items():
        text = text.replace(mark, str(value))
    path = lab.folder("run") / name
    path.write_text(text)
    return path
