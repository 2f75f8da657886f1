//! `respool expert new`: writes a small package that loads, for an author to change.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::cli::failure::Failure;
use crate::cli::say::say;
use openexperts::name::{self, NameKind};

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

/// Writes a new package into `folder`, or into a folder with the package's name.
pub(super) fn write_package(name: &str, folder: Option<PathBuf>, has_tool: bool) -> Result<(), Failure> {
    name::check_name(name, NameKind::Package)
        .map_err(|why| format!("{name:?} cannot be the name of an expert: {why}"))?;
    let folder = folder.unwrap_or_else(|| PathBuf::from(name));
    if folder.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(format!("{} is not empty: name another folder with --folder", folder.display()).into());
    }
    for (file, text) in if has_tool { FILES_WITH_TOOL } else { FILES } {
        let file = folder.join(file);
        write_file(&file, &text.replace("NAME", name))
            .map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
        say(&format!("Wrote {}.", file.display()));
    }
    // A bare name would mean an installed expert.
    let folder = if folder.components().count() == 1 { Path::new(".").join(folder) } else { folder };
    say(&format!(
        "Change the files, check them with `respool expert validate {0}`, and install them with `respool expert install {0}`.",
        folder.display()
    ));
    Ok(())
}

fn write_file(file: &Path, text: &str) -> io::Result<()> {
    fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
    fs::File::create_new(file)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_package_loads_without_findings() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("helper");
        for (has_tool, process) in [(false, "report"), (true, "enter-order")] {
            let folder = folder.join(process);
            write_package("front-desk", Some(folder.clone()), has_tool).unwrap();
            let loaded = openexperts::load(&folder).unwrap();
            assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
            let package = loaded.package.unwrap();
            assert_eq!(package.manifest.name.value, "front-desk");
            assert!(package.process(process).is_some());
            assert_eq!(package.asks_people(), has_tool);
        }
        let again = write_package("front-desk", Some(folder), false).unwrap_err().to_string();
        assert!(again.contains("is not empty"), "{again}");
        let why = write_package("Front Desk", Some(dir.path().join("x")), false).unwrap_err().to_string();
        assert!(why.contains("cannot be the name of an expert"), "{why}");
    }
}
