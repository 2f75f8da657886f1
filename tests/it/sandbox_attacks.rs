//! Attacks on the sandbox that take several commands, each in a respool process of its own: with the environment of an activated
//! project, as an ordinary user where the tests run as root. A second round of attacks succeeded with each of these before.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tempfile::TempDir;
use testing::waiting::look_blocking;
use tools::{Level, Sources, remove_temporary_directories};

use crate::sandbox::skipped;
use crate::support::tools::{call, config, launcher};

/// The user that runs the commands where the tests run as root; no account has this number.
const ORDINARY: u32 = 54_321;

/// A command that begins with this is the person's, between those of respool, and has no output.
const PERSON: &str = "PERSON: ";

/// Commands that a respool runs one after the other.
#[derive(Serialize, Deserialize)]
struct Job {
    workspace: PathBuf,
    settings: String,
    launcher: PathBuf,
    /// `full`, `landlock` or `filter`.
    level: String,
    commands: Vec<String>,
}

/// The results of the attacks.
#[derive(Default, Serialize, Deserialize)]
struct Done {
    level: String,
    outputs: Vec<String>,
    /// The modes of the temporary directories while the commands ran.
    modes: Vec<u32>,
}

fn level(name: &str) -> Level {
    match name {
        "full" => Level::Full,
        "landlock" => Level::Landlock,
        "filter" => Level::Filter,
        "off" => Level::Off,
        other => panic!("{other}"),
    }
}

/// The other side of [`Site::run`]. In the commands, `{terminal}` is a terminal of this process, and `{respool}` its number.
#[tokio::test]
#[ignore = "started by the other tests"]
async fn runs_the_commands_of_a_job() {
    let job: Job = serde_json::from_str(&std::env::var("RESPOOL_TEST_JOB").unwrap()).unwrap();
    let off = if job.level == "off" { "local.sandbox = \"off\"\n" } else { "" };
    // What no file of settings says.
    let (hidden, settings) = match job.settings.strip_prefix("hidden: ") {
        Some(hidden) => (hidden.split(' ').map(PathBuf::from).collect(), ""),
        None => (Vec::new(), job.settings.as_str()),
    };
    let mut config = config(&format!("policy.default = \"allow\"\n{off}{settings}"));
    config.local.own_files.clone_from(&hidden);
    config.local.hidden = hidden;
    config.local.state_dir = std::env::home_dir().map(|home| home.join("state"));
    config.local.workspace = Some(job.workspace);
    config.local.launcher = Some(job.launcher);
    config.local.highest_level = Some(level(&job.level));
    let terminal = nix::pty::openpty(None, None).unwrap();
    let terminal_name = nix::unistd::ttyname(&terminal.slave).unwrap().display().to_string();
    let sources = Sources::open(&config).unwrap();
    let mut done =
        Done { level: format!("{:?}", sources.sandbox().unwrap()).to_lowercase(), ..Done::default() };
    let tools = sources.select_tools(&["exec".to_owned()]).await.unwrap();
    let servers: Vec<&str> = config.mcp.keys().map(String::as_str).collect();
    for command in job.commands {
        if let Some(script) = command.strip_prefix(PERSON) {
            assert!(Command::new("/bin/sh").args(["-c", script]).status().unwrap().success(), "{script}");
            continue;
        }
        let respool = std::process::id().to_string();
        let command = command.replace("{terminal}", &terminal_name).replace("{respool}", &respool);
        let output = match call(&tools, "exec", json!({"command": command})).await {
            Ok(output) => output.text,
            Err(error) => error.text().to_owned(),
        };
        done.outputs.push(output);
    }
    sources.await_servers(servers.iter().copied(), std::time::Duration::from_secs(10)).await;
    for server in servers {
        done.outputs.push(sources.mcp_problem(server).map(|problem| problem.text).unwrap_or_default());
    }
    for entry in fs::read_dir(std::env::temp_dir()).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("respool-") {
            use std::os::unix::fs::PermissionsExt as _;
            done.modes.push(entry.metadata().unwrap().permissions().mode() & 0o777);
        }
    }
    fs::write(std::env::var("RESPOOL_TEST_DONE").unwrap(), serde_json::to_string(&done).unwrap()).unwrap();
    // As a respool that is asked to end.
    remove_temporary_directories();
    std::process::exit(0);
}

/// A home directory with secrets, and a workspace in it.
struct Site {
    home: TempDir,
}

/// The programs, where an ordinary user can start them. Statics are never dropped, so the folder of an earlier run is removed here.
static PROGRAMS: LazyLock<TempDir> = LazyLock::new(|| {
    let parent = Path::new("/var/lib");
    remove_old_folders(parent);
    let directory = folder(parent);
    for (from, name) in [(std::env::current_exe().unwrap(), "tests"), (launcher(), "respool")] {
        let to = directory.path().join(name);
        fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).unwrap();
    }
    directory
});

