"""The goals of respool's relay, and what this run measured of each."""

from dataclasses import dataclass
from typing import Callable

from .table import Results, markdown, number

PRODUCT = "respool"


@dataclass(frozen=True)
class Target:
    goal: str
    test: str
    limit: float
    at_most: bool
    measure: Callable
    """(results, test) -> the figure to compare, or None when this run has no such figure."""

    def is_met(self, value):
        return value <= self.limit if self.at_most else value >= self.limit


def ratio(figure, base_peer="nginx"):
    return lambda results, test: results.ratio(test, PRODUCT, figure, base_peer)


def plain(figure):
    return lambda results, test: results.median(test, PRODUCT, figure)


def added(figure):
    return lambda results, test: results.added(test, PRODUCT, figure)


TARGETS = [
    Target("passthrough requests/s at 32 connections, × nginx", "small_c32", 0.8, False, ratio("rate")),
    Target("passthrough processor time per request at 32, × nginx", "small_c32", 1.5, True, ratio("cpu_us")),
    Target("OpenClaw's request: processor time, × hyper", "tools_openclaw_c8", 1.5, True, ratio("cpu_us", "hyper")),
    Target("streamed chunks/s, fields stripped, × nginx", "stream_c16", 1.4, False, ratio("rate")),
    Target("added p50 of a short reply, ms", "small_c1", 0.1, True, added("p50_ms")),
    Target("added p50 to the first event of a paced stream, ms", "stream_d10_c32", 0.1, True, added("first_p50_ms")),
    Target("memory with 1,000 slow streams, MiB", "slow_c1000", 45, True, plain("peak_pss_mb")),
    Target("memory with 9,900 slow streams, MiB", "slow_c9900", 200, True, plain("peak_pss_mb")),
    Target("start to first right reply, ms", "cold", 30, True, plain("cold_ms")),
    Target("binary, MiB", "idle", 20, True, plain("binary_mb")),
]


def target_table(records):
    """A table of the goals that this run has figures for; empty without the product."""
    results = Results(records)
    rows = [row for target in TARGETS for row in target_row(results, target)]
    return "\n".join(["\ngoals", *markdown(["goal", "limit", "measured", "met"], rows)]) if rows else ""


def target_row(results, target):
    value = target.measure(results, target.test)
    if value is None:
        return []
    limit = f"{'≤' if target.at_most else '≥'} {target.limit:g}"
    return [[target.goal, limit, number(value, 3), "yes" if target.is_met(value) else "NO"]]
