//! Layers the configuration, and remembers where each value came from. [`resolve`] is pure: it gets file
//! text, environment and flags as arguments. Only [`Loaded::from_process`] touches the process.

use std::fmt;
use std::path::{Path, PathBuf};

use super::file::{self, FileText};
use super::flags::{Environment, Flags};
use super::misspelt::{self, Misspelt};
use super::problem::{Place, Problems};
use super::settings::Settings;
use super::tree::{self, Table};
use super::{changes, cross_checks, environment, search, shape, show};
use tools::programs::Started;
use tools::{AuditConfig, audit};
use wire::digest::{hex, sha256};
use wire::units::UnusableSetting;

impl Settings {
    /// Reads the file that is found, the process's environment and these flags.
    ///
    /// # Errors
    /// Everything that is wrong, with where it was written and what to do about it.
    pub fn load(flags: &Flags) -> Result<Self, Problems> {
        Loaded::from_process(flags).map(|loaded| loaded.settings)
    }
}

/// The sections of a file that say where records are and what requests cost, and what experts need that wait
/// for a person.
const RECORDS: [&str; 9] =
    ["state_dir", "listen", "store", "node", "usage", "prices", "budgets", "experts", "tools"];

/// Checked settings, and where each value came from.
#[derive(Clone)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// The file that was used.
    pub file: Option<PathBuf>,
    /// A `respool.toml` in the working directory that was not read, because no option names it.
    pub unread: Option<PathBuf>,
    /// Environment variables that look like settings and are read by nothing.
    pub misspelt: Vec<Misspelt>,
    pub(super) tree: Table,
}

/// Without the tree, which holds secrets as they were written.
impl fmt::Debug for Loaded {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Loaded")
            .field("settings", &self.settings)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl Loaded {
    /// Reads the file that is found, the process's environment and these flags.
    ///
    /// # Errors
    /// Everything that is wrong, with where it was written and what to do about it.
    pub fn from_process(flags: &Flags) -> Result<Self, Problems> {
        let environment = flags.process_environment();
        let named = flags.config.as_deref();
        let found = search::find_file(named, &environment)?;
        let file = found.as_ref().map(|(path, text)| FileText { path, text });
        let mut loaded = resolve(file, &environment, flags)?.complete_for_process(&environment);
        let here = std::env::current_dir().unwrap_or_default();
        loaded.misspelt = misspelt::find_misspelt(&environment, &loaded.tree);
        loaded.unread = search::find_unread(&here, named, &environment, loaded.file.as_deref());
        Ok(loaded)
    }

    /// Reads as [`Self::from_process`] does. Of a file with problems, only the parts are used that say where
    /// records are and what requests cost; the problems are returned, too.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn records_from_process(flags: &Flags) -> Result<(Self, Option<Problems>), Problems> {
        let problems = match Self::from_process(flags) {
            Ok(loaded) => return Ok((loaded, None)),
            Err(problems) => problems,
        };
        let environment = flags.process_environment();
        let found = search::find_file(flags.config.as_deref(), &environment)?;
        let file = found.as_ref().map(|(path, text)| FileText { path, text });
        Ok((resolve_records(file, &environment, flags), Some(problems)))
    }

    /// Refuses to go on without a file that may hold the keys of a server's clients.
    ///
    /// # Errors
    /// When there is a `respool.toml` in the working directory that was not read.
    pub fn without_unread(self) -> Result<Self, Problems> {
        let Some(unread) = &self.unread else { return Ok(self) };
        let why = format!(
            "this file is not read, because no option names it: respool takes no configuration from the directory it is started \
             in. Name it (--config {}, or its whole path in RESPOOL_CONFIG), or move it to ~/.config/respool or /etc/respool",
            search::FILE
        );
        Err(Problems::one(Place::from_text(unread.display().to_string()), why))
    }

    /// Adds what only this process knows: the program that it runs, and its own files.
    fn complete_for_process(mut self, environment: &Environment) -> Self {
        let state_dir = self.settings.store.state_dir.clone();
        let tools = &mut self.settings.tools;
        tools.local.launcher = Some("/proc/self/exe".into());
        tools.audit =
            Some(AuditConfig { file: state_dir.join(audit::FILE), content: self.settings.log.content });
        tools.local.state_dir = std::path::absolute(&state_dir).ok();
        let program = std::env::current_exe().ok();
        let log = Some(state_dir.join(audit::FILE));
        let keys = self.settings.server.client_keys_file.clone();
        let private = [self.file.clone(), self.settings.log.file.clone(), keys.clone(), log, Some(state_dir)];
        let private = private.into_iter().flatten().chain(search::searched_places(environment));
        let private: Vec<PathBuf> = private.filter_map(|path| std::path::absolute(path).ok()).collect();
        let prompts = self.settings.agents.values().filter_map(|agent| agent.system_prompt_file.clone());
        let others = program.into_iter().chain(prompts);
        tools.local.own_files.extend(others.filter_map(|path| std::path::absolute(path).ok()));
        tools.local.own_files.extend(private.iter().cloned());
        // The same directories have other files with keys, which the service's unit reads.
        let with_keys = self.file.iter().chain(&keys).filter_map(|file| std::path::absolute(file).ok());
        let around = with_keys.filter_map(|file| Some(file.parent()?.to_owned()));
        tools.local.hidden.extend(around.filter(|place| place.components().count() > 2).chain(private));
        let writable = tools::held_from_programs(&tools.local);
        for sink in self.settings.alerts.sink.iter_mut().filter(|sink| !sink.program.is_empty()) {
            match Started::find(&sink.program, &writable) {
                Ok(started) => {
                    (sink.program, sink.variables) = (started.line, started.variables);
                    sink.directory = Some(started.directory);
                }
                Err(why) => sink.refused = Some(why),
            }
        }
        self
    }

