//! `respool expert` as a user runs it: the program itself, with its output and exit codes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn respool(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_respool"));
    command.args(arguments).env_clear().output().unwrap()
}

/// A sound package.
pub fn write_package(root: &Path) {
    let files = [
        (
            "expert.yaml",
            "spec: \"1.0\"\nname: lending-desk\nversion: \"0.1.0\"\ndescription: Answers readers\ncomponents:\n  orchestrator: orchestrator.md\n  persona: [persona/identity.md]\n  functions: [functions/find-book.md]\n",
        ),
        ("README.md", "# Lending desk\n"),
        ("orchestrator.md", "Use `find-book`.\n"),
        ("persona/identity.md", "You sit at a desk.\n"),
        ("functions/find-book.md", "---\nname: find-book\ndescription: Finds a book\n---\nLook.\n"),
    ];
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

fn validate_json(root: &Path) -> (Value, Option<i32>) {
    let out = respool(&["expert", "validate", root.to_str().unwrap(), "--json"]);
    (serde_json::from_slice(&out.stdout).unwrap(), out.status.code())
}

#[test]
fn validate_prints_json() {
    let folder = tempfile::tempdir().unwrap();
    write_package(folder.path());
    let (found, code) = validate_json(folder.path());
    assert_eq!((&found["loads"], code), (&Value::Bool(true), Some(0)));
    assert_eq!(found["resolved"]["tiers"]["default"], "confirm");
    assert!(found["prompt"].as_str().unwrap().contains("find-book: Finds a book"));

    fs::remove_file(folder.path().join("functions/find-book.md")).unwrap();
    let (found, code) = validate_json(folder.path());
    assert_eq!((&found["loads"], code), (&Value::Bool(false), Some(1)));
    assert_eq!(found["diagnostics"][0]["code"], "missing-file");
    assert_eq!(
        (&found["diagnostics"][0]["line"], &found["diagnostics"][0]["column"]),
        (&8.into(), &15.into())
    );
    assert!(found.get("prompt").is_none());
}

#[test]
fn validate_shows_people_the_line() {
    let folder = tempfile::tempdir().unwrap();
    write_package(folder.path());
    let out = respool(&["expert", "validate", folder.path().to_str().unwrap()]);
    assert!(out.status.success());
    assert!(String::from_utf8(out.stdout).unwrap().contains("lending-desk 0.1.0 loads: 0 warnings"));

    fs::remove_file(folder.path().join("orchestrator.md")).unwrap();
    let out = respool(&["expert", "validate", folder.path().to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(1));
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(
        text.contains("6 |   orchestrator: orchestrator.md\n  |                 ^^^^^^^^^^^^^^^"),
        "{text}"
    );
}

#[test]
fn validate_names_missing_packages() {
    let out = respool(&["expert", "validate", "/nowhere/at/all"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8(out.stderr).unwrap().contains("/nowhere/at/all cannot be opened as a package"));
}

/// The readiness check of the tutorial checked the author's folder, which lies in the current directory.
#[test]
fn a_bare_name_means_the_installed_expert() {
    let it = Installation::new();
    it.edit("expert.yaml", "description:", "requires: {tools: [shelf]}\ndescription:");
    let validate = |package: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_respool"));
        command.args(["expert", "validate", package, "--config"]).arg(it.path("respool.toml")).env_clear();
        let out = command.current_dir(it.path("")).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap() + &String::from_utf8(out.stderr).unwrap();
        (out.status.success(), text)
    };
    fs::rename(it.path("source"), it.path("lending-desk")).unwrap();
    assert!(validate("lending-desk").0, "only the folder has this name");
    it.done(&["install", it.path("lending-desk").to_str().unwrap()]);
    let (is_ready, text) = validate("lending-desk");
    assert!(
        !is_ready && text.contains("not ready: shelf") && text.contains("./lending-desk was not read"),
        "{text}"
    );
    assert!(validate("./lending-desk").0);
    let same = [("RESPOOL__EXPERTS__DIR", it.path("")), ("RESPOOL__STATE_DIR", it.path("other"))];
    let mut command = Command::new(env!("CARGO_BIN_EXE_respool"));
    command.args(["expert", "validate", "lending-desk", "--config"]).arg(it.path("respool.toml")).env_clear();
    let out = command.envs(same).current_dir(it.path("")).output().unwrap();
    assert!(!String::from_utf8(out.stderr).unwrap().contains("was not read"), "it is the same folder");
}

#[test]
fn commands_say_what_keeps_an_expert_from_being_ready() {
    let it = Installation::new();
    it.edit("expert.yaml", "components:", "requires: {tools: [shelf]}\ncomponents:\n  tools: [shelf.yaml]");
    let tool = "name: shelf\ndescription: d\noperations: [{name: read, description: d}]\n";
    fs::write(it.path("source/shelf.yaml"), tool).unwrap();
    assert!(it.install().contains("respool expert bind lending-desk shelf SERVER"));
    assert!(it.done(&["list"]).contains("not ready: not bound: shelf"));
    let refused = it.refused(&["bind", "lending-desk", "shelf", "books", "--operation", "raed=look"]);
    assert!(refused.contains("has no operation \"raed\": did you mean \"read\"? it has read"), "{refused}");
    assert!(it.refused(&["bind", "lending-desk", "shel", "books"]).contains("did you mean \"shelf\"?"));
    let fire = ["fire", "lendingdesk", "order", "--payload", "{}"];
    for misspelt in [&["update", "lendng-desk"][..], &fire] {
        let refused = it.refused(misspelt);
        assert!(refused.contains("did you mean \"lending-desk\"?"), "{refused}");
    }
    let (_, bound) = it.run(&["bind", "lending-desk", "shelf", "books", "--operation", "read=look"]);
    assert!(bound.contains("no [tools.mcp.books] in the configuration yet"), "{bound}");
    let shown = it.done(&["show", "lending-desk"]);
    assert!(
        shown
            .contains("not ready: shelf is bound to books, but the configuration has no [tools.mcp.books] ("),
        "{shown}"
    );
    // Regression: a program that was missing was in no list.
    let mut toml = fs::read_to_string(it.path("respool.toml")).unwrap();
    toml.push_str("\n[tools.mcp.books]\ncommand = \"/nowhere/books-server\"\n");
    fs::write(it.path("respool.toml"), toml).unwrap();
    let listed = it.done(&["list"]);
    assert!(
        listed.contains("its MCP server books cannot be started: /nowhere/books-server cannot be started"),
        "{listed}"
    );
}

/// The server that docs/experts.md shows is bound and called for its tools.
#[test]
fn the_documented_program_is_a_tool() {
    let page = include_str!("../../docs/experts.md");
    let block = |language: &str, from: &str| {
        let (_, after) = page.split_once(from).unwrap();
        let (_, text) = after.split_once(&format!("```{language}\n")).unwrap();
        text.split_once("```").unwrap().0.to_owned()
    };
    let it = Installation::new();
    let heading = "### A program of your own as a tool";
    fs::write(it.path("books.py"), block("python", heading)).unwrap();
    let config = fs::read_to_string(it.path("respool.toml")).unwrap();
    let server = block("toml", heading).replace("/home/kim/books.py", it.path("books.py").to_str().unwrap());
    fs::write(it.path("respool.toml"), config + &server).unwrap();
    it.edit("expert.yaml", "components:", "requires: {tools: [shelf]}\ncomponents:\n  tools: [shelf.yaml]");
    let tool = "name: shelf\ndescription: d\noperations: [{name: read}, {name: write}]\n";
    fs::write(it.path("source/shelf.yaml"), tool).unwrap();
    it.install();
    it.done(&["bind", "lending-desk", "shelf", "books"]);
    let found = it.done(&["validate", "lending-desk"]);
    assert!(found.contains("bound: shelf → books") && !found.contains("mcp:books"), "{found}");
    // Regression: an expert whose tool had none of its operations was called ready.
    let lost = ["--operation", "read=look", "--operation", "write=enter"];
    it.done(&[&["bind", "lending-desk", "shelf", "books"][..], &lost].concat());
    let found = it.refused(&["validate", "lending-desk"]);
    let none = "not ready: shelf: books has none of its operations (read, write); it has mcp:books/read";
    assert!(found.contains(none), "{found}");
    for own in ["read=", "write="] {
        it.done(&["bind", "lending-desk", "shelf", "books", "--operation", own]);
    }
    let config = fs::read_to_string(it.path("respool.toml")).unwrap();
    fs::write(it.path("respool.toml"), config.replace("model = \"m\"\n", "")).unwrap();
    assert!(it.refused(&["validate", "lending-desk"]).contains("not ready: experts have no model"));
}

/// The experts of a test: a directory for each command's configuration.
struct Installation {
    root: tempfile::TempDir,
}

impl Installation {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().display();
        let toml = format!(
            "[[upstream]]\nurl = \"http://127.0.0.1:9\"\n\
             [experts]\nmodel = \"m\"\ndir = \"{path}/experts\"\nworkspace = \"{path}/workspace\"\n"
        );
        fs::write(root.path().join("respool.toml"), toml).unwrap();
        write_package(&root.path().join("source"));
        Self { root }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn edit(&self, file: &str, from: &str, to: &str) {
        let path = self.path("source").join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from}");
        fs::write(path, text.replace(from, to)).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> (bool, String) {
        let config = self.path("respool.toml");
        let mut command = Command::new(env!("CARGO_BIN_EXE_respool"));
        command.args(["expert", "--config", config.to_str().unwrap()]).args(arguments).env_clear();
        command.env("PATH", std::env::var("PATH").unwrap()).env("HOME", self.root.path());
        let out = command.stdin(std::process::Stdio::null()).output().unwrap();
        let text = String::from_utf8([out.stdout, out.stderr].concat()).unwrap();
        (out.status.success(), text)
    }

    fn done(&self, arguments: &[&str]) -> String {
        let (success, text) = self.run(arguments);
        assert!(success, "{arguments:?}: {text}");
        text
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let (success, text) = self.run(arguments);
        assert!(!success, "{arguments:?}: {text}");
        text
    }

    fn install(&self) -> String {
        self.done(&["install", self.path("source").to_str().unwrap()])
    }

    fn installed(&self, file: &str) -> String {
        fs::read_to_string(self.path("experts/lending-desk").join(file)).unwrap()
    }
}

#[test]
fn installed_packages_are_private() {
    let it = Installation::new();
    it.install();
    let mut folders = vec![it.path("experts")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, mode) = (entry.path(), entry.metadata().unwrap().permissions().mode() & 0o777);
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md" || end == "yaml") {
                files += 1;
                assert_eq!(mode, 0o600, "{}", path.display());
            }
        }
    }
    assert_eq!(files, 10, "the package and its snapshot");
}

