"""`history.sh COMMIT…`: the instructions that a request costs at each of these commits. See ../README.md.

The name of a reference peer (`hyper`, `hyper-log`, …) may stand in place of a commit.
"""

import argparse
import contextlib
import os
import shutil
from pathlib import Path

from . import builds
from .__main__ import leave, on_interrupts, raise_open_files
from .bodies import write_bodies
from .builds import CannotMeasure
from .instructions import LOADS, count_instructions, under_callgrind
from .lab import Lab, choose_cores, free_port
from .measure import Bench
from .peers import BUILDERS, serving


def main():
    arguments = parse_arguments()
    directory = arguments.directory.resolve()
    raise_open_files()
    on_interrupts(leave)
    cores = os.sched_getaffinity(0)
    print(f"{'commit':12}" + "".join(f"{name:>10}" for name in LOADS), flush=True)
    for name in arguments.commits:
        try:
            os.sched_setaffinity(0, cores)
            if name in BUILDERS:
                print(row(name, BUILDERS[name], directory), flush=True)
                continue
            commit = builds.find_commit(name)
            program = builds.build(commit, directory)
            if not arguments.build_only:
                print(row(commit.short, lambda lab, _: serving("history", lab, program), directory), flush=True)
        except CannotMeasure as reason:
            print(f"{name:12}  {reason}", flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(prog="history.sh", description="Counts what a request costs at each commit.")
    parser.add_argument("commits", metavar="COMMIT", nargs="+")
    parser.add_argument("--directory", type=Path, required=True, help="where the builds, the tools and the logs are")
    parser.add_argument("--build-only", action="store_true", help="build what is missing and count nothing")
    return parser.parse_args()


def row(title, make_peer, directory):
    """One line: the instructions of each load, or a dash where the program answers it wrongly."""
    load_core, proxy_core = choose_cores(None)
    os.sched_setaffinity(0, {load_core})
    lab = Lab(directory, load_core, proxy_core, free_port())
    write_bodies(lab.folder("bodies"))
    # A store of a later commit cannot be opened by an earlier one.
    shutil.rmtree(lab.folder("run") / "history", ignore_errors=True)
    with contextlib.ExitStack() as stack:
        bench = Bench(lab, stack)
        peer = under_callgrind(make_peer(lab, None), lab)
        if not bench.bring_up(peer):
            raise CannotMeasure("does not start: see above")
        return f"{title:12}" + "".join(column(bench, peer, name) for name in LOADS)


def column(bench, peer, name):
    try:
        return f"{count_instructions(bench, peer, name):10,.0f}"
    except CannotMeasure as reason:
        print(f"{name}: {reason}", flush=True)
        return f"{'-':>10}"


if __name__ == "__main__":
    main()
