//! Commands that a person may allow once for a whole session: builds, tests and everyday work of git, with
//! the options that are known to do nothing else. An option that is not listed counts as unknown. Pure.
//!
//! The table leaves out programs that run any code they are given (shells, interpreters, `npm run`, other
//! targets of `make`), and options that name a program, an output file or another directory (`--output`,
//! `-C`, `--config`).
//! Commands that only look need no question where the sandbox is whole. A few are here because models join
//! them to others, and only with what cannot write: no `find`, `sort` or `awk`. Used by `approval`.

/// A program, with its subcommand if it has one.
#[derive(Debug)]
pub(super) struct Entry {
    words: &'static str,
    /// Long options, and short ones that cannot be combined; `--x=` is followed by its value.
    options: &'static str,
    /// Options of one letter, which may be combined and followed by numbers.
    letters: &'static str,
    takes_operands: bool,
    /// The commands that one consent covers together.
    group: &'static str,
}

const BUILDING: &str = "builds and tests";
const GIT_WORK: &str = "git add, commit, stash and switch";

/// A command that writes into the repository as git itself does: the sandbox allows it to write there and
/// nowhere else.
const fn git_work(words: &'static str, options: &'static str, letters: &'static str) -> Entry {
    Entry { words, options, letters, takes_operands: true, group: GIT_WORK }
}

/// A program that runs the code of the workspace, as every build and test does.
const fn build(words: &'static str, options: &'static str, letters: &'static str) -> Entry {
    Entry { words, options, letters, takes_operands: true, group: BUILDING }
}

const OF_CARGO: &str = "--all --workspace --all-targets --all-features --no-default-features --features --features= --package \
    --package= --exclude --exclude= --lib --bins --bin --bin= --tests --test --test= --examples --example --example= --benches \
    --bench --bench= --doc --release --no-run --no-fail-fast --quiet --verbose --locked --offline --frozen --keep-going --jobs \
    --jobs= --color= --message-format= --no-deps --nocapture --exact --ignored --include-ignored --test-threads= --skip --check";

const KNOWN: &[Entry] = &[
    git_work("git add", "--all --update --verbose --dry-run", "Auvn"),
    git_work("git commit", "--all --message --message= --quiet --verbose --signoff --allow-empty", "amqvs"),
    git_work("git switch", "--create --quiet --detach", "cqd"),
    git_work("git checkout -b", "--quiet", "q"),
    git_work("git stash push", "--include-untracked --keep-index --message --message= --quiet", "ukmq"),
    git_work("git stash pop", "--index --quiet", "q"),
    git_work("git stash apply", "--index --quiet", "q"),
    Entry {
        takes_operands: false,
        ..git_work("git stash", "--include-untracked --keep-index --quiet", "ukq")
    },
    build("cargo build", OF_CARGO, "pqvj"),
    build("cargo check", OF_CARGO, "pqvj"),
    build("cargo test", OF_CARGO, "pqvj"),
    build("cargo clippy", OF_CARGO, "pqvjDWA"),
    build("cargo fmt", "--all --check --quiet --verbose --package --package=", "pqv"),
    build(
        "go test",
        "-v -race -short -count -count= -run -run= -timeout -timeout= -cover -bench -bench=",
        "",
    ),
    build("go build", "-v -race", ""),
    build("go vet", "-v", ""),
    Entry { takes_operands: false, ..build("npm test", "--silent", "s") },
    Entry { takes_operands: false, ..build("npm ci", "--silent --no-audit --no-fund", "s") },
    Entry { takes_operands: false, ..build("npm install", "--silent --no-audit --no-fund", "s") },
    Entry { takes_operands: false, ..build("npm run test", "--silent", "s") },
    Entry { takes_operands: false, ..build("npm run build", "--silent", "s") },
    Entry { takes_operands: false, ..build("npm run lint", "--silent", "s") },
    Entry { takes_operands: false, ..build("yarn test", "", "") },
    Entry { takes_operands: false, ..build("pnpm test", "", "") },
    Entry { takes_operands: false, ..build("make test", "--silent --keep-going", "jks") },
    Entry { takes_operands: false, ..build("make -s test", "", "") },
    Entry { takes_operands: false, ..build("make check", "--silent --keep-going", "jks") },
    Entry { takes_operands: false, ..build("make build", "--silent --keep-going", "jks") },
    Entry { takes_operands: false, ..build("make lint", "--silent --keep-going", "jks") },
    Entry { takes_operands: false, ..build("just test", "", "") },
    Entry { takes_operands: false, ..build("just check", "", "") },
    Entry { takes_operands: false, ..build("mvn test", "", "q") },
    Entry { takes_operands: false, ..build("gradle test", "", "q") },
    build("node --test", "", ""),
    build("python -m unittest", "--verbose --quiet --failfast --buffer", "vqfbsk"),
    build("python3 -m unittest", "--verbose --quiet --failfast --buffer", "vqfbsk"),
    build("python -m pytest", "--lf --ff --tb= --maxfail= --collect-only", "xvqsk"),
    build("python3 -m pytest", "--lf --ff --tb= --maxfail= --collect-only", "xvqsk"),
    build("ruff check", "--fix --diff --quiet --statistics --select= --ignore= --no-cache", "q"),
    build("ruff format", "--check --diff --quiet --no-cache", "q"),
    build("mypy", "--strict --pretty --no-error-summary", ""),
    build("python3 -m mypy", "--strict --pretty --no-error-summary", ""),
    build("npx tsc", "--noEmit --pretty --build", "bp"),
    build("npx eslint", "--fix --quiet --max-warnings=", ""),
    build("npx prettier", "--check --write --list-different", "cwl"),
    build("npx jest", "--verbose --silent --bail --coverage", ""),
    build("npx vitest run", "--coverage --silent --bail=", ""),
    build("pytest", "--lf --ff --tb= --maxfail= --collect-only --durations= --no-header", "xvqsrlkA"),
];

