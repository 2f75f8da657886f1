"""What vLLM's tests import as `tests.utils`: a server under test that is respool in front of the scripted upstream."""
import contextlib
import os
import socket
import subprocess
import tempfile
import time
import urllib.request

import anthropic
import openai
from upstream import Upstream

KEY = "EMPTY"
ROCM_EXTRA_ARGS, ROCM_ENV_OVERRIDES = [], {}


def free_port():
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class RemoteOpenAIServer:
    """Takes vLLM's own arguments; those that change the form of a reply reach the script."""

    DUMMY_API_KEY = KEY

    def __init__(self, model, vllm_serve_args=(), env_dict=None, **_):
        arguments = list(vllm_serve_args)
        names = arguments[arguments.index("--served-model-name") + 1:] if "--served-model-name" in arguments else [model]
        self.upstream = Upstream(names[0], reasoning="--reasoning-parser" in arguments or "gpt-oss" in model)
        if "--limit-mm-per-prompt" in arguments:
            self.upstream.images = 2
        self.directory = tempfile.TemporaryDirectory()
        self.start()

    def start(self):
        port = free_port()
        self.url_root = f"http://127.0.0.1:{port}"
        with open(os.path.join(self.directory.name, "respool.toml"), "w") as settings:
            settings.write('state_dir = "state"\n')
        log = os.environ.get("RESPOOL_LOG")
        out = open(log, "a") if log else subprocess.DEVNULL
        command = [os.environ["RESPOOL"], "serve", "--listen", f"127.0.0.1:{port}", "--upstream", self.upstream.url]
        environment = os.environ | {"RESPOOL_CONFIG": "respool.toml", "RESPOOL__LOG__FORMAT": "json"}
        self.process = subprocess.Popen(command, cwd=self.directory.name, env=environment, stdout=out, stderr=out)
        for _ in range(600):
            with contextlib.suppress(OSError):
                return urllib.request.urlopen(f"{self.url_root}/health", timeout=2).close()
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError("respool did not start: set RESPOOL_LOG=FILE and run the test again")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)
        self.upstream.shutdown()
        self.directory.cleanup()

    def url_for(self, *parts):
        return f"{self.url_root}/" + "/".join(part.strip("/") for part in parts if part)

    def get_client(self, **options):
        return openai.OpenAI(base_url=self.url_for("v1"), api_key=KEY, max_retries=0, **{"timeout": 60, **options})

    def get_async_client(self, **options):
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key=KEY, max_retries=0, **{"timeout": 60, **options})

    def get_client_anthropic(self, **options):
        return anthropic.Anthropic(base_url=self.url_for(), api_key=KEY, max_retries=0, **{"timeout": 60, **options})

    def get_async_client_anthropic(self, **options):
        return anthropic.AsyncAnthropic(base_url=self.url_for(), api_key=KEY, max_retries=0, **{"timeout": 60, **options})
