//! Every kind of problem: where it is said to be, and what is said.

use super::*;

/// The problems, one per line; none is the empty text.
fn problems(file: &str, environment: &[(&str, &str)], flags: [Option<&str>; 2]) -> String {
    load(file, environment, flags).map_or_else(|problems| problems.to_string(), |_| String::new())
}

/// Holds a table of files against the one problem that each has.
fn check(cases: &[(&str, &str)]) {
    for (file, expected) in cases {
        assert_eq!(problems(file, &[], [None; 2]), *expected, "{file}");
    }
}

#[test]
fn unknown_keys_are_named_with_what_was_meant() {
    check(&[
        (
            "[limits]\nhartbeat = \"1s\"",
            "respool.toml:2: limits.hartbeat: unknown key; did you mean heartbeat?",
        ),
        ("\n\n[limit]\ndrain = \"1s\"", "respool.toml:3: limit: unknown key; did you mean limits?"),
        ("max_body = \"1MB\"", "respool.toml:1: max_body: unknown key here; did you mean limits.max_body?"),
        ("port = 8003", "respool.toml:1: port: unknown key; did you mean listen?"),
        (
            "[[upstream]]\nbase_url = \"http://a\"\nkey = \"k\"\nurl = \"http://a\"",
            "respool.toml:2: upstream[0].base_url: unknown key; did you mean url?\n\
             respool.toml:3: upstream[0].key: unknown key; did you mean api_key?",
        ),
        ("[context]\nsize = 1", "respool.toml:2: context.size: unknown key; here may be: on_overflow"),
        (
            "[models.\"a b\"]\ntargt = \"x\"",
            "respool.toml:2: models.\"a b\".targt: unknown key; did you mean target?",
        ),
        (
            "\"limits.drain\" = \"1s\"",
            "respool.toml:1: \"limits.drain\": unknown key here; did you mean limits.drain?",
        ),
    ]);
}

#[test]
fn text_without_quotes_is_named() {
    check(&[
        ("listen = 127.0.0.1:8003", "respool.toml:1: text needs quotes: write `listen = \"…\"`"),
        // As a page or a word processor has them.
        (
            "[[upstream]]\nurl = “http://gpu:8000”\n",
            "respool.toml:2: curly quotes are not TOML's: write `url = \"…\"`",
        ),
        (
            "[[upstream]]\nurl = http://gpu:8000 # the box\n",
            "respool.toml:2: text needs quotes: write `url = \"…\"`",
        ),
        // Where text is wrong, quotes do not help.
        (
            "[[upstream]]\nurl = 'http://a'\nweight = three",
            "respool.toml:3: upstream[0].weight: expected a whole number, such as 1, found the text \"three\"",
        ),
        (
            "[log]\ncontent = yes",
            "respool.toml:2: log.content: expected true or false, such as false, found the text \"yes\"",
        ),
        (
            "[[upstream]]\nurl = \"http://a\"\nlisten = \"127.0.0.1:1\"",
            "respool.toml:3: upstream[0].listen: unknown key here; write `listen` above the first [table]",
        ),
        // Its name is like that of a key of this table, too.
        (
            "[store]\nstate_dir = \"x\"",
            "respool.toml:2: store.state_dir: unknown key here; write `state_dir` above the first [table]",
        ),
    ]);
}

/// Regression: the keys below a header without its brackets were said to be unknown, with five guesses.
#[test]
fn keys_below_a_broken_header_are_known() {
    let header = "respool.toml:1: not valid TOML: write `[[upstream]]`";
    check(&[
        ("[[upstream\nurl = 'http://a'", header),
        ("[[upstream] # the box\nurl = 'http://a'\nmax_concurrency = 2", header),
        (
            "[limits\ndrain = 5\n",
            "respool.toml:1: not valid TOML: write `[limits]`\nrespool.toml:2: limits.drain: expected a duration with its unit, such as \"30s\", \
             found the number 5",
        ),
    ]);
    let found = problems("[[upstream\nurl = http://a", &[], [None; 2]);
    assert_eq!(found, format!("{header}\nrespool.toml:2: text needs quotes: write `url = \"…\"`"));
}

#[test]
fn environment_sets_entries_of_lists() {
    assert_eq!(
        problems("", &[("RESPOOL__UPSTREAM", "http://gpu:8000")], [None; 2]),
        "environment RESPOOL__UPSTREAM: upstream: it is a list of tables: set the keys of its entries, as in \
         RESPOOL__UPSTREAM__0__URL"
    );
}