/// Removes the folders of runs that began more than an hour ago.
fn remove_old_folders(parent: &Path) {
    for entry in fs::read_dir(parent).unwrap().flatten() {
        let age = entry.metadata().and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok());
        let is_old = age.is_some_and(|age| age > std::time::Duration::from_hours(1));
        if is_old && entry.file_name().to_string_lossy().starts_with("respool-test-") {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Not in `/tmp`, which commands have for themselves.
fn folder(for_root: &Path) -> TempDir {
    let parent = if is_root() { for_root.to_owned() } else { std::env::home_dir().unwrap() };
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    tempfile::Builder::new().prefix("respool-test-").permissions(open).tempdir_in(parent).unwrap()
}

impl Site {
    fn new() -> Self {
        Self::below(Path::new("/srv"))
    }

    fn below(parent: &Path) -> Self {
        let home = folder(parent);
        for directory in [".ssh", "work", "tmp", ".config/git", ".yarn/bin", ".cache", "private/.git"] {
            fs::create_dir_all(home.path().join(directory)).unwrap();
        }
        fs::write(home.path().join(".ssh/id_rsa"), "PRIVATE KEY").unwrap();
        fs::write(home.path().join(".bashrc"), "").unwrap();
        fs::write(home.path().join(".config/git/config"), "[user]\n\tname = me\n\temail = me@example.org\n")
            .unwrap();
        Self { home }
    }

    /// With a repository that has a commit.
    fn with_repository() -> Self {
        let site = Self::new();
        site.person("git init -q -b main && echo a > a && git add a && git commit -qm one");
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn work(&self, name: &str) -> PathBuf {
        self.path("work").join(name)
    }

    fn command(&self, program: &Path) -> Command {
        if is_root() {
            let owner = format!("{ORDINARY}:{ORDINARY}");
            let changed = Command::new("chown").args(["-hR", &owner]).arg(self.home.path()).status().unwrap();
            assert!(changed.success());
        }
        let mut command = Command::new(program);
        command.env_clear().env("HOME", self.home.path()).env("TMPDIR", self.path("tmp"));
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir(self.work(""));
        if is_root() {
            std::os::unix::process::CommandExt::uid(&mut command, ORDINARY);
            std::os::unix::process::CommandExt::gid(&mut command, ORDINARY);
        }
        command
    }

    /// Runs a script as the person, outside of any sandbox.
    fn person(&self, script: &str) -> Output {
        self.person_says(script, true)
    }

    fn person_says(&self, script: &str, must_work: bool) -> Output {
        let mut shell = self.command(Path::new("/bin/sh"));
        let output = shell.args(["-c", script]).env("GIT_CONFIG_NOSYSTEM", "1").output().unwrap();
        assert!(!must_work || output.status.success(), "{script}: {output:?}");
        output
    }

    /// Runs commands in a respool with these variables, and returns what each said.
    fn run(&self, variables: &[(&str, &str)], commands: &[&str]) -> Vec<String> {
        self.run_at("full", "", variables, commands).outputs
    }

    fn run_at(&self, level: &str, settings: &str, variables: &[(&str, &str)], commands: &[&str]) -> Done {
        let job = Job {
            workspace: self.work(""),
            settings: settings.to_owned(),
            launcher: PROGRAMS.path().join("respool"),
            level: level.to_owned(),
            commands: commands.iter().map(|command| (*command).to_owned()).collect(),
        };
        let done = self.path("done.json");
        let mut respool = self.command(&PROGRAMS.path().join("tests"));
        respool.args(["--exact", "sandbox_attacks::runs_the_commands_of_a_job", "--ignored", "--nocapture"]);
        respool.env("RESPOOL_TEST_JOB", serde_json::to_string(&job).unwrap()).env("RESPOOL_TEST_DONE", &done);
        let work = self.work("").display().to_string();
        for (name, value) in variables {
            respool.env(name, value.replace("$PWD", work.trim_end_matches('/')));
        }
        let output = respool.output().unwrap();
        let text = fs::read_to_string(&done).unwrap_or_else(|_| panic!("{output:?}"));
        let done: Done = serde_json::from_str(&text).unwrap();
        assert_eq!(done.level, level, "this machine has no such sandbox, so nothing is proved: {output:?}");
        done
    }

    /// The attacks succeed by making this file.
    fn assert_not_escaped(&self, outputs: &[String]) {
        for name in ["ESCAPED", "PWNED"] {
            assert!(!self.path(name).exists(), "{name}: {outputs:#?}");
        }
        let all = outputs.concat();
        assert!(!all.contains("PRIVATE KEY") && !all.contains("TOKEN"), "{all}");
    }

    /// The person looks at their repository, and nothing of a command's runs.
    fn assert_status_is_safe(&self, outputs: &[String]) {
        for directory in [".", "sub", "../tree"] {
            self.person_says(&format!("cd {directory} && git status; git diff; git log -1"), false);
        }
        self.assert_not_escaped(outputs);
    }
}

const FSMONITOR: &str = r#"fsm='[core]\n\tfsmonitor = "touch ~/PWNED; false"\n'; "#;

#[test]
fn no_program_of_the_workspace_runs_outside() {
    for variables in [
        &[("PATH", "$PWD/.venv/bin:/usr/local/bin:/usr/bin:/bin"), ("VIRTUAL_ENV", "$PWD/.venv")][..],
        &[("PATH", "$PWD/node_modules/.bin:$PWD/bin:/usr/local/bin:/usr/bin:/bin")],
    ] {
        let site = Site::with_repository();
        let plant = "for d in .venv/bin node_modules/.bin bin; do mkdir -p $d; for p in git bwrap sh; do \
            printf '#!/bin/sh\\ncat ~/.ssh/id_rsa > ~/ESCAPED\\nexec /usr/bin/env -i /usr/bin/git \"$@\"\\n' > $d/$p; chmod +x $d/$p; done; done; \
            git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sm; mkdir -p sm; true";
        let outputs = site.run(variables, &[plant, "true", "git add -A && git commit -qm two", "git status"]);
        site.assert_not_escaped(&outputs);
    }
}

/// bubblewrap and pasta run outside, and find their libraries where the system has them.
#[test]
fn no_library_of_the_workspace_is_loaded_outside() {
    for (level, network) in [("full", true), ("full", false), ("landlock", false)] {
        let site = Site::new();
        let settings = format!("local.network = {network}\nlocal.pass_env = [\"LD_LIBRARY_PATH\"]");
        let plant =
            "mkdir lib; for l in libcap.so.2 libselinux.so.1 libgcc_s.so.1; do echo broken > lib/$l; done";
        let commands = [plant, "echo alive at $LD_LIBRARY_PATH"];
        let outputs = site.run_at(level, &settings, &[("LD_LIBRARY_PATH", "$PWD/lib")], &commands).outputs;
        assert_eq!(outputs[1], format!("alive at {}\n", site.work("lib").display()), "{level}: {outputs:#?}");
    }
}

/// MCP servers start outside the sandbox, and so does what they start.
#[test]
fn no_mcp_server_starts_a_program_of_the_workspace() {
    let site = Site::new();
    let settings = "mcp.planted.command = \"planted\"\nmcp.python.command = \"python3\"\n\
        mcp.indirect = { command = \"env\", args = [\"planted\"] }";
    let plant = "mkdir -p bin; for p in planted python3; do printf '#!/bin/sh\\ntouch ~/PWNED\\n' > bin/$p; chmod +x bin/$p; done; \
        ln -s bin .venv; true";
    let path = ("PATH", "$PWD/.venv:$PWD/bin:/usr/local/bin:/usr/bin:/bin");
    let outputs = site.run_at("full", settings, &[path], &[plant, "planted"]).outputs;
    assert!(outputs[2].contains("127"), "env finds no such program: {outputs:#?}");
    assert!(outputs[3].contains("planted is not in PATH"), "{outputs:#?}");
    // The second command itself ran it, in the sandbox.
    assert!(
        outputs[1].contains("Read-only file system") || outputs[1].contains("ermission denied"),
        "{outputs:#?}"
    );
    site.assert_not_escaped(&outputs);
}

#[test]
fn no_place_is_led_elsewhere_between_commands() {
    let evil = "echo evil >> ~/.bashrc; echo KEY >> ~/.ssh/authorized_keys; cat ~/.ssh/id_rsa; true";
    for (variable, value, lead) in [
        ("CARGO_TARGET_DIR", "$PWD/target", "rm -rf target; ln -s .. target"),
        ("PIP_CACHE_DIR", "$PWD/.cache/pip", "mv .cache c2; mkdir .cache; ln -s ../.. .cache/pip"),
        ("GOCACHE", "$PWD/gocache", "ln -s .. gocache"),
        ("UV_CACHE_DIR", "$PWD/uv", "ln -s .. uv"),
        ("XDG_CACHE_HOME", "$PWD/cache", "mkdir cache; ln -s ../.. cache/pip"),
        ("CARGO_HOME", "$PWD/cargo", "mkdir cargo; ln -s ../.. cargo/registry"),
        ("VIRTUAL_ENV", "$PWD/.venv", "mv .venv .venv0; ln -s ../.ssh .venv"),
        (
            "PATH",
            "$PWD/.venv/bin:/usr/local/bin:/usr/bin:/bin",
            "mv .venv .venv0; mkdir -p .venv; ln -s ../.ssh .venv; rm -rf .venv; ln -s ../.ssh .venv",
        ),
    ] {
        let site = Site::new();
        site.person("mkdir -p .cache/pip .venv/bin");
        let mut outputs = site.run(&[(variable, value)], &[lead, evil]);
        // And in the next respool, which finds the link there.
        outputs.extend(site.run(&[(variable, value)], &[evil]));
        site.assert_not_escaped(&outputs);
        assert_eq!(fs::read_to_string(site.path(".bashrc")).unwrap(), "", "{variable}: {outputs:#?}");
        assert!(!site.path(".ssh/authorized_keys").exists(), "{variable}: {outputs:#?}");
    }
}

#[test]
fn no_configured_place_is_led_elsewhere() {
    let site = Site::new();
    site.person("mkdir -p out/data ../caches/a");
    let settings = format!("local.writable = [{:?}, {:?}]", site.work("out/data"), site.path("caches/a"));
    let commands = [
        "mv out o2; mkdir out; ln -s ../.. out/data; rmdir ~/caches/a; ln -s ~/.ssh ~/caches/a; echo x > ~/caches/a/x",
        "echo evil >> ~/.bashrc; cat ~/.ssh/id_rsa; echo y > ~/caches/a/y",
    ];
    let outputs = site.run_at("full", &settings, &[], &commands).outputs;
    site.assert_not_escaped(&outputs);
    assert_eq!(fs::read_to_string(site.path(".bashrc")).unwrap(), "");
    assert!(site.path("caches/a/y").exists(), "the place itself is written: {outputs:#?}");
}

#[test]
fn a_forged_submodule_opens_no_other_repository() {
    let site = Site::with_repository();
    site.person("cd ../private && git init -q && echo SOURCE > src.txt && git add . && git commit -qm x && git config remote.o.url https://user:TOKEN@host");
    let forge = "mkdir -p f/.git f/sub; ln -s ~/private f/.git/modules; printf 'gitdir: ../.git/modules/.git\\n' > f/sub/.git";
    let read =
        "cat ~/private/.git/config; touch ~/private/.git/pwned; GIT_DIR=~/private/.git git show HEAD:src.txt";
    let mut outputs = site.run(&[], &[forge, read]);
    outputs.extend(site.run(&[], &[read, "cd f/sub && git add ../../a; git log -p"]));
    site.assert_not_escaped(&outputs);
    assert!(!outputs.concat().contains("SOURCE\n"), "{outputs:#?}");
    assert!(!site.path("private/.git/pwned").exists());
}

/// Each way in which a person's own `git status` ran a command's program.
#[test]
fn git_status_of_the_person_runs_nothing() {
    let submodule = "git init -q -b main ../origin && cd ../origin && git commit -q --allow-empty -m one && cd ../work && \
        git -c protocol.file.allow=always submodule --quiet add ../origin sub && git commit -qm sub";
    let tree = "git worktree add -q ../tree && git config extensions.worktreeConfig true";
    let hooks = "mkdir githooks && rm -rf .git/hooks && ln -s ../githooks .git/hooks";
    let hook = "mkdir scripts && printf '#!/bin/sh\\n' > scripts/index && chmod +x scripts/index && \
        mkdir -p .git/hooks && ln -s ../../scripts/index .git/hooks/post-index-change && git config core.fsmonitor scripts/later";
    let linked_config = "mv .git/config shared && ln -s ../shared .git/config";
    let linked_git = "mv .git real && ln -s real .git";
    let nested = "git init -q nested && git -C nested commit -q --allow-empty -m x";
    let included = "touch .gitconfig && git config include.path ../.gitconfig && git config --global include.path $PWD/x/y";
    let linked = "mkdir conf real deep && touch real/inc && ln -s ../real conf/l && ln -s conf/l/inc top && \
        git config include.path ../top && git config --add include.path ../deep/none && mkdir x && ln -s work/x/y ../.gitconfig";
    let separate = "mv .git store && echo 'gitdir: store' > .git";
    let bare = "git clone -q --bare . .bare && rm -rf .git && echo 'gitdir: ./.bare' > .git && git worktree add -q sub && rm -f a";
    let named = "mkdir -p tools/hooks && git config core.hooksPath tools/hooks";
    for (setup, commands) in [
        (
            linked,
            [
                "mkdir evil; printf \"$fsm\" > evil/inc; mv conf c2; mkdir conf; ln -s ../evil conf/l; mv deep d2; mkdir deep; printf \"$fsm\" > deep/none",
                "rm conf/l; ln -s ../evil conf/l; mv x x2; mkdir x; printf \"$fsm\" > x/y; rm top; ln -s evil/inc top",
            ],
        ),
        (
            hook,
            [
                "echo 'touch ~/PWNED' >> scripts/index; mv scripts s2; mkdir scripts; echo b > a",
                "printf '#!/bin/sh\\ntouch ~/PWNED\\n' > scripts/later; chmod +x scripts/later",
            ],
        ),
        (
            separate,
            [
                "printf \"$fsm\" >> store/config",
                "mv store s2; cp -r s2 store; printf \"$fsm\" >> store/config",
            ],
        ),
        (
            bare,
            [
                "printf \"$fsm\" >> .bare/config",
                "mv .bare b2; cp -r b2 .bare; printf \"$fsm\" >> .bare/config",
            ],
        ),
        (included, ["printf \"$fsm\" >> .gitconfig; mv .gitconfig g", "mkdir x; printf \"$fsm\" > x/y"]),
        (
            named,
            [
                "printf '#!/bin/sh\\ntouch ~/PWNED\\n' > tools/hooks/post-index-change; chmod +x tools/hooks/*",
                "mv tools t; mkdir -p tools/hooks; printf '#!/bin/sh\\ntouch ~/PWNED\\n' > tools/hooks/post-index-change; chmod +x tools/hooks/*; echo b > a",
            ],
        ),
        (
            "",
            [
                "git init -q two; git -C two -c user.name=x -c user.email=x@y commit -q --allow-empty -m x; printf \"$fsm\" >> two/.git/config",
                "git update-index --add --cacheinfo 160000,$(git -C two rev-parse HEAD),two; git add two; git add two && true",
            ],
        ),
        (
            submodule,
            [
                "mv .git/modules .git/m2; cp -r .git/m2 .git/modules; printf \"$fsm\" >> .git/modules/sub/config",
                "true",
            ],
        ),
        (
            submodule,
            [
                "mv sub s2; mkdir sub; git init -q sub; printf \"$fsm\" >> sub/.git/config; rm sub/.git",
                "git init -q sub; printf \"$fsm\" >> sub/.git/config",
            ],
        ),
        (
            tree,
            [
                "mkdir evil; printf \"$fsm\" > evil/config; mv .git/worktrees .git/w2; cp -r .git/w2 .git/worktrees; echo $PWD/evil > .git/worktrees/tree/commondir",
                "true",
            ],
        ),
        (
            tree,
            [
                "printf \"$fsm\" > .git/config.worktree; printf \"$fsm\" > .git/worktrees/tree/config.worktree",
                "echo ../evil > .git/commondir",
            ],
        ),
        (
            hooks,
            [
                "rm .git/hooks; mkdir .git/hooks; printf '#!/bin/sh\\ntouch ~/PWNED\\n' > .git/hooks/post-index-change; chmod +x .git/hooks/*",
                "printf '#!/bin/sh\\ntouch ~/PWNED\\n' > githooks/post-index-change; chmod +x githooks/*; touch a",
            ],
        ),
        (linked_config, ["printf \"$fsm\" >> shared", "rm .git/config; printf \"$fsm\" > .git/config"]),
        (
            linked_git,
            ["rm .git; cp -r real .git; printf \"$fsm\" >> .git/config", "printf \"$fsm\" >> real/config"],
        ),
        (
            nested,
            ["mv nested n2; cp -r n2 nested; printf \"$fsm\" >> nested/.git/config", "git add nested; true"],
        ),
    ] {
        let site = Site::with_repository();
        site.person(if setup.is_empty() { "true" } else { setup });
        let commands = commands.map(|command| format!("{FSMONITOR}{command}"));
        let outputs = site.run(&[], &[&commands[0], &commands[1]]);
        site.assert_status_is_safe(&outputs);
        site.person_says("cd nested && git status", false);
        site.assert_not_escaped(&outputs);
    }
}

/// Where single mounts would be too many, directories are read-only as a whole. The repository that a command
/// works in is not.
#[test]
fn commands_run_among_many_repositories() {
    let site = Site::new();
    let make = |many: &str, count: u32| {
        format!(
            "for i in $(seq {count}); do mkdir -p {many}/r$i/.git/objects {many}/r$i/.git/refs; echo 'ref: refs/heads/main' > {many}/r$i/.git/HEAD; done"
        )
    };
    site.person(&make("many", 1_500));
    let evil = "for d in many made; do printf evil >> $d/r8/.git/config; touch $d/r8/x; mv $d/r8 $d/r9 $d/r0; done; echo x > new; true";
    let outputs = site.run(
        &[],
        &[
            evil,
            "cd many/r7 && echo x > file && git add file && git status --short",
            "cd many/r7 && printf evil >> .git/config",
            &make("made", 700),
            evil,
        ],
    );
    assert_eq!(outputs[1], "A  file\n", "{outputs:#?}");
    assert!(outputs[2].contains("ead-only file system"), "{outputs:#?}");
    assert!(site.work("new").exists() && site.work("made/r700/.git").exists(), "{outputs:#?}");
    for name in [
        "many/r7/.git/config",
        "many/r8/.git/config",
        "many/r8/x",
        "many/r0",
        "made/r8/.git/config",
        "made/r0",
    ] {
        assert!(!site.work(name).exists(), "{name}: {outputs:#?}");
    }
}

/// A clone whose submodules were never fetched has an empty directory for each, or none.
#[test]
fn a_missing_submodule_cannot_be_made_up() {
    for missing in ["true", "rmdir sub"] {
        let site = Site::with_repository();
        site.person("git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub && mkdir sub && git commit -qm sub");
        site.person(missing);
        let make = format!(
            "{FSMONITOR}mkdir -p sub; git init -q sub; printf \"$fsm\" >> sub/.git/config; \
            git -C sub -c user.name=x -c user.email=x@y commit -q --allow-empty -m x"
        );
        let outputs = site.run(&[], &[&make, &make, "mv sub s2; mkdir sub", &make]);
        site.assert_status_is_safe(&outputs);
    }
}

/// Neither a filter nor a merge strategy of the project runs where git can write its directory.
#[test]
fn git_executes_nothing_but_git() {
    let site = Site::with_repository();
    site.person("git config filter.x.clean 'sh ./filter.sh' && git config merge.m.driver 'sh ./filter.sh'");
    let plant = "mkdir git-merge-x; printf '#!/bin/sh\\necho x > .git/commondir; cat\\n' | tee git-merge-x/evil > filter.sh; \
        chmod +x git-merge-x/evil; echo 'b filter=x' > .gitattributes; echo 'a merge=m' >> .gitattributes; echo b > b";
    let conflict = "git add -A ':!b' && git commit -qm one && git switch -qc side && echo c > a && git commit -qam two && \
        git switch -q - && echo d > a && git commit -qam three && git merge side";
    let outputs = site.run(
        &[],
        &[
            plant,
            "git add b",
            conflict,
            "git reset -q --hard && git cherry-pick --strategy=x/evil side",
            "git pull --rebase -s x/evil . side",
            "git ls-files",
        ],
    );
    assert!(outputs[1].contains("Permission denied") && outputs[1].contains("[exit code"), "{outputs:#?}");
    assert!(outputs[2].contains("cannot exec 'sh ./filter.sh'"), "{outputs:#?}");
    assert!(outputs[5].contains("filter.sh\n") && !outputs[5].contains("\nb\n"), "{outputs:#?}");
    assert!(!site.work(".git/commondir").exists(), "{outputs:#?}");
    site.assert_status_is_safe(&outputs);
    // A file that a filter encrypts is not taken as it is.
    let site = Site::with_repository();
    site.person("git config filter.a=b.clean false && echo 'b filter=a=b' > .gitattributes && echo b > b");
    let outputs = site.run(&[], &["git add b", "git ls-files"]);
    assert_eq!(outputs[1], "a\n", "{outputs:#?}");
}

/// git compares a changed file for each commit, also for one of others.
#[test]
fn a_filtered_file_stops_no_other_commit() {
    let site = Site::with_repository();
    site.person("echo 'b filter=x' > .gitattributes && echo b > b && git add . && git commit -qm b && git config filter.x.clean 'tr b c' && git config filter.x.required true && echo bb > b");
    let outputs = site.run(
        &[],
        &[
            "echo d > d && git add d && git commit -qm d && git show --format=%s --name-only",
            "git commit -qam b",
        ],
    );
    assert_eq!(outputs[0], "d\n\nd\n", "{outputs:#?}");
    assert!(outputs[1].contains("filter 'x' failed"), "{outputs:#?}");
}

/// An older git moves files into its own directory.
#[test]
fn git_moves_no_file_into_its_directory() {
    let site = Site::with_repository();
    let plant = "printf '#!/bin/sh\\ntouch ~/PWNED\\n' > x; chmod +x x; ln -s .git d; true";
    let moves = ["git mv x .git/hooks/post-commit", "git mv x d/hooks/post-commit", "git mv a other"];
    let outputs = site.run(&[], &[plant, "git add x && git commit -qm x", moves[0], moves[1], moves[2]]);
    assert!(!site.work(".git/hooks/post-commit").exists() && site.work("x").exists(), "{outputs:#?}");
    assert!(site.work("other").exists(), "{outputs:#?}");
}

/// They may hold keys, and `.gitignore` has their old names.
#[test]
fn renamed_settings_are_not_added() {
    let site = Site::with_repository();
    site.person("mkdir d");
    let make = "mkdir .vscode; echo x > .vscode/x; echo b > d/b; true";
    let outputs =
        site.run(&[], &[make, "cd d && git add -vA", "git ls-files", "git add a && git status --short"]);
    assert!(site.work(".vscode.made-by-a-command/x").exists(), "{outputs:#?}");
    assert_eq!(outputs[2], "a\nd/b\n", "{outputs:#?}");
    assert!(outputs[3].starts_with("A  d/b\n"), "{outputs:#?}");
}

/// A configuration may name what is not there yet, in a directory that commands make.
#[test]
fn named_places_are_judged_alone() {
    let site = Site::with_repository();
    site.person("git config core.hooksPath build/hooks");
    let outputs = site.run(&[], &["mkdir -p build/x && echo made", "mkdir build/hooks; true"]);
    assert!(outputs[0] == "made\n" && site.work("build/x").is_dir(), "{outputs:#?}");
    assert!(!site.work("build/hooks").exists(), "{outputs:#?}");
    let site = Site::with_repository();
    site.person("git config core.hooksPath build/hooks");
    let outputs = site.run(&[], &["mkdir -p evil/hooks; ln -s evil build"]);
    assert!(!site.work("build").exists(), "{outputs:#?}");
}

/// The configuration is not written, so no branch follows another one.
#[test]
fn branches_that_follow_need_consent() {
    let site = Site::with_repository();
    site.person("git clone -q --bare . ../o && git -C ../o branch side && git remote add origin ../o && git fetch -q origin");
    let outputs =
        site.run(&[], &["git switch side && git branch --show-current", "git switch -c x -t origin/side"]);
    assert!(outputs[0].ends_with("side\n") && !outputs[0].contains("set up to track"), "{outputs:#?}");
    assert!(outputs[1].contains("read-only, except for a plain `git add`"), "{outputs:#?}");
    assert!(!site.work(".git/refs/heads/x").exists(), "{outputs:#?}");
}

/// A chat may begin below the top of a repository, whose other files commands do not write.
#[test]
fn git_leaves_no_half_above_the_workspace() {
    let site = Site::new();
    site.person(
        "cd .. && git init -q -b main && echo a > o && echo a > work/f && git add o work/f && git commit -qm one && \
         git switch -qc side && echo b > o && echo b > work/f && git commit -qam two && git switch -q main && echo own > work/f",
    );
    let commit = "git add f && git commit -qm three && git log --format=%s -1";
    let outputs = site.run(&[], &["git switch -f side", "git stash", commit]);
    let read = |name: &str| fs::read_to_string(site.path(name)).unwrap();
    assert_eq!([read("o"), read("work/f"), outputs[2].clone()], ["a\n", "own\n", "three\n"], "{outputs:#?}");
}

/// Words of a shell, and links, lead to other directories than those in which the steps of a line run.
#[test]
fn git_works_in_the_directory_of_its_line() {
    let site = Site::with_repository();
    site.person("mkdir web d e && echo w > web/f && git add . && git commit -qm web && ln -s ../web e/l && echo own > a");
    let reset = "git reset -q --hard";
    for change in
        ["pushd web", "X=1 cd web", "command cd web", "2>/dev/null cd web", "time cd web", "! cd web"]
    {
        let outputs = site.run(&[], &[&format!("{change} && {reset}")]);
        assert_eq!(fs::read_to_string(site.work("a")).unwrap(), "own\n", "{change}: {outputs:#?}");
    }
    let restore = "echo x > web/f; git -C web restore . && cat a && git -C e/../web add . && cat web/f";
    assert_eq!(site.run(&[], &[restore]), ["own\nw\n"]);
    let outputs = site.run(
        &[],
        &[
            "cd e/l && true && cd .. && git add -A .",
            "rmdir d && ln -s . d && cd d && git add a",
            "git diff --cached --name-only",
            "cd web && echo x > f && cd .. && git add web && git diff --cached --name-only",
        ],
    );
    assert!(outputs[1].contains("nothing ran"), "{outputs:#?}");
    assert_eq!(outputs[2..], ["[no output]", "web/f\n"], "{outputs:#?}");
}

/// A submodule's files are its own, and its configuration is not git's to write in such a command.
#[test]
fn git_leaves_submodules_as_they_are() {
    let site = Site::with_repository();
    site.person(
        "cp -r . ../o && git -c protocol.file.allow=always submodule --quiet add ../o sub && git commit -qm sub && \
         git config submodule.recurse true && git switch -qc side && echo b > sub/a && git -C sub commit -qam two && echo b > a && \
         git commit -qam two && git switch -q main",
    );
    let switch = "git switch -q side && cat a && git log --format=%s -1";
    let outputs = site.run(&[], &[switch, "git checkout --recurse-submodules main"]);
    assert_eq!(outputs[0], "b\ntwo\n", "{outputs:#?}");
    assert!(outputs[1].contains("index.lock"), "{outputs:#?}");
}

/// A helper is a link to the program that loads others, and the command's variables name a library.
#[test]
fn no_name_leads_git_to_other_code() {
    let site = Site::with_repository();
    let loader = "$(ls /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1 2>/dev/null | head -1)";
    let plant = format!(
        "mkdir -p bin lib; ln -s {loader} bin/git-remote-evil; cp /bin/sh 'evil::./x'; echo 'echo x > .git/commondir' > x; \
        for l in libz.so.1 libc.so.6; do echo x > lib/$l; done; true"
    );
    let paths = [("PATH", "/usr/local/bin:/usr/bin:/bin:$PWD/bin"), ("LD_LIBRARY_PATH", "$PWD/lib")];
    let outputs = site.run(&paths[..1], &[&plant, "git fetch evil::./x"]);
    assert!(outputs[1].contains("[exit code") && !site.work(".git/commondir").exists(), "{outputs:#?}");
    let outputs = site.run(&paths[1..], &["git add a"]);
    assert!(!outputs[0].contains("too short"), "{outputs:#?}");
    site.person("git config --global protocol.allow always");
    let outputs = site.run(&[], &["git fetch 'ext::/bin/sh ./x'"]);
    assert!(outputs[0].contains("transport 'ext' not allowed"), "{outputs:#?}");
}

/// Also the steps of a rebase, which edit messages.
#[test]
fn conflicts_of_a_pull_are_continued() {
    let site = Site::with_repository();
    site.person("git init -q --bare ../o && git remote add origin ../o && git push -q origin HEAD:main && git switch -qc main2 && echo o > a && git commit -qam o && git push -q origin HEAD:main");
    site.person("git reset -q --hard HEAD~1 && echo own > a && git commit -qam own && git fetch -q && git config pull.rebase true && (git rebase -q origin/main || true)");
    let outputs = site
        .run(&[], &["echo both > a; true", "git add a && git rebase --continue", "git log --format=%s -2"]);
    assert_eq!(outputs[2], "own\no\n", "{outputs:#?}");
}

/// Without bubblewrap the command could write nothing here.
#[test]
fn what_the_person_makes_meanwhile_stays() {
    let site = Site::with_repository();
    let wait = "touch $TMPDIR/begun; for i in $(seq 400); do if test -e .envrc; then break; fi; sleep 0.05; done; cat .envrc";
    let has_begun = || {
        let mut folders = fs::read_dir(site.path("tmp")).unwrap().flatten();
        folders.any(|folder| folder.path().join("begun").exists())
    };
    std::thread::scope(|scope| {
        let command = scope.spawn(|| site.run_at("landlock", "", &[], &[wait]).outputs);
        while !has_begun() {
            assert!(!command.is_finished(), "{:#?}", command.join());
            std::thread::yield_now();
        }
        fs::write(site.work(".envrc"), "own\n").unwrap();
        let outputs = command.join().unwrap();
        assert!(outputs[0] == "own\n" && site.work(".envrc").exists(), "{outputs:#?}");
    });
}

/// A commit changes nothing in the work tree, so nothing there is looked at.
#[test]
fn what_comes_during_a_commit_stays() {
    let site = Site::with_repository();
    site.person("mkfifo message");
    let (message, setting) = (site.work("message"), site.work(".envrc"));
    let person = std::thread::spawn(move || {
        let open = || {
            let mut options = fs::OpenOptions::new();
            std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, nix::libc::O_NONBLOCK);
            options.write(true).open(&message)
        };
        // Opening it fails until git reads it.
        let mut message = look_blocking(Duration::from_mins(1), || open().ok()).unwrap();
        fs::write(setting, "own").unwrap();
        std::io::Write::write_all(&mut message, b"two").unwrap();
    });
    let outputs = site.run(&[], &["git commit --allow-empty -qF message", "git log --format=%s"]);
    person.join().unwrap();
    assert!(outputs[1] == "two\none\n" && site.work(".envrc").exists(), "{outputs:#?}");
}

/// A link to the link that was renamed: in its place is a file.
#[test]
fn renamed_links_lead_nowhere() {
    let site = Site::with_repository();
    let make = format!(
        "{FSMONITOR}mkdir -p ~/.cache/pip/l && cd ~/.cache/pip/l && git init -q && printf \"$fsm\" >> .git/config; cd - >/dev/null; \
        ln -s ~/.cache/pip/l src"
    );
    let again = "ln -s src.made-by-a-command src; mkdir -p d && ln -s ../src.made-by-a-command d/e";
    let outputs = site.run(&[], &[&make, again, "true"]);
    for link in ["src", "d/e"] {
        assert!(site.work(link).metadata().is_ok_and(|data| data.is_file()), "{link}: {outputs:#?}");
    }
}

/// Package managers make tens of thousands of links, each of which stays inside.
#[test]
fn many_inner_links_are_no_trouble() {
    let site = Site::with_repository();
    site.person("mkdir -p node_modules/p && cd node_modules && for i in $(seq 200); do mkdir -p d$i; done");
    for directory in 1..=200 {
        for link in 0..150 {
            let path = site.work(&format!("node_modules/d{directory}/l{link}"));
            std::os::unix::fs::symlink("../p", path).unwrap();
        }
    }
    let outputs = site.run(&[], &["touch new", "touch newer"]);
    assert!(site.work("new").exists() && site.work("newer").exists(), "{outputs:#?}");
}

/// `git stash list` takes the options of `git log`: it wrote an index with a hook among its names.
#[test]
fn options_of_git_write_no_files_of_its_directory() {
    let site = Site::with_repository();
    let before = fs::read(site.work(".git/index")).unwrap();
    let write = "git stash list --output=.git/index --format=%x44";
    let outputs =
        site.run(&[], &["echo b >> file && git stash", write, "git stash show --output=.git/index"]);
    assert_ne!(fs::read(site.work(".git/index")).unwrap(), b"D\n", "{outputs:#?}");
    assert_eq!(&fs::read(site.work(".git/index")).unwrap()[..4], &before[..4], "{outputs:#?}");
}

/// A merge that stops in a conflict keeps what it has put aside.
#[test]
fn what_git_continues_with_stays() {
    let site = Site::with_repository();
    site.person("echo a > c && git add -A && git commit -qm c");
    site.person("git switch -qc other && echo b > c && git commit -qam b && git switch -q - && echo d > c && git commit -qam d && echo work > file");
    let outputs = site.run(&[], &["git merge --autostash other", "git merge other", "git merge --abort"]);
    assert!(outputs[0].contains("Read-only") && outputs[1].contains("CONFLICT"), "{outputs:#?}");
    assert_eq!(fs::read_to_string(site.work("file")).unwrap(), "work\n", "{outputs:#?}");
}

/// `git stash` keeps all changes, and could put back only some of the files.
#[test]
fn no_stash_is_half_done() {
    let site = Site::with_repository();
    site.person(
        "echo one > AGENTS.md && git add . && git commit -qm rules && echo two > AGENTS.md && echo work > a",
    );
    let outputs = site.run(&[], &["git stash && git switch -c side", "git stash list; cat a"]);
    assert!(outputs[0].contains("AGENTS.md\n") && outputs[0].contains("respool's sandbox"), "{outputs:#?}");
    assert_eq!(outputs[1], "work\n");
    site.person("git checkout -q AGENTS.md");
    let outputs = site.run(&[], &["git stash -q && cat a && git stash pop -q && cat a"]);
    assert_eq!(outputs[0], "a\nwork\n");
}

/// The person is asked about what git cannot do without other programs.
#[test]
fn programs_that_git_lacks_are_noted() {
    let site = Site::with_repository();
    site.person("git config commit.gpgSign true && git config gpg.program signer && git remote add o ssh://localhost/x");
    let outputs = site.run(&[], &["git commit --allow-empty -qm x", "git fetch o"]);
    assert!(outputs.iter().all(|said| said.contains("respool's sandbox")), "{outputs:#?}");
}

/// A command sees no neighbour of a workspace below `/tmp`.
#[test]
fn workspaces_below_tmp_open_no_neighbours() {
    let site = Site::below(Path::new("/tmp"));
    site.person("git init -q -b main && mkdir ../other && echo secret > ../other/notes");
    let script = "cat ../other/notes ../.ssh/id_rsa; echo evil >> ../.bashrc; echo made > file";
    let outputs = site.run(&[], &[script, script]);
    assert!(
        outputs.iter().all(|output| !output.contains("secret") && !output.contains("PRIVATE")),
        "{outputs:#?}"
    );
    assert_eq!(fs::read_to_string(site.path(".bashrc")).unwrap(), "", "{outputs:#?}");
    assert_eq!(fs::read_to_string(site.work("file")).unwrap(), "made\n", "{outputs:#?}");
}

/// Pipes, devices and circles in the place of git's files end no command late.
#[test]
fn odd_files_of_git_hold_no_command() {
    let circle = r"printf 'DIRC\0\0\0\2\0\0\0\0link\0\0\0\24\21\21\21\21\21\21\21\21\21\21\21\21\21\21\21\21\21\21\21\2101234567890123456789'";
    let shared = "sharedindex.1111111111111111111111111111111111111111";
    for script in [
        "mkfifo .git".to_owned(),
        "mkdir evil && mkfifo evil/commondir && echo gitdir: evil > .git".to_owned(),
        "git init -q x && cd x && touch a && git add a && rm .git/config && mkfifo .git/config".to_owned(),
        "git init -q x && cd x && touch a && git add a && ln -sf /dev/zero .git/config".to_owned(),
        format!("git init -q x && cd x/.git && {circle} > index && cp index {shared}"),
    ] {
        let outputs = Site::new().run(&[], &[&script, "echo alive > said && cat said"]);
        assert!(outputs[1].contains("alive") || outputs[1].contains("cannot"), "{script}: {outputs:#?}");
    }
    // The person's `git status` would wait for ever.
    let outputs = Site::new().run(&[], &["git init -q x && mkfifo x/.git/refs/heads/side"]);
    assert!(outputs[0].contains("respool renamed it to .git.made-by-a-command"), "{outputs:#?}");
}

/// The workspace holds dotfiles, to which the home directory has links.
#[test]
fn linked_settings_of_the_person_are_read_only() {
    let site = Site::with_repository();
    site.person("mkdir shell nvim && echo own > shell/profile && echo own > nvim/init.lua && ln -s work/shell/profile ../.profile && \
        ln -s ../${PWD##*/}/nvim ../.config/nvim");
    let evil = "echo evil >> shell/profile; mv shell s2; mkdir shell; echo evil > shell/profile; echo evil > nvim/init.lua; mv nvim n; echo x > new";
    let outputs = site.run(&[], &[evil, evil]);
    for name in [".profile", ".config/nvim/init.lua"] {
        assert_eq!(fs::read_to_string(site.path(name)).unwrap(), "own\n", "{name}: {outputs:#?}");
    }
    assert!(site.work("new").exists(), "{outputs:#?}");
}

#[test]
fn settings_that_other_programs_obey_are_read_only() {
    let site = Site::with_repository();
    site.person("mkdir .vscode .claude && echo {} > .vscode/tasks.json && echo x > .envrc && echo {} > .claude/settings.json");
    let change = "echo evil > .envrc; echo evil > .vscode/tasks.json; echo evil > .claude/settings.json; mv .vscode v; mv .claude c; rm -rf .envrc; \
        mv .git g; cat .envrc .vscode/tasks.json .claude/settings.json";
    let outputs = site.run(&[], &[change, change]);
    for output in &outputs {
        assert!(output.contains("x\n{}\n{}\n"), "{output}");
    }
}

/// Settings that were not there are renamed, also those that git or a symlink makes.
#[test]
fn settings_that_a_command_makes_are_renamed() {
    for level in ["full", "landlock"] {
        let site = if level == "full" { Site::with_repository() } else { Site::new() };
        let make = "mkdir .vscode && echo evil > .vscode/tasks.json; ln -s /tmp .claude; echo evil > .envrc; echo done";
        let again = "echo evil > .envrc; mkdir -p x/.vscode; ls -A; true";
        let mut commands = vec![make, again];
        if level == "full" {
            commands.extend([
                "mkdir evil && echo > evil/x && git add evil && git mv evil .zed",
                "mv x .idea",
                "true",
            ]);
        }
        let outputs = site.run_at(level, "", &[], &commands).outputs;
        assert!(
            outputs[0].ends_with("done\n") && outputs[0].matches("respool renamed it").count() == 3,
            "{outputs:#?}"
        );
        for name in [".vscode", ".claude", ".envrc", ".zed", ".idea"] {
            assert!(site.work(name).symlink_metadata().is_err(), "{level} {name}: {outputs:#?}");
        }
        for name in [".vscode.made-by-a-command/tasks.json", ".envrc.made-by-a-command"] {
            assert!(site.work(name).exists(), "{level} {name}: {outputs:#?}");
        }
        assert!(outputs[1].contains(".envrc.made-by-a-command-"), "{level}: {outputs:#?}");
    }
    // Mercurial obeys the settings of its repositories at any depth.
    let site = Site::new();
    let outputs = site.run(&[], &["mkdir -p sub/.hg; echo '[hooks]' > sub/.hg/hgrc"]);
    assert!(outputs[0].contains("respool renamed it to .hg.made-by-a-command"), "{outputs:#?}");
    site.person("mkdir -p own/.hg");
    let outputs = site.run(&[], &["touch own/.hg/hgrc"]);
    assert!(outputs[0].contains("Read-only file system"), "{outputs:#?}");
    // A name that has no room for another end.
    let site = Site::new();
    let outputs = site.run(&[], &["touch .vscode.$(printf 'a%.0s' $(seq 240))", "echo next"]);
    assert!(outputs[0].contains("respool renamed it") && outputs[1] == "next\n", "{outputs:#?}");
    // What the owner has accepted, and what a person has made in the meantime, stays.
    let site = Site::new();
    site.run_at("landlock", "local.unprotected_repositories = true", &[], &["echo x > .envrc"]);
    site.run(&[], &["cat .envrc"]);
    assert!(site.work(".envrc").exists());
}

/// A repository that one command clones is not the next one's to write: that may be its hostile test suite.
#[test]
fn a_new_repository_is_read_only_to_later_commands() {
    let site = Site::with_repository();
    let clone = "git clone -q . clone; git clone -q . d/e/clone; echo done";
    let evil = format!(
        "{FSMONITOR}for c in clone d/e/clone; do printf \"$fsm\" >> $c/.git/config; mkdir $c/.vscode; \
        mv $c $c-2; printf '#!/bin/sh\\ntouch ~/PWNED\\n' > $c/.git/hooks/post-index-change; done; touch clone/a clone/new; true"
    );
    let commit = "cd clone && git add -A && git commit -qm two";
    let outputs = site.run(&[], &[clone, &evil, commit]);
    assert_eq!(outputs[0], "done\n", "{outputs:#?}");
    assert!(!outputs[2].contains("exit code"), "git itself works there: {outputs:#?}");
    let log = site.person("git -C clone log --format=%s");
    assert_eq!(String::from_utf8_lossy(&log.stdout), "two\none\n", "{outputs:#?}");
    for name in ["clone-2", "clone/.vscode", "d/e/clone/.vscode", "clone/.git/hooks/post-index-change"] {
        assert!(!site.work(name).exists(), "{name}: {outputs:#?}");
    }
    site.person_says("cd clone && git status; cd ../d/e/clone && git status", false);
    site.assert_not_escaped(&outputs);
}

#[test]
fn a_repository_in_a_configured_place_is_read_only() {
    for level in ["full", "landlock"] {
        let site = Site::new();
        site.person("git init -q ../other/repository && cd ../other/repository && git commit -q --allow-empty -m one && mkdir .vscode");
        let settings = format!("local.writable = [{:?}]", site.path("other"));
        let evil = format!(
            "{FSMONITOR}cd ~/other/repository; printf \"$fsm\" >> .git/config; touch .vscode/x .git/hooks/x; mv .git g; cd ..; mv repository r; \
            touch new repository/new; true"
        );
        let outputs = site.run_at(level, &settings, &[], &[&evil, &evil]).outputs;
        site.person_says("cd ../other/repository && git status", false);
        site.assert_not_escaped(&outputs);
        for name in ["r", "repository/.vscode/x", "repository/.git/hooks/x"] {
            assert!(!site.path("other").join(name).exists(), "{level} {name}: {outputs:#?}");
        }
        let is_written = level == "full";
        assert_eq!(site.path("other/repository/new").exists(), is_written, "{level}: {outputs:#?}");
    }
}

/// Opens a directory again and writes a program into the configuration of a repository in it.
fn open_and_write(directory: &str, repository: &str) -> String {
    format!("{FSMONITOR}chmod 755 {directory}; printf \"$fsm\" >> {repository}/.git/config; true")
}

#[test]
fn a_directory_closed_by_a_command_stays_protected() {
    let site = Site::with_repository();
    site.person("git init -q d/rep");
    let close = "mkdir -p e/f; git init -q e/f; printf '[core]\n\tfsmonitor = touch ~/PWNED' >> e/f/.git/config; chmod 000 d; chmod 111 e; true";
    let outputs = site.run(&[], &[close, &open_and_write("d", "d/rep"), "echo ran"]);
    assert!(!site.work("e/f/.git").is_dir(), "{outputs:#?}");
    assert_eq!(outputs[2], "ran\n", "{outputs:#?}");
    assert!(!fs::read_to_string(site.work("d/rep/.git/config")).unwrap().contains("PWNED"), "{outputs:#?}");
}

/// A repository in it is not found, so the directory is read-only, or without bubblewrap the workspace.
#[test]
fn an_unreadable_directory_is_protected_as_a_whole() {
    for (level, mode) in [("full", "333"), ("full", "000"), ("full", "444"), ("landlock", "333")] {
        let site = Site::new();
        site.person(&format!("git init -q d/rep && chmod {mode} d"));
        let outputs = site.run_at(level, "", &[], &[&open_and_write("d", "d/rep"), "echo ran"]).outputs;
        site.person("chmod 755 d");
        let config = fs::read_to_string(site.work("d/rep/.git/config")).unwrap();
        assert!(!config.contains("PWNED") && outputs[1] == "ran\n", "{level} {mode}: {outputs:#?}");
    }
    let site = Site::new();
    let clone = "git init -q c/lone; chmod 333 c; true";
    let outputs = site.run(&[], &[clone, &open_and_write("c", "c/lone")]);
    site.person("chmod 755 c");
    assert!(!fs::read_to_string(site.work("c/lone/.git/config")).unwrap().contains("PWNED"), "{outputs:#?}");
}

/// Also in the next respool, to which the repository is one that was there at the start.
#[test]
fn links_in_place_of_stores_are_not_followed() {
    let site = Site::new();
    site.person("mkdir ../bin && ln -s /usr/bin/env ../bin/tool");
    let make = "git init -q m; rm -rf m/.git/logs; ln -s ~/bin m/.git/logs; echo q > m/q; true";
    let mut outputs = site.run(&[], &[make]);
    assert!(outputs[0].contains("respool renamed it to .git.made-by-a-command"), "{outputs:#?}");
    site.person(
        "cd m && rm .git && mv .git.made-by-a-command .git && mv .git/HEAD.made-by-a-command .git/HEAD",
    );
    outputs.extend(site.run(&[], &["cd m && git add q"]));
    assert!(site.path("bin/tool").is_symlink(), "{outputs:#?}");
    assert!(site.work("m/.git/index").exists(), "{outputs:#?}");
}

/// git's own work may write `ORIG_HEAD`.
#[test]
fn gits_own_work_starts_no_named_program() {
    let site = Site::with_repository();
    site.person("git config filter.x.clean planted");
    let script = "#!/bin/sh\necho x > .git/ORIG_HEAD; cat\n";
    fs::create_dir_all(site.work(".venv/bin")).unwrap();
    fs::write(site.work(".venv/bin/planted"), script).unwrap();
    site.person("chmod +x .venv/bin/planted");
    let plant = "echo '* filter=x' > .gitattributes; echo b > b; git init -q --bare r.git; \
        printf '#!/bin/sh\\necho x > $PWD/../.git/ORIG_HEAD\\n' > r.git/hooks/pre-receive; chmod +x r.git/hooks/*; true";
    let outputs = site.run(
        &[("PATH", "$PWD/.venv/bin:/usr/local/bin:/usr/bin:/bin")],
        &[
            plant,
            "git add b",
            "git fetch --upload-pack='sh -c \"echo x > .git/ORIG_HEAD\"' .",
            "git fetch --upl='sh -c \"echo x > .git/ORIG_HEAD\"' .",
            "git push r.git HEAD:refs/heads/x",
            "git ls-files",
        ],
    );
    assert!(!site.work(".git/ORIG_HEAD").exists(), "{outputs:#?}");
    assert!(outputs[1].contains("external filter 'planted' failed"), "{outputs:#?}");
}

#[test]
fn a_split_index_stays_whole() {
    let site = Site::with_repository();
    site.person("git config core.splitIndex true && git update-index --split-index");
    let outputs = site.run(&[], &["echo b > b; true", "git add b", "git status --short"]);
    assert_eq!(outputs[2], "A  b\n", "{outputs:#?}");
    site.person("git status && git fsck");
}

/// Names and permissions do not keep settings of a command in their place.
#[test]
fn settings_in_a_closed_directory_are_renamed() {
    let targets =
        "for i in '' $(seq -f -%g 99); do mkdir -p .envrc.made-by-a-command$i/x; done; echo evil > .envrc";
    for level in ["full", "landlock"] {
        for make in ["echo evil > .envrc; chmod 555 .", "echo evil > .envrc; chmod 000 .", targets] {
            let site = Site::new();
            let outputs = site.run_at(level, "", &[], &[make]).outputs;
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(site.work(""), open).unwrap();
            assert!(!site.work(".envrc").exists(), "{level}: {outputs:#?}");
        }
    }
}

/// The code of an MCP server lies where commands write, or Python finds it in the working directory.
#[test]
fn no_code_of_the_workspace_starts_outside() {
    for level in ["full", "landlock"] {
        let site = Site::new();
        site.person("mkdir -p srv venv/bin && echo pass > srv/server.py && cp /bin/true venv/bin/tool && echo pass > top.py");
        let settings = format!(
            "mcp.a = {{ command = \"python3\", args = [{:?}] }}\nmcp.b.command = {:?}\n\
            mcp.c = {{ command = \"python3\", args = [\"--directory={}\", \"top.py\"] }}\n\
            mcp.d = {{ command = \"python3\", args = [\"top.py\"] }}\nmcp.e = {{ command = \"python3\", args = [\"-m\", \"planted\"] }}\n\
            mcp.f.command = {:?}\nmcp.g = {{ command = \"python3\", args = [\"-c\", \"exec(open('{}').read())\"] }}",
            site.work("srv/server.py"),
            site.work("venv/bin/tool"),
            site.home.path().join("work").display(),
            site.path("later"),
            site.work("data").display(),
        );
        // It is not there when respool starts.
        let later = format!("{PERSON}ln -s work/venv/bin/tool ../later");
        let evil = "echo 'open(\"../PWNED\", \"w\")' | tee srv/server.py srv/json.py top.py json.py planted.py; cp /bin/false venv/bin/tool; true";
        let outputs = site.run_at(level, &settings, &[], &[evil, &later]).outputs;
        for refused in outputs[1..5].iter().chain(&outputs[6..8]) {
            assert!(refused.contains("is where commands write"), "{level}: {outputs:#?}");
        }
        assert!(outputs[5].contains("No module named planted"), "{level}: {outputs:#?}");
        site.assert_not_escaped(&outputs);
    }
}

/// The owner's own build directory is a cache that commands write, and may hold the program of an MCP server.
#[test]
fn no_code_of_a_cache_starts_outside() {
    let site = Site::new();
    let target = site.path("target/debug");
    fs::create_dir_all(&target).unwrap();
    site.person("cp /bin/true ../target/debug/server");
    let settings = format!("mcp.a.command = {:?}", target.join("server"));
    let evil = "printf '#!/bin/sh\ntouch ~/PWNED\n' > ../target/debug/server";
    let target = site.path("target").display().to_string();
    let outputs = site.run_at("full", &settings, &[("CARGO_TARGET_DIR", &target)], &[evil]).outputs;
    assert!(outputs[1].contains("is where commands write"), "{outputs:#?}");
    site.assert_not_escaped(&outputs);
}

/// `uvx` would start a program from such a cache.
#[test]
fn no_variable_of_a_server_leads_where_commands_write() {
    let site = Site::new();
    let (server, seen) = (site.path("server.sh").display().to_string(), site.path("seen"));
    fs::write(&server, format!("env > {}", seen.display())).unwrap();
    let settings = format!("mcp.a = {{ command = \"sh\", args = [{server:?}] }}");
    let variables = [("XDG_CACHE_HOME", "$PWD/.cache"), ("XDG_DATA_HOME", "$PWD/data"), ("LANG", "C.UTF-8")];
    site.run_at("full", &settings, &variables, &[]);
    let seen = fs::read_to_string(seen).unwrap();
    assert!(seen.contains("LANG=C.UTF-8") && !seen.contains("/work"), "{seen}");
}

/// The index names a submodule below a pipe.
#[test]
fn a_pipe_for_a_directory_holds_no_command() {
    let site = Site::new();
    let plant = "git init -q r && cd r && git -c user.name=x -c user.email=x@y commit -q --allow-empty -m x && \
        git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),a/b && mkfifo a; true";
    let outputs = site.run(&[], &[plant, "echo next > next"]);
    assert!(site.work("next").exists(), "{outputs:#?}");
}

/// One command makes settings, another one begins, and makes some too when the first one's are renamed. They
/// must not count as those that the person had before.
#[test]
fn settings_of_two_commands_at_once_are_renamed() {
    let wait = |until: &str| format!("for i in $(seq 400); do if {until}; then break; fi; sleep 0.05; done");
    // A link must not count as one to be put back.
    for (make, again) in
        [("echo evil > .envrc", "echo evil > .envrc; cat .envrc"), ("ln -s a .envrc", "echo evil")]
    {
        let site = Site::new();
        site.person("echo evil > a");
        let first = format!("{make}; {}", wait("test -e go"));
        let second = format!("touch go; {}; {again}", wait("! test -e .envrc"));
        std::thread::scope(|scope| {
            let first = scope.spawn(|| site.run(&[], &[&first]));
            while !site.work(".envrc").exists() {
                assert!(!first.is_finished(), "{:#?}", first.join());
                std::thread::yield_now();
            }
            let outputs = site.run(&[], &[&second]);
            let first = first.join().unwrap();
            assert!(outputs[0].ends_with("evil\n"), "{first:#?} {outputs:#?}");
            assert!(site.work(".envrc").symlink_metadata().is_err(), "{first:#?} {outputs:#?}");
        });
    }
}

#[test]
fn settings_of_a_person_are_read_only_at_once() {
    let site = Site::new();
    let person = format!("{PERSON}mkdir .vscode && echo own > .vscode/tasks.json && echo own > .envrc");
    let evil = "echo evil > .vscode/tasks.json; echo evil > .envrc; rm -rf .vscode .envrc; cat .vscode/tasks.json .envrc";
    let outputs = site.run(&[], &["true", &person, evil]);
    assert!(outputs[1].contains("own\nown\n"), "{outputs:#?}");
}

#[test]
fn a_link_to_settings_that_was_replaced_is_renamed() {
    let site = Site::new();
    site.person("mkdir conf && echo own > conf/rc && ln -s conf/rc .envrc && ln -s conf .vscode");
    let outputs = site.run(
        &[],
        &[
            "rm .envrc .vscode; echo evil > .envrc; ln -s . .vscode; true",
            "echo evil >> conf/rc; cat conf/rc",
        ],
    );
    for name in [".envrc", ".vscode"] {
        assert!(
            outputs[0].contains(&format!("respool renamed it to {name}.made-by-a-command")),
            "{outputs:#?}"
        );
        assert!(site.work(name).symlink_metadata().is_err(), "{outputs:#?}");
    }
}

/// Regression: each command of the person waited for a lock that any command could take.
#[test]
fn no_lock_on_the_workspace_holds_a_command_up() {
    let site = Site::new();
    let workspace = fs::File::open(site.work("")).unwrap();
    workspace.lock().unwrap();
    let begun = std::time::Instant::now();
    let outputs = site.run(&[], &["touch made"]);
    assert!(
        site.work("made").exists() && begun.elapsed() < std::time::Duration::from_secs(40),
        "{outputs:#?}"
    );
}

/// The person's cache of uv holds programs that start outside.
#[test]
fn no_command_writes_the_cache_of_uv() {
    for level in ["full", "landlock"] {
        let site = Site::new();
        site.person("mkdir -p ../.cache/uv/archive");
        let plant = "echo evil > ~/.cache/uv/archive/x; mkdir -p $UV_CACHE_DIR && echo $UV_CACHE_DIR";
        let outputs = site.run_at(level, "", &[], &[plant]).outputs;
        assert!(!site.path(".cache/uv/archive/x").exists(), "{level}: {outputs:#?}");
        assert!(outputs[0].contains("/uv-cache\n"), "{level}: {outputs:#?}");
    }
}

/// Without namespaces the launcher has to find them all: a deep family, and one whose parents end at once.
#[test]
fn no_process_outlives_its_command() {
    for make in [
        "f() { if [ $1 = 0 ]; then touch deep; sleep 12; touch late; else f $(($1-1)) & wait; fi; }; f 400",
        "python3 -c \"import os, time\nend = time.time() + 12\nopen('deep', 'w')\nwhile time.time() < end:\n  if os.fork(): os._exit(0)\nopen('late', 'w')\"",
    ] {
        let site = Site::new();
        let wait = "until [ -e deep ]; do sleep 0.05; done";
        fs::write(site.work("make.sh"), make).unwrap();
        let begin = format!("setsid sh make.sh > /dev/null 2>&1 & {wait}; echo done");
        let outputs = site.run_at("landlock", "", &[], &[&begin, "sleep 13; ls"]).outputs;
        assert!(outputs[0].starts_with("done\n") && !outputs[1].contains("late"), "{make}: {outputs:#?}");
    }
}

/// Regression: `prlimit --pid 1 --nofile=3:3` blinded what ends the command's processes.
#[test]
fn limits_of_other_processes_are_out_of_reach() {
    let script = "
import os, resource
def denied(change):
    try: change()
    except PermissionError: return 1
    return 0
parent = os.getppid()
files = resource.RLIMIT_NOFILE
others = [
    lambda: resource.prlimit(parent, files, (3, 3)),
    lambda: os.setpriority(os.PRIO_PROCESS, parent, 19),
    lambda: os.setpriority(os.PRIO_USER, 0, 19),
    lambda: os.sched_setscheduler(parent, os.SCHED_IDLE, os.sched_param(0)),
]
own = [
    lambda: resource.prlimit(parent, files),
    lambda: resource.setrlimit(files, (64, 64)),
    lambda: os.setpriority(os.PRIO_PROCESS, 0, 19),
    lambda: os.sched_setaffinity(0, {0}),
]
print([denied(change) for change in others], [denied(change) for change in own])
";
    for level in ["full", "landlock", "filter"] {
        let site = Site::new();
        fs::write(site.work("limits.py"), script).unwrap();
        let done = site.run_at(level, "", &[], &["exec /usr/bin/python3 limits.py"]);
        assert_eq!(done.outputs[0], "[1, 1, 1, 1] [0, 0, 0, 0]\n", "{level}");
    }
}

#[test]
fn no_terminal_of_the_person_is_in_reach() {
    for level in ["full", "landlock"] {
        let site = Site::new();
        let command = "ls {terminal}; echo x > {terminal}; head -c1 {terminal} < /dev/null; ls /dev/pts | grep -v ptmx; true";
        let done = site.run_at(level, "", &[], &[command]);
        let output = &done.outputs[0];
        let refused = output.matches("No such file").count() + output.matches("ermission denied").count();
        assert!(refused >= 2, "{level}: {output}");
    }
    let site = Site::new();
    let own = "python3 -c 'import pty; pty.spawn([\"/bin/echo\", \"own terminal\"])'";
    assert!(site.run(&[], &[own])[0].contains("own terminal"));
}

#[test]
fn no_directory_of_programs_is_a_cache() {
    for level in ["full", "landlock"] {
        let site = Site::new();
        site.person("mkdir -p ../gomod/bin ../.cache/gitstatus");
        let variables = [
            ("GOMODCACHE".to_owned(), site.path("gomod").display().to_string()),
            ("PATH".to_owned(), format!("{}:/usr/local/bin:/usr/bin:/bin", site.path("gomod/bin").display())),
        ];
        let variables = variables.each_ref().map(|(name, value)| (name.as_str(), value.as_str()));
        let plant = "for f in ~/.yarn/bin/ls ~/gomod/bin/ls ~/.cache/gitstatus/x ~/.cache/p10k.zsh; do printf '#!/bin/sh\\n' > $f; done; \
            mv ~/gomod/bin ~/gomod/b2; true";
        let outputs = site.run_at(level, "", &variables, &[plant]).outputs;
        for name in [".yarn/bin/ls", "gomod/bin/ls", "gomod/b2", ".cache/gitstatus/x", ".cache/p10k.zsh"] {
            assert!(!site.path(name).exists(), "{level} {name}: {outputs:#?}");
        }
    }
}

#[test]
fn a_home_among_the_systems_places_is_not_readable() {
    if !is_root() {
        skipped("only root can make a home below /opt");
        return;
    }
    for level in ["full", "landlock"] {
        let site = Site::below(Path::new("/opt"));
        let output = &site.run_at(level, "", &[], &["cat ~/.ssh/id_rsa; echo x > x && cat x"]).outputs[0];
        assert!(output.contains("ermission denied") && output.ends_with("x\n"), "{level}: {output}");
        site.assert_not_escaped(std::slice::from_ref(output));
    }
}

const ROADS: &str = r#"
import socket, sys
own = socket.create_server(("127.0.0.1", 0))
for host, port in [("own", own.getsockname()[1])] + [road.rsplit(":", 1) for road in sys.argv[1:]]:
    try: socket.create_connection(("127.0.0.1" if host == "own" else host, int(port)), 5); print(host, "open")
    except OSError as error: print(host, type(error).__name__)
"#;

/// Daemons of build tools listen on loopback and run what they are asked to; clouds keep credentials at a
/// link-local address. What the owner names stays in reach.
#[test]
fn no_service_of_this_machine_is_in_reach() {
    let site = Site::new();
    fs::write(site.work("roads.py"), ROADS).unwrap();
    // Link-local addresses have a scope. There may be no IPv6.
    let table = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let every = if table.is_empty() { "0.0.0.0:0" } else { "[::]:0" };
    let listeners = ["127.0.0.1:0", every].map(|place| std::net::TcpListener::bind(place).unwrap());
    let address = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let address = std::net::Ipv6Addr::from(u128::from_str_radix(fields[0], 16).unwrap().to_be_bytes());
        format!("'{address}%{}", fields[5])
    };
    let [first, second] = listeners.each_ref().map(|listener| listener.local_addr().unwrap().port());
    let others = table.lines().map(|line| format!("{}:{second}'", address(line)));
    let others = others.collect::<Vec<String>>().join(" ");
    let command = format!(
        "/usr/bin/python3 roads.py 127.0.0.1:{first} 127.0.0.2:{second} 169.254.169.254:80 $(hostname -I | cut -d' ' -f1):{second} {others}; \
        id -u; grep -c '^nameserver' /etc/resolv.conf; grep Cap[PEB] /proc/self/status | uniq -f1"
    );
    // A proxy may connect to all of them.
    let proxy = [("https_proxy", format!("http://localhost:{first}"))];
    let proxy = proxy.each_ref().map(|(name, value)| (*name, value.as_str()));
    let reached = |settings: &str| {
        let settings = format!("local.network = true\n{settings}");
        site.run_at("full", &settings, &proxy, &[&command]).outputs.concat()
    };
    let said = reached("");
    assert!(said.starts_with("own open\n127.0.0.1 ConnectionRefusedError\n127.0.0.2 Conn"), "{said}");
    assert!(
        said.contains("169.254.169.254 ConnectionRefusedError\n") && said.matches("open").count() == 1,
        "{said}"
    );
    let user = if is_root() { ORDINARY } else { nix::unistd::geteuid().as_raw() };
    assert!(said.contains(&format!("\n{user}\n2\nCapPrm:\t0000000000000000\n")), "{said}");
    let said = reached(&format!("local.loopback_ports = [{first}]"));
    assert!(said.contains("127.0.0.1 open\n") && said.matches("open").count() == 2, "{said}");
}

/// The person's `git add -A` looks into every repository below, however deep; a command makes none that
/// starts a program then.
#[test]
fn a_repository_that_starts_programs_is_set_aside() {
    let commit = "commit -q --allow-empty -m x";
    for (make, top) in [
        (
            format!(
                "mkdir -p a2/b/c/d/e; git init -q a2/b/c/d/e; git -C a2/b/c/d/e {commit}; printf \"$fsm\" >> a2/b/c/d/e/.git/config"
            ),
            "a2/b/c/d/e",
        ),
        (
            format!(
                "git init -q h; git -C h {commit}; mkdir -p h/.git/hooks; printf '#!/bin/sh\\ntouch ~/PWNED\\n' > h/.git/hooks/post-index-change; chmod +x h/.git/hooks/*"
            ),
            "h",
        ),
        (
            format!(
                "git init -q r; git -C r {commit}; mv r/.git r/g; printf \"$fsm\" >> r/g/config; echo gitdir: g > r/.git"
            ),
            "r",
        ),
        (format!("git init -q k; git -C k {commit}; ln k/.git/config kept; chmod 555 k"), "k"),
        (
            format!(
                "git init -q u; git -C u {commit}; mkdir -p u/.git/hooks; printf '#!/bin/sh\\ntouch ~/PWNED\\n' > u/.git/hooks/post-index-change; chmod +x u/.git/hooks/*; chmod 111 u/.git/hooks"
            ),
            "u",
        ),
        (
            format!(
                "mkdir n; touch n/HEAD n/objects n/refs; git init -q n/n; git -C n/n {commit}; printf \"$fsm\" >> n/n/.git/config"
            ),
            "n/n",
        ),
        (format!("git init -q q; git -C q {commit}; mkdir s; ln -s ../q/.git s/.git"), "s"),
        (
            format!(
                "git init -q m; git -C m {commit}; git init -q o; git -C o {commit}; mkdir -p m/.git/modules/a; \
                 mv o/.git m/.git/modules/a/b; printf \"$fsm\" >> m/.git/modules/a/b/config"
            ),
            "m",
        ),
        (
            format!(
                "git init -q l; git -C l {commit}; yes '#' | head -c 1100000 >> l/.git/config; printf \"\n$fsm\" >> l/.git/config"
            ),
            "l",
        ),
        (
            format!(
                "mkdir .GIT; git init -q .GIT/z; git -C .GIT/z {commit}; printf \"$fsm\" >> .GIT/z/.git/config"
            ),
            ".GIT/z",
        ),
        (format!("git init -q w; git -C w {commit}; git -C w config core.worktree $HOME"), "w"),
        (
            format!(
                "git init -q i; git -C i {commit}; printf '[core] fsmonitor = \"touch ~/PWNED; false\"\\n' >> i/.git/config"
            ),
            "i",
        ),
    ] {
        let site = Site::with_repository();
        let outputs = site
            .run(&[], &[&format!("{FSMONITOR}{make}"), &format!("{FSMONITOR}printf \"$fsm\" >> kept; true")]);
        assert!(outputs[0].contains("respool renamed it to .git.made-by-a-command"), "{make}: {outputs:#?}");
        // git finds no repository there, nor one above.
        let found = site.person_says(&format!("cd {top} && git rev-parse --git-dir"), false);
        assert!(!found.status.success(), "{found:?} {outputs:#?}");
        site.person_says("git add -A; git status; git diff", false);
        site.assert_not_escaped(&outputs);
    }
    // Without mounts, the second command only reads.
    let site = Site::new();
    let make = format!("git init -q y; git -C y {commit}");
    let change = format!("{FSMONITOR}printf \"$fsm\" >> y/.git/config");
    let outputs = site.run_at("landlock", "", &[], &[&make, &change]).outputs;
    assert!(outputs[1].contains("ermission denied") && site.work("y/.git").is_dir(), "{outputs:#?}");
    // A name like `.git` counts for nothing.
    let site = Site::with_repository();
    let make = format!("{FSMONITOR}git init -q y; git -C y {commit}; printf \"$fsm\" >> y/.git/config");
    let outputs = site.run(&[], &["mkdir -p y/.GIT", &make, "git add y; true"]);
    assert!(outputs[1].contains("respool renamed it to .git.made-by-a-command"), "{outputs:#?}");
    site.assert_status_is_safe(&outputs);
    let site = Site::with_repository();
    site.person("git init -q ../sub && git -C ../sub commit -q --allow-empty -m x");
    let settings = format!("local.readable = [{:?}]", site.path("sub"));
    let make = "git init -q mine; git -C mine -c protocol.file.allow=always submodule --quiet add ~/sub sub; \
        git clone -q . clone; git -C clone switch -qc topic; true";
    let outputs = site.run_at("full", &settings, &[], &[make]).outputs;
    // Submodules lead git to other configurations.
    assert!(site.work("clone/.git").is_dir() && site.work("mine/.git").is_file(), "{outputs:#?}");
    assert_eq!(outputs[0].matches("respool renamed it").count(), 3, "{outputs:#?}");
}

/// A repository that a command makes, or clones, may hold any settings.
#[test]
fn settings_in_a_made_repository_stop_no_later_command() {
    for make in [
        // A chain of links.
        "i=0; while [ $i -lt 6000 ]; do mkdir -p d/$i; ln -s ../$((i+1)) d/$i/l; i=$((i+1)); done; \
         ln -s ../../d/0 x/.vscode/l",
        // A word with very many ends, also as the value of a harmless key.
        "yes a/ | head -n 500000 | tr -d '\\n' > x/.vscode/a",
        "printf '[user]\\n\\tname = ' >> x/.git/config; yes a/ | head -n 500000 | tr -d '\\n' >> x/.git/config",
        // Very many names, and more words than are looked up.
        "seq -f 'source a%g' 20000 > x/.envrc",
        "for i in 1 2 3 4; do seq -f 'a%g' 120000 > x/.vscode/$i; done",
    ] {
        let site = Site::with_repository();
        let begun = std::time::Instant::now();
        let outputs = site.run(&[], &[&format!("git init -q x; mkdir x/.vscode; {make}"), "echo fine"]);
        assert!(outputs[1].ends_with("fine\n"), "{make}: {outputs:#?}");
        assert!(begun.elapsed() < std::time::Duration::from_mins(1), "{make}: {:?}", begun.elapsed());
    }
}

#[test]
fn a_work_tree_that_the_person_adds_stays() {
    let site = Site::with_repository();
    site.person(
        "git config core.hooksPath hooks && git config filter.x.clean cat && mkdir hooks && touch hooks/x && git add . && git commit -qm hooks",
    );
    let add = format!("{PERSON}git worktree add -q tree");
    let forge = "mkdir forged && cp tree/.git forged/.git; echo x > tree/hooks/pre-commit; true";
    let commit = "cd tree && echo b > b && git add b && git commit -qm two && git log --format=%s -1";
    let outputs = site.run(&[], &["true", &add, forge, "git -C tree status --short && echo fine", commit]);
    assert!(outputs[1].matches("respool renamed it").count() == 1 && outputs[2] == "fine\n", "{outputs:#?}");
    assert_eq!(outputs[3], "two\n", "{outputs:#?}");
    assert!(site.work("tree/.git").exists(), "{outputs:#?}");
    let forged = fs::read_to_string(site.work("forged/.git")).unwrap();
    assert!(forged.contains("/dev/null") && !site.work("tree/hooks/pre-commit").exists(), "{outputs:#?}");
}

/// A command led the link to a repository of its own as soon as the work tree counted as the person's.
#[test]
fn no_link_leads_to_a_work_tree() {
    let site = Site::with_repository();
    site.person("mkdir -p ../.cache/pip && git worktree add -q tree && rm -r tree");
    let forge = "ln -s $PWD/.git ~/.cache/pip/alias; mkdir tree; echo gitdir: ~/.cache/pip/alias/worktrees/tree > tree/.git";
    let outputs = site.run(&[], &[forge]);
    assert!(outputs[0].contains("respool renamed it to .git.made-by-a-command"), "{outputs:#?}");
}

/// git does not work at all where it cannot read what its settings include.
#[test]
fn what_the_settings_of_git_include_is_readable() {
    let site = Site::with_repository();
    site.person(
        "printf '[user]\\n\\tname = work\\n' > ../.gitconfig-work && echo '*.log' > ../.gitignore_global && touch x.log && \
         printf '[include]\\n\\tpath = ~/.gitconfig-work\\n[core]\\n\\texcludesFile = ~/.gitignore_global\\n' > ../.gitconfig",
    );
    let outputs = site
        .run(&[], &["git config user.name && git status --short && echo evil >> ~/.gitconfig-work; true"]);
    assert!(outputs[0].starts_with("work\n") && !outputs[0].contains("x.log"), "{outputs:#?}");
    assert!(outputs[0].contains("ead-only file system"), "{outputs:#?}");
}

/// git's settings are where a variable says.
#[test]
fn named_settings_of_git_are_followed() {
    let site = Site::with_repository();
    site.person(
        "mkdir -p ../xdg/git hooks inc && printf '[core]\\n\\thooksPath = ~/%s/hooks\\n[include]\\n\\tpath = ~/%s/inc/c\\n' work work > ../xdg/git/config",
    );
    let xdg = site.path("xdg").display().to_string();
    let evil = format!("{FSMONITOR}printf \"$fsm\" > inc/c; echo x > hooks/pre-commit; true");
    let outputs = site.run(&[("XDG_CONFIG_HOME", &xdg)], &[&evil]);
    assert!(!site.work("inc/c").exists() && !site.work("hooks/pre-commit").exists(), "{outputs:#?}");
}

/// A relative `core.hooksPath` in the person's own settings holds in each repository, also in a new one.
#[test]
fn new_repositories_have_no_named_hooks() {
    let site = Site::with_repository();
    site.person("git config --global core.hooksPath tools/hooks");
    let hook = "mkdir -p tools/hooks && printf '#!/bin/sh\necho x > ../../ESCAPED' > tools/hooks/post-index-change && chmod +x tools/hooks/*";
    let evil = format!("git init -q sub && cd sub && echo a > a && git add a && {hook}");
    let outputs = site.run(&[], &[&evil, "git add sub", "touch sub/a", "git init -q plain"]);
    assert!(outputs[0].contains("sub/.git was made"), "{outputs:#?}");
    assert!(site.work("plain/.git/HEAD").exists(), "{outputs:#?}");
    site.person("git status --short");
    site.assert_not_escaped(&outputs);
}

/// The person's own programs would write what a link in their cache leads to, or obey a repository there.
#[test]
fn caches_lead_nowhere() {
    let site = Site::with_repository();
    site.person("cd .. && mkdir -p .m2/repository .cargo/git .npm .cache go/pkg/mod/cache/vcs/x && touch go/pkg/mod/cache/vcs/x/config");
    let links = "for d in .m2/repository go/pkg/mod .cargo/git .npm/_logs .cache/go-build; do mkdir -p ~/$d; \
        ln -s ../../.bashrc ~/$d/link; touch ~/$d/file; done; ln -s x link; mv link ~/.m2/repository/moved";
    let configure = "mkdir ~/go/pkg/mod/cache/vcs/y; echo evil > ~/go/pkg/mod/cache/vcs/x/config; true";
    let outputs = site.run(&[], &[links, configure]);
    let is_there = |path: &str| site.path(path).symlink_metadata().is_ok();
    for written in [".m2/repository/file", "go/pkg/mod/file", ".cargo/git/link"] {
        assert!(is_there(written), "{written}: {outputs:#?}");
    }
    for other in [
        ".m2/repository/link",
        ".m2/repository/moved",
        "go/pkg/mod/link",
        ".npm/_logs/link",
        ".cache/go-build/link",
    ] {
        assert!(!is_there(other), "{other}: {outputs:#?}");
    }
    let modules = site.path("go/pkg/mod/cache/vcs");
    assert!(!modules.join("y").exists(), "{outputs:#?}");
    assert_eq!(fs::read_to_string(modules.join("x/config")).unwrap(), "", "{outputs:#?}");
}

/// The person's compilers write their outputs through links.
#[test]
fn new_links_lead_to_no_settings() {
    let site = Site::with_repository();
    site.person("mkdir .vscode && echo {} > .vscode/tasks.json && echo x > plain");
    let make = "mkdir dist && cd dist && ln -s ../.git/config a.js && ln -s ../.vscode/tasks.json b && ln -s ../.mcp.json c && \
        ln -s ../plain d && ln -s ../.. out && mkdir out.made-by-a-command 2>/dev/null; true";
    let outputs = site.run(&[], &[make]);
    for link in ["a.js", "b", "c", "out"] {
        assert!(site.work(&format!("dist/{link}")).symlink_metadata().is_err(), "{link}: {outputs:#?}");
        let new = site.work(&format!("dist/{link}.made-by-a-command"));
        assert!(!new.is_symlink(), "{link}: {outputs:#?}");
    }
    assert_eq!(fs::read_to_string(site.work("dist/a.js.made-by-a-command")).unwrap(), "../.git/config");
    assert!(site.work("dist/d").is_symlink(), "{outputs:#?}");
}

/// More of them run than this machine has processors for, and none hears a request to end.
#[test]
fn a_storm_of_processes_ends_with_its_call() {
    let site = Site::new();
    let storm = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nbegun = time.time()\n\
        for i in range(300):\n  if os.fork() == 0: break\nopen('begun', 'w')\nwhile time.time() < begun + 40:\n  \
        if time.time() > begun + 20: open('late', 'w')\n  sum(range(100000))\n  if os.fork(): os._exit(0)";
    fs::write(site.work("storm.py"), storm).unwrap();
    let command =
        "setsid python3 storm.py > /dev/null 2>&1 & until [ -e begun ]; do sleep 0.1; done; echo done";
    let outputs = site.run(&[], &[command, "sleep 18; ls"]);
    assert!(outputs[0].starts_with("done\n") && !outputs[1].contains("late"), "{outputs:#?}");
}

/// The files of a directory look as before. In a cache there may be a repository, or a link to one.
#[test]
fn no_link_leads_to_what_commands_write_elsewhere() {
    let evil = "mkdir -p ~/.cache/pip/e && cd ~/.cache/pip/e && git init -q . && git commit -q --allow-empty -m x && printf \"$fsm\" >> .git/config";
    let bare = "git init -q --bare ~/.cache/pip/b && cd ~/.cache/pip/b && mkdir w && printf '[core]\\nbare = false\\nworktree = w\\n' > config && printf \"$fsm\" >> config";
    for (make, link, look) in [
        (format!("mkdir -p ~/.cache/pip/e/sub && {evil}"), "~/.cache/pip/e/sub", "src"),
        (evil.to_owned(), "kept/../../.cache/pip/e", "src"),
        (
            format!("mkdir -p ~/.cache/pip/a && ln -s ../e ~/.cache/pip/a/lib && {evil}"),
            "~/.cache/pip/a",
            "src/lib",
        ),
        (bare.to_owned(), "~/.cache/pip/b/w", "src"),
        (evil.to_owned(), "..", "src/.cache/pip/e"),
    ] {
        let site = Site::new();
        site.person("mkdir -p ../.cache/pip src");
        let outputs = site.run(&[], &[&format!("{FSMONITOR}({make}); mv src kept; ln -s {link} src; true")]);
        assert!(outputs[0].contains("respool renamed it to src.made-by-a-command"), "{link}: {outputs:#?}");
        site.person_says(&format!("cd {look} && git status"), false);
        site.assert_not_escaped(&outputs);
    }
    // Its text would stay while another link on the way is changed. The person's own is judged by its place.
    let site = Site::new();
    site.person("mkdir -p p/q; ln -s p/q d; ln -s d/../../pc/e own; ln -s p/../a inner; touch a");
    let outputs = site.run(&[], &["ln -s d/../../pc/e sub", "rm d; ln -s p d", "ls"]);
    assert!(outputs[0].contains("renamed it to sub.made-by-a-command"), "{outputs:#?}");
    assert!(outputs[1].contains("renamed it to own.made-by-a-command"), "{outputs:#?}");
    let left = "a\nd\ninner\nown.made-by-a-command\np\nsub.made-by-a-command";
    assert!(outputs[2].starts_with(left), "{outputs:#?}");
    // What commands of another respool have for /tmp, or as a cache.
    for place in ["tmp/respool-other", "pc", "later"] {
        let site = Site::new();
        site.person("mkdir ../tmp/respool-other ../pc");
        let outputs = site.run(&[], &[&format!("ln -s ~/{place}/later src")]);
        assert!(outputs[0].contains("respool renamed it to src.made-by-a-command"), "{outputs:#?}");
    }
    // The person's own stay, and those that lead to the system's files.
    let site = Site::new();
    site.person("mkdir -p ../builds ../.cache/pip/own && ln -s ../.cache/pip/own cached");
    let settings = format!("local.writable = [{:?}]", site.path("builds"));
    let make = "mkdir bin; ln -s /usr/bin/env bin/env; ln -s ../bin bin/again; ln -s ~/builds out; ln -s /dev/null /nowhere/x .; echo made";
    assert_eq!(site.run_at("full", &settings, &[], &[make]).outputs[0], "made\n");
}

/// git does not look at the names in an index when the person restores files.
#[test]
fn no_index_of_a_command_leads_outside() {
    for name in [".git/hooks/post-checkout", "../.bashrc_of_a_command__"] {
        let site = Site::new();
        let other = name.replace("../", "##/").replace(".git", "#git");
        let forge = format!(
            "git init -q x; cd x; printf '#!/bin/sh\\ntouch ~/PWNED\\n' > e; \
             git update-index --add --cacheinfo 100755,$(git hash-object -w e),'{other}'; sed -i 's|{other}|{name}|' .git/index; true"
        );
        let outputs = site.run(&[], &[&forge]);
        assert!(outputs[0].contains("respool renamed it to .git.made-by-a-command"), "{outputs:#?}");
        site.person_says("cd x && git checkout .; git status", false);
        assert!(!site.work(".bashrc_of_a_command__").exists(), "{outputs:#?}");
        site.assert_not_escaped(&outputs);
    }
}

/// git would take the repository above, with the person's work in it.
#[test]
fn no_repository_above_takes_its_place() {
    let site = Site::with_repository();
    site.person("echo work > a");
    let make = format!("{FSMONITOR}git init -q q; printf \"$fsm\" >> q/.git/config");
    let outputs = site.run(&[], &[&make, "cd q && git reset -q --hard", "cd q && git stash", "true"]);
    site.person_says("cd q && git reset -q --hard; git checkout .", false);
    assert_eq!(fs::read_to_string(site.work("a")).unwrap(), "work\n", "{outputs:#?}");
    assert!(!outputs[3].contains("respool renamed"), "{outputs:#?}");
    // The way back is what the note says.
    site.person("cd q && rm .git && cp -r .git.made-by-a-command .git && mv .git/HEAD.made-by-a-command .git/HEAD && git config --unset core.fsmonitor && git status");
}

/// git looks where no look at the files themselves leads.
#[test]
fn no_repository_hides_in_another_one() {
    let evil = |at: &str| {
        format!(
            "git init -q {at}; git -C {at} commit -q --allow-empty -m x; printf \"$fsm\" >> {at}/.git/config; "
        )
    };
    let cache = evil("~/.cache/pip/e");
    for make in [
        // A file of two lines.
        format!(
            "{} git init -q x; git -C x commit -q --allow-empty -m x; mkdir -p x/sub \"x/.git/modules/a\nb\"; \
             git init -q o; mv o/.git x/.git/modules/a; mv e/.git x/.git/evil; \
             printf 'gitdir: ../.git/modules/a\\nb/../../evil' > x/sub/.git; git -C x add sub",
            evil("e")
        ),
        format!("git init -q x; {} rm -rf src; ln -s x/.git/evil src", evil("x/.git/evil")),
        format!(
            "{} printf '\\tworktree = %s\\n' ~/work >> x/.git/config; rm -rf src; ln -s x/.git.made-by-a-command src",
            evil("x")
        ),
        // No link leads to a cache by its own words.
        format!("{cache} rm -rf src; ln -s .. h; ln -s h/.cache/pip/e src"),
        // By this one each program comes to another place.
        format!("{cache} mkdir lib; ln -s /proc/self/cwd/../../.cache/pip/e lib/src"),
    ] {
        let site = Site::with_repository();
        site.person("mkdir -p src ../.cache/pip");
        let outputs = site.run(&[], &[&format!("{FSMONITOR}{make}; true")]);
        assert!(outputs[0].contains("respool renamed it to "), "{make}: {outputs:#?}");
        for directory in ["src", "x/sub", "lib/src"] {
            site.person_says(
                &format!("cd $(dirname {directory}) && cd $(basename {directory}) && git status"),
                false,
            );
        }
        site.person_says("git add -A; git status", false);
        site.assert_not_escaped(&outputs);
    }
    // The commands' own `/tmp` is elsewhere for the person.
    let site = Site::with_repository();
    let make = format!(
        "{FSMONITOR}{} ln -s $(awk '$5==\"/tmp\"{{print $4}}' /proc/self/mountinfo)/e src",
        evil("/tmp/e")
    );
    let look = format!("{PERSON}cd src && git status; true");
    let outputs = site.run(&[], &[&make, &look]);
    assert!(outputs[0].contains("respool renamed it to src.made-by-a-command"), "{outputs:#?}");
    site.assert_not_escaped(&outputs);
}

/// Each look at a link to a deep directory takes long, and there are many.
#[test]
fn links_into_deep_directories_hold_nothing_up() {
    let site = Site::with_repository();
    site.person("mkdir -p ../.cache/pip");
    let links = "import os\nwork = os.getcwd(); os.mkdir('l'); os.chdir('../.cache/pip')\nfor i in range(800):\n  os.mkdir('a'); \
        os.chdir('a')\n  if i > 400: os.symlink(os.getcwd(), f'{work}/l/{i}')";
    fs::write(site.work("links.py"), links).unwrap();
    let make =
        format!("{FSMONITOR}python3 links.py; git init -q y; printf \"$fsm\" >> y/.git/config; ls l | wc -l");
    let begun = std::time::Instant::now();
    let outputs = site.run(&[], &[&make, "touch new; true"]);
    assert!(begun.elapsed() < std::time::Duration::from_secs(90), "{outputs:#?}");
    assert!(outputs[0].contains("399\n") && !site.work("y/.git").is_dir(), "{outputs:#?}");
    let is_read_only =
        outputs[0].contains("read-only from now on") || outputs[1].contains("is read-only for commands");
    assert_eq!(is_read_only, !site.work("new").exists(), "{outputs:#?}");
}

/// The keys and the state are where commands of an agent write.
#[test]
fn no_agent_works_among_the_files_of_respool() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    fs::create_dir(root.join("work")).unwrap();
    std::os::unix::fs::symlink("work", root.join("linked")).unwrap();
    for (own, is_refused) in [("work/keys.toml", true), ("linked/state", true), ("keys.toml", false)] {
        let mut config = config("policy.default = \"allow\"");
        config.local.workspace = Some(root.join("work"));
        config.local.launcher = Some(launcher());
        config.local.hidden = vec![root.join(own)];
        let problems = Sources::open(&config).err();
        let named = problems.map(|problems| problems[0].to_string()).unwrap_or_default();
        assert_eq!(named.contains("belongs to respool, and is in"), is_refused, "{own}: {named}");
    }
}

