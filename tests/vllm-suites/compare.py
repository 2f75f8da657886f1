"""Compares the outcome of vLLM's tests with what is expected: compare.py expected.toml outcomes.json [whole]. Prints what differs, and the numbers.

`whole`: all tests ran, so a line of expected.toml that no test needs is wrong too.
"""
import fnmatch
import json
import sys
import tomllib


def matches(test, pattern):
    # A test's parameters stand in brackets, which a pattern takes literally.
    return fnmatch.fnmatchcase(test, pattern.replace("[", "[[]"))


def main(expected_path, outcomes_path, extent=""):
    with open(expected_path, "rb") as file:
        expected = tomllib.load(file)
    with open(outcomes_path) as file:
        found = json.load(file)
    counts, wrong, used = {"passed": 0, "skipped": 0, "differs": 0}, [], set()
    for test, outcome in sorted(found["outcomes"].items()):
        name = test.removeprefix("tests/").removeprefix("entrypoints/")
        group = {"failed": "differs", "skipped": "skipped"}.get(outcome)
        patterns = [pattern for pattern in expected.get(group, ()) if matches(name, pattern)]
        used.update((group, pattern) for pattern in patterns)
        if group is None:
            counts["passed"] += 1
        elif patterns:
            counts[group] += 1
        else:
            wrong.append(f"{outcome}, which is not expected: {name}\n    {found['reasons'].get(test, '')}")
    if extent == "whole":
        lines = [(group, pattern) for group in expected for pattern in expected[group]]
        wrong += [f"no test needs this line of expected.toml any more: {pattern} ({group})" for group, pattern in lines if (group, pattern) not in used]
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()) + f", of {len(found['outcomes'])}")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong or not found["outcomes"] else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
