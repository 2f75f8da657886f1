//! The lines that `respool --version` prints besides the number: the commit, the target, and what was
//! compiled in.

use std::sync::LazyLock;

/// Features that not every build has.
const FEATURES: [(&str, bool); 3] = [
    ("sandbox", cfg!(target_os = "linux")),
    ("static", cfg!(target_feature = "crt-static")),
    ("debug-assertions", cfg!(debug_assertions)),
];

/// Returns the text of `--version`; clap puts the program's name before it.
pub(super) fn long_version() -> &'static str {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| version_text(commit(), env!("RESPOOL_TARGET"), &FEATURES));
    &TEXT
}

/// Returns the commit from which this program was built, where that is known.
pub(super) fn commit() -> Option<&'static str> {
    option_env!("RESPOOL_COMMIT").filter(|commit| !commit.is_empty())
}

fn version_text(commit: Option<&str>, target: &str, features: &[(&str, bool)]) -> String {
    let present: Vec<&str> =
        features.iter().filter(|(_, is_present)| *is_present).map(|(name, _)| *name).collect();
    let features = if present.is_empty() { "none".to_owned() } else { present.join(", ") };
    let commit = commit.unwrap_or("unknown");
    format!("{}\ncommit: {commit}\ntarget: {target}\nfeatures: {features}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_commit_target_and_features() {
        let version = env!("CARGO_PKG_VERSION");
        let check = |commit, features: &[_], expected: &str| {
            assert_eq!(version_text(commit, "x86_64-linux", features), format!("{version}\n{expected}"));
        };
        check(
            Some("0123abcd, 2026-11-22"),
            &[("sandbox", true), ("static", false), ("other", true)],
            "commit: 0123abcd, 2026-11-22\ntarget: x86_64-linux\nfeatures: sandbox, other",
        );
        check(None, &[("static", false)], "commit: unknown\ntarget: x86_64-linux\nfeatures: none");
    }
}