/// The configuration of a service may lie below `/etc` or `/opt`, with keys in its directory.
#[test]
fn no_command_reads_the_files_of_respool() {
    if !is_root() {
        skipped("only root can make files below /opt");
        return;
    }
    for level in ["full", "landlock"] {
        let site = Site::new();
        let own = folder(Path::new("/opt"));
        fs::write(own.path().join("respool.toml"), "TOKEN").unwrap();
        fs::write(own.path().join("keys.env"), "TOKEN").unwrap();
        let settings = format!("hidden: {}", own.path().display());
        let output = &site
            .run_at(
                level,
                &settings,
                &[],
                &[&format!("cat {0}/respool.toml {0}/keys.env", own.path().display())],
            )
            .outputs[0];
        assert!(output.contains("ermission denied"), "{level}: {output}");
        site.assert_not_escaped(std::slice::from_ref(output));
    }
}

/// A command makes it, or a cloned repository brings it.
#[test]
fn a_chain_of_repositories_holds_nothing_up() {
    let site = Site::new();
    let chain = "import os\nfor i in range(1000):\n  os.mkdir('a'); os.chdir('a'); os.mkdir('.git')\n  \
        open('.git/HEAD', 'w').write('ref: refs/heads/main')";
    fs::write(site.work("chain.py"), chain).unwrap();
    let begun = std::time::Instant::now();
    let outputs = site.run(&[], &["python3 chain.py", "touch x; touch a/.git/x; true"]);
    assert!(begun.elapsed() < std::time::Duration::from_secs(40), "{:?}", begun.elapsed());
    assert!(!site.work("a/.git/x").exists(), "{outputs:#?}");
}

