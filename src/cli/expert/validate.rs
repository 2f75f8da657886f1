//! `respool expert validate`: reports what is wrong with a package, for people or as JSON.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::in_service::{is_in_service, problem_in_service};
use super::model_check::{ModelCheck, check_model};
use super::output::OutputFormat;
use crate::cli::failure::Failure;
use crate::cli::listing::Noun;
use crate::cli::options::Configured;
use crate::cli::runtime::new_runtime;
use crate::cli::say::{say, say_in_colours, say_on_stderr};
use experts::{Installed, Library, Source};
use openexperts::{Diagnostic, LONG_PROMPT, Loaded, Severity};
use settings::Loaded as Configuration;
use settings::approval_warning;
use tools::Sources;

/// How long a running `respool serve` may take to see a change.
const SEEN_WITHIN: Duration = Duration::from_secs(4);

/// Checks an installed expert or a folder. A name without `/` means the installed expert if there is one.
pub(super) fn validate_package(
    options: Configured,
    package: &str,
    format: OutputFormat,
) -> Result<(), Failure> {
    let path = Path::new(package);
    if package.contains('/') || matches!(package, "." | "..") {
        return validate_directory(package, format);
    }
    let config = options.load()?;
    if path.exists() {
        let installed = Library::new(&config.settings.experts.dir).list().unwrap_or_default();
        let Some(expert) = installed.iter().find(|one| one.owner() == package) else {
            return validate_directory(package, format);
        };
        if !is_same_folder(path, &expert.directory) {
            say_on_stderr(&format!(
                "note: this is about the installed expert; ./{package} was not read: `respool expert validate ./{package}` checks it"
            ));
        }
    }
    validate_installed(&config, package, format)
}

fn is_same_folder(one: &Path, other: &Path) -> bool {
    one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

/// Checks the package in a directory by itself, without reading the configuration.
fn validate_directory(package: &str, format: OutputFormat) -> Result<(), Failure> {
    let path = Path::new(package);
    let loaded = if path.exists() {
        Source::parse(package)?.load()?
    } else {
        openexperts::load(path).map_err(|error| {
            format!("{} cannot be opened as a package: {error}; name its directory", path.display())
        })?
    };
    print_findings(&loaded, format)
}

/// Checks an installed package, and whether its tools are bound and can be reached.
fn validate_installed(config: &Configuration, name: &str, format: OutputFormat) -> Result<(), Failure> {
    let installed = Library::new(&config.settings.experts.dir).get(name)?;
    let conflict = installed.name_conflict.as_deref().map(openexperts::visible);
    if installed.loaded.package.is_none() {
        return print_findings(&installed.loaded, format);
    }
    let found = new_runtime()?.block_on(async {
        let mut found = check_bindings(config, &installed).await?;
        add_model(&mut found, check_model(config, &installed.owner()).await?);
        if found["ready"] == true {
            let bindings = found["file"].as_str().unwrap_or_default().to_owned();
            let problem = lasting_problem_in_service(config, &installed.owner(), bindings.as_ref()).await;
            add_problem(&mut found, problem);
        }
        Ok::<_, Failure>(found)
    })?;
    let is_ready = found["ready"] == true;
    match format {
        OutputFormat::Json => {
            let mut out = as_json(&installed.loaded);
            out["binding"] = found;
            out["name_conflict"] = installed.name_conflict.into();
            say(&format!("{out:#}"));
        }
        OutputFormat::Text => {
            say_findings(&installed.loaded);
            conflict.iter().for_each(|conflict| say(&format!("warn: {conflict}")));
            say_in_colours(checklist(&found).trim_end(), colour_of);
        }
    }
    match (is_ready, format) {
        (true, _) => Ok(()),
        (false, OutputFormat::Json) => Err(Failure::Reported),
        (false, OutputFormat::Text) => Err(Failure::Failed(format!(
            "{name} is not ready: its events wait or fail until the problems above are gone"
        ))),
    }
}

/// Checks what keeps the expert from being ready, and where its tool files and the servers disagree.
async fn check_bindings(config: &Configuration, installed: &Installed) -> Result<Value, Failure> {
    let sources = Sources::open(&config.settings.tools).map_err(|found| config.problems(found))?;
    let Some(package) = &installed.loaded.package else { return Ok(Value::Null) };
    let library = Library::new(&config.settings.experts.dir);
    let (text, path) = library
        .bindings_of(&installed.folder())
        .map_err(|error| format!("the bindings cannot be read: {error}"))?;
    let checked = experts::check_binding(package, &text, &sources).await;
    let unread = library.unread_bindings(&installed.folder()).map(|unread| {
        format!(
            "{} is not read, because respool has not installed this package; move your own bindings to {}",
            unread.display(),
            path.display()
        )
    });
    let unanswered = approval_warning(&config.settings, package);
    let (bindings, _) = openexperts::Bindings::from_text(&text);
    let restricted = experts::find_restricted(package, &bindings, &config.settings.tools.policy);
    let restricted = restricted.iter().map(ToString::to_string);
    let warnings = unread.into_iter().chain(checked.mismatches).chain(restricted).chain(unanswered);
    let warnings: Vec<String> = warnings.collect();
    let problem = |one: &experts::BindingProblem| json!({"tool": one.tool, "problem": one.text, "passes": !one.is_final});
    Ok(json!({
        "ready": checked.problems.is_empty(),
        "file": path.display().to_string(),
        "problems": checked.problems.iter().map(problem).collect::<Vec<_>>(),
        "warnings": warnings,
        "bound": checked.bound.iter().map(|(tool, target)| json!({"tool": tool, "to": target})).collect::<Vec<_>>(),
    }))
}

/// Adds what is known of the expert's model to what is known of its tools.
fn add_model(found: &mut Value, ModelCheck { problem, warnings }: ModelCheck) {
    add_problem(found, problem);
    found["warnings"]
        .as_array_mut()
        .into_iter()
        .for_each(|all| all.extend(warnings.iter().cloned().map(Value::from)));
}

fn add_problem(found: &mut Value, problem: Option<String>) {
    let Some(problem) = problem else { return };
    found["ready"] = false.into();
    let problem = json!({"tool": "", "problem": problem, "passes": false});
    found["problems"].as_array_mut().into_iter().for_each(|all| all.push(problem.clone()));
}

/// Says why an expert is not ready for the running `respool serve`, once that has seen the last change.
async fn lasting_problem_in_service(config: &Configuration, name: &str, bindings: &Path) -> Option<String> {
    let changed = fs::metadata(bindings).and_then(|data| data.modified()).ok();
    let age = changed.and_then(|at| at.elapsed().ok());
    let is_recent = age.is_some_and(|age| age < SEEN_WITHIN) && is_in_service(config);
    if is_recent || problem_in_service(config, name).is_some() {
        tokio::time::sleep(SEEN_WITHIN).await;
    }
    let why = problem_in_service(config, name)?;
    Some(format!("the running `respool serve` cannot use it: {why}"))
}

fn checklist(found: &Value) -> String {
    let texts = |list: &str| found[list].as_array().cloned().unwrap_or_default();
    let word = |value: &Value| openexperts::visible(value.as_str().unwrap_or_default());
    let mut lines = String::new();
    for bound in texts("bound") {
        let _ = writeln!(lines, "bound: {} → {}", word(&bound["tool"]), word(&bound["to"]));
    }
    for warning in texts("warnings") {
        let _ = writeln!(lines, "warn: {}", word(&warning));
    }
    for problem in texts("problems") {
        let tool = Some(word(&problem["tool"])).filter(|tool| !tool.is_empty());
        let tool = tool.map(|tool| format!("{tool}: ")).unwrap_or_default();
        let _ = writeln!(lines, "not ready: {tool}{}", word(&problem["problem"]));
    }
    if found["ready"] == true {
        lines.push_str(
            "The expert is ready: all required tools are bound, and their servers can be reached.\n",
        );
    }
    lines
}

fn print_findings(loaded: &Loaded, format: OutputFormat) -> Result<(), Failure> {
    match format {
        OutputFormat::Json => say(&format!("{:#}", as_json(loaded))),
        OutputFormat::Text => say_findings(loaded),
    }
    match loaded.package {
        Some(_) => Ok(()),
        None if format == OutputFormat::Json => Err(Failure::Reported),
        None => Err(Failure::Failed("the package does not load; correct the errors above".to_owned())),
    }
}

fn say_findings(loaded: &Loaded) {
    say_in_colours(&format!("{}{}", findings_text(loaded), findings_summary(loaded).trim_end()), colour_of);
}

/// Returns the colour of a line.
fn colour_of(line: &str) -> &'static str {
    let has = |mark: &str| line.contains(mark);
    match line {
        _ if has(": error[") || line.starts_with("not ready: ") => "1;31",
        _ if has(": warn[") || line.starts_with("warn: ") => "33",
        _ if line.starts_with("The expert is ready") => "32",
        _ => "",
    }
}

