"""The dashboard as Grafana's own model reads it: nothing is lost, and every metric that it asks for is one of respool's."""
import json
import pathlib
import re
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

written = json.loads(pathlib.Path(sys.argv[1]).read_text())
read = json.loads(json.dumps(Dashboard.from_json(written), cls=JSONEncoder))


def lost(before, after, path=""):
    if isinstance(before, dict):
        for name, value in before.items():
            here = f"{path}.{name}"
            if not isinstance(after, dict) or name not in after:
                yield here
            else:
                yield from lost(value, after[name], here)
    elif isinstance(before, list):
        for number, value in enumerate(before):
            if not isinstance(after, list) or number >= len(after):
                yield f"{path}[{number}]"
            else:
                yield from lost(value, after[number], f"{path}[{number}]")
    elif before != after:
        yield f"{path}: {before!r} became {after!r}"


# Queries are a data source's own business, which the model carries without knowing them.
missing = [path for path in lost(written, read) if ".targets[" not in path]
known = set(re.findall(r'"(respool_[a-z_]+)"', "\n".join(p.read_text() for p in pathlib.Path("crates").rglob("*.rs"))))
texts = [pathlib.Path(sys.argv[1]).read_text(), *(p.read_text() for p in pathlib.Path("deploy/prometheus").glob("*.yml"))]
asked = set(re.findall(r"\brespool_[a-z_]+", "\n".join(texts)))
unknown = {name for name in asked if name not in known and re.sub(r"_(bucket|sum|count)$", "", name) not in known}
for what, found in (("Grafana does not know", missing), ("respool has no metric", sorted(unknown))):
    if found:
        sys.exit(f"{what}: {', '.join(found)}")
print(f"the dashboard is Grafana's: {len(written['panels'])} panels, {len(asked)} metrics, all there")
