"""Holds what the agent told of its commands against script.json."""

import json
import sys
from pathlib import Path

script = json.loads(Path(__file__).with_name("script.json").read_text())
results = json.loads(Path(sys.argv[1]).read_text())
wrong = [f"{len(script)} commands, {len(results)} results"] if len(script) != len(results) else []
for step, result in zip(script, results):
    missing = [text for text in step.get("has", []) if text not in result]
    leaked = [text for text in step.get("lacks", []) if text in result]
    if missing or leaked:
        wrong.append(f"{step['command']}\n  lacks {missing}, has {leaked}:\n{result}")
if wrong:
    sys.exit("\n".join(wrong))
