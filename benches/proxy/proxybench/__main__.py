"""Command line, and the order of the tests. See ../README.md."""

import argparse
import contextlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

from .bodies import write_bodies
from .lab import Lab, choose_cores, free_port
from .measure import Bench
from .peers import BUILDERS, DEFAULT_PEERS, Binaries, choose_peers
from .scenarios import LOADS, SLOW_STREAMS, choose_tests
from .table import render
from .targets import target_table

OPEN_FILES = 65_536
SETTLE_SECONDS = 2
"""Rest before idle memory is read."""
SLOW_START_MS = 5000
"""A peer that starts slower than this is started cold only once."""


def main():
    arguments = parse_arguments()
    load_core, proxy_core = choose_cores(arguments.cores)
    os.sched_setaffinity(0, {load_core})
    raise_open_files()
    lab = Lab(arguments.directory.resolve(), load_core, proxy_core, free_port())
    tests = choose_tests(arguments.tests)
    write_bodies(lab.folder("bodies"))
    peers = choose_peers(lab, arguments.peers.split(","), Binaries(arguments.bin, arguments.earlier, arguments.database))
    on_interrupts(leave)
    with contextlib.ExitStack() as stack:
        run = Run(lab, stack, arguments.rounds)
        run.all_tests(tests, peers)
    print(render(run.records))
    print(target_table(run.records))
    print(f"\n{run.path} ({time.monotonic() - run.started:.0f} s)")


def parse_arguments():
    parser = argparse.ArgumentParser(prog="run.sh", description="Measures proxies against nginx. See README.md.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="where setup.sh built the tools")
    parser.add_argument("--bin", help="the respool binary to measure")
    parser.add_argument("--earlier", help="another respool binary, measured beside it as the peer `earlier`")
    parser.add_argument("--database", help="an empty PostgreSQL database, for the peer `postgres`: the same binary with its store there")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tests", default="", help="names or first words, e.g. small,tools_c1,cold (default: all)")
    parser.add_argument("--peers", default=DEFAULT_PEERS, help=f"out of {','.join(BUILDERS)} (default: %(default)s)")
    parser.add_argument("--cores", help="LOAD,PROXY (default: the first two)")
    arguments = parser.parse_args()
    unknown = set(arguments.peers.split(",")) - set(BUILDERS)
    if unknown:
        parser.error(f"no peer {', '.join(unknown)}; there are: {', '.join(BUILDERS)}")
    if not (arguments.directory / "target" / "release" / "loadgen").exists():
        parser.error(f"no tools in {arguments.directory}: run setup.sh {arguments.directory} first")
    return arguments


def raise_open_files():
    """Each stream needs two sockets in the proxy."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def on_interrupts(action):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, action)


def leave(number, _frame):
    """Ends the run through the exit stack, which stops every process by its PID; a second signal cannot cut that short."""
    on_interrupts(signal.SIG_IGN)
    sys.exit(128 + number)


class Run:
    """All tests in order; keeps the records and writes each to the results file at once."""

    def __init__(self, lab, stack, rounds):
        self.started = time.monotonic()
        self.records = []
        self.path = lab.folder("results") / time.strftime("%Y%m%d-%H%M%S.jsonl")
        self._file = stack.enter_context(open(self.path, "w"))
        self._write({"arguments": sys.argv[1:], "cores": {"load": lab.load_core, "proxy": lab.proxy_core}})
        self._rounds = range(1, rounds + 1)
        self._bench = Bench(lab, stack)

    def all_tests(self, tests, peers):
        if "cold" in tests:
            self.cold_starts([peer for peer in peers if peer.argv])
        live = [peer for peer in peers if self._bench.bring_up(peer)]
        proxies = [peer for peer in live if peer.argv]
        if "idle" in tests:
            time.sleep(SETTLE_SECONDS)
            for peer in proxies:
                self.record(1, peer, "idle", self._bench.footprint(peer))
        for number in self._rounds:
            self.load_round(number, [load for load in LOADS if load.name in tests], live)
        for slow in SLOW_STREAMS:
            if slow.name in tests:
                self.slow_streams(slow, proxies)

    def cold_starts(self, peers):
        for number in self._rounds:
            for peer in list(peers):
                figures = self._bench.cold_start(peer)
                self.record(number, peer, "cold", figures)
                if (figures["cold_ms"] or SLOW_START_MS) >= SLOW_START_MS:
                    peers.remove(peer)
        self.say("cold starts")

    def load_round(self, number, loads, peers):
        for load in loads:
            for peer in peers:
                self.record(number, peer, load.name, self._bench.load(peer, load))
        if loads:
            self.say(f"round {number}")

    def slow_streams(self, slow, peers):
        for peer in peers:
            self.record(1, peer, slow.name, self._bench.slow_streams(peer, slow))
        self.say(slow.name)

    def record(self, number, peer, test, figures):
        record = {"round": number, "peer": peer.name, "test": test, **figures}
        self.records.append(record)
        self._write(record)

    def _write(self, line):
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def say(self, what):
        print(f"{time.monotonic() - self.started:4.0f} s: {what} done", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