    /// Returns the directory of the configuration's other files: that of the file in use, else the user's
    /// configuration directory.
    pub fn directory(&self) -> Option<PathBuf> {
        let beside = self.file.as_ref().and_then(|file| file.parent()).map(Path::to_owned);
        beside.or_else(|| search::user_dir(&Flags::default().process_environment()))
    }

    /// Returns problems for settings that turned out to be unusable, each with the place where it was
    /// written.
    pub fn problems(&self, found: Vec<UnusableSetting>) -> Problems {
        let mut problems = Problems::default();
        for UnusableSetting { key, why } in found {
            let key: Vec<&str> = key.iter().map(String::as_str).collect();
            problems.add(tree::place_of(&self.tree, &key), cross_checks::path_text(&key), why);
        }
        problems.into_result().err().unwrap_or_default()
    }

    /// Returns the place where the address of an upstream was written, by its number in the settings.
    pub fn place_of_upstream(&self, index: usize) -> Place {
        tree::place_of(&self.tree, &["upstream", &index.to_string(), "url"])
    }

    /// Returns the keys whose values are others than in `before`, as they are written: `upstream[1].url`.
    pub fn changed_keys(&self, before: &Self) -> Vec<String> {
        changes::changed_keys(&before.tree, &self.tree)
    }

    /// Returns the effective values as TOML, each line with where its value came from; secrets are `"***"`.
    pub fn show(&self) -> String {
        show::show_settings(&self.tree, self.file.as_deref(), self.unread.as_deref(), &self.misspelt)
    }

    /// Returns a digest of the settings that processes which share a database should have in common: without
    /// the secrets, and without what is each one's own. The part behind `-` is that of the servers and their
    /// places alone; behind the next one are those of each key or section, so that differences have a name.
    pub fn digest(&self) -> String {
        const OWN: [&str; 5] = ["listen", "log", "node", "state_dir", "store"];
        let mut settings: toml::Table = toml::from_str(&self.show()).unwrap_or_default();
        settings.retain(|name, _| !OWN.contains(&name));
        for (section, own) in [("experts", &["dir", "workspace"][..]), ("alerts", &["link"])] {
            if let Some(toml::Value::Table(table)) = settings.get_mut(section) {
                table.retain(|name, _| !own.contains(&name));
            }
        }
        let digest = |text: String| hex(&sha256(text.as_bytes())[..6]);
        let upstreams = settings.get("upstream").and_then(toml::Value::as_array).cloned().unwrap_or_default();
        let places = upstreams.iter().map(|one| [one.get("url"), one.get("max_concurrency")]);
        let places = digest(format!("{:?}", places.collect::<Vec<_>>()));
        let parts =
            settings.iter().map(|(name, value)| format!("{name}={}", &digest(value.to_string())[..4]));
        let parts = parts.collect::<Vec<_>>().join(" ");
        format!("{}-{places}-{parts}", digest(toml::to_string(&settings).unwrap_or_default()))
    }

    /// Returns the effective values as JSON; secrets are `"***"`.
    pub fn show_json(&self) -> String {
        // The text is TOML, and has every value once.
        let settings: serde_json::Value = toml::from_str(&self.show()).unwrap_or_default();
        let file = self.file.as_ref().map(|file| file.display().to_string());
        format!("{:#}\n", serde_json::json!({"file": file, "settings": settings}))
    }
}

/// Layers and checks a configuration from what it is made of, without looking at the process.
///
/// # Errors
/// Everything that is wrong, with where it was written and what to do about it.
pub fn resolve(
    file: Option<FileText<'_>>,
    environment: &Environment,
    flags: &Flags,
) -> Result<Loaded, Problems> {
    let mut problems = Problems::default();
    let from_file = file.map(|file| file::read_file(file, &mut problems)).unwrap_or_default();
    let mut loaded = add_layers(from_file, environment, flags, &mut problems);
    problems.into_result()?;
    loaded.file = file.map(|file| file.path.to_owned());
    Ok(loaded)
}

/// Returns what a file with problems says about where records are and what requests cost, as far as it can be
/// read.
fn resolve_records(file: Option<FileText<'_>>, environment: &Environment, flags: &Flags) -> Loaded {
    let mut problems = Problems::default();
    let mut from_file = file.map(|file| file::read_file(file, &mut problems)).unwrap_or_default();
    from_file.retain(|key, _| RECORDS.contains(&key.as_str()));
    add_layers(from_file, environment, flags, &mut problems)
}

/// Layers the environment and the flags over a file, and checks all of it.
fn add_layers(from_file: Table, environment: &Environment, flags: &Flags, problems: &mut Problems) -> Loaded {
    let home = environment.get("HOME").map(PathBuf::from);
    let checker = shape::Checker::new(home);
    let from_file = checker.clean(from_file, problems);
    let from_environment =
        environment::environment_layer(checker.schema(), &from_file, environment, problems);
    let from_environment = checker.clean(from_environment, problems);
    let tree = tree::merge_layers(from_file, from_environment);
    let from_flags = checker.clean(flags.layer(&tree, environment), problems);
    let mut tree = tree::merge_layers(tree, from_flags);
    checker.check_required(&tree, problems);
    let mut settings = Settings::from_tree(&tree, problems).complete(&tree, environment);
    cross_checks::check_settings(&mut settings, &tree, environment, flags.uses_no_secrets, problems);
    settings.add_defaults(&mut tree);
    Loaded { settings, file: None, unread: None, misspelt: Vec::new(), tree }
}