fn as_json(loaded: &Loaded) -> Value {
    let diagnostics: Vec<Value> = loaded.diagnostics.iter().map(diagnostic_json).collect();
    let mut out = json!({"diagnostics": diagnostics, "loads": loaded.package.is_some()});
    if let Some(package) = &loaded.package {
        out["resolved"] = openexperts::resolved(package);
        out["prompt"] = openexperts::system_prompt(package).into();
    }
    out
}

fn diagnostic_json(one: &Diagnostic) -> Value {
    json!({
        "severity": one.severity,
        "code": one.code,
        "file": one.file,
        "line": one.at.map(|at| at.line),
        "column": one.at.map(|at| at.column),
        "message": one.message,
        "help": one.help,
    })
}

/// Returns the findings of a package, each with its line.
pub(super) fn findings_text(loaded: &Loaded) -> String {
    let source = |one: &Diagnostic| loaded.files.get(&one.file).map(String::as_str);
    let mut text: Vec<String> =
        loaded.diagnostics.iter().map(|one| format!("{}\n", one.render(source(one)))).collect();
    let length =
        loaded.package.as_ref().map_or(0, |package| openexperts::system_prompt(package).chars().count());
    if length > LONG_PROMPT {
        text.push(format!(
            "note: the system prompt has {length} characters; it goes with every request, so keep it below {LONG_PROMPT}\n\n"
        ));
    }
    text.concat()
}

const WARNINGS: Noun = Noun("warning", "warnings");

fn findings_summary(loaded: &Loaded) -> String {
    let errors = loaded.diagnostics.iter().filter(|one| one.severity == Severity::Error).count();
    let warnings = loaded.diagnostics.len() - errors;
    match &loaded.package {
        Some(package) => {
            let (name, version) = (&package.manifest.name.value, &package.manifest.version.value);
            format!(
                "The package {name} {} loads: {}.\n",
                openexperts::visible(version),
                WARNINGS.count_things(warnings)
            )
        }
        None => format!(
            "{}, {}.\n",
            Noun("error", "errors").count_things(errors),
            WARNINGS.count_things(warnings)
        ),
    }
}
