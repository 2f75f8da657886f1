//! Finds units called `respool` that `respool service install` did not write: from a package for all users,
//! or from an administrator for the whole system. Only reads; if systemd does not answer, it looks in the
//! unit directories.

use std::path::{Path, PathBuf};

use super::{Manager, property_of, require_success};

/// Where user units are kept, apart from a user's own.
const FOR_USERS: [&str; 5] = [
    "/etc/systemd/user",
    "/run/systemd/user",
    "/usr/local/lib/systemd/user",
    "/usr/lib/systemd/user",
    "/lib/systemd/user",
];
/// Where system units are kept.
const OF_SYSTEM: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
const NAME: &str = "respool.service";
const PROPERTIES: &str = "--property=LoadState,FragmentPath,ActiveState,UnitFileState";

/// A unit installed by other means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtherUnit {
    /// It runs for each user who enables it; the Debian package contains one.
    ForUsers(PathBuf),
    /// It runs for the whole machine, under the system's manager.
    OfSystem(SystemUnit),
}

impl OtherUnit {
    /// Returns its file.
    pub fn path(&self) -> &Path {
        match self {
            Self::ForUsers(path) => path,
            Self::OfSystem(unit) => &unit.path,
        }
    }
}

/// A unit of the system's manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemUnit {
    path: PathBuf,
    /// Its state in systemd's words; empty if systemd does not answer.
    active: String,
    enabled: String,
}

impl SystemUnit {
    /// Returns true if it runs.
    pub fn is_active(&self) -> bool {
        self.active == "active"
    }

    /// Describes the unit, and how to inspect it.
    pub fn describe(&self) -> String {
        let words: Vec<&str> =
            [&*self.active, &*self.enabled].into_iter().filter(|word| !word.is_empty()).collect();
        let state = if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) };
        format!(
            "respool is a service of the whole system here: {}{state}. `systemctl status respool` shows its state, \
             `journalctl --unit respool` its log",
            self.path.display()
        )
    }
}

/// Returns the other unit, if there is one; a running one comes first.
pub fn find_unit(manager: Manager) -> Option<OtherUnit> {
    if manager != Manager::Systemd {
        return None;
    }
    let of_system = require_success("systemctl", &["show", NAME, PROPERTIES]).map_or_else(
        |_| {
            find_in_folders(&OF_SYSTEM).map(|path| SystemUnit {
                path,
                active: String::new(),
                enabled: String::new(),
            })
        },
        |text| parse_unit(&text),
    );
    let for_users = require_success("systemctl", &["--user", "show", NAME, PROPERTIES])
        .map_or_else(|_| find_in_folders(&FOR_USERS), |text| parse_unit(&text).map(|unit| unit.path));
    match (of_system, for_users) {
        (Some(unit), for_users) if unit.is_active() || for_users.is_none() => Some(OtherUnit::OfSystem(unit)),
        (_, for_users) => for_users.map(OtherUnit::ForUsers),
    }
}

/// Returns what systemd reports about a unit, if the unit exists.
fn parse_unit(text: &str) -> Option<SystemUnit> {
    let path = PathBuf::from(property_of(text, "FragmentPath"));
    let is_there = property_of(text, "LoadState") == "loaded" && !path.as_os_str().is_empty();
    is_there.then(|| SystemUnit {
        path,
        active: property_of(text, "ActiveState").to_owned(),
        enabled: property_of(text, "UnitFileState").to_owned(),
    })
}

fn find_in_folders(folders: &[&str]) -> Option<PathBuf> {
    folders.iter().map(|folder| Path::new(folder).join(NAME)).find(|file| file.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_found_by_systemd_or_file() {
        let text = "LoadState=loaded\nActiveState=active\nFragmentPath=/usr/lib/systemd/system/respool.service\nUnitFileState=enabled\n";
        let unit = parse_unit(text).unwrap();
        assert!(unit.is_active());
        let described = unit.describe();
        for part in [
            "/usr/lib/systemd/system/respool.service (active, enabled)",
            "systemctl status respool",
            "journalctl",
        ] {
            assert!(described.contains(part), "{described}");
        }
        assert_eq!(
            parse_unit("LoadState=not-found\nActiveState=inactive\nFragmentPath=\nUnitFileState=\n"),
            None
        );
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().to_str().unwrap();
        assert_eq!(find_in_folders(&["/nowhere", name]), None);
        std::fs::write(folder.path().join(NAME), "").unwrap();
        assert_eq!(find_in_folders(&["/nowhere", name]), Some(folder.path().join(NAME)));
    }

    #[test]
    fn an_unknown_unit_is_named_without_a_state() {
        let unit = SystemUnit { path: "/etc/x".into(), active: String::new(), enabled: String::new() };
        assert!(
            !unit.is_active() && unit.describe().contains("system here: /etc/x. "),
            "{}",
            unit.describe()
        );
    }
}
