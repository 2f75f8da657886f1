//! Finds settings that are valid but will not do what their owner expects: `serve` logs them, `check` prints
//! them. Looks only at the settings.

use url::Url;

use crate::Settings;
use agent::OPERATOR_KEY;
use experts::ExpertConfig;
use openexperts::{Package, suggest_nearest};
use server::{Listen, ServerConfig};
use tools::{idle_rules, never_allowed, rule_for};
use upstream::Address;
use wire::units::{Secret, UnusableSetting};

/// One such finding.
#[derive(Debug, PartialEq, Eq)]
pub struct Advice {
    /// The consequence.
    pub text: String,
    /// The remedy.
    pub todo: String,
}

/// Lists names in `[budgets]` and `[capture]` that no client key has. `names`: those of all keys.
pub fn find_unknown_keys(settings: &Settings, names: &[String]) -> Vec<Advice> {
    let budgets = settings.budgets.keys.keys().map(|name| ("budgets.keys", name));
    let captures =
        settings.capture.keys.iter().filter(|name| *name != "*").map(|name| ("capture.keys", name));
    let unknown = budgets.chain(captures).filter(|(_, name)| !names.contains(name));
    let advice = |(setting, name): (&str, &String)| {
        let near = suggest_nearest(name, names.iter().map(String::as_str));
        Advice {
            text: format!("`{setting}` names {name:?}, but no client key has this name"),
            todo: format!("{near}names are those of `client_keys_file` (docs/keys.md)"),
        }
    };
    unknown.map(advice).collect()
}

/// Lists the settings that are valid and will not do what their owner expects.
pub fn find_advice(settings: &Settings) -> Vec<Advice> {
    let denied =
        settings.agents.iter().filter_map(|(name, agent)| find_denied_tools(settings, name, &agent.tools));
    let about_keys =
        no_operator(settings).into_iter().chain(only_operators(settings)).chain(short_keys(settings));
    denied.chain(warn_of_open_access(settings)).chain(find_idle_rules(settings)).chain(about_keys).collect()
}

/// Returns true if respool adds its own key to what it sends upstream.
pub fn uses_own_key(settings: &Settings) -> bool {
    settings.upstreams.iter().any(|upstream| upstream.api_key.is_some())
}

/// Lists what everyone who reaches the address can use, if others can reach it and no key is required.
fn reachable_services(settings: &Settings) -> Option<&'static str> {
    let server = &settings.server;
    if server.listen.is_loopback() || server.asks_for_keys() {
        return None;
    }
    Some(match (!settings.agents.is_empty() || serves_experts(settings), uses_own_key(settings)) {
        (false, false) => "the models, and read what was used",
        (false, true) => "the upstream's key",
        (true, false) => "the agents and experts, and read their runs",
        (true, true) => "the agents, the experts and the upstream's key, and read the runs",
    })
}

/// Returns true if experts have a model to use; then every installed expert is served.
fn serves_experts(settings: &Settings) -> bool {
    let experts = &settings.experts;
    experts.model.is_some() || experts.by_name.values().any(|expert| expert.model.is_some())
}

/// Returns why `serve` does not start.
pub fn start_problems(settings: &Settings) -> Vec<UnusableSetting> {
    let server = &settings.server;
    let lists = [
        ("client_keys_env", &server.client_keys_env, &server.client_keys),
        ("operator_keys_env", &server.operator_keys_env, &server.operator_keys),
    ];
    let missing = lists.into_iter().filter_map(|(key, variable, keys)| {
        let variable = variable.as_ref().filter(|_| keys.is_empty())?;
        let why = format!("the environment variable {variable} is not set or empty; set it, or remove this");
        Some(UnusableSetting::new(&[key], why))
    });
    missing
        .chain(short_operator_key(settings))
        .chain(open_to_all(settings))
        .chain(own_upstreams(settings))
        .chain(missing_hook_secrets(settings))
        .collect()
}