const fn looking(words: &'static str, options: &'static str, letters: &'static str) -> Entry {
    Entry { words, options, letters, takes_operands: true, group: "" }
}

/// Commands that only look, which a line may have with a known one.
const LOOKING: &[Entry] = &[
    looking("git status", "--short --branch --porcelain", "sb"),
    looking("git log", "--oneline --stat --graph --decorate --all --no-pager", "np"),
    looking("git diff", "--stat --cached --staged --name-only --name-status --check", ""),
    looking("git show", "--stat --oneline --name-only --name-status", ""),
    Entry { takes_operands: false, ..looking("git branch", "--show-current", "") },
    looking("echo", "", "en"),
    looking("ls", "", "lahtrRAF"),
    Entry { takes_operands: false, ..looking("pwd", "", "") },
    Entry { takes_operands: false, ..looking("true", "", "") },
];

/// Programs that only print what they read, whatever their options: they may stand behind a known one.
const FILTERS: [&str; 5] = ["cat", "grep", "head", "tail", "wc"];

/// Returns the operands of a command that only looks or prints, `None` for any other. An option with a path
/// in it counts as unknown.
pub(super) fn looking_operands(words: &[String]) -> Option<Vec<&str>> {
    if let Some(entry) = Entry::find_in(LOOKING, words) {
        return entry.operands(words);
    }
    let (program, behind) = words.split_first()?;
    let (options, operands): (Vec<&str>, Vec<&str>) =
        behind.iter().map(String::as_str).partition(|word| word.starts_with('-'));
    let is_known = FILTERS.contains(&program.as_str()) && !options.iter().any(|option| option.contains('/'));
    is_known.then_some(operands)
}

impl Entry {
    /// Returns the group of commands that one consent covers.
    pub(super) fn consent_group(&self) -> &'static str {
        self.group
    }

    /// Finds the known program that these words call.
    pub(super) fn find_program(words: &[String]) -> Option<&'static Self> {
        Self::find_in(KNOWN, words)
    }

    fn find_in(entries: &'static [Self], words: &[String]) -> Option<&'static Self> {
        entries.iter().find(|known| {
            let mut called = words.iter();
            known.words.split(' ').all(|word| called.next().is_some_and(|called| called == word))
        })
    }

    /// Returns the operands of the command, or `None` if it does not know one of the options. The caller
    /// treats each operand as the name of a file.
    pub(super) fn operands<'a>(&self, words: &'a [String]) -> Option<Vec<&'a str>> {
        let behind = words.get(self.words.split(' ').count()..)?;
        let mut operands = Vec::new();
        for word in behind {
            if word == "-" || !word.starts_with('-') {
                operands.push(word.as_str());
            } else if !self.knows_option(word) {
                return None;
            } else if let Some((_, value)) = word.split_once('=') {
                operands.push(value);
            }
        }
        (self.takes_operands || operands.is_empty()).then_some(operands)
    }

    fn knows_option(&self, option: &str) -> bool {
        let name = option.split_once('=').map_or(option.to_owned(), |(name, _)| format!("{name}="));
        let number = |c: char| c.is_ascii_digit() || c == ',';
        let letters = option.strip_prefix('-').filter(|rest| !rest.starts_with('-') && !rest.is_empty());
        option == "--"
            || self.options.split_whitespace().any(|known| known == name)
            || letters.is_some_and(|rest| {
                !self.letters.is_empty() && rest.chars().all(|c| self.letters.contains(c) || number(c))
            })
    }
}

