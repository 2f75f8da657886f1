"""Prints the tables of one or more results files: python3 -m proxybench.table DIR/results/*.jsonl

Ratios are taken inside a round, against nginx in that round; every figure is the median over the rounds.
"""

import json
import sys
from statistics import median

from .peers import BUILDERS

BASELINE = "nginx"
PLURAL = {"reply": "replies", "chunk": "chunks"}
FOOTPRINT_HEAD = ["peer", "cold ms", "× nginx", "idle PSS MB", "× nginx", "binary MB"]
SLOW_HEAD = ["peer", "peak PSS MB", "× nginx", "at once", "CPU µs/chunk", "failed"]


class Results:
    """Records by test, in the order in which they came, and peer."""

    def __init__(self, records):
        self._records = [record for record in records if "test" in record]
        self.peers = sorted({record["peer"] for record in self._records}, key=list(BUILDERS).index)
        self.tests = list(dict.fromkeys(record["test"] for record in self._records))

    def of(self, test, peer):
        return [record for record in self._records if (record["test"], record["peer"]) == (test, peer)]

    def median(self, test, peer, figure):
        return median_or_none([record.get(figure) for record in self.of(test, peer)])

    def ratio(self, test, peer, figure, base_peer=BASELINE):
        """Median of figure(peer) / figure(base_peer) over the rounds that have both."""
        return self._against(test, peer, base_peer, figure, lambda own, base: own / base if base else None)

    def added(self, test, peer, figure):
        """Median of figure(peer) - figure(direct) over the rounds that have both."""
        return self._against(test, peer, "direct", figure, lambda own, base: own - base)

    def _against(self, test, peer, base_peer, figure, combine):
        base = {record["round"]: record.get(figure) for record in self.of(test, base_peer)}
        pairs = [(record.get(figure), base.get(record["round"])) for record in self.of(test, peer)]
        return median_or_none([combine(own, other) for own, other in pairs if None not in (own, other)])

    def failed(self, test, peer):
        return sum(record["failed"] for record in self.of(test, peer) if "failed" in record)


def median_or_none(values):
    present = [value for value in values if value is not None]
    return median(present) if present else None


def load_table(results, test):
    records = [record for peer in results.peers for record in results.of(test, peer)]
    unit = records[0]["unit"]
    peers = [peer for peer in results.peers if results.of(test, peer)]
    columns = list(zip(*(load_row(results, test, peer, unit) for peer in peers)))
    head = [column[0][0] for column in columns]
    rows = zip(*([cell for _title, cell in column] for column in columns))
    return [f"\n{test} (rounds: {len({record['round'] for record in records})})", *markdown(head, list(rows))]


def load_row(results, test, peer, unit):
    """(title, cell) of each column."""
    figure = lambda name: number(results.median(test, peer, name))
    ratio = lambda name: number(results.ratio(test, peer, name), 3)
    gap = [("gap p99", figure("gap_p99_ms"))] if unit == "chunk" else []
    return [
        ("peer", peer), (PLURAL[unit] + "/s", figure("rate")), ("× direct", number(results.ratio(test, peer, "rate", "direct"), 3)),
        ("× nginx", ratio("rate")),
        ("p50 ms", figure("p50_ms")), ("p99 ms", figure("p99_ms")),
        ("added p50", number(results.added(test, peer, "p50_ms"))),
        ("first p50", figure("first_p50_ms")), ("first p99", figure("first_p99_ms")),
        ("added first p50", number(results.added(test, peer, "first_p50_ms"))),
        ("added first p99", number(results.added(test, peer, "first_p99_ms"))), *gap,
        (f"CPU µs/{unit}", figure("cpu_us")), ("× nginx", ratio("cpu_us")),
        ("× hyper", number(results.ratio(test, peer, "cpu_us", "hyper"), 3)),
        ("failed", str(results.failed(test, peer))), ("foreign", figure("foreign_cores")),
    ]


def footprint_table(results):
    peers = [peer for peer in results.peers if peer != "direct"]
    lines = []
    if any(test in ("cold", "idle") for test in results.tests):
        lines += ["\nstart and memory", *markdown(FOOTPRINT_HEAD, [footprint_row(results, peer) for peer in peers])]
    for test in results.tests:
        if test.startswith("slow_"):
            lines += [f"\n{test}", *markdown(SLOW_HEAD, [slow_row(results, test, peer) for peer in peers])]
    return lines


def is_footprint(test):
    return test in ("cold", "idle") or test.startswith("slow_")


def footprint_row(results, peer):
    return [peer, *with_ratio(results, "cold", peer, "cold_ms"), *with_ratio(results, "idle", peer, "idle_pss_mb"),
            number(results.median("idle", peer, "binary_mb"))]


def slow_row(results, test, peer):
    return [peer, *with_ratio(results, test, peer, "peak_pss_mb"), number(results.median(test, peer, "at_once")),
            number(results.median(test, peer, "cpu_us")), str(results.failed(test, peer))]


def with_ratio(results, test, peer, name):
    return [number(results.median(test, peer, name)), number(results.ratio(test, peer, name), 3)]


def failure_lines(results):
    """What went wrong, one line for each peer and test, with the first wrong reply."""
    lines = []
    for test in results.tests:
        for peer in results.peers:
            wrong = [record for record in results.of(test, peer) if record.get("failed")]
            if wrong:
                lines.append(f"FAILED {peer} {test}: {wrong[0]['failures']} {wrong[0]['first_failure']!r}")
    return lines


def markdown(head, rows):
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    line = lambda cells: "| " + " | ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]) + " |"
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return [line(head), rule, *map(line, rows)]


def number(value, decimals=None):
    if value is None:
        return "–"
    if decimals is None:
        decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{decimals}f}"


def render(records):
    results = Results(records)
    lines = footprint_table(results)
    for test in results.tests:
        if not is_footprint(test):
            lines += load_table(results, test)
    return "\n".join([*lines, "", *failure_lines(results)])


def read_records(paths):
    for path in paths:
        with open(path) as lines:
            yield from map(json.loads, lines)


if __name__ == "__main__":
    print(render(read_records(sys.argv[1:])))