/// Reports hooks whose secret is not in the variable that they name.
fn missing_hook_secrets(settings: &Settings) -> Vec<UnusableSetting> {
    let experts = settings.experts.by_name.iter();
    let hooks = experts.flat_map(|(name, expert)| {
        let missing = expert
            .hook_secret_env
            .iter()
            .filter(move |(trigger, _)| !expert.hook_secrets.contains_key(*trigger));
        missing.map(move |(trigger, variable)| (name, trigger, variable))
    });
    let problem = |(name, trigger, variable): (&String, &String, &String)| {
        let why = format!(
            "the environment variable {variable} is not set, or shorter than {} characters; set it to a long random text",
            ExpertConfig::SHORTEST_SECRET
        );
        UnusableSetting::new(&["experts", name.as_str(), "hook_secret_env", trigger.as_str()], why)
    };
    hooks.map(problem).collect()
}

/// Reports a key in `RESPOOL_OPERATOR_KEY` that can be guessed.
fn short_operator_key(settings: &Settings) -> Option<UnusableSetting> {
    let server = &settings.server;
    let is_variable = server.operator_keys_env.is_none();
    let is_short = is_variable && server.operator_keys.iter().any(is_short_key);
    is_short.then(|| {
        let why = format!(
            "the key in {OPERATOR_KEY} is shorter than {} characters, so it could be guessed: put in a long random one (`openssl rand -hex 16`), or unset it",
            ServerConfig::SHORTEST_KEY
        );
        UnusableSetting::new(&["operator_keys"], why)
    })
}

fn is_short_key(key: &Secret) -> bool {
    key.expose_secret().len() < ServerConfig::SHORTEST_KEY
}

/// Warns of keys that can be guessed, of operators in the variable of `operator_keys_env` and of clients.
fn short_keys(settings: &Settings) -> impl Iterator<Item = Advice> {
    let server = &settings.server;
    let operators = server
        .operator_keys_env
        .as_deref()
        .map(|variable| ("an operator key", variable, &server.operator_keys));
    let variable = server.client_keys_env.as_deref().unwrap_or("client_keys");
    let lists = operators.into_iter().chain([("a client key", variable, &server.client_keys)]);
    lists.filter(|(_, _, keys)| keys.iter().any(is_short_key)).map(|(what, place, _)| Advice {
        text: format!(
            "{what} in {place} is shorter than {} characters, so it could be guessed",
            ServerConfig::SHORTEST_KEY
        ),
        todo: "replace it by a long random one: `openssl rand -hex 16`".to_owned(),
    })
}

/// Upstreams whose address is respool's own.
fn own_upstreams(settings: &Settings) -> impl Iterator<Item = UnusableSetting> {
    let listen = &settings.server.listen;
    let own =
        settings.upstreams.iter().enumerate().filter(|(_, upstream)| is_own_address(&upstream.url, listen));
    own.map(move |(index, _)| {
        let why = format!(
            "respool itself listens on {listen}, so requests would come back to it without end: set `url` to the model server's address, \
             or change `listen`"
        );
        UnusableSetting::new(&["upstream", &index.to_string(), "url"], why)
    })
}

fn is_own_address(upstream: &Address, listen: &Listen) -> bool {
    let url = upstream.endpoint_url("").and_then(|url| Url::parse(&url).ok());
    let Some((host, port)) = url.as_ref().and_then(|url| url.host_str().zip(url.port_or_known_default()))
    else {
        return false;
    };
    let host = Listen { host: host.trim_matches(['[', ']']).to_owned(), port };
    let is_any = |listen: &Listen| matches!(listen.host.as_str(), "0.0.0.0" | "::");
    let is_name = |listen: &Listen| listen.is_loopback() && listen.host.ends_with("localhost");
    let is_local = is_any(&host) || host.is_loopback();
    let is_same = host.host == listen.host
        || is_any(listen) && is_local
        || listen.is_loopback() && (is_any(&host) || is_name(&host))
        || is_name(listen) && is_local;
    port != 0 && port == listen.port && is_same
}

/// Reports an address that is open to all without the owner's consent.
fn open_to_all(settings: &Settings) -> Vec<UnusableSetting> {
    let server = &settings.server;
    let what = reachable_services(settings).filter(|_| !server.allow_unauthenticated);
    let problem = |what| {
        let why = format!(
            "anybody who can reach {} could use {what}, because clients need no key. Set `client_keys_env` (docs/keys.md), set `listen` to \
             127.0.0.1, or, if everybody there may do so, set `allow_unauthenticated = true`",
            server.listen
        );
        UnusableSetting::new(&["listen"], why)
    };
    what.map(problem).into_iter().collect()
}

