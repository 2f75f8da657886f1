//! A small package that loads, for an author to change.

/// Returns the files of a new package of this name, with their paths. `has_tool`: with a tool, a webhook and
/// an approval.
pub fn package_files(name: &str, has_tool: bool) -> impl Iterator<Item = (&'static str, String)> {
    let files = if has_tool { FILES_WITH_TOOL } else { FILES };
    files.into_iter().map(move |(path, text)| (path, text.replace("NAME", name)))
}

/// The files of a new package. `NAME` stands for its name.
const FILES: [(&str, &str); 7] = [
    ("expert.yaml", include_str!("starter/answers/expert.yaml")),
    ("README.md", include_str!("starter/answers/README.md")),
    ("orchestrator.md", include_str!("starter/answers/orchestrator.md")),
    ("persona/identity.md", include_str!("starter/answers/persona/identity.md")),
    ("functions/answer.md", include_str!("starter/answers/functions/answer.md")),
    ("processes/report.md", include_str!("starter/answers/processes/report.md")),
    ("state/questions.md", include_str!("starter/answers/state/questions.md")),
];

/// The files of a new package with a tool, a webhook and an approval.
const FILES_WITH_TOOL: [(&str, &str); 7] = [
    ("expert.yaml", include_str!("starter/orders/expert.yaml")),
    ("README.md", include_str!("starter/orders/README.md")),
    ("orchestrator.md", include_str!("starter/orders/orchestrator.md")),
    ("persona/identity.md", include_str!("starter/orders/persona/identity.md")),
    ("functions/find-item.md", include_str!("starter/orders/functions/find-item.md")),
    ("processes/enter-order.md", include_str!("starter/orders/processes/enter-order.md")),
    ("tools/shelf.yaml", include_str!("starter/orders/tools/shelf.yaml")),
];