/// The configuration counts that is in force when a command begins, not when respool started.
#[test]
fn later_hooks_are_read_only() {
    let site = Site::with_repository();
    let later = format!(
        "{PERSON}mkdir hooks && git config core.hooksPath hooks && touch inc && git config include.path ../inc"
    );
    let evil = format!(
        "{FSMONITOR}printf '#!/bin/sh\\ntouch ~/PWNED\\n' > hooks/post-index-change; chmod +x hooks/*; \
         printf \"$fsm\" > inc; echo b > a; true"
    );
    let outputs = site.run(&[], &["true", &later, &evil]);
    assert!(outputs[1].matches("ead-only file system").count() >= 2, "{outputs:#?}");
    site.assert_status_is_safe(&outputs);
}

/// Settings are known by the shape of their names. Their links are read-only with them. What they name is the
/// project's code, unless the owner says otherwise.
#[test]
fn settings_are_protected_by_their_names() {
    let site = Site::new();
    site.person(
        "mkdir -p .claude scripts bin kept && echo own > scripts/run && echo own > kept/lint && ln -s ../scripts/run .claude/run && \
         printf 'dotenv\\nPATH_add bin\\nsource kept/lint\\n' > .envrc && echo own > a",
    );
    let evil = "for f in scripts/run bin/ls kept/lint .env a; do echo evil > $f; done; mv scripts s; mv kept k; true";
    let settings = "local.read_only = [\"kept\", \"later\"]";
    let outputs = site.run_at("full", settings, &[], &[evil, "mkdir later"]).outputs;
    let read = |name: &str| fs::read_to_string(site.work(name)).unwrap_or_default();
    assert_eq!(
        [read("scripts/run"), read("bin/ls"), read("kept/lint"), read(".env"), read("a")],
        ["own\n", "evil\n", "own\n", "evil\n", "evil\n"],
        "{outputs:#?}"
    );
    assert!(!site.work("later").exists(), "{outputs:#?}");
    let make = "touch .vimrc .exrc .kimi GROK.md lefthook-local.yml mise.prod.toml .envrc.local crush.md x.code-workspace .VSCode rust-toolchain.toml prek.toml hk.local.pkl .bsp .Rprofile; \
        touch .vscode-test mise.rs CLAUDE.rs .env agent-results.json Agents.yaml; true";
    let outputs = Site::new().run(&[], &[make]);
    assert_eq!(outputs[0].matches("respool renamed it").count(), 15, "{outputs:#?}");
}