#[test]
fn a_pipe_is_no_package() {
    let it = Installation::new();
    let pipe = it.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let refused = it.refused(&["install", pipe.to_str().unwrap()]);
    assert!(refused.contains("pipe is not a folder"), "{refused}");
}

#[test]
fn experts_install_list_show_remove() {
    let it = Installation::new();
    assert!(it.done(&["list"]).contains("Experts in ") && it.done(&["list"]).contains(": 0"));
    for list in [&["queue", "--expert", "lending-dsk"][..], &["outbox", "list", "--expert", "lending-dsk"]] {
        assert!(it.done(list).contains("note: no expert \"lending-dsk\" is installed"));
    }
    it.install();
    assert_eq!(
        it.installed("functions/find-book.md"),
        "---\nname: find-book\ndescription: Finds a book\n---\nLook.\n"
    );
    assert_eq!(it.installed("README.md"), "# Lending desk\n");
    assert!(it.done(&["list"]).contains("lending-desk  0.1.0  Answers readers"));
    assert!(it.done(&["show", "lending-desk"]).contains("functions: find-book"));
    assert!(it.done(&["validate", "lending-desk"]).contains("loads"));
    let (manifest, text) = (it.path("experts/lending-desk/expert.yaml"), it.installed("expert.yaml"));
    fs::write(&manifest, format!("{text}broken: [\n")).unwrap();
    assert!(it.done(&["list"]).contains("does not load, so the version before it stays in service"));
    fs::write(&manifest, text).unwrap();
    assert!(it.refused(&["install", it.path("source").to_str().unwrap()]).contains("is there already"));

    let state = it.path("workspace/expert-state/lending-desk/state");
    fs::create_dir_all(&state).unwrap();
    assert!(it.done(&["remove", "lending-desk", "--yes"]).contains("Its data stays in"));
    assert!(state.exists() && !it.path("experts/lending-desk").exists());
    // Regression: what a removed expert had left could not be deleted.
    assert!(it.refused(&["remove", "lending-desk", "--purge"]).contains("was not confirmed"));
    assert!(it.done(&["remove", "lending-desk", "--purge", "--yes"]).contains("Deleted what lending-desk"));
    assert!(!state.exists());
    assert!(it.refused(&["remove", "lending-desk", "--purge", "--yes"]).contains("no expert"));
    it.install();
    assert!(it.refused(&["remove", "lending-desk"]).contains("was not confirmed"));
    fs::create_dir_all(&state).unwrap();
    it.done(&["remove", "lending-desk", "--purge", "--yes"]);
    assert!(!state.exists());
    assert!(it.refused(&["remove", "lending-desk"]).contains("no expert \"lending-desk\""));
}

