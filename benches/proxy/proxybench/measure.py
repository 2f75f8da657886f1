"""Runs one test against one peer and puts its figures together."""

import json
import os
import resource
import subprocess
import time

from . import http_calls
from .processes import PinnedProcess, machine_cpu_seconds, pinned, wait_until_quiet
from .scenarios import expectations

MEMORY_SAMPLE_SECONDS = 0.25
WARM_UP_REQUESTS = 20


class Bench:
    """The mock, and the peers in front of it."""

    def __init__(self, lab, stack):
        self.lab = lab
        self._stack = stack
        self._running = {}
        self._native_events = {}
        self._mock = self._start_mock()

    def _start_mock(self):
        argv = [self.lab.tool("mock-upstream"), "--port", self.lab.mock_port]
        mock = self._start(argv, self.lab.load_core, "mock-upstream")
        while mock.is_running():
            try:
                http_calls.mock_statistics(self.lab.mock_port)
                return mock
            except OSError:
                time.sleep(0.01)
        raise SystemExit(f"the mock did not start, see {mock.log}")

    def _start(self, argv, core, name, env=None):
        log = self.lab.folder("logs") / f"{name}.log"
        process = PinnedProcess(argv, core, log, self.lab.folder("run"), env)
        self._stack.callback(process.stop)
        return process

    def body(self, name):
        return (self.lab.folder("bodies") / f"{name}.json").read_bytes()

    def cold_start(self, peer):
        """Milliseconds from the start of the process to its first right reply; the process is stopped again."""
        wait_until_quiet()
        process, milliseconds = self._start_peer(peer)
        process.stop()
        return {"cold_ms": milliseconds}

    def _start_peer(self, peer):
        process = self._start(peer.argv, self.lab.proxy_core, peer.name, peer.env)
        return process, http_calls.wait_until_ready(peer, process, self.body("small"))

    def bring_up(self, peer):
        """Starts a peer for the load tests; false, with the end of its log, when it does not come up."""
        if peer.argv is None:
            return True
        process, milliseconds = self._start_peer(peer)
        if milliseconds is None:
            print(f"{peer.name}: skipped, did not start\n{log_end(process.log)}", flush=True)
            process.stop()
            return False
        self._running[peer.name] = process
        for _ in range(WARM_UP_REQUESTS):
            http_calls.chat(peer.port, self.body("small"), peer.key)
        return True

    def pids(self, peer):
        """The processes of a peer that is up."""
        return self._running[peer.name].pids()

    def footprint(self, peer):
        """Memory after the warm-up and a rest, and the size of the program's file."""
        return {"idle_pss_mb": self._running[peer.name].pss_mb(), "binary_mb": round(file_megabytes(peer.argv[0]), 2)}

    def slow_streams(self, peer, scenario):
        """A load with memory samples. `at_once`: the most streams that the mock had open at one time."""
        http_calls.mock_statistics(self.lab.mock_port, reset=True)
        figures = self.load(peer, scenario, samples_memory=True)
        figures["at_once"] = http_calls.mock_statistics(self.lab.mock_port)["max_active"]
        return figures

    def load(self, peer, scenario, samples_memory=False):
        process = self._running.get(peer.name)
        wait_until_quiet()
        before = self._cpu_clocks(process)
        child = subprocess.Popen(self._loadgen(peer, scenario), stdout=subprocess.PIPE, text=True)
        try:
            peak = sample_peak_pss(process, child) if samples_memory else None
            report = child.communicate(timeout=scenario.longest)[0]
        finally:
            child.kill()
            child.wait()
        after = self._cpu_clocks(process)
        figures = json.loads(report)
        figures.update(rates(figures, scenario), **cpu_figures(before, after, figures, scenario))
        return {**figures, "peak_pss_mb": peak} if samples_memory else figures

    def _loadgen(self, peer, scenario):
        flags = {"port": peer.port, "auth": peer.key, "body": self.lab.folder("bodies") / f"{scenario.body}.json",
                 "connections": scenario.connections, "seconds": scenario.seconds, "warm": scenario.warm,
                 "ramp-ms": scenario.ramp_ms, "timeout": scenario.timeout}
        if scenario.requests_each:
            flags["requests-each"] = scenario.requests_each
        argv = [self.lab.tool("loadgen")]
        for name, value in flags.items():
            argv += [f"--{name}", value]
        return pinned(argv + expectations(scenario, peer, self._events_of(scenario)), self.lab.load_core)

    def _events_of(self, scenario):
        """SSE events of the mock's own reply: role, content and finish of a stream; tool replies are counted once."""
        if scenario.kind == "stream":
            return scenario.tokens + 2
        if scenario.body not in self._native_events:
            self._native_events[scenario.body] = http_calls.count_events(self.lab.mock_port, self.body(scenario.body))
        return self._native_events[scenario.body]

    def _cpu_clocks(self, process):
        own = sum(os.times()[:2])
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        loadgen = children.ru_utime + children.ru_stime
        proxy = process.cpu_seconds() if process else 0.0
        known = proxy + self._mock.cpu_seconds() + own + loadgen
        return {"at": time.monotonic(), "proxy": proxy, "foreign": machine_cpu_seconds() - known}


def sample_peak_pss(process, child):
    """The largest memory use seen until `child` has ended."""
    peak = 0.0
    while child.poll() is None:
        peak = max(peak, process.pss_mb())
        time.sleep(MEMORY_SAMPLE_SECONDS)
    return peak


def rates(figures, scenario):
    count = figures["measured_chunks" if scenario.unit == "chunk" else "measured"]
    return {"unit": scenario.unit, "rate": round(count / figures["seconds"], 1)}


def cpu_figures(before, after, figures, scenario):
    """CPU time of the proxy for each reply or chunk, and how many cores others kept busy meanwhile."""
    elapsed = after["at"] - before["at"]
    served = figures["served_chunks" if scenario.unit == "chunk" else "served"]
    proxy_seconds = after["proxy"] - before["proxy"]
    return {
        "cpu_us": round(proxy_seconds * 1e6 / served, 3) if served and proxy_seconds else None,
        "proxy_cores": round(proxy_seconds / elapsed, 3),
        "foreign_cores": round(max(0.0, after["foreign"] - before["foreign"]) / elapsed, 2),
    }


def file_megabytes(path):
    return os.path.getsize(path) / 2**20


def log_end(path, lines=8):
    return "\n".join("    " + line for line in path.read_text(errors="replace").splitlines()[-lines:])