#[test]
fn wrong_types_and_units() {
    check(&[
        (
            "[limits]\ndrain = 10",
            "respool.toml:2: limits.drain: expected a duration with its unit, such as \"30s\", found the number 10",
        ),
        (
            "[limits]\ndrain = \"10\"",
            "respool.toml:2: limits.drain: \"10\" is not a duration: write a number and a unit, such as \"250ms\", \"2s\", \"30m\", \"1h\"",
        ),
        (
            "[limits]\nheartbeat = \"0s\"",
            "respool.toml:2: limits.heartbeat: \"0s\" is too short; it must be longer than 0s",
        ),
        (
            "[limits]\nmax_body = 5",
            "respool.toml:2: limits.max_body: expected a size with its unit, such as \"32MiB\", found the number 5",
        ),
        (
            "[limits]\nmax_body = \"0B\"",
            "respool.toml:2: limits.max_body: \"0B\" is too small; it must be larger than 0B",
        ),
        (
            "[limits]\nmax_repeats = 0",
            "respool.toml:2: limits.max_repeats: expected a whole number from 1 to 4294967295, found 0",
        ),
        (
            "[limits]\nmax_repeats = 2.5",
            "respool.toml:2: limits.max_repeats: expected a whole number, such as 8, found the number 2.5",
        ),
        (
            "[limits]\nmax_repeats = \"8\"",
            "respool.toml:2: limits.max_repeats: expected a whole number, such as 8, found the text \"8\"",
        ),
        (
            "[log]\ncontent = \"yes\"",
            "respool.toml:2: log.content: expected true or false, such as false, found the text \"yes\"",
        ),
        (
            "tools_mode = \"Live\"",
            "respool.toml:1: tools_mode: \"Live\" is not one of \"buffered\", \"live\"; did you mean \"live\"?",
        ),
        (
            "reasoning = 1",
            "respool.toml:1: reasoning: expected text, such as \"reasoning_content\", found the number 1",
        ),
        (
            "keep_fields = \"a\"",
            "respool.toml:1: keep_fields: expected a list, such as [\"prompt_logprobs\"], found the text \"a\"",
        ),
        ("keep_fields = [\n\"a\",\n1]", "respool.toml:3: keep_fields[1]: expected text, found the number 1"),
        (
            "state_dir = \"\"",
            "respool.toml:1: state_dir: it is empty; write a value, such as \"/var/lib/respool\", or leave the key out",
        ),
        (
            "[runs]\nkeep = \"0s\"",
            "respool.toml:2: runs.keep: \"0s\" is too short; it must be longer than 0s",
        ),
        (
            "[runs]\nkeep = 30",
            "respool.toml:2: runs.keep: expected a duration with its unit, such as \"30d\", found the number 30",
        ),
        (
            "[runs]\nmax_size = \"64KiB\"",
            "respool.toml:2: runs.max_size: \"64KiB\" is too small; it must be at least \"1MiB\"",
        ),
    ]);
}

#[test]
fn sections_lists_and_names_out_of_place() {
    check(&[
        ("limits = 1", "respool.toml:1: limits: expected a section: write [limits], found the number 1"),
        ("models = []", "respool.toml:1: models: expected tables by name: write [models.NAME], found a list"),
        ("models.a = 1", "respool.toml:1: models.a: expected a table, found the number 1"),
        (
            "[upstream]\nurl = \"http://a\"",
            "respool.toml:1: upstream: expected a list of tables: write [[upstream]], found a table",
        ),
        ("upstream = [1]", "respool.toml:1: upstream[0]: expected a table, found the number 1"),
        (
            "[agents.a]\nmodel = \"m\"\ntemperature = 3",
            "respool.toml:3: agents.a.temperature: expected a number from 0 to 2, found 3",
        ),
        (
            "[tools.timeouts]\nexec = \"1\"\n",
            "respool.toml:2: tools.timeouts.exec: \"1\" is not a duration: write a number and a unit, such as \"250ms\", \"2s\", \"30m\", \"1h\"",
        ),
    ]);
}