/// As `git clone` makes it: the folder has another name, and nothing is known of the origin.
#[test]
fn copied_packages_are_experts() {
    let it = Installation::new();
    write_package(&it.path("experts/clone-of-desk"));
    assert!(it.done(&["list"]).contains("lending-desk  0.1.0"));
    assert!(
        it.refused(&["install", it.path("source").to_str().unwrap()])
            .contains("clone-of-desk is there already")
    );
    assert!(it.refused(&["update", "lending-desk"]).contains("the source of lending-desk is unknown"));
    it.edit("expert.yaml", "version: \"0.1.0\"", "version: \"0.1.1\"");
    let source = it.path("source");
    let refused = it.refused(&["update", "lending-desk", source.to_str().unwrap()]);
    assert!(refused.contains("added by hand"), "{refused}");
    it.done(&["update", "lending-desk", source.to_str().unwrap(), "--force"]);
    assert!(fs::read_to_string(it.path("experts/clone-of-desk/expert.yaml")).unwrap().contains("0.1.1"));
    it.done(&["remove", "lending-desk", "--yes"]);
    assert!(!it.path("experts/clone-of-desk").exists());
}

/// The first folder by its name was used, whatever respool had installed.
#[test]
fn installed_folders_win_over_namesakes() {
    let it = Installation::new();
    it.install();
    write_package(&it.path("experts/a-copy"));
    let listed = it.done(&["list"]);
    let used = "the folder lending-desk is used, because respool installed it";
    assert!(listed.contains("lending-desk  0.1.0") && listed.contains(used), "{listed}");
    assert!(listed.contains("a-copy  is not used: the folder lending-desk also holds"), "{listed}");
    assert!(it.done(&["validate", "lending-desk"]).contains(used));
    assert!(it.refused(&["validate", "a-copy"]).contains("is used, because respool installed it"));
    let json: Value =
        serde_json::from_str(it.done(&["list", "--json"]).split("\nExperts in").next().unwrap()).unwrap();
    assert_eq!((&json[0]["loads"], &json[1]["loads"]), (&Value::Bool(false), &Value::Bool(true)));

    fs::write(it.path("experts/lending-desk/expert.yaml"), "spec: [").unwrap();
    assert!(
        it.done(&["list"]).contains("a-copy  is not used"),
        "a copy does not replace a broken installation"
    );
    let refused = it.refused(&["remove", "lending-desk"]);
    assert!(refused.contains("The folder a-copy holds an expert of the same name"), "{refused}");
    let removed = it.done(&["remove", "lending-desk", "--yes"]);
    assert!(removed.contains("experts/lending-desk"), "{removed}");
    write_package(&it.path("experts/b-copy"));
    let listed = it.done(&["list"]);
    assert!(listed.contains("a-copy  is not used") && listed.contains("b-copy  is not used"), "{listed}");
    assert!(it.refused(&["show", "lending-desk"]).contains("several folders hold one: a-copy, b-copy"));
    assert!(
        it.refused(&["install", it.path("source").to_str().unwrap()]).contains("a-copy is there already")
    );
    it.done(&["remove", "a-copy", "--yes"]);
    assert!(it.done(&["list"]).contains("lending-desk  0.1.0"));
    write_package(&it.path("experts/lending-desk"));
    assert!(it.done(&["list"]).contains("because the folder has the expert's name"));
}

