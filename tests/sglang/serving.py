"""SGLang's own code for chat completions (0.5.23), without its engine: the request models, the parsers of tool calls, and
what makes replies and chunks of a model's text. The modules that only the engine needs (torch among them) are empty here.
"""
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from unittest.mock import MagicMock

import pydantic

# Packages of which single modules are real; their own __init__ files would load torch.
OPEN = ["sglang", "sglang.srt", "sglang.srt.entrypoints", "sglang.srt.entrypoints.openai", "sglang.srt.function_call",
        "sglang.srt.parser", "sglang.srt.utils"]
REAL = ("sglang.srt.entrypoints.", "sglang.srt.function_call.", "sglang.srt.parser.", "sglang.srt.environ",
        "sglang.srt.utils.weight_versions")
MISSING = ("torch", "transformers", "xgrammar", "zmq")
STEP = 4


class Empty(types.ModuleType):
    """A module that has every name."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        # Request models have types of xgrammar in their fields.
        value = type(name, (pydantic.BaseModel,), {}) if self.__name__.startswith("xgrammar") else MagicMock()
        setattr(self, name, value)
        return value


class EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        is_engine = name.startswith("sglang.") and not name.startswith(REAL)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_engine or name.split(".")[0] in MISSING else None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


class Settings:
    """Settings of the server, all unset."""

    def __getattr__(self, name):
        return None


class Model:
    """Stands for SGLang's engine: the model writes this text, and stops for this reason."""

    tokenizer = None

    def __init__(self, text, reason):
        self.text, self.reason = text, reason

    async def generate_request(self, request, _):
        ends = [*range(STEP, len(self.text), STEP), len(self.text)] if request.stream else [len(self.text)]
        for end in ends:
            reason = {"type": self.reason} if end == len(self.text) else None
            about = {"id": "chatcmpl-1", "prompt_tokens": 100, "completion_tokens": -(-end // STEP), "cached_tokens": 0, "finish_reason": reason,
                     "weight_version": "default"}
            yield {"text": self.text[:end], "index": 0, "output_ids": [], "meta_info": about}

    def create_abort_task(self, request):
        return None


def load(package):
    """The module `serving_chat` of SGLang's package."""
    sys.meta_path.insert(0, EmptyModules())
    for name in OPEN:
        module = (Empty if name.endswith("utils") else types.ModuleType)(name)
        module.__path__ = [str(package / name.replace(".", "/"))]
        sys.modules[name] = module
    serving = importlib.import_module("sglang.srt.entrypoints.openai.serving_chat")
    serving.get_serving = Settings
    return serving


async def reply(serving, request, text, reason, parser):
    """SGLang's answer to a request whose model writes this text: a reply, or a stream of events."""
    chat = serving.OpenAIServingChat.__new__(serving.OpenAIServingChat)
    vars(chat).update(
        tokenizer_manager=Model(text, reason), template_manager=types.SimpleNamespace(force_reasoning=False), tool_call_parser=parser,
        reasoning_parser=None, is_gpt_oss=False, is_gemma4=False, is_minimax_m3=False, chat_encoding_spec=None,
        _reasoning_detector=None, _encoding_adapter=None, _response_parser=None)
    handle = chat._handle_streaming_request if request.stream else chat._handle_non_streaming_request
    return await handle(request, request, None)