#[test]
fn addresses_and_urls_say_what_is_wrong() {
    check(&[
        (
            "listen = \"8003\"",
            "respool.toml:1: listen: \"8003\" is not an address to listen on: the host is missing; write \"127.0.0.1:8003\"",
        ),
        (
            "[[upstream]]\nurl = \"localhost:8000\"",
            "respool.toml:2: upstream[0].url: \"localhost:8000\" is not a base URL: the scheme is missing; write \"http://localhost:8000\"",
        ),
        (
            "[tools.gateway]\nurl = \"replay:x\"",
            "respool.toml:2: tools.gateway.url: \"replay:x\" is not a URL: write it as \"http://127.0.0.1:18789\"",
        ),
    ]);
}

#[test]
fn what_is_missing_is_said_where_its_section_begins() {
    check(&[
        (
            "\n[[upstream]]\nname = \"a\"",
            "respool.toml:2: upstream[0].url: is missing; add it, for example url = \"http://127.0.0.1:8000\"",
        ),
        (
            "[agents.a]",
            "respool.toml:1: agents.a.model: is missing; add it, for example model = \"gpt-oss-120b\"",
        ),
        (
            "[[tools.policy.rule]]\ntool = \"x\"",
            "respool.toml:1: tools.policy.rule[0].then: is missing; add it, for example then = \"allow\"",
        ),
        ("[tools.mcp.a]", "respool.toml:1: tools.mcp.a: needs a command or a url; add one"),
    ]);
}

#[test]
fn contradictions() {
    check(&[
        (
            "[[upstream]]\nurl = 'http://a'\napi_key = 'k'\napi_key_env = 'PATH'",
            "respool.toml:4: upstream[0].api_key_env: api_key is set too (respool.toml:3); keep one of them",
        ),
        (
            "[[upstream]]\nurl = 'http://a'\napi_key_env = 'NOT_SET'",
            "respool.toml:3: upstream[0].api_key_env: the environment variable NOT_SET is not set or empty; set it, or write api_key",
        ),
        (
            "client_keys = ['k']\nclient_keys_env = 'PATH'",
            "respool.toml:2: client_keys_env: client_keys is set too (respool.toml:1); keep one of them",
        ),
        (
            "trusted_hosts = ['http://a']",
            "respool.toml:1: trusted_hosts[0]: \"http://a\" is not a host name: write the name alone, such as \"llm.example.org\"",
        ),
        (
            "[[upstream]]\nurl = 'http://a'\nname = 'x'\n[[upstream]]\nurl = 'http://b'\nname = 'x'",
            "respool.toml:6: upstream[1].name: \"x\" is the name of another upstream too (respool.toml:3); give each its own name",
        ),
        (
            "[[upstream]]\nurl = 'http://a'\n[[upstream]]\nurl = 'http://a/v1'",
            "respool.toml:3: upstream[1].name: \"a\" is the name of another upstream too (respool.toml:1); give each its own name",
        ),
        (
            "[models.a]\ntarget = 'a'",
            "respool.toml:2: models.a.target: the aliases go in a circle (a -> a); let one name a real model",
        ),
        (
            "[models.d]\ntarget = 'b'\n[models.b]\ntarget = 'c'\n[models.c]\ntarget = 'b'",
            "respool.toml:4: models.b.target: the aliases go in a circle (b -> c -> b); let one name a real model",
        ),
        (
            "[models.a]\ntarget = 'b'\n[models.a]\ntarget = 'c'",
            "respool.toml:3: not valid TOML at column 9: duplicate key\nrespool.toml:4: not valid TOML at column 1: duplicate key",
        ),
        (
            "[[upstream]]\nurl = 'http://a'\nmodels = ['m']\n[models.m]\ntarget = 'x'",
            "respool.toml:5: models.m.target: the upstream \"a\" serves a model \"m\"; an alias needs an id of its own",
        ),
        (
            "[models.m]\ntarget = 'x'\n[agents.m]\nmodel = 'x'",
            "respool.toml:3: agents.m: \"m\" is an entry of [models] (respool.toml:1) too; an agent needs an id of its own",
        ),
        (
            "[agents.a]\nmodel = 'm'\nupstream = 'box'",
            "respool.toml:3: agents.a.upstream: there is no upstream \"box\". Available upstreams: 127.0.0.1:8000",
        ),
        (
            "[agents.a]\nmodel = 'a'",
            "respool.toml:2: agents.a.model: \"a\" is an agent; name a model that an upstream serves",
        ),
        (
            "[agents.a]\nmodel = 'm'\ntools = ['mcp:files/*']",
            "respool.toml:3: agents.a.tools: \"mcp:files/*\" names no MCP server that is configured; add [tools.mcp.files]",
        ),
        (
            "[models.m]\ndialects = [\"harmony\", \"hermse\"]",
            "respool.toml:2: models.m.dialects: there is no dialect \"hermse\"; docs/dialects.md lists them",
        ),
        (
            "[agents.a]\nmodel = \"m\"\nparsers = [\"native\", \"hermse\"]",
            "respool.toml:3: agents.a.parsers: there is no dialect \"hermse\"; docs/dialects.md lists them",
        ),
        (
            "[tools.gateway]\ntoken = 't'",
            "respool.toml:2: tools.gateway.token: has no effect without tools.gateway.url; add that, or remove this",
        ),
        (
            "[tools.mcp.a]\ncommand = 'x'\nurl = 'http://b'",
            "respool.toml:3: tools.mcp.a.url: command is set too (respool.toml:2); a server has one or the other",
        ),
        (
            "[tools.mcp.a]\nargs = ['x']\nurl = 'http://b'",
            "respool.toml:2: tools.mcp.a.args: args go with a command, and this server has a url; leave them out",
        ),
        (
            "[tools.mcp.a]\ncommand = 'x'\nheaders = { a = 'b' }",
            "respool.toml:3: tools.mcp.a.headers: headers go with a url, and this server has a command; leave them out",
        ),
    ]);
}

