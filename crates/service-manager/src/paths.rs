//! The places of a user's service.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::Manager;
use super::files::variables;

/// Where the files of this user's service are.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The user's home directory.
    pub home: PathBuf,
    /// The environment file.
    pub environment: PathBuf,
    /// The unit.
    pub unit: PathBuf,
}

impl Paths {
    /// Returns the places of this user; `None` without `HOME`.
    pub fn find_paths(manager: Manager) -> Option<Self> {
        let absolute =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = absolute("HOME")?;
        let config = absolute("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
        let unit = match manager {
            Manager::Systemd => config.join("systemd/user/respool.service"),
            Manager::Launchd => home.join("Library/LaunchAgents/org.respool.respool.plist"),
        };
        // The unit refers to this place relative to the home directory.
        let environment = home.join(".config/respool/respool.env");
        Some(Self { home, environment, unit })
    }
}

/// Returns the environment file of this user's service, and its variables; `None` without a service.
pub fn user_environment() -> Option<(PathBuf, BTreeMap<String, String>)> {
    let paths = Paths::find_paths(Manager::current()).filter(|paths| paths.unit.exists())?;
    let text = std::fs::read_to_string(&paths.environment).ok()?;
    Some((paths.environment, variables(&text)))
}
