//! Which of several folders with the same expert name is used. Pure; called by `library` and `catalog`.

/// A folder with an expert whose name another folder's expert has as well.
#[derive(Debug)]
pub(super) struct NameClaim {
    pub(super) folder: String,
    /// Whether respool installed it.
    pub(super) is_recorded: bool,
}

/// Returns which of the folders with one expert name is used, and why; `None` if none of them is. The order
/// on the disk decides nothing.
pub(super) fn preferred_folder(name: &str, claims: &[NameClaim]) -> Option<(usize, &'static str)> {
    let recorded: Vec<usize> =
        claims.iter().enumerate().filter(|(_, claim)| claim.is_recorded).map(|(index, _)| index).collect();
    if let [only] = recorded.as_slice() {
        return Some((*only, "respool installed it"));
    }
    let is_candidate = |claim: &NameClaim| recorded.is_empty() || claim.is_recorded;
    let named = claims.iter().position(|claim| claim.folder == name && is_candidate(claim));
    named.map(|index| (index, "the folder has the expert's name"))
}

/// Describes one of several folders with the same expert name, and says what to do.
pub(super) fn describe_conflict(
    name: &str,
    claims: &[NameClaim],
    this: usize,
    used: Option<(usize, &'static str)>,
) -> (String, String) {
    let others = claims.iter().enumerate().filter(|(index, _)| *index != this);
    let others: Vec<&str> = others.map(|(_, claim)| claim.folder.as_str()).collect();
    let others = others.join(", ");
    let folder = &claims[this].folder;
    match used {
        Some((used, why)) if used == this => {
            let text = format!(
                "an expert named \"{name}\" is also in: {others}; the folder {folder} is used, because {why}"
            );
            (text, String::new())
        }
        Some((used, why)) => {
            let used = &claims[used].folder;
            let text =
                format!("the folder {used} also holds an expert named \"{name}\" and is used, because {why}");
            (
                text,
                format!(
                    "remove this folder with `respool expert remove {folder}`, or give its expert another name"
                ),
            )
        }
        None => {
            let text = format!(
                "an expert named \"{name}\" is also in: {others}; none of these folders is used: respool did not install exactly one of them, and no folder is named {name}"
            );
            let help = format!(
                "remove all but one with `respool expert remove FOLDER`, or rename the folder to use to {name}"
            );
            (text, help)
        }
    }
}