#[test]
fn problems_name_their_variable_or_flag() {
    for (name, value, expected) in [
        ("RESPOOL__LIMITS__DRANE", "1s", "unknown key; did you mean drain?"),
        ("RESPOOL__LISTN", "a:1", "unknown key; did you mean listen?"),
        ("RESPOOL__", "", "unknown key; here may be: listen, "),
        ("RESPOOL__LIMITS__DRAIN", "soon", "limits.drain: \"soon\" is not a duration"),
        ("RESPOOL__LIMITS__DRAIN__X", "1s", "limits.drain has nothing below it"),
        (
            "RESPOOL__LIMITS__MAX_REPEATS",
            "many",
            "limits.max_repeats: expected a whole number, such as 8, found the text \"many\"",
        ),
        ("RESPOOL__LIMITS", "1", "limits: expected a section: write [limits], found the number 1"),
        (
            "RESPOOL__KEEP_FIELDS",
            "a,b",
            "keep_fields: expected a list, such as [\"prompt_logprobs\"], found the text \"a,b\"",
        ),
        ("RESPOOL__UPSTREAM__URL", "http://a", "\"URL\" is not an entry of the list: write its number"),
        ("RESPOOL__UPSTREAM__1__URL", "http://a", "the list has 0 entries: the next one's number is 0"),
        ("RESPOOL__UPSTREAM__0__URL", "a", "upstream[0].url: \"a\" is not a base URL"),
        ("RESPOOL__AGENTS__A__PAUSE", "1s", "agents.a.model: is missing"),
        ("RESPOOL__MODELS____TARGET", "m", "a name is missing between the underscores"),
    ] {
        let found = problems("", &[(name, value)], [None; 2]);
        assert!(found.starts_with(&format!("environment {name}: {expected}")), "{name}: {found}");
    }
    let found = problems("client_keys_env = 'K'", &[("K", " , ,")], [None; 2]);
    assert!(found.contains("client_keys_env: the variable holds no key"), "{found}");
    let found = problems("", &[], [Some("nowhere"), Some("box:1")]);
    let expected = "--listen: listen: \"nowhere\" is not an address to listen on: the port is missing; write HOST:PORT, such as \
                    \"127.0.0.1:8003\"\n--upstream: upstream[0].url: \"box:1\" is not a base URL: the scheme is missing; write \
                    \"http://box:1\"";
    assert_eq!(found, expected);
}

#[test]
fn all_problems_at_once_in_the_order_of_lines() {
    let file = "lisen = 'a:1'\nreasoning = 'dropp'\n[limits]\ndrain = 5\n[models.a]\ntarget = 'a'\n[[upstream]]\nurl = 'x'\n= 3\n";
    let found = problems(file, &[("RESPOOL__LOG__LEVEL", "loud")], [Some("x"), None]);
    let places: Vec<_> = found.lines().map(|line| line.split(": ").next().unwrap()).collect();
    let expected = [
        "--listen",
        "environment RESPOOL__LOG__LEVEL",
        "respool.toml:1",
        "respool.toml:2",
        "respool.toml:4",
        "respool.toml:6",
        "respool.toml:8",
        "respool.toml:9",
    ];
    assert_eq!(places, expected, "{found}");
}

