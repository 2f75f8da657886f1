//! The names under which a model calls the tools of MCP servers: `SERVER__TOOL`, in the characters that
//! models and their servers accept (`[A-Za-z0-9_-]`, at most 64). Pure.

const LONGEST: usize = 64;

/// Returns the name for a server's tool. A name that must be changed or cut, or that could be read as
/// another server's tool, ends in a hash, so that no two are the same.
pub(super) fn exposed_name(server: &str, tool: &str) -> String {
    let whole = format!("{server}__{tool}");
    let ends_where_it_seems = whole.find("__") == Some(server.len());
    if whole.len() <= LONGEST && whole.chars().all(is_plain) && ends_where_it_seems {
        return whole;
    }
    let name: String = whole.chars().map(|c| if is_plain(c) { c } else { '_' }).take(LONGEST - 9).collect();
    format!("{name}_{:08x}", fnv1a(&format!("{server}\0{tool}")))
}

/// Returns true if the name may belong to a tool of a server whose tools are unknown.
pub(super) fn may_be_of(server: &str, name: &str) -> bool {
    let whole = format!("{server}__");
    let prefix: String = whole.chars().map(|c| if is_plain(c) { c } else { '_' }).take(LONGEST - 9).collect();
    name.starts_with(&prefix)
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// Computes FNV-1a, folded to 32 bits: the same on every machine and in every version.
fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn good_names_stay() {
        assert_eq!(exposed_name("files", "read_file"), "files__read_file");
        assert_eq!(exposed_name("my files", "read.file"), "my_files__read_file_97fbbdfc");
        assert_ne!(exposed_name("a", "x.y"), exposed_name("a", "x/y"));
        // Otherwise a server could take the name of another one's tool.
        assert_eq!(exposed_name("a", "b__c"), "a__b__c");
        assert_ne!(exposed_name("a__b", "c"), "a__b__c");
        assert_ne!(exposed_name("a_", "b"), exposed_name("a", "_b"));
        assert_ne!(exposed_name("a", &"x".repeat(80)), exposed_name("a", &"x".repeat(81)));
    }

    #[test]
    fn a_tool_is_known_to_be_of_its_server() {
        assert!(may_be_of("crm", "crm__get_contact") && !may_be_of("crm", "mail__crm__send"));
        assert!(!may_be_of("crm", "crm_get"));
    }

    proptest! {
        #[test]
        fn any_name_becomes_valid(server in "\\PC{0,40}", tool in "\\PC{0,90}") {
            let name = exposed_name(&server, &tool);
            prop_assert!(name.len() <= LONGEST && may_be_of(&server, &name));
            prop_assert!(name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-'), "{}", name);
        }
    }
}