/// The person looks at settings that a command made, and copies them to their old name, as the note says.
#[test]
fn settings_that_were_looked_at_have_one_name() {
    let site = Site::new();
    let make = "mkdir .vscode build; echo good > .vscode/tasks.json; echo good > AGENTS.md; \
        ln .vscode/tasks.json build/t; ln AGENTS.md build/a; true";
    let back = format!("{PERSON}for f in .vscode AGENTS.md; do cp -r $f.made-by-a-command $f; done");
    // While the person looks, nothing changes.
    let change =
        "echo evil > .vscode.made-by-a-command/tasks.json; echo evil > AGENTS.md.made-by-a-command; true";
    let outputs = site.run(&[], &[make, change, &back, "echo evil > build/t; echo evil > build/a; true"]);
    assert!(outputs[0].contains("copy it to its old name"), "{outputs:#?}");
    for name in [".vscode/tasks.json", "AGENTS.md"] {
        assert_eq!(fs::read_to_string(site.work(name)).unwrap(), "good\n", "{outputs:#?}");
    }
}

/// Servers outside the sandbox find code in directories that options and variables name.
#[test]
fn what_servers_are_given_is_read_only() {
    let site = Site::new();
    site.person("mkdir lib py also other && echo '1;' > lib/Server.pm && ln -s work ../linked");
    let [work, linked] = ["work", "linked"].map(|name| site.path(name).display().to_string());
    let settings = format!(
        "mcp.a = {{ command = \"perl\", args = [\"-I{work}/lib\", \"-MServer\", \"-e1\"] }}\n\
        mcp.b = {{ command = \"true\", env = {{ SETTINGS = \"/x:{work}/./py:{linked}/also\" }} }}"
    );
    let outputs = site
        .run_at(
            "full",
            &settings,
            &[],
            &["echo x > lib/Server.pm; echo x > py/json.py; echo x > also/json.py; echo x > other/x; true"],
        )
        .outputs;
    assert_eq!(outputs[0].matches("ead-only file system").count(), 3, "{outputs:#?}");
    assert!(site.work("other/x").exists(), "{outputs:#?}");
}