#[test]
fn removal_keeps_bindings_unless_purged() {
    let it = Installation::new();
    it.edit("expert.yaml", "components:", "requires: {tools: [shell]}\ncomponents:");
    it.install();
    it.done(&["bind", "lending-desk", "shell", "--type", "gateway"]);
    let beside = it.path("expert-config/lending-desk/bindings.removed.yaml");
    let removed = it.done(&["remove", "lending-desk", "--yes"]);
    assert!(
        removed.contains("experts/lending-desk") && removed.contains(beside.to_str().unwrap()),
        "{removed}"
    );
    assert!(fs::read_to_string(&beside).unwrap().contains("type: gateway"));
    // Another author's package could have the same name.
    assert!(it.install().contains("Bindings of a removed expert of this name are in"));
    assert!(it.run(&["validate", "lending-desk"]).1.contains("it is not bound"));
    fs::rename(&beside, it.path("expert-config/lending-desk/bindings.yaml")).unwrap();
    assert!(!it.run(&["validate", "lending-desk"]).1.contains("it is not bound"));

    fs::create_dir_all(it.path("workspace/expert-state/lending-desk/state")).unwrap();
    let refused = it.refused(&["remove", "lending-desk", "--purge"]);
    assert!(refused.contains("--yes"), "{refused}");
    for path in [
        "experts/lending-desk",
        "workspace/expert-state/lending-desk",
        "expert-config/lending-desk/bindings.yaml",
    ] {
        assert!(
            it.path(path).exists() && refused.contains(it.path(path).to_str().unwrap()),
            "{path}: {refused}"
        );
    }
    it.done(&["remove", "lending-desk", "--purge", "--yes"]);
    for path in ["experts/lending-desk", "workspace/expert-state/lending-desk", "expert-config/lending-desk"]
    {
        assert!(!it.path(path).exists(), "{path}");
    }
}

/// A package's author could have written the file.
#[test]
fn removal_drops_bindings_of_clones() {
    let it = Installation::new();
    write_package(&it.path("experts/clone"));
    fs::write(it.path("experts/clone/bindings.yaml"), "tools: {}\n").unwrap();
    it.done(&["remove", "lending-desk", "--yes"]);
    assert!(!it.path("expert-config").exists() && !it.path("experts/clone").exists());
}

#[test]
fn later_binds_add_operations() {
    let it = Installation::new();
    it.edit("expert.yaml", "components:", "requires: {tools: [shelf]}\ncomponents:");
    it.install();
    let bind = |server: &str, operations: &[&str]| {
        let operations = operations.iter().flat_map(|one| ["--operation", *one]);
        it.done(&["bind", "lending-desk", "shelf", server].into_iter().chain(operations).collect::<Vec<_>>())
    };
    bind("books", &["find=search", "move=put"]);
    let shown = bind("books", &["find=lookup"]);
    assert!(shown.contains("  find = lookup\n  move = put\n"), "{shown}");
    assert!(shown.contains("--operation OPERATION="), "{shown}");
    let shown = bind("books", &["move="]);
    assert!(shown.contains("find = lookup") && !shown.contains("move ="), "{shown}");
    assert!(bind("books", &[]).contains("find = lookup"));
    assert!(!bind("other-books", &[]).contains("find ="), "the names are those of the other server");
    assert!(bind("local", &[]).contains("for respool's own tools, write `--type local`"));
    // Of a file with an error nothing is used, but it is not said to bind nothing.
    let path = it.path("experts/lending-desk/bindings.yaml");
    let text = fs::read_to_string(&path).unwrap() + "triggers: {ask: {channels: support}}\n";
    fs::write(path, text).unwrap();
    let shown = it.run(&["validate", "lending-desk"]).1;
    assert!(shown.contains("must be a list") && !shown.contains("is not bound"), "{shown}");
    it.refused(&["bind", "lending-desk", "shelf", "books", "--operation", "=search"]);
}

/// Of respool's own tools, too, one that is missing is a warning, and a draft needs none.
#[test]
fn missing_local_tools_cause_warnings() {
    let it = Installation::new();
    let needs = "requires: {tools: [shelf]}\npolicy: {approval: {overrides: {shelf.remind: manual}}}\ncomponents:\n  tools: [tools/shelf.yaml]";
    it.edit("expert.yaml", "components:", needs);
    let tool = |operations: &str| {
        let text = format!("name: shelf\ndescription: d\noperations: [{operations}]\n");
        fs::create_dir_all(it.path("source/tools")).unwrap();
        fs::write(it.path("source/tools/shelf.yaml"), text).unwrap();
    };
    let config = fs::read_to_string(it.path("respool.toml")).unwrap();
    let local = format!("[tools.local]\nworkspace = {:?}\n", it.path("books"));
    fs::create_dir(it.path("books")).unwrap();
    fs::write(it.path("respool.toml"), config + &local).unwrap();
    tool("{name: write, description: d}, {name: lend, description: d}, {name: remind, description: d}");
    it.install();
    it.refused(&["bind", "lending-desk", "shelf", "books", "--type", "local"]);
    it.done(&["bind", "lending-desk", "shelf", "--type", "local"]);
    let shown = it.run(&["validate", "lending-desk"]).1;
    assert!(shown.contains("shelf.lend: local has no lend; it has write"), "{shown}");
    assert!(!shown.contains("remind") && !shown.contains("not ready: shelf"), "{shown}");
    tool("{name: lend, description: d}, {name: remind, description: d}");
    it.edit("expert.yaml", "version: \"0.1.0\"", "version: \"0.1.1\"");
    it.done(&["update", "lending-desk", it.path("source").to_str().unwrap(), "--yes"]);
    let shown = it.run(&["validate", "lending-desk"]).1;
    assert!(
        shown.contains("local has no tool \"lend\": name one of its tools with `respool expert bind"),
        "{shown}"
    );
}

