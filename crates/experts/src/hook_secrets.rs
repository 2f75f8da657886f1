//! The secrets of hooks: from the environment if the configuration names a variable, otherwise generated once
//! and kept in the state directory, or in the folder that all nodes share. Each is a file that only its owner
//! can read. Deleting one creates a new secret. Called by `hooks` and the command line.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::config::{ExpertConfig, ExpertsConfig};
use wire::digest::{hex, sha256};
use wire::units::Secret;

/// Prefix of a secret whose rest is base64, as in Standard Webhooks.
const PREFIX: &str = "whsec_";

/// Where the secrets of hooks are.
#[derive(Clone, Debug)]
pub struct HookSecrets {
    dir: PathBuf,
    /// Where a node kept them before it had a shared folder.
    earlier: Option<PathBuf>,
    config: ExpertsConfig,
}

/// Where the secret of one hook is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretPlace {
    /// In an environment variable.
    Variable(String),
    /// In a file.
    File(PathBuf),
}

impl HookSecrets {
    /// Returns the secrets of hooks. Generated ones are kept below the state directory.
    pub fn new(state_dir: &Path, config: &ExpertsConfig) -> Self {
        Self { dir: state_dir.join("hooks"), earlier: None, config: config.clone() }
    }

    /// Keeps generated secrets in the folder that all nodes share, if there is one: a proxy may send a hook's
    /// request to any of them. Those that this node has made before move there.
    #[must_use]
    pub fn with_folder(self, folder: Option<&Path>) -> Self {
        let Some(folder) = folder else { return self };
        Self { dir: folder.join("hooks"), earlier: Some(self.dir), config: self.config }
    }

    /// Returns where the secret of a hook is; a generated one may not exist yet.
    pub fn place(&self, expert: &str, trigger: &str) -> SecretPlace {
        let own = self.config.by_name.get(expert);
        match own.and_then(|expert| expert.hook_secret_env.get(trigger)) {
            Some(variable) => SecretPlace::Variable(variable.clone()),
            // A trigger's name may contain dots and spaces; the file's name must not lead elsewhere.
            None => {
                SecretPlace::File(self.folder_of(expert).join(encode_name(trigger)).with_extension("secret"))
            }
        }
    }

    /// Returns the folder of the secrets that were generated for an expert.
    pub fn folder_of(&self, expert: &str) -> PathBuf {
        self.dir.join(encode_name(expert))
    }

    /// Returns the secret of a hook, and generates it at the first use.
    ///
    /// # Errors
    /// When its file cannot be read or created, or contains no secret.
    pub fn read_or_make(&self, expert: &str, trigger: &str) -> io::Result<Secret> {
        let configured = self.config.by_name.get(expert).and_then(|own| own.hook_secrets.get(trigger));
        if let Some(secret) = configured {
            return Ok(secret.clone());
        }
        let SecretPlace::File(path) = self.place(expert, trigger) else {
            return Err(io::Error::other("the variable with the secret of this hook was not read"));
        };
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_secret(&path, self.earlier_secret(&path).as_deref())?;
                fs::read_to_string(&path)?
            }
            found => found?,
        };
        if let Some(earlier) = self.earlier_path(&path) {
            // Else it would come back when the shared one is deleted.
            let _ = fs::remove_file(earlier);
        }
        let text = text.trim();
        if text.len() < ExpertConfig::SHORTEST_SECRET {
            let what =
                format!("{} does not hold the secret of a hook; delete it to get a new one", path.display());
            return Err(io::Error::other(what));
        }
        Ok(Secret::new(text))
    }

    /// Returns where a secret was before this node had a shared folder.
    fn earlier_path(&self, path: &Path) -> Option<PathBuf> {
        Some(self.earlier.as_ref()?.join(path.strip_prefix(&self.dir).ok()?))
    }

    fn earlier_secret(&self, path: &Path) -> Option<String> {
        fs::read_to_string(self.earlier_path(path)?).ok()
    }
}

/// Characters that are kept in a file's name. A dot is not.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');
/// The longest file name is 255 bytes.
const LONGEST: usize = 200;

