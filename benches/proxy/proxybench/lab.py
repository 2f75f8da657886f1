"""Where things are: the kit's own files, what setup.sh built, and what this run writes."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

KIT = Path(__file__).resolve().parent.parent
FIXTURES = KIT.parent.parent / "fixtures"


@dataclass(frozen=True)
class Lab:
    directory: Path
    load_core: int
    proxy_core: int
    mock_port: int

    def tool(self, name):
        """Path of one of the Rust tools."""
        return self.directory / "target" / "release" / name

    def folder(self, name):
        """A folder of this run (bodies, run, logs, results), made when missing."""
        path = self.directory / name
        path.mkdir(parents=True, exist_ok=True)
        return path


def choose_cores(wanted):
    """Two cores, (load, proxy): those in "0,1", or the first two this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    named = {str(core): core for core in allowed}
    cores = [named.get(core) for core in wanted.split(",")] if wanted else allowed[:2]
    if len(set(cores)) != 2 or len(cores) != 2 or None in cores:
        raise SystemExit(f"needs two different cores out of {allowed}, got {wanted or allowed}")
    return cores[0], cores[1]


def free_port():
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