#[test]
fn clutter_is_not_installed() {
    let it = Installation::new();
    fs::create_dir(it.path("source/__MACOSX")).unwrap();
    for clutter in ["__MACOSX/._expert.yaml", ".DS_Store", "functions/Thumbs.db", "._README.md"] {
        fs::write(it.path("source").join(clutter), "x").unwrap();
    }
    it.install();
    let folder = it.path("experts/lending-desk");
    assert!(!folder.join(".DS_Store").exists() && !folder.join("__MACOSX").exists());

    fs::create_dir(folder.join("__MACOSX")).unwrap();
    for clutter in
        [".DS_Store", "functions/.DS_Store", "Thumbs.db", "desktop.ini", "._README.md", "__MACOSX/x"]
    {
        fs::write(folder.join(clutter), "x").unwrap();
    }
    it.edit("expert.yaml", "version: \"0.1.0\"", "version: \"0.1.1\"");
    it.done(&["update", "lending-desk", it.path("source").to_str().unwrap()]);
}

/// Whoever wrote the package may have written a `bindings.yaml` in it, and so could bind the user's tools.
#[test]
fn cloned_bindings_are_ignored() {
    let it = Installation::new();
    let clone = it.path("experts/clone");
    write_package(&clone);
    it.edit("expert.yaml", "components:", "requires: {tools: [shell]}\ncomponents:");
    fs::copy(it.path("source/expert.yaml"), clone.join("expert.yaml")).unwrap();
    let brought = "tools:\n  shell: {type: local, operations: {run: exec}}\n";
    fs::write(clone.join("bindings.yaml"), brought).unwrap();
    let text = it.refused(&["validate", "lending-desk"]);
    assert!(text.contains("shell: it is not bound") && text.contains("bindings.yaml is not read"), "{text}");

    it.done(&["bind", "lending-desk", "shell", "--type", "gateway"]);
    let beside = fs::read_to_string(it.path("expert-config/clone/bindings.yaml")).unwrap();
    assert!(beside.contains("type: gateway") && !beside.contains("exec"), "{beside}");
    it.edit("expert.yaml", "version: \"0.1.0\"", "version: \"0.1.1\"");
    it.done(&["update", "lending-desk", it.path("source").to_str().unwrap(), "--force"]);
    assert!(!clone.join("bindings.yaml").exists(), "an update does not make it the user's");
    assert!(it.path("expert-config/clone/bindings.yaml").exists());
}

/// The record of a package that was deleted by hand does not make its successor's bindings the user's.
#[test]
fn replaced_folders_lose_their_bindings() {
    let it = Installation::new();
    it.edit("expert.yaml", "components:", "requires: {tools: [shell]}\ncomponents:");
    it.install();
    it.done(&["bind", "lending-desk", "shell", "--type", "gateway"]);
    let folder = it.path("experts/lending-desk");
    assert!(!it.run(&["validate", "lending-desk"]).1.contains("it is not bound"));
    fs::remove_dir_all(&folder).unwrap();
    write_package(&folder);
    fs::copy(it.path("source/expert.yaml"), folder.join("expert.yaml")).unwrap();
    fs::write(folder.join("bindings.yaml"), "tools:\n  shell: {type: local}\n").unwrap();
    let text = it.refused(&["validate", "lending-desk"]);
    assert!(text.contains("shell: it is not bound") && text.contains("bindings.yaml is not read"), "{text}");
}

/// Records of earlier builds have no mark: their folder counts while its files are those that were installed.
#[test]
fn unmarked_records_hold_for_installed_files() {
    let it = Installation::new();
    it.edit("expert.yaml", "components:", "requires: {tools: [shell]}\ncomponents:");
    it.install();
    it.done(&["bind", "lending-desk", "shell", "--type", "gateway"]);
    let path = it.path("experts/.respool/lending-desk.json");
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert!(record.as_object_mut().unwrap().remove("mark").is_some());
    fs::write(&path, record.to_string()).unwrap();
    assert!(!it.run(&["validate", "lending-desk"]).1.contains("it is not bound"));
    fs::write(it.path("experts/lending-desk/orchestrator.md"), "Mine.\n").unwrap();
    assert!(it.refused(&["validate", "lending-desk"]).contains("shell: it is not bound"));
}

#[test]
fn unknown_files_need_force() {
    let it = Installation::new();
    it.install();
    fs::write(it.path("experts/lending-desk/notes.txt"), "mine").unwrap();
    it.edit("expert.yaml", "version: \"0.1.0\"", "version: \"0.1.1\"");
    let refused = it.refused(&["update", "lending-desk"]);
    assert!(refused.contains("added by hand") && refused.contains("  added: notes.txt"), "{refused}");
    fs::remove_file(it.path("experts/lending-desk/notes.txt")).unwrap();
    fs::write(it.path("experts/lending-desk/expert.yaml"), "spec: [").unwrap();
    assert!(it.refused(&["update", "lending-desk"]).contains("added by hand"));
    it.done(&["update", "lending-desk", "--force"]);
    assert!(it.installed("expert.yaml").contains("0.1.1"));
    // The source is what was installed, and the folder is not.
    fs::remove_file(it.path("experts/lending-desk/functions/find-book.md")).unwrap();
    assert!(it.refused(&["update", "lending-desk"]).contains("added by hand"));
    it.done(&["update", "lending-desk", "--force"]);
    assert!(it.installed("functions/find-book.md").contains("name: find-book"));
}

#[test]
fn names_cannot_leave_the_directory() {
    let it = Installation::new();
    it.install();
    for name in ["..", "../experts/lending-desk", ".respool", "a/b", ""] {
        for command in ["remove", "show"] {
            it.refused(&[command, name]);
        }
    }
    assert!(it.path("experts/lending-desk/expert.yaml").exists());
}