fn encode_name(name: &str) -> String {
    let encoded = utf8_percent_encode(name, PLAIN).to_string();
    if encoded.len() <= LONGEST {
        return encoded;
    }
    hex(&sha256(name.as_bytes()))
}

/// Writes a new secret, or an earlier one, unless another process has written one in the meantime.
fn make_secret(path: &Path, earlier: Option<&str>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let new = || format!("{PREFIX}{}\n", STANDARD.encode(rand::random::<[u8; 32]>()));
    atomic_file::create(path, earlier.map_or_else(new, str::to_owned).as_bytes()).map(drop)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn secrets_are_generated_once_per_owner() {
        let dir = tempfile::tempdir().unwrap();
        let secrets = HookSecrets::new(dir.path(), &ExpertsConfig::default());
        let first = secrets.read_or_make("sales", "new mail").unwrap();
        assert!(
            first.expose_secret().starts_with(PREFIX) && first.expose_secret().len() == PREFIX.len() + 44
        );
        assert_eq!(secrets.read_or_make("sales", "new mail").unwrap(), first);
        assert_ne!(secrets.read_or_make("sales", "call").unwrap(), first);
        let SecretPlace::File(path) = secrets.place("sales", "new mail") else { panic!() };
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(path, dir.path().join("hooks/sales/new%20mail.secret"));
        fs::write(&path, "short").unwrap();
        assert!(secrets.read_or_make("sales", "new mail").is_err());
        fs::remove_file(&path).unwrap();
        assert_ne!(secrets.read_or_make("sales", "new mail").unwrap(), first, "a new one");
    }

    /// Regression: each node made a secret of its own, so half of a hook's requests were refused.
    #[test]
    fn nodes_with_a_folder_share_secrets() {
        let [first, second, shared] = [(), (), ()].map(|()| tempfile::tempdir().unwrap());
        let config = ExpertsConfig::default();
        let before = HookSecrets::new(first.path(), &config).read_or_make("sales", "mail").unwrap();
        let node =
            |dir: &tempfile::TempDir| HookSecrets::new(dir.path(), &config).with_folder(Some(shared.path()));
        assert_eq!(node(&first).read_or_make("sales", "mail").unwrap(), before);
        assert_eq!(node(&second).read_or_make("sales", "mail").unwrap(), before);
        let SecretPlace::File(path) = node(&second).place("sales", "mail") else { panic!() };
        assert_eq!(path, shared.path().join("hooks/sales/mail.secret"));
        fs::remove_file(&path).unwrap();
        assert_ne!(node(&first).read_or_make("sales", "mail").unwrap(), before, "a new one");
    }

    /// Trigger names come from the package: one such as `../../x` must not lead outside.
    #[test]
    fn a_name_cannot_lead_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let secrets = HookSecrets::new(dir.path(), &ExpertsConfig::default());
        let hooks = dir.path().join("hooks");
        for name in ["..", "../x", "a/b", "/etc", "a\0b", ".", &"ä".repeat(64)] {
            let SecretPlace::File(path) = secrets.place("e", name) else { panic!() };
            assert_eq!(path.parent().unwrap(), hooks.join("e"), "{name}");
            assert!(secrets.read_or_make("e", name).is_ok(), "{name}");
        }
    }

    #[test]
    fn environment_secrets_are_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let own = ExpertConfig {
            hook_secret_env: BTreeMap::from([("mail".to_owned(), "V".to_owned())]),
            hook_secrets: BTreeMap::from([("mail".to_owned(), Secret::new("a secret of the environment"))]),
            ..ExpertConfig::default()
        };
        let by_name = BTreeMap::from([("sales".to_owned(), own)]);
        let secrets = HookSecrets::new(dir.path(), &ExpertsConfig { by_name, ..ExpertsConfig::default() });
        assert_eq!(
            secrets.read_or_make("sales", "mail").unwrap().expose_secret(),
            "a secret of the environment"
        );
        assert_eq!(secrets.place("sales", "mail"), SecretPlace::Variable("V".into()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
