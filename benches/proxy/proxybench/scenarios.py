"""The tests: what is sent, by how many connections, for how long, and what counts as a right reply."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    name: str
    body: str
    kind: str
    """text, big, stream, tools or leak: decides what a right reply is."""
    connections: int
    seconds: float = 1.0
    warm: float = 0.25
    requests_each: int = 0
    """When set, every connection sends so many requests, and `seconds` and `warm` do not count."""
    ramp_ms: int = 0
    timeout: int = 10
    longest: int = 60
    """The seconds after which the whole load counts as failed."""
    tokens: int = 0
    """Content chunks of the stream that the body asks for."""

    @property
    def unit(self):
        return "chunk" if self.kind == "stream" else "reply"


LOADS = [
    Scenario("small_c1", "small", "text", 1),
    Scenario("small_c32", "small", "text", 32),
    Scenario("small_c256", "small", "text", 256, seconds=1.3, warm=0.5),
    Scenario("big_c8", "big", "big", 8),
    Scenario("stream_c1", "stream_200", "stream", 1, tokens=200),
    Scenario("stream_c16", "stream_200", "stream", 16, seconds=1.3, tokens=200),
    Scenario("stream_d10_c32", "stream_200_paced", "stream", 32, requests_each=1, ramp_ms=200, tokens=200),
    Scenario("tools_c1", "tools_small", "tools", 1),
    Scenario("tools_c16", "tools_small", "tools", 16),
    Scenario("tools_openclaw_c1", "tools_openclaw", "tools", 1),
    Scenario("tools_openclaw_c8", "tools_openclaw", "tools", 8),
    Scenario("leak_c16", "leak", "leak", 16),
]
SLOW_STREAMS = [
    Scenario("slow_c1000", "stream_100_slow", "stream", 1000, requests_each=1, ramp_ms=1500, timeout=20, tokens=100),
    # As many as 20,000 open files allow: each takes two in the proxy.
    Scenario("slow_c9900", "stream_20_slower", "stream", 9900, requests_each=1, ramp_ms=8000, timeout=50, tokens=20),
]
VLLM_FIELDS = ['"token_ids"', '"stop_reason"', '"prompt_token_ids"', '"kv_transfer_params"']
"""Some of those the mock sends, as they stand in a reply that was not stripped."""
LONGEST_TEST = "slow_c9900"
TEST_NAMES = ["cold", "idle", *(load.name for load in [*LOADS, *SLOW_STREAMS])]


def choose_tests(wanted):
    """Test names for "small,leak_c16": a name, or the first word of several. Empty: all but the longest."""
    if not wanted:
        return [name for name in TEST_NAMES if name != LONGEST_TEST]
    words = wanted.split(",")
    for word in words:
        if not any(is_meant(name, word) for name in TEST_NAMES):
            raise SystemExit(f"no test {word!r}; there are: {' '.join(TEST_NAMES)}")
    return [name for name in TEST_NAMES if any(is_meant(name, word) for word in words)]


def is_meant(name, word):
    return name == word or name.startswith(word + "_")


def expectations(scenario, peer, native_events):
    """Flags of loadgen that say what a right reply through this peer is.

    `native_events`: SSE events in the mock's own reply, which a peer that relays chunks has to deliver, all of them.
    """
    flags = ["--must-not", forbidden_texts(scenario, peer)]
    if scenario.kind == "text":
        return flags + ["--must", "How can I help you today?"]
    if scenario.kind == "big":
        return flags + ["--min-bytes", 65536]
    flags += ["--sse", 1]
    if peer.relays_chunks:
        flags += ["--events", native_events]
    if scenario.kind == "stream":
        return flags + ["--tokens", scenario.tokens]
    if scenario.kind == "leak" and not peer.extracts_calls:
        return flags + ["--must", "<tools>"]
    if scenario.kind == "leak":
        return flags + ["--must", '"web_search"|"tool_calls"']
    return flags + ["--must", '"web_search"|"read"|"tool_calls"']


def forbidden_texts(scenario, peer):
    """What a right reply through this peer never holds, separated by `|`."""
    leaks = scenario.kind == "tools" or (scenario.kind == "leak" and peer.extracts_calls)
    return "|".join([*(["<tools>"] if leaks else []), *(VLLM_FIELDS if peer.strips_fields else [])])