/// Returns false if the operand's text alone leads out of the directory.
pub(super) fn stays_inside(operand: &str) -> bool {
    !operand.starts_with(['/', '~'])
        && !operand.split('/').any(|part| part == "..")
        && !operand.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use tools::plain_words;

    fn is_known(command: &str) -> bool {
        let Some(words) = plain_words(command) else { return false };
        let operands = Entry::find_program(&words)
            .map_or_else(|| looking_operands(&words), |entry| entry.operands(&words));
        operands.is_some_and(|operands| operands.iter().all(|operand| stays_inside(operand)))
    }

    #[test]
    fn what_builds_or_tests_is_known() {
        for command in [
            "cat a.txt 2>&1",
            "head -5 a",
            "head -n 5 a",
            "grep -rn \"fn main\" src --include='*.rs'",
            "git add -A",
            "git commit -qm 'one thing'",
            "git switch -c topic",
            "git stash",
            "git stash pop",
            "cargo test --lib a::b -- --nocapture",
            "cargo clippy --all-targets -- -D warnings",
            "go test ./... -run X -count=1",
            "pytest -x -k name tests",
            "python3 -m unittest -q",
            "python3 -m unittest discover -s tests",
            "make test -j4",
            "make -s test",
            "go build ./...",
            "npm run build",
            "npm test --silent",
            "npm ci -s",
            "git checkout -b topic",
            "yarn test",
            "ls -la src",
            "echo '=== tests ==='",
            "git status --short",
            "git log --oneline -1",
            "git diff --cached --stat",
        ] {
            assert!(is_known(command), "{command}");
        }
    }

    /// Regression: "always" covered options that name a program.
    #[test]
    fn harmful_options_are_unknown() {
        for command in [
            "git -C elsewhere add",
            "git -c core.pager=x add",
            "grep -f/etc/passwd a",
            "grep --file=../x a",
            "tail ../a",
            "git commit --amend",
            "git commit -F /etc/passwd",
            "git switch -C main",
            "git switch --discard-changes main",
            "git stash drop",
            "git stash clear",
            "git push",
            "git reset --hard",
            "git rebase main",
            "git clean -fd",
            "git branch -D main",
            "sort --compress-program=x a",
            "sort --compress-prog x a",
            "sort -o a b",
            "sort -uo a b",
            "rg --pre x y",
            "rg --hostname-bin=x y",
            "tree -o a",
            "cargo test --config x",
            "cargo --config x test",
            "cargo +nightly test",
            "cargo test --manifest-path elsewhere/Cargo.toml",
            "cargo test -Zunstable-options",
            "cargo test -- --logfile=x",
            "cargo clippy --fix",
            "cargo run",
            "go test -exec x",
            "go test -toolexec=x",
            "go test -o x",
            "pytest -p x",
            "pytest -c x",
            "make",
            "make deploy",
            "make test CC=x",
            "make -f x test",
            "make test -C x",
            "python3 -m http.server",
            "npm install left-pad",
            "npm test -- --x",
            "find . -delete",
            "\\ls",
            "\"sh\" -c x",
            "./ls",
            "/bin/ls",
            "LS_COLORS=x ls",
            "cat *",
            "cat {a,b}",
            "cat ~",
            "cat a; rm a",
            "cat a\nrm a",
            "cat a > b",
            "cat $(x)",
            "cat /etc/passwd",
            "cat ../a",
            "cat a/../../b",
            "grep --include=/etc/passwd x",
            "env ls",
            "diff -r a b",
        ] {
            assert!(!is_known(command), "{command}");
        }
    }

    #[test]
    fn others_of_the_same_name_are_unknown() {
        for command in [
            "ls /etc",
            "git log --output=x",
            "git diff --ext-diff",
            "git diff --no-index a b",
            "git branch x",
            "echo x > a",
            "npm run deploy",
            "npm run build -- --x",
            "go build -o x",
            "go build -toolexec=x",
            "git checkout -- a",
            "git checkout -B main",
        ] {
            assert!(!is_known(command), "{command}");
        }
    }

    #[test]
    fn options_of_the_table_are_well_formed() {
        for entry in KNOWN.iter().chain(LOOKING) {
            for option in entry.options.split_whitespace() {
                assert!(option.starts_with('-'), "{}: {option}", entry.words);
            }
            assert!(entry.letters.chars().all(|c| c.is_ascii_alphanumeric()), "{}", entry.words);
        }
    }
}
