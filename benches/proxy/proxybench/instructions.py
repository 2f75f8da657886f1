"""Counts the instructions that a proxy executes in user space for each request, by running it under callgrind.

The count does not depend on the machine's load. Start-up is not in it: callgrind writes its counters and sets them to zero before and
after each load.
"""

import re
import shutil
import subprocess
import time

from .builds import CannotMeasure
from .scenarios import Scenario

PATIENT = {"timeout": 60, "longest": 900}
"""Callgrind takes fifty times as long, and on a busy machine longer. That does not change the count."""
LOADS = {
    "small": (Scenario("count_small", "small", "text", 1, requests_each=500, **PATIENT), 1),
    "tools": (Scenario("count_tools", "tools_small", "tools", 1, requests_each=500, **PATIENT), 1),
    "leak": (Scenario("count_leak", "leak", "leak", 1, requests_each=500, **PATIENT), 1),
    "openclaw": (Scenario("count_openclaw", "tools_openclaw", "tools", 1, requests_each=250, **PATIENT), 1),
    "chunk": (Scenario("count_chunk", "stream_200", "stream", 1, requests_each=40, tokens=200, **PATIENT), 200),
}
"""By name: what is sent, and in how many units (replies or chunks) one request's instructions are divided."""
START_SECONDS = 180
DUMP_SECONDS = 60


def under_callgrind(peer, lab):
    """The same peer as a guest of callgrind."""
    if not shutil.which("valgrind"):
        raise CannotMeasure("valgrind is not installed: `apt install valgrind`")
    peer.argv = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={counter_file(peer, lab)}", *peer.argv]
    peer.start_seconds = START_SECONDS
    return peer


def count_instructions(bench, peer, name):
    """Instructions for each reply (or chunk) of the load of this name."""
    load, units = LOADS[name]
    take_counters(bench, peer)
    try:
        figures = bench.load(peer, load)
    except subprocess.TimeoutExpired as late:
        raise CannotMeasure(f"{name} through {peer.name}: no end within {late.timeout} s") from None
    if figures["failed"] or figures["served"] != load.requests_each:
        raise CannotMeasure(f"{name} through {peer.name}: {figures['failed']} wrong replies: {figures}")
    return take_counters(bench, peer) / load.requests_each / units


def take_counters(bench, peer):
    """Instructions since the last call."""
    (pid,) = bench.pids(peer)
    answer = subprocess.run(["callgrind_control", "--dump", str(pid)], capture_output=True, text=True)
    # On a busy machine callgrind writes later than its control program ends.
    until = time.monotonic() + DUMP_SECONDS
    while not (totals := read_counters(peer, bench.lab)):
        if time.monotonic() > until:
            raise CannotMeasure(f"callgrind wrote no counters for process {pid}: {answer.stdout}{answer.stderr}")
        time.sleep(0.2)
    return sum(totals)


def read_counters(peer, lab):
    """The totals of callgrind's files, which are removed; none while one of them is being written."""
    files = list(counter_file(peer, lab).parent.glob(counter_file(peer, lab).name + ".*"))
    totals = [re.findall(r"^totals: (\d+)", file.read_text(), re.MULTILINE) for file in files]
    if not all(totals):
        return []
    for file in files:
        file.unlink()
    return [int(total) for found in totals for total in found]


def counter_file(peer, lab):
    return lab.folder("run") / f"callgrind.{peer.name}"
