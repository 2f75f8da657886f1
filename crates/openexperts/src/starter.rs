//! A small package that loads, for an author to change.

/// Returns the files of a new package of this name, with their paths. `has_tool`: with a tool, a webhook and
/// an approval.
pub fn package_files(name: &str, has_tool: bool) -> impl Iterator<Item = (&'static str, String)> {
    let files = if has_tool { FILES_WITH_TOOL } else { FILES };
    files.into_iter().map(move |(path, text)| (path, text.replace("NAME", name)))
}

/// The files of a new package. `NAME` stands for its name.
const FILES: [(&str, &str); 7] = [
    (
        "expert.yaml",
        "# docs/experts-reference.md has every field of this file.
spec: \"1.0\"
name: NAME
version: \"0.1.0\"
description: Answers questions, and reports once a day what was asked

components:
  orchestrator: orchestrator.md
  persona: [persona/identity.md]
  functions: [functions/answer.md]
  processes: [processes/report.md]
  state: [state/questions.md]

# The process `report` starts every working day at eight. Times without `tz` are UTC.
triggers:
  - name: morning
    type: cron
    expr: \"0 8 * * 1-5\"
    process: report
",
    ),
    (
        "README.md",
        "# NAME

Answers questions, and reports every working day what was asked. It needs no tools.
",
    ),
    (
        "orchestrator.md",
        "- A question is answered with the function `answer`.
- Every working day at eight, the process `report` runs.
- Anything else goes back to the main agent with a sentence that says why.
",
    ),
    (
        "persona/identity.md",
        "You are NAME. You are exact, brief and friendly. You say what you do not know.\n",
    ),
    (
        "functions/answer.md",
        "---
name: answer
description: Answers a question
---

Answer in at most five sentences. Then add a line with the question to `state/questions.md`.
",
    ),
    (
        "processes/report.md",
        "---
name: report
description: Says what was asked since the last report
trigger: morning
context: [state/questions.md]
---

- [ ] Read `state/questions.md`.
- [ ] Name the questions that came up most, in one sentence each.
- [ ] Empty the list in `state/questions.md`.
",
    ),
    ("state/questions.md", "# Questions since the last report\n"),
];

/// The files of a new package with a tool, a webhook and an approval.
const FILES_WITH_TOOL: [(&str, &str); 7] = [
    (
        "expert.yaml",
        "# docs/experts-reference.md has every field of this file.
spec: \"1.0\"
name: NAME
version: \"0.1.0\"
description: Takes orders, and enters them after a person has approved

# The tool that it needs. `respool expert bind NAME shelf --type local`, or an MCP server's name for
# `--type local`, says which of yours it is.
requires:
  tools: [shelf]

policy:
  approval:
    overrides:
      shelf.read: auto # runs
      shelf.write: confirm # a person is asked first

# `respool expert show NAME` names the hook's address and its secret.
triggers:
  - name: order
    type: webhook
    process: enter-order
    dedupe_key: order_id # the same order twice is one event
    concurrency: serial # one order at a time: each rewrites the list
    payload_mapping: {item: item, customer: customer}

components:
  orchestrator: orchestrator.md
  persona: [persona/identity.md]
  functions: [functions/find-item.md]
  processes: [processes/enter-order.md]
  tools: [tools/shelf.yaml]
",
    ),
    (
        "README.md",
        "# NAME

Takes orders from a webhook, and enters each in a list after a person has approved. It needs a tool with the
operations of `tools/shelf.yaml`.
",
    ),
    (
        "orchestrator.md",
        "- An order starts the process `enter-order`.
- A question about an item is answered with the function `find-item`.
- Anything else goes back to the main agent with a sentence that says why.
",
    ),
    (
        "persona/identity.md",
        "You are NAME. You are exact, brief and friendly. You say what you do not know.\n",
    ),
    (
        "functions/find-item.md",
        "---
name: find-item
description: Finds an item on the shelves
tools: [shelf]
---

Look the item up in `shelf.md` with `shelf.read`. Say on which shelf it is.
",
    ),
    (
        "processes/enter-order.md",
        "---
name: enter-order
description: From an order to an entry in the list of orders
trigger: order
inputs:
  - {name: item, type: string}
  - {name: customer, type: string}
outputs:
  - {name: shelf, type: string}
functions: [find-item]
tools: [shelf]
---

- [ ] Find the item with `find-item`.
- [ ] Read the list `orders.md` with `shelf.read`; before the first order it does not exist.
- [ ] Write the whole list with a new line for item, shelf and customer, with `shelf.write`.
",
    ),
    (
        "tools/shelf.yaml",
        "name: shelf
description: The list of items and the list of orders
operations:
  - {name: read, description: Reads a file}
  - {name: write, description: Writes a file in the place of the old one}
",
    ),
];