#[test]
fn other_repositories_of_the_person_are_kept() {
    let site = Site::with_repository();
    site.person("git init -q --bare store.git && mkdir -p ../proj/bin ../proj/.git ../proj/lib && echo TOKEN > ../proj/.env");
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", site.path("proj/bin").display());
    let outputs = site.run(
        &[("PATH", &path)],
        &[
            "touch store.git/hooks/update; echo x >> store.git/config; cat ~/proj/.env; true",
            "d=$(printf 'r\\377'); mkdir $d; git init -q $d; echo made",
            "echo x > $(printf 'r\\377')/.git/x; echo alive",
        ],
    );
    assert_eq!(outputs[0].matches("ead-only file system").count(), 2, "{outputs:#?}");
    assert!(outputs[1].ends_with("made\n") && outputs[2].ends_with("alive\n"), "{outputs:#?}");
    assert!(outputs[2].contains("ead-only file system"), "{outputs:#?}");
    site.assert_not_escaped(&outputs);
}

/// By a replacement everybody's git reads other objects than those that were reviewed.
#[test]
fn no_object_is_replaced() {
    for format in ["files", "reftable"] {
        let site = Site::new();
        let init = format!("git init -q -b main --ref-format={format}");
        // Older ones keep references in files alone, and know no such option.
        if !site.person_says(&init, false).status.success() {
            site.person("git init -q -b main");
        }
        let commit = "git commit -q --allow-empty -m";
        let commits = format!("{commit} one && git branch first && {commit} two && git rev-parse HEAD");
        let head = String::from_utf8(site.person(&commits).stdout).unwrap();
        let fetch = format!("git fetch -q . first:refs/replace/{}", head.trim());
        let outputs = site.run(&[], &[&fetch, "git log --format=%s"]);
        assert_eq!(outputs[1], "two\none\n", "{outputs:#?}");
        assert!(outputs[0].contains("ead-only file system"), "{outputs:#?}");
    }
}