#[test]
fn faulty_packages_are_not_installed() {
    let it = Installation::new();
    it.edit("expert.yaml", "spec: \"1.0\"", "spec: \"2.0\"");
    assert!(it.refused(&["install", it.path("source").to_str().unwrap()]).contains("unsupported-spec"));
    assert!(!it.path("experts/lending-desk").exists());
}

#[test]
fn only_named_files_are_installed() {
    let it = Installation::new();
    for extra in ["bindings.yaml", "run.sh", "scratch/x.md", "learnings/_package.md"] {
        let path = it.path("source").join(extra);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "tools: {}\n").unwrap();
        it.refused(&["show", "lending-desk"]);
    }
    it.edit("expert.yaml", "functions: [", "knowledge: [bindings.yaml]\n  functions: [");
    assert!(it.refused(&["install", it.path("source").to_str().unwrap()]).contains("path-escape"));
    it.edit("expert.yaml", "knowledge: [bindings.yaml]\n  ", "");
    it.install();
    for extra in ["bindings.yaml", "run.sh", "scratch", "learnings"] {
        assert!(!it.path("experts/lending-desk").join(extra).exists(), "{extra}");
    }
}

#[test]
fn compatible_updates_can_be_undone() {
    let it = Installation::new();
    it.install();
    assert!(it.done(&["update", "lending-desk"]).contains("up to date"));
    fs::write(it.path("experts/lending-desk/bindings.yaml"), "tools: {}\n").unwrap();
    it.edit("expert.yaml", "version: \"0.1.0\"", "version: \"0.2.0\"");
    it.edit("functions/find-book.md", "Look.", "Look twice.");
    let text = it.done(&["update", "lending-desk"]);
    assert!(text.contains("changed: functions/find-book.md") && text.contains("0.1.0 → 0.2.0"), "{text}");
    assert!(it.installed("functions/find-book.md").ends_with("Look twice.\n"));
    assert_eq!(it.installed("bindings.yaml"), "tools: {}\n", "bindings are the user's");

    let changed = it.path("experts/lending-desk/README.md");
    fs::write(&changed, "# Mine\n").unwrap();
    assert!(it.refused(&["update", "lending-desk", "--rollback"]).contains("changed by hand"));
    fs::write(&changed, "# Lending desk\n").unwrap();
    it.done(&["update", "lending-desk", "--rollback"]);
    assert!(it.installed("functions/find-book.md").ends_with("Look.\n"));
    it.edit("expert.yaml", "version: \"0.2.0\"", "version: \"0.1.0\"");
    let text = it.done(&["update", "lending-desk"]);
    let said = text.contains("0.1.0 → 0.1.0 (the same number, other files)")
        && text.contains("Work in progress keeps the files that it began with.");
    assert!(said, "{text}");
    it.done(&["update", "lending-desk", "--rollback"]);
    assert_eq!(it.installed("bindings.yaml"), "tools: {}\n");
}