/// Warns of an open address to which the owner has consented.
fn warn_of_open_access(settings: &Settings) -> Option<Advice> {
    let what = reachable_services(settings).filter(|_| settings.server.allow_unauthenticated)?;
    Some(Advice {
        text: format!(
            "anybody who can reach {} can use {what}: clients need no key, because `allow_unauthenticated` is set",
            settings.server.listen
        ),
        todo: "set `client_keys_env`, or set `listen` to 127.0.0.1 (in a container, publish the port on 127.0.0.1 only)"
            .to_owned(),
    })
}

/// Calls of experts that cannot be approved, because there is no operator's key.
fn no_operator(settings: &Settings) -> Option<Advice> {
    let is_missing = serves_experts(settings) && !settings.server.may_have_operators();
    is_missing.then(|| Advice { text: NO_OPERATOR.to_owned(), todo: HOW_TO_APPROVE.to_owned() })
}

/// Tells an owner who has named keys that only operators need one.
fn only_operators(settings: &Settings) -> Option<Advice> {
    let server = &settings.server;
    let is_open = server.operator_keys_env.is_some() && !server.asks_for_keys();
    is_open.then(|| Advice {
        text: "clients of this machine need no key: `operator_keys_env` alone protects approvals, the outbox and decisions on the page"
            .to_owned(),
        todo: "if all clients should need a key, or a proxy lets others reach this address, set `client_keys_env` to the same variable"
            .to_owned(),
    })
}

/// Why calls of experts wait for ever.
const NO_OPERATOR: &str =
    "no operator key is configured, so calls of experts that wait for approval cannot be approved";
/// How a person becomes an operator.
const HOW_TO_APPROVE: &str = "start `respool serve` with a key of at least 16 characters in RESPOOL_OPERATOR_KEY, and run \
     `respool expert approvals` with the same key there";

/// Returns a warning if calls of an expert wait for a person, and no configured key is an operator's.
pub fn approval_warning(settings: &Settings, package: &Package) -> Option<String> {
    let is_stuck = package.asks_people() && !settings.server.may_have_operators();
    is_stuck.then(|| format!("{NO_OPERATOR}: {HOW_TO_APPROVE}"))
}

/// Rules that allow nothing, although their owner meant them to.
fn find_idle_rules(settings: &Settings) -> Option<Advice> {
    let rules = idle_rules(&settings.tools.policy);
    let numbers: Vec<String> = rules.iter().map(ToString::to_string).collect();
    (!rules.is_empty()).then(|| Advice {
        text: format!("rule {} of tools.policy never allows a command: respool cannot read its pattern", numbers.join(", ")),
        todo: "in a `command`, use `*` only with programs, arguments, `;`, `&&`, `||`, `|`, `&`, `>` and `<`; write everything else without `*`"
            .to_owned(),
    })
}

