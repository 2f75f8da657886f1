//! Which knowledge of its package an isolated function can read. Called by `isolated` and `workspace`.

use std::collections::BTreeMap;

use openexperts::{Function, FunctionSession, KnowledgeKind, Package, path};

/// Returns the knowledge that a function names, by the paths under which it can be read: its own path and its
/// name.
pub(super) fn readable_knowledge(package: &Package, function: &Function) -> BTreeMap<String, String> {
    let named =
        |wanted: &str| function.knowledge.items.iter().any(|one| path::normalize(&one.value) == wanted);
    let known = package.knowledge.items.iter().filter(|one| named(&one.path));
    known.map(|one| (one.path.clone(), format!("knowledge/{}.md", one.name))).collect()
}

/// Returns true if an isolated function may read private knowledge, which its outputs may then quote.
pub(super) fn any_reads_private(package: &Package) -> bool {
    let functions = package.functions.items.iter();
    functions.filter(|function| function.session == FunctionSession::Isolated).any(|function| {
        let readable = readable_knowledge(package, function);
        let mut private = package.knowledge.items.iter().filter(|one| one.kind == KnowledgeKind::Private);
        private.any(|one| readable.contains_key(&one.path))
    })
}