#[test]
fn state_is_never_overwritten() {
    let it = Installation::new();
    let template = |name: &str, text: &str| {
        let path = it.path("source").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let kept =
        |name: &str| fs::read_to_string(it.path("workspace/expert-state/lending-desk/state").join(name)).ok();
    it.edit(
        "expert.yaml",
        "functions: [",
        "state: [state/used.md, state/unused.md, memory/old.md, state/today.md]\n  functions: [",
    );
    template("state/used.md", "one\n");
    template("state/unused.md", "one\n");
    template("memory/old.md", "one\n");
    template("state/today.md", "---\nscope: session\n---\n");
    it.install();
    assert_eq!(
        (kept("used.md"), kept("memory/old.md"), kept("today.md")),
        (Some("one\n".into()), Some("one\n".into()), None)
    );

    // What an installation could not write comes with the next update, even if nothing has changed.
    fs::remove_file(it.path("workspace/expert-state/lending-desk/state/unused.md")).unwrap();
    it.done(&["update", "lending-desk"]);
    assert_eq!(kept("unused.md").as_deref(), Some("one\n"));
    fs::write(it.path("workspace/expert-state/lending-desk/state/used.md"), "mine\n").unwrap();
    template("state/used.md", "two\n");
    template("state/unused.md", "two\n");
    template("state/new.md", "two\n");
    it.edit("expert.yaml", "memory/old.md", "state/new.md");
    it.edit("expert.yaml", "version: \"0.1.0\"", "version: \"0.1.1\"");
    it.done(&["update", "lending-desk"]);
    assert_eq!(kept("used.md").as_deref(), Some("mine\n"), "what the expert wrote stays");
    assert_eq!(kept("unused.md").as_deref(), Some("two\n"), "an untouched file takes the new template");
    assert_eq!(kept("new.md").as_deref(), Some("two\n"));
    assert_eq!(kept("memory/old.md").as_deref(), Some("one\n"), "a file whose template is gone stays");

    it.done(&["remove", "lending-desk", "--yes"]);
    it.install();
    assert_eq!(kept("used.md").as_deref(), Some("mine\n"));
}

#[test]
fn risky_updates_need_force() {
    let it = Installation::new();
    it.install();
    it.edit("expert.yaml", "version: \"0.1.0\"", "version: \"1.0.0\"");
    assert!(it.refused(&["update", "lending-desk"]).contains("new major version"));
    it.done(&["update", "lending-desk", "--force"]);

    fs::write(it.path("experts/lending-desk/orchestrator.md"), "Mine.\n").unwrap();
    it.edit("expert.yaml", "version: \"1.0.0\"", "version: \"1.0.1\"");
    let refused = it.refused(&["update", "lending-desk"]);
    assert!(
        refused.contains("Changed by hand, and lost with this update:\n  changed: orchestrator.md"),
        "{refused}"
    );
    assert_eq!(it.installed("orchestrator.md"), "Mine.\n");
}

/// Each of these loosens what the expert may do, in a patch version.
#[test]
fn loosening_updates_need_consent() {
    const TOOLS: &str =
        "requires: {tools: [shelf]}\npolicy: {approval: {overrides: {shelf.find: manual}}}\ncomponents:";
    for (from, to, said) in [
        ("shelf.find: manual", "shelf.find: confirm", "shelf.find becomes confirm; it was manual"),
        (
            "shelf.find: manual",
            "shelf.find: manual, shelf.move: auto",
            "shelf.move becomes auto; it was confirm",
        ),
        (
            "{approval: {overrides",
            "{approval: {default: auto, overrides",
            "operations without a tier of their own become auto",
        ),
        ("[shelf]", "[shelf, till]", "it requires the tool till"),
        ("components:", "learning: {enabled: true, approval: auto}\ncomponents:", "learns without asking"),
        (
            "components:",
            "triggers: [{name: asked, type: webhook, process: lend}]\ncomponents:\n  processes: [lend.md]",
            "asked (webhook) runs lend",
        ),
    ] {
        let it = Installation::new();
        fs::write(it.path("source/lend.md"), "---\nname: lend\ndescription: Lends\n---\nLend.\n").unwrap();
        it.edit("expert.yaml", "components:", TOOLS);
        it.install();
        it.edit("expert.yaml", "version: \"0.1.0\"", "version: \"0.1.1\"");
        it.edit("expert.yaml", from, to);
        let text = it.refused(&["update", "lending-desk"]);
        assert!(text.contains(said) && text.contains("you have not consented"), "{said}: {text}");
        assert!(it.installed("expert.yaml").contains("0.1.0"), "{said}");
        it.done(&["update", "lending-desk", "--yes"]);
        assert!(it.installed("expert.yaml").contains("0.1.1"), "{said}");
    }
}

/// The sender of a hook got a 401, and what waited became dead letters, without a word before.
#[test]
fn updates_say_what_ends() {
    let it = Installation::new();
    let lend = "triggers: [{name: asked, type: webhook, process: lend}]\ncomponents:\n  processes: [lend.md]";
    fs::write(it.path("source/lend.md"), "---\nname: lend\ndescription: Lends\n---\nLend.\n").unwrap();
    it.edit("expert.yaml", "components:", lend);
    it.install();
    it.done(&["fire", "lending-desk", "asked", "--payload", "{}"]);
    it.edit("expert.yaml", lend, "components:");
    it.edit("expert.yaml", "version: \"0.1.0\"", "version: \"0.1.1\"");
    let text = it.refused(&["update", "lending-desk"]);
    for said in
        ["the trigger asked is gone", "wait for it and become dead letters: 1", "you have not consented"]
    {
        assert!(text.contains(said), "{said}: {text}");
    }
    it.done(&["update", "lending-desk", "--yes"]);
    assert!(it.installed("expert.yaml").contains("0.1.1"));
}

#[test]
fn broken_updates_change_nothing() {
    let it = Installation::new();
    it.install();
    it.edit("expert.yaml", "spec: \"1.0\"", "spec: \"7.0\"");
    it.refused(&["update", "lending-desk", "--force", "--yes"]);
    assert!(it.done(&["validate", "lending-desk"]).contains("loads"));
}

/// A process that ended between its two renames.
#[test]
fn interrupted_updates_are_repaired() {
    let it = Installation::new();
    it.install();
    fs::create_dir_all(it.path("experts/.respool/replaced")).unwrap();
    fs::rename(it.path("experts/lending-desk"), it.path("experts/.respool/replaced/lending-desk")).unwrap();
    it.done(&["update", "lending-desk"]);
    assert!(it.installed("expert.yaml").contains("lending-desk"));
}

#[test]
fn an_archive_must_be_unpacked_first() {
    let it = Installation::new();
    fs::write(it.path("a.zip"), b"PK").unwrap();
    let text = it.refused(&["install", it.path("a.zip").to_str().unwrap()]);
    assert!(text.contains("a.zip is not a folder") && text.contains("Unpack"), "{text}");
}

fn git(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]);
    let done = command.args(arguments).current_dir(folder).env("HOME", folder).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn clones_skip_submodules_and_hooks() {
    let it = Installation::new();
    let source = it.path("source");
    git(&source, &["init", "-q"]);
    git(&source, &["add", "."]);
    git(&source, &["commit", "-qm", "one"]);
    let url = format!("file://{}", source.display());
    it.done(&["install", &url]);
    assert!(!it.path("experts/lending-desk/.git").exists());

    it.edit("expert.yaml", "version: \"0.1.0\"", "version: \"0.1.1\"");
    git(&source, &["commit", "-qam", "two"]);
    assert!(it.done(&["update", "--all"]).contains("Updated lending-desk to 0.1.1"));

    for bad in [
        "ext::sh -c touch% pwned",
        "http://127.0.0.1:1/x",
        "file:///nowhere/at/all",
        "--upload-pack=touch pwned://x",
    ] {
        it.refused(&["install", "--", bad]);
    }
    assert!(!it.path("pwned").exists() && !Path::new("pwned").exists());
}

