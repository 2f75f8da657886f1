//! `state_dir`, `[runs]` and `[responses]`: where durable state lives, how long and how much of it.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use wire::units::{Secret, Size, deserialize_duration};

wire::settings! {
    /// The store's settings.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default)]
    pub struct StoreConfig {
        /// The directory that keeps agents' runs, clients' responses and usage records.
        pub state_dir: PathBuf = "/var/lib/respool".into(),
            when_unset("the platform's state directory, `~/.local/state/respool`", r#""/var/lib/respool""#);
        sections {
            /// Which runs are kept there.
            pub runs: RunsConfig = RunsConfig::default();
            /// Which responses are kept there.
            pub responses: ResponsesConfig = ResponsesConfig::default();
            /// The database that several processes share.
            pub store: DatabaseConfig = DatabaseConfig::default();
            /// This process among them.
            pub node: NodeConfig = NodeConfig::default();
        }
    }
}

wire::settings! {
    /// `[store]`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct DatabaseConfig {
        /// The `PostgreSQL` database (15 or newer) that several processes share, for runs, the queue,
        /// approvals, kept responses and usage (docs/scaling.md).
        pub url: Option<Secret> = None,
            when_unset("everything is kept in files of `state_dir`", r#""postgres://respool@db.example/respool""#);
        /// How many connections this process opens to the database, besides one that says that it lives.
        pub pool: usize = 10;
        /// A folder that all processes of the database have, such as one of NFS: experts' packages and
        /// workspaces are in it unless `experts.dir` and `experts.workspace` say otherwise.
        pub shared_dir: Option<PathBuf> = None,
            when_unset("experts' files are those of each machine", r#""/mnt/respool""#);
    }
}

wire::settings! {
    /// `[node]`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct NodeConfig {
        /// The name of this process among those that share a database; each needs its own.
        pub name: Option<String> = None, when_unset("the host's name and a random part", r#""a""#);
        derived {
            /// True for a process that serves, which takes the name. Other commands do not.
            pub is_server: bool = false;
            /// The commit that it was built from, where that is known.
            pub commit: Option<&'static str> = None;
        }
    }
}

wire::settings! {
    /// `[runs]`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct RunsConfig {
        /// How long a run is kept after its last event.
        #[serde(deserialize_with = "deserialize_duration")]
        pub keep: Duration = Duration::from_hours(30 * 24);
        /// How much space all runs may take; beyond it, finished runs are deleted, the oldest first. At least
        /// `1MiB`.
        pub max_size: Size = Size::mib(1024);
    }
}

impl RunsConfig {
    /// Less than this leaves no room for one run with a few large results.
    pub const LEAST_SIZE: Size = Size::mib(1);
}

wire::settings! {
    /// `[responses]`.
    #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct ResponsesConfig {
        /// Whether responses of `/v1/responses` are kept, prompts included, in `state_dir`; for clients that
        /// do not say `store: false`. `previous_response_id`, `item_reference` and `background` need it
        /// (docs/clients.md).
        pub store: bool = true;
        /// How long a response is kept after it was created or last continued.
        #[serde(deserialize_with = "deserialize_duration")]
        pub keep: Duration = Duration::from_hours(30 * 24);
        /// How much space all responses may take; beyond it, the least recently used ones are deleted.
        pub max_size: Size = Size::mib(1024);
    }
}