#[test]
fn one_mistake_is_one_problem() {
    let found = problems("[[upstream]]\nurl = 'a'\n[[upstream]]\nurl = 'b'", &[], [None; 2]);
    assert_eq!(found.lines().count(), 2, "{found}");
    assert!(found.lines().all(|line| line.contains("the scheme is missing")), "{found}");
}

#[test]
fn overridden_problems_in_the_file_count() {
    let found = problems("listen = 1", &[], [Some("127.0.0.1:0"), None]);
    assert!(found.starts_with("respool.toml:1: listen: expected an address"), "{found}");
}

#[test]
fn secrets_are_in_no_problem() {
    for file in [
        "[[upstream]]\nurl = 'http://user:s3cret@a'",
        "[[upstream]]\nurl = 'http://a'\napi_key = \"s3cret\\n\"",
        "[[upstream]]\nurl = 'http://a'\napi_key = ['s3cret']",
        "client_keys = [\"s3cret\\n\"]",
        "client_keys = 's3cret'",
        "[tools.mcp.a]\ncommand = 'x'\nenv = 's3cret'",
        "[tools.mcp.a]\nurl = 'http://b'\nheaders = { A = \"s3cret\\n\" }",
    ] {
        let found = problems(file, &[], [None; 2]);
        assert!(!found.is_empty() && !found.contains("s3cret"), "{file}: {found}");
    }
}

#[test]
fn a_home_that_is_not_known_is_not_guessed() {
    let file = FileText { path: Path::new("f"), text: "state_dir = '~/x'" };
    let found = resolve(Some(file), &Environment::new(), &Flags::default()).unwrap_err().to_string();
    assert!(found.starts_with("f:1: state_dir: \"~/x\" begins at the home directory"), "{found}");
}

proptest::proptest! {
    /// Whatever is written, there are settings or problems, and every problem says where.
    #[test]
    fn no_text_is_too_odd(
        lines in proptest::collection::vec(
            "(\\[\\[?(upstream|limits|models\\.a|agents\\.a|tools\\.(mcp\\.a|policy\\.rule)|log)\\]?\\]?|\
              (url|target|model|drain|env|models|then|listen|tools_mode) = (\"a\"|'1s'|1|\\[1, 'a'\\]|\\{ a = 1 \\}|true|1e9|.{0,5}))",
            0..12,
        ),
        name in "RESPOOL__(UPSTREAM|LIMITS|MODELS|TOOLS__MCP|AGENTS|.{0,3})(__(0|1|A|URL|MODEL|DRAIN)){0,3}",
        value in "(a|1|\\[\\]|\\{a=1\\}|\\[\\{url='http://a'\\}\\]|.{0,6})",
    ) {
        if let Err(problems) = load(&lines.join("\n"), &[(&name, &value)], [None; 2]) {
            for problem in problems.iter() {
                let place = problem.place.as_str();
                proptest::prop_assert!(place.starts_with("respool.toml:") || place.starts_with("environment "), "{problem}");
            }
        }
    }
}

/// A sink of an unknown type was also reported as a webhook without `url`.
#[test]
fn an_unknown_sink_is_one_problem() {
    let found = problems("[[alerts.sink]]\ntype = \"pager\"\n", &[], [None; 2]);
    assert!(found.contains("\"pager\"") && !found.contains("needs url"), "{found}");
    assert_eq!(found.lines().count(), 1, "{found}");
    let found = problems("[[alerts.sink]]\ntype = \"ntfy\"\n", &[], [None; 2]);
    assert!(found.contains("a sink of the type ntfy needs url"), "{found}");
    for (kind, url, is_refused) in [
        ("ntfy", "127.0.0.1:8080/x", true),
        ("ntfy", "HTTP://127.0.0.1:8080/x", false),
        ("email", "mail.example.org", true),
        ("email", "smtps://mail.example.org", false),
    ] {
        let mails = "from = \"a@example.org\"\nto = \"b@example.org\"\n";
        let found = problems(
            &format!("[[alerts.sink]]\ntype = \"{kind}\"\nurl = \"{url}\"\n{mails}"),
            &[],
            [None; 2],
        );
        assert_eq!(found.contains("the address of a sink of the type"), is_refused, "{found}");
    }
}