/// Tools that an agent can never use, because it cannot ask a person.
fn find_denied_tools(settings: &Settings, agent: &str, tools: &[String]) -> Option<Advice> {
    let never = never_allowed(&settings.tools.policy, tools);
    let which = match never.len() {
        0 => return None,
        all if all == tools.len() => format!("can use none of its tools ({})", never.join(", ")),
        _ => format!("can never use {}", never.join(", ")),
    };
    let rules: Vec<String> = never.iter().map(|tool| rule_for(tool)).collect();
    Some(Advice {
        text: format!(
            "agent `{agent}` {which}: no rule of the policy allows it, and an agent cannot ask a person"
        ),
        todo: format!(
            "to allow a tool, add a rule before the ones that deny it (docs/tools.md), such as\n{}",
            rules.join("\n")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Environment, FileText, Flags, resolve};

    fn check(file: &str) -> Vec<Advice> {
        let file = FileText { path: "f".as_ref(), text: file };
        find_advice(&resolve(Some(file), &Environment::new(), &Flags::default()).unwrap().settings)
    }

    #[test]
    fn tools_that_no_rule_allows_are_named_with_rules() {
        let agent = "[agents.a]\nmodel = 'm'\ntools = ['read', 'exec']\n";
        let [none] = &check(agent)[..] else { panic!("one") };
        assert!(none.text.contains("agent `a` can use none of its tools (read, exec)"), "{none:?}");
        let [one] = &check(&format!("{agent}[[tools.policy.rule]]\ntool = 'read'\nthen = 'allow'\n"))[..]
        else {
            panic!("one")
        };
        assert!(one.text.contains("agent `a` can never use exec:"), "{one:?}");
        let (_, rule) = one.todo.split_once('\n').unwrap();
        assert_eq!(
            check(&format!("{agent}{rule}\n[[tools.policy.rule]]\ntool = 'read'\nthen = 'allow'\n")),
            []
        );
        assert_eq!(check("[agents.a]\nmodel = 'm'\n"), []);
    }

    #[test]
    fn experts_that_nobody_can_answer_are_named() {
        let experts = "[experts]\nmodel = 'm'\n";
        let [one] = &check(experts)[..] else { panic!("one") };
        assert!(one.text.contains("cannot be approved") && one.todo.contains("RESPOOL_OPERATOR_KEY"));
        let [only] = &check(&format!("operator_keys_env = 'V'\n{experts}"))[..] else { panic!("one") };
        assert!(only.text.contains("clients of this machine need no key"), "{only:?}");
        for closed in ["client_keys_env = 'V'\n", "trusted_hosts = ['llm.example.org']\n"] {
            assert_eq!(check(&format!("{closed}operator_keys_env = 'V'\n{experts}")), []);
        }
        assert_eq!(check(""), []);
    }

    #[test]
    fn a_rule_that_allows_nothing_is_named() {
        let rule = |command: &str| format!("[[tools.policy.rule]]\ncommand = {command:?}\nthen = 'allow'\n");
        let [idle] = &check(&format!("{}{}", rule("git *"), rule("(cd x; make *)")))[..] else {
            panic!("one")
        };
        assert!(idle.text.starts_with("rule 2 of tools.policy never allows a command"), "{idle:?}");
        assert_eq!(check(&rule("(cd x; make)")), []);
    }

    #[test]
    fn an_upstream_is_not_respool_itself() {
        for (listen, url, expected) in [
            ("127.0.0.1:8003", "http://127.0.0.1:8003", true),
            ("127.0.0.1:8003", "http://localhost:8003/v1", true),
            ("localhost:8003", "http://[::1]:8003", true),
            ("0.0.0.0:8003", "http://127.0.0.1:8003", true),
            ("[::]:8003", "http://localhost:8003", true),
            ("127.0.0.1:80", "http://localhost", true),
            ("box:8003", "http://box:8003", true),
            ("127.0.0.1:8003", "http://127.0.0.1:8000", false),
            ("127.0.0.1:8003", "http://127.0.0.2:8003", false),
            ("127.0.0.1:8003", "http://box:8003", false),
            ("127.0.0.1:0", "http://127.0.0.1:8003", false),
            ("127.0.0.1:8003", "replay:fixtures", false),
        ] {
            let address: Address = url.parse().unwrap();
            assert_eq!(is_own_address(&address, &listen.parse().unwrap()), expected, "{listen} {url}");
        }
        let text = "listen = '127.0.0.1:7'\nallow_unauthenticated = true\n[[upstream]]\nurl = 'http://localhost:7'\n";
        let file = FileText { path: "f".as_ref(), text };
        let loaded = resolve(Some(file), &Environment::new(), &Flags::default()).unwrap();
        let problems = loaded.problems(start_problems(&loaded.settings)).to_string();
        assert!(
            problems.contains("f:4: upstream[0].url: respool itself listens on 127.0.0.1:7"),
            "{problems}"
        );
    }

    /// Regression: a secret that was not set kept commands that need none from working.
    #[test]
    fn hooks_need_their_secrets_to_start() {
        let problems = |secret: &str| {
            let environment = Environment::from([("V".to_owned(), secret.to_owned())]);
            let text = "[experts.desk.hook_secret_env]\norder = 'V'\n";
            let file = FileText { path: "f".as_ref(), text };
            let loaded = resolve(Some(file), &environment, &Flags::default()).unwrap();
            loaded.problems(start_problems(&loaded.settings)).to_string()
        };
        let missing = problems("");
        assert!(
            missing.contains("the environment variable V is not set") && missing.contains("f:2"),
            "{missing}"
        );
        assert_eq!(problems("0123456789abcdef"), "");
    }

    #[test]
    fn names_of_keys_are_known() {
        let text = "[budgets]\nkeys = { alice = 1.0, bobb = 2.0 }\n[capture]\nkeys = ['*', 'carol']\n";
        let file = FileText { path: "f".as_ref(), text };
        let loaded = resolve(Some(file), &Environment::new(), &Flags::default()).unwrap();
        let found = find_unknown_keys(&loaded.settings, &["alice".into(), "bob".into()]);
        let texts: Vec<_> = found.iter().map(|one| one.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "`budgets.keys` names \"bobb\", but no client key has this name",
                "`capture.keys` names \"carol\", but no client key has this name"
            ]
        );
        assert!(found[0].todo.contains("bob"), "{found:?}");
    }

    #[test]
    fn operator_keys_are_long() {
        let resolve = |text: &str, variable: &str, key: &str| {
            let environment = Environment::from([(variable.to_owned(), key.to_owned())]);
            let loaded =
                resolve(Some(FileText { path: "f".as_ref(), text }), &environment, &Flags::default());
            let loaded = loaded.unwrap();
            let problems = loaded.problems(start_problems(&loaded.settings)).to_string();
            let advice = find_advice(&loaded.settings).iter().any(|one| one.text.contains("shorter than 16"));
            (problems, advice)
        };
        let (short, long) = ("12345", "0123456789abcdef");
        let (problems, advice) = resolve("", OPERATOR_KEY, short);
        assert!(problems.contains("the key in RESPOOL_OPERATOR_KEY is shorter than 16"), "{problems}");
        assert!(!advice);
        assert_eq!(resolve("", OPERATOR_KEY, long), (String::new(), false));
        assert_eq!(resolve("operator_keys_env = 'V'\n", "V", short), (String::new(), true));
        assert_eq!(resolve("operator_keys_env = 'V'\n", "V", long), (String::new(), false));
    }

    #[test]
    fn client_keys_are_long() {
        let [short] = &check("client_keys = ['abc']\n")[..] else { panic!("one") };
        assert!(short.text.starts_with("a client key in client_keys is shorter than 16"), "{short:?}");
        assert_eq!(check("client_keys = ['0123456789abcdef']\n"), []);
    }

    #[test]
    fn open_addresses_need_keys_or_consent() {
        let check = |rest: &str, refused: Option<&str>, warned: bool| {
            let file = FileText { path: "f".as_ref(), text: rest };
            let loaded = resolve(Some(file), &Environment::new(), &Flags::default()).unwrap();
            let found = start_problems(&loaded.settings);
            assert_eq!(found.is_empty(), refused.is_none(), "{rest} {found:?}");
            let problems = loaded.problems(found).to_string();
            assert!(problems.contains(refused.unwrap_or_default()), "{problems}");
            assert_eq!(!find_advice(&loaded.settings).is_empty(), warned, "{rest}");
        };
        let (agent, key) = ("[agents.a]\nmodel = 'm'\n", "[[upstream]]\nurl = 'http://a'\napi_key = 'k'\n");
        let open = "listen = '0.0.0.0:1'\n";
        check(
            &format!("{open}{agent}"),
            Some("f:1: listen: anybody who can reach 0.0.0.0:1 could use the agents"),
            false,
        );
        check(&format!("{open}[experts]\nmodel = 'm'\n"), Some("could use the agents and experts"), true);
        check(&format!("{open}{key}"), Some("could use the upstream's key"), false);
        check(&format!("{open}{key}{agent}"), Some("`allow_unauthenticated = true`"), false);
        check(&format!("{open}allow_unauthenticated = true\n{agent}"), None, true);
        check(&format!("{open}client_keys = ['0123456789abcdef']\n{key}{agent}"), None, false);
        check(&format!("listen = 'localhost:1'\n{key}{agent}"), None, false);
        check(open, Some("could use the models, and read what was used"), false);
        check(&format!("{open}allow_unauthenticated = true\n"), None, true);
        check(&format!("{open}client_keys = ['0123456789abcdef']\n"), None, false);
        check("listen = '127.0.0.1:1'\n", None, false);
        for list in ["client_keys_env", "operator_keys_env"] {
            check(
                &format!("{list} = 'V'\n"),
                Some(&format!(
                    "f:1: {list}: the environment variable V is not set or empty; set it, or remove this"
                )),
                list == "operator_keys_env",
            );
        }
    }
}