/// `EXPERTS.md` follows each change of the installed experts.
#[test]
fn the_main_agent_knows_experts() {
    let installation = Installation::new();
    let page = || fs::read_to_string(installation.path("workspace/EXPERTS.md"));
    let source = installation.path("source");
    installation.done(&["install", source.to_str().unwrap()]);
    assert!(page().unwrap().contains("\n## lending-desk\n- **Description:** Answers readers\n"));
    installation.edit("expert.yaml", "Answers readers", "Answers all readers");
    installation.edit("expert.yaml", "0.1.0", "0.1.1");
    installation.done(&["update", "lending-desk"]);
    assert!(page().unwrap().contains("- **Description:** Answers all readers\n"));
    installation.done(&["remove", "lending-desk", "--yes"]);
    assert!(page().unwrap().ends_with("\nNo expert is installed.\n"));
}

#[test]
fn triggers_fire_by_hand() {
    let installation = Installation::new();
    installation.edit(
        "expert.yaml",
        "  functions: [functions/find-book.md]\n",
        "  functions: [functions/find-book.md]\n  processes: [processes/lend.md]\ntriggers:\n  - {name: order, type: webhook, process: lend, dedupe_key: id}\n  - {name: daily, type: cron, expr: '0 8 * * *', process: lend}\n  - {name: talk, type: channel, process: lend}\n",
    );
    fs::create_dir_all(installation.path("source/processes")).unwrap();
    fs::write(
        installation.path("source/processes/lend.md"),
        "---\nname: lend\ndescription: Lends\n---\nLend.\n",
    )
    .unwrap();
    let source = installation.path("source");
    installation.done(&["install", source.to_str().unwrap()]);
    let shown = installation.done(&["show", "lending-desk"]);
    for hook in ["order", "talk"] {
        assert!(shown.contains(&format!("hook: POST /hooks/lending-desk/{hook}, secret in ")), "{shown}");
    }
    assert_eq!(shown.matches(", off: no channels are named for it").count(), 1, "{shown}");
    assert!(!shown.contains("lending-desk/daily"), "{shown}");
    assert!(!shown.contains("whsec_"), "the secret itself is not shown");
    for _ in 0..2 {
        let fired = installation.done(&["fire", "lending-desk", "order", "--payload", "{\"id\": 7}"]);
        assert!(fired.contains("queued: lending-desk runs lend"), "{fired}");
    }
    assert!(installation.done(&["fire", "lending-desk", "daily"]).contains("queued"));
    let refused = installation.refused(&["remove", "lending-desk"]);
    assert!(
        refused.contains("in the queue: 3. They stay queued until") && refused.contains("--yes"),
        "{refused}"
    );
    assert!(installation.path("experts/lending-desk").exists());
    installation.done(&["remove", "lending-desk", "--yes"]);
    installation.done(&["install", source.to_str().unwrap()]);
    for (arguments, expected) in [
        (["fire", "lending-desk", "order", "--payload", "{"], "the payload is not JSON"),
        (["fire", "lending-desk", "order", "--payload", "7"], "neither a JSON object nor a list"),
        (["fire", "lending-desk", "nothing", "--payload", "{}"], "its triggers are: order, daily, talk"),
        (["fire", "nobody", "order", "--payload", "{}"], "no expert \"nobody\" that loads is installed"),
    ] {
        let (is_done, text) = installation.run(&arguments);
        assert!(!is_done && text.contains(expected), "{text}");
    }
    let learn =
        ["learn", "lending-desk", "--scope", "find-book", "--title", "Shelves", "--correction", "Look left"];
    assert!(installation.done(&learn).contains("Added to what lending-desk has learnt (find-book)."));
    for shown in [&["learn", "lending-desk"][..], &["learn", "lending-desk", "--scope", "find-book"]] {
        let shown = installation.done(shown);
        assert!(
            shown.contains("find-book: 1 entry, 0 archived\n") && shown.contains("- correction: Look left\n"),
            "{shown}"
        );
    }
    let (is_done, text) =
        installation.run(&["learn", "lending-desk", "--scope", "../x", "--title", "t", "--correction", "c"]);
    assert!(!is_done && text.contains("there is no function"), "{text}");
    let shown = installation.done(&["show", "lending-desk"]);
    let (_, secret) = shown.split_once("/order, secret in ").unwrap();
    let secret = Path::new(secret.lines().next().unwrap());
    assert!(secret.exists());
    installation.done(&["remove", "lending-desk", "--purge", "--yes"]);
    assert!(!secret.exists(), "another expert of this name gets another secret");
}

/// Regression: another terminal than the server's, without its secrets, was refused.
#[test]
fn files_and_records_need_no_secrets() {
    let it = Installation::new();
    it.install();
    let file = it.path("respool.toml");
    let text = fs::read_to_string(&file).unwrap();
    let gateway = "[tools.gateway]\nurl = \"http://127.0.0.1:9\"\ntoken_env = \"NOT_SET_HERE\"\n";
    fs::write(&file, format!("{text}{gateway}")).unwrap();
    for command in [&["approvals", "list"][..], &["queue"], &["list"], &["show", "lending-desk"]] {
        let said = it.done(command);
        assert!(!said.contains("NOT_SET_HERE"), "{said}");
    }
    assert!(it.refused(&["run", "lending-desk", "hello"]).contains("NOT_SET_HERE is not set"));
}

/// Who had to approve a call had to correct the file first, while `serve` went on with the old one.
#[test]
fn people_decide_with_a_wrong_file() {
    let it = Installation::new();
    it.install();
    let file = it.path("respool.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}[limits]\nhartbeat = \"1s\"\n")).unwrap();
    for command in
        [&["approvals", "list"][..], &["queue"], &["outbox", "list"], &["drafts"], &["dead-letters", "list"]]
    {
        let said = it.done(command);
        assert!(said.contains("hartbeat") && said.contains("would not start with it"), "{said}");
    }
    assert!(it.refused(&["list"]).contains("hartbeat"));
}