/// A directory of the person's own becomes a repository by four names.
#[test]
fn no_directory_becomes_a_repository_that_starts_programs() {
    let site = Site::with_repository();
    site.person("mkdir src && echo a > src/a && git add src && git commit -qm two");
    let make = r#"mkdir objects refs; echo ref: refs/heads/main > HEAD
        printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = ..\n\tfsmonitor = "touch ~/PWNED; false"\n' > config"#;
    let linked = "mkdir tree; cd tree; echo ref: refs/heads/main > HEAD; echo ../x > commondir";
    let outputs = site.run(
        &[],
        &[
            &format!("cd src; {make}"),
            &format!("mkdir x; cd x; {make}; cd ..; {linked}"),
            "git init -q --bare own.git; echo made",
            &format!("cd own.git; {make}; true"),
        ],
    );
    site.person_says("cd src && git status; cd ../x && git status; cd ../tree && git status", false);
    site.assert_not_escaped(&outputs);
    assert!(outputs[0].contains("respool renamed it to HEAD.made-by-a-command"), "{outputs:#?}");
    assert_eq!(outputs[1].matches("respool renamed it").count(), 2, "{outputs:#?}");
    for output in &outputs[2..] {
        assert!(output.contains("respool renamed it to HEAD.made-by-a-command"), "{outputs:#?}");
    }
    // git takes a link below `refs` for a `HEAD`, whatever the file says.
    let site = Site::new();
    let marked = format!(
        "mkdir -p src/refs/heads; cd src; {make}; rm HEAD; ln -s refs/heads/main HEAD; echo 'gitdir: /dev/null' > HEAD; \
        sed -i 's/worktree = ../worktree = ./' config"
    );
    let outputs = site.run(&[], &[&marked.replace("mkdir objects refs", "mkdir -p objects refs")]);
    site.person_says("cd src && git status", false);
    site.assert_not_escaped(&outputs);
    assert!(outputs[0].contains("respool renamed it to HEAD.made-by-a-command"), "{outputs:#?}");
    // The person's git would write where a link leads.
    let outputs = Site::new()
        .run(&[], &["git init -q --bare b.git; mkdir b.git/logs; ln -s ../../.envrc b.git/logs/HEAD"]);
    assert!(outputs[0].contains("respool renamed it to HEAD.made-by-a-command"), "{outputs:#?}");
}

