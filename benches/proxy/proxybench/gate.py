"""`just bench-gate BASE`: does the working tree cost more for each request than the commit BASE? See ../README.md.

Instructions decide. Processor time is shown beside them, because it has what instructions leave out (the kernel, the caches), but it
depends on the machine's load.
"""

import argparse
import contextlib
import os
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

from . import builds
from .__main__ import leave, on_interrupts, raise_open_files
from .bodies import write_bodies
from .builds import CannotMeasure
from .instructions import LOADS, count_instructions, under_callgrind
from .lab import Lab, choose_cores, free_port
from .measure import Bench
from .peers import serving
from .scenarios import LOADS as TIMED_LOADS

TIMED = {"small": "small_c32", "tools": "tools_c16", "leak": "leak_c16", "openclaw": "tools_openclaw_c8", "chunk": "stream_c16"}
LIMIT = 0.03
TOO_EXPENSIVE, NO_RESULT = 1, 2


@dataclass
class Samples:
    """The figures of one test, one for each round."""

    base: list = field(default_factory=list)
    new: list = field(default_factory=list)

    def medians(self):
        return statistics.median(self.base), statistics.median(self.new)

    def change(self):
        """0.05: the new commit costs 5 % more."""
        base, new = self.medians()
        return new / base - 1

    def spread(self):
        """How far the rounds of the same build lie apart, at most."""
        return max((max(values) - min(values)) / statistics.median(values) for values in (self.base, self.new))


def main():
    arguments = parse_arguments()
    try:
        sys.exit(judge(arguments))
    # A starved program that answers too late is no result either.
    except (CannotMeasure, OSError) as reason:
        print(f"bench-gate: {reason}", file=sys.stderr)
        sys.exit(NO_RESULT)


def parse_arguments():
    parser = argparse.ArgumentParser(prog="gate.sh", description="Compares what a request costs with an earlier commit.")
    parser.add_argument("base", metavar="BASE", help="the commit to compare with")
    parser.add_argument("--new", metavar="COMMIT", help="the commit to judge (default: the files as they are now)")
    parser.add_argument("--directory", type=Path, required=True, help="where the builds, the tools and the logs are")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-time", action="store_true", help="count instructions only")
    parser.add_argument("--cores", help="LOAD,PROXY (default: the first two)")
    return parser.parse_args()


def judge(arguments):
    base = builds.find_commit(arguments.base)
    new = builds.find_commit(arguments.new) if arguments.new else builds.snapshot()
    directory = arguments.directory.resolve()
    programs = {"base": builds.build(base, directory), "new": builds.build(new, directory)}
    load_core, proxy_core = choose_cores(arguments.cores)
    os.sched_setaffinity(0, {load_core})
    raise_open_files()
    lab = Lab(directory, load_core, proxy_core, free_port())
    write_bodies(lab.folder("bodies"))
    on_interrupts(leave)
    instructions = sample(lab, programs, arguments.rounds, counted)
    seconds = {} if arguments.no_time else sample(lab, programs, arguments.rounds, timed)
    print(table(base, new, instructions, seconds))
    return TOO_EXPENSIVE if too_expensive(instructions) else 0


def sample(lab, programs, rounds, method):
    """Samples by test. The builds take turns within a round."""
    samples = {name: Samples() for name in LOADS}
    with contextlib.ExitStack() as stack:
        bench = Bench(lab, stack)
        peers = [serving(name, lab, program) for name, program in programs.items()]
        measure = method(bench, peers)
        for peer in peers:
            if not bench.bring_up(peer):
                raise CannotMeasure(f"{peer.name} does not start: see above")
        for _ in range(rounds):
            for name, figures in samples.items():
                for peer in peers:
                    getattr(figures, peer.name).append(measure(peer, name))
    return samples


def counted(bench, peers):
    for peer in peers:
        under_callgrind(peer, bench.lab)
    return lambda peer, name: count_instructions(bench, peer, name)


def timed(bench, _peers):
    loads = {load.name: load for load in TIMED_LOADS}
    return lambda peer, name: processor_time(bench, peer, loads[TIMED[name]])


def processor_time(bench, peer, load):
    figures = bench.load(peer, load)
    if figures["failed"] or not figures["cpu_us"]:
        raise CannotMeasure(f"{load.name} through {peer.name}: {figures['failed']} wrong replies: {figures}")
    return figures["cpu_us"]


def too_expensive(instructions):
    return [name for name, figures in instructions.items() if figures.change() > LIMIT]


def table(base, new, instructions, seconds):
    """At most 72 columns, for a commit message."""
    lines = [f"bench-gate {base.short}..{new.short}, instructions per request (limit {LIMIT:+.0%}):"]
    for name, figures in instructions.items():
        before, after = figures.medians()
        line = f"  {name:9}{before:10,.0f}{after:10,.0f}  {figures.change():+6.1%} ±{figures.spread() / 2:.1%}"
        lines.append(line + (time_columns(seconds[name]) if seconds else ""))
    failed = too_expensive(instructions)
    return "\n".join([*lines, f"too expensive: {', '.join(failed)}" if failed else "passed"])


def time_columns(figures):
    before, after = figures.medians()
    return f" | CPU {before:6.1f}{after:6.1f} µs ±{figures.spread() / 2:.0%}"


if __name__ == "__main__":
    main()
