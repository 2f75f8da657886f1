"""Runs checks one after another and prints a table of what came out. `ONLY=REGEX` picks some by their names."""

import os
import re
import time


def run(title, checks):
    """`checks`: functions, each with whether it is to stream. True when one failed, or none was chosen."""
    chosen = [(check, stream) for check, stream in checks if re.search(os.environ.get("ONLY", ""), check.__name__)]
    failed = 0
    print(f"\n| {title} | stream | verdict | seconds |\n|---|---|---|---|")
    for check, stream in chosen:
        started = time.monotonic()
        try:
            check(stream)
            verdict = "pass"
        except Exception as error:  # the next check must run all the same
            failed += 1
            verdict = f"FAIL {type(error).__name__}: {error}".replace("|", "/").replace("\n", " ")[:500]
        print(f"| {check.__name__} | {str(stream).lower()} | {verdict} | {time.monotonic() - started:.1f} |", flush=True)
    print(f"\n{failed} of {len(chosen)} failed" if failed else f"\nall {len(chosen)} passed")
    return bool(failed) or not chosen