/// A merge may stop.
#[test]
fn plain_repositories_of_commands_stay() {
    let site = Site::new();
    let make = "git init -q -b main x && cd x && echo a > a && git add a && git commit -qm one && \
        git switch -qc other && echo b > a && git commit -qam two && git switch -q main && echo c > a && git commit -qam three";
    let outputs = site.run(&[], &[make, "cd x && git merge other", "git -C x status --short"]);
    assert!(outputs[1].contains("CONFLICT"), "{outputs:#?}");
    assert_eq!(outputs[2], "UU a\n", "{outputs:#?}");
    assert!(!outputs.concat().contains("respool renamed"), "{outputs:#?}");
}

const AROUND_ROUTES: &str = r#"
import socket, sys
port, hosts = int(sys.argv[1]), sys.argv[2:]
receiver = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
receiver.bind(("::", 0)); receiver.settimeout(3)
own = receiver.getsockname()[1]
for number, name in [found for found in socket.if_nameindex() if found[1] != "lo"]:
    for host in hosts:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        place = (host, port) if family == socket.AF_INET else (host, port, 0, number)
        for way in "device", "address":
            with socket.socket(family) as stream:
                stream.settimeout(3)
                if way == "device": stream.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name.encode())
                try: stream.connect(place); print(host, way, "open")
                except OSError as error: print(host, way, type(error).__name__)
        with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
            index = number.to_bytes(4, sys.byteorder)
            info = (0, 8, index + bytes(8)) if family == socket.AF_INET else (41, 50, bytes(16) + index)
            try: datagrams.sendmsg([b"x"], [info], 0, (host, own)); receiver.recv(1); print(host, "datagram stays")
            except OSError as error: print(host, "datagram", type(error).__name__)
            datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name.encode())
            try: datagrams.sendto(b"x", (host, port))
            except OSError: pass
"#;

/// Routes that prohibit do not hold for a socket that is bound to an interface, nor for a datagram that
/// names one.
#[test]
fn no_interface_leads_around_the_closed_roads() {
    let site = Site::new();
    fs::write(site.work("around.py"), AROUND_ROUTES).unwrap();
    let listener =
        std::net::TcpListener::bind("[::]:0").or_else(|_| std::net::TcpListener::bind("0.0.0.0:0"));
    let address = listener.as_ref().unwrap().local_addr().unwrap();
    let port = address.port();
    let datagrams = std::net::UdpSocket::bind(address).unwrap();
    datagrams.set_nonblocking(true).unwrap();
    let own = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let own = own.lines().filter(|line| line.starts_with("fe80")).filter_map(|line| {
        let number = u128::from_str_radix(line.split(' ').next()?, 16).ok()?;
        Some(std::net::Ipv6Addr::from(number).to_string())
    });
    let clouds = ["169.254.169.254", "168.63.129.16", "192.0.0.192", "100.100.100.200"].map(str::to_owned);
    let hosts: Vec<String> = clouds.into_iter().chain(own).chain(["::1".to_owned()]).collect();
    let command = format!("/usr/bin/python3 around.py {port} {}", hosts.join(" "));
    // A bound socket gets no answer from the loopback of the namespace.
    let loopback = format!("/usr/bin/python3 around.py {port} 127.0.0.1 127.0.0.53");
    let outputs = site.run_at("full", "local.network = true", &[], &[&command, &loopback]).outputs;
    let said = &outputs[0];
    assert!(!outputs.concat().contains(" open\n") && !said.contains("TimeoutError"), "{outputs:#?}");
    assert!(outputs[1].contains("127.0.0.53 datagram stays\n"), "{outputs:#?}");
    let came = datagrams.recv(&mut [0]);
    assert!(came.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    for host in hosts {
        for way in ["device ConnectionRefusedError", "address ConnectionRefusedError", "datagram stays"] {
            assert!(said.contains(&format!("{host} {way}\n")), "{host} {way}: {said}");
        }
    }
}

/// Settings differ between branches, and git cannot write those that commands only read.
#[test]
fn half_of_a_switch_is_a_failure() {
    for (file, change) in [
        ("AGENTS.md", "echo two > AGENTS.md"),
        ("AGENTS.md", "git rm -q AGENTS.md"),
        (".vscode/tasks.json", "git rm -qr .vscode"),
    ] {
        let site = Site::with_repository();
        site.person(&format!(
            "mkdir .vscode && echo one > {file} && git add . && git commit -qm rules && git switch -qc other && {change} && \
             git commit -qam two && git switch -q main"
        ));
        for line in ["git switch other", "git merge other", "git cherry-pick other"] {
            let outputs = site.run(&[], &[&format!("{line} && git commit -q --allow-empty -m lost")]);
            assert!(outputs[0].contains("git was not run") && outputs[0].contains(file), "{outputs:#?}");
        }
        let outputs = site.run(&[], &["git switch -C side other && git commit -q --allow-empty -m lost"]);
        assert!(outputs[0].contains("half of its work"), "{change}: {outputs:#?}");
        let log = site.person("git log --format=%s -1 main; git log --format=%s -1 side");
        assert_eq!(String::from_utf8_lossy(&log.stdout), "rules\ntwo\n", "{outputs:#?}");
    }
}

/// An index that only looks large is not read.
#[test]
fn a_sparse_index_holds_nothing_up() {
    let site = Site::new();
    let make = "for n in 1 2 3 4; do git init -q m$n; printf 'DIRC\\0\\0\\0\\2\\0\\160\\0\\0' > m$n/.git/index; \
        truncate -s 512M m$n/.git/index; done; true";
    let began = std::time::Instant::now();
    let outputs = site.run(&[], &[make, "echo on; true"]);
    assert_eq!(outputs[1], "on\n");
    let index = site.work("m4/.git.made-by-a-command/index");
    assert_eq!(index.metadata().unwrap().len(), 512 << 20, "{outputs:#?}");
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
}

const DATAGRAMS: &str = r#"
import socket
for kind in (socket.SOCK_DGRAM, 3, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    try:
        socket.socketpair(socket.AF_UNIX, kind); print(int(kind), "made")
    except OSError as error: print(int(kind), type(error).__name__)
"#;

#[test]
fn no_pair_of_datagram_sockets_is_made() {
    for level in ["full", "landlock", "filter"] {
        let site = Site::new();
        fs::write(site.work("pairs.py"), DATAGRAMS).unwrap();
        let done = site.run_at(level, "", &[], &["/usr/bin/python3 pairs.py"]);
        assert_eq!(done.outputs[0], "2 PermissionError\n3 PermissionError\n1 made\n5 made\n", "{level}");
    }
}

#[test]
fn temporary_directories_are_private_and_removed() {
    for level in ["full", "landlock"] {
        let site = Site::with_repository();
        let done = site.run_at(
            level,
            "",
            &[],
            &[
                "echo x > $TMPDIR/x; mkdir -p $TMPDIR/d/e; chmod 0 $TMPDIR/d; echo b > b",
                "git add b",
                "cat $TMPDIR/x",
            ],
        );
        assert_eq!(done.modes, [0o700], "{level}");
        assert_eq!(done.outputs[2], "x\n", "commands share it: {level}");
        assert_eq!(fs::read_dir(site.path("tmp")).unwrap().count(), 0, "{level}");
    }
}

#[test]
fn without_bubblewrap_a_repository_is_read_only() {
    let site = Site::with_repository();
    let change = "echo x > new; echo '[core]' >> .git/config; cat a";
    let done = site.run_at("landlock", "", &[], &[change]);
    assert!(!site.work("new").exists() && done.outputs[0].contains("a\n"), "{:#?}", done.outputs);
    let said = &site.run_at("landlock", "", &[], &["touch new"]).outputs[0];
    assert!(said.contains("tools.local.unprotected_repositories"), "{said}");
    let settings = "local.unprotected_repositories = true";
    let done = site.run_at(
        "landlock",
        settings,
        &[],
        &["echo x > new && git add new && git commit -qm new && git log --format=%s -1"],
    );
    assert_eq!(done.outputs[0], "new\n");
    let bare = Site::new();
    assert_eq!(bare.run_at("landlock", "", &[], &["echo x > new && cat new"]).outputs[0], "x\n");
}

/// A day's work with git, in a work tree of its own and in a linked one.
#[test]
fn the_work_of_a_day_with_git_goes_on() {
    for is_linked in [false, true] {
        let site = Site::with_repository();
        if is_linked {
            site.person(
                "git branch topic && cd .. && mv work main && git -C main worktree add -q ../work topic",
            );
        }
        let commands = [
            "echo b > b && git add b && git commit -qm 'two things' && git log --format=%s -1",
            "git status --short && git diff HEAD~1 --stat | tail -1",
            "git switch -qc other && git branch --show-current",
            "echo c >> b && git stash -q && git status --short && git stash pop -q && git status --short",
            "git add -A && git commit -qm three && git reset -q --soft HEAD~1 && git commit -qm 'three again' 2>&1 && git log --format=%s -1",
            "mkdir d && git mv b d/b && git commit -qm moved && git rm -q d/b && git commit -qm removed && git tag -l && git log --oneline | wc -l",
            "git init -q mine && cd mine && git commit -q --allow-empty -m own && git config user.name own && git log --format=%s",
            "cd . && git restore --staged a && git checkout -q -b last && git merge -q other && git branch --show-current",
            "git commit -qm nothing",
        ];
        let outputs = site.run(&[], &commands);
        let expected = [
            "two things\n",
            " 1 file changed, 1 insertion(+)\n",
            "other\n",
            " M b\n",
            "three again\n",
            "5\n",
            "own\n",
            "last\n",
        ];
        assert_eq!(outputs[..8], expected.map(str::to_owned), "linked: {is_linked}: {outputs:#?}");
        assert!(outputs[8].contains("[exit code 1]"), "{}", outputs[8]);
        let status =
            site.person("git status --short && git fsck && git log -1 --format=%s && git reflog | wc -l");
        let status = String::from_utf8_lossy(&status.stdout).into_owned();
        assert!(
            status.starts_with("?? mine/\n") && status.contains("removed\n"),
            "linked: {is_linked}: {status}"
        );
    }
}

/// Two respools, or a person: git's own lock is kept.
#[test]
fn git_waits_for_no_lock_and_takes_none_away() {
    let site = Site::with_repository();
    fs::write(site.work(".git/index.lock"), "").unwrap();
    let outputs = site.run(&[], &["git add a"]);
    assert!(outputs[0].contains("index.lock': File exists"), "{outputs:#?}");
    assert!(site.work(".git/index.lock").exists());
}

/// The attempts of a row of the table of levels, and the places where they fail.
struct Attempt {
    promise: &'static str,
    /// Prints `DONE` when it works.
    command: &'static str,
    /// Outside, this is there when it worked.
    trace: Option<&'static str>,
}

const fn attempt(promise: &'static str, command: &'static str) -> Attempt {
    Attempt { promise, command, trace: None }
}

const ATTEMPTS: [Attempt; 13] = [
    attempt("reads other files of the user (`~/.ssh`)", "cat ~/.ssh/id_rsa && echo DONE"),
    attempt("writes other files of the user", "echo x > ~/new && echo DONE"),
    attempt("changes their modes, owners and times", "chmod 700 ~/.ssh && echo DONE"),
    attempt("writes `.git`, `.vscode`, `.envrc` in the workspace", "touch .git/x && echo DONE"),
    attempt("writes other files of a workspace with a repository", "echo x > new && echo DONE"),
    Attempt {
        promise: "writes the shared `/tmp`",
        command: "echo x > /tmp/respool-test-$UID; true",
        trace: Some("/tmp/respool-test-"),
    },
    Attempt {
        promise: "writes the shared `/dev/shm`",
        command: "echo x > /dev/shm/respool-test-$UID; true",
        trace: Some("/dev/shm/respool-test-"),
    },
    attempt("sees other processes and their arguments", "test -d /proc/{respool} && echo DONE"),
    attempt("uses the person's terminals", "ls {terminal} && : < {terminal} && echo DONE"),
    attempt(
        "opens Unix sockets, or others without `tools.local.network`",
        "/usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX)' && echo DONE",
    ),
    attempt("makes namespaces and mounts, loads BPF or kernel modules", "unshare -Ur true && echo DONE"),
    attempt("gains privileges (`sudo`, setuid)", "grep -q 'NoNewPrivs:.0' /proc/self/status && echo DONE"),
    attempt("outlives its call", "setsid sh -c 'sleep 0.3; echo x > late' & true"),
];

/// Tries everything at each level, and compares the table in docs/tools.md with what happened. `UPDATE_DOCS=1` writes it.
#[test]
fn the_table_of_levels_says_what_holds() {
    let levels = ["full", "landlock", "filter", "off"];
    let mut table =
        String::from("| a command … | full | Landlock | seccomp | off |\n|---|---|---|---|---|\n");
    let mut rows = ATTEMPTS.map(|attempt| format!("| {} |", attempt.promise));
    for level in levels {
        let site = Site::with_repository();
        let uid = if is_root() { ORDINARY } else { nix::unistd::geteuid().as_raw() };
        let traces =
            ATTEMPTS.map(|attempt| attempt.trace.map(|trace| PathBuf::from(format!("{trace}{uid}"))));
        let done = site.run_at(level, "", &[], &ATTEMPTS.map(|attempt| attempt.command));
        // What would outlive its call has had its time.
        std::thread::sleep(std::time::Duration::from_millis(600));
        for (index, row) in rows.iter_mut().enumerate() {
            let trace = traces[index].as_ref().is_some_and(|trace| trace.exists());
            let is_done =
                done.outputs[index].contains("DONE") || trace || (index == 12 && site.work("late").exists());
            row.push_str(if is_done { " yes |" } else { " no |" });
        }
        for trace in traces.iter().flatten() {
            let _ = fs::remove_file(trace);
        }
    }
    table.push_str(&rows.map(|row| row + "\n").concat());
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/tools.md");
    let text = fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once("<!-- levels -->\n").unwrap();
    let (written, after) = rest.split_once("<!-- /levels -->").unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&page, format!("{before}<!-- levels -->\n{table}<!-- /levels -->{after}")).unwrap();
    } else {
        assert_eq!(written, table, "UPDATE_DOCS=1 writes the table");
    }
}
