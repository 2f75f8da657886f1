//! A database that cannot be used is refused at the start, in words that say what to do.

use postgres::{Client, NoTls};
use testing::postgres_server;
use wire::units::Secret;

use super::Bed;
use crate::{NodeConfig, Store, StoreConfig};

/// Opens the store of a changed configuration. Returns why it was refused.
fn refusal(bed: &Bed, change: impl FnOnce(&mut StoreConfig)) -> String {
    let mut config = bed.config.clone();
    change(&mut config);
    Store::open(&config).err().map(|error| error.0).unwrap_or_default()
}

fn url_of(bed: &Bed) -> String {
    bed.config.store.url.as_ref().unwrap().expose_secret().to_owned()
}

pub(super) fn run_sql(bed: &Bed, sql: &str) {
    let (url, sql) = (url_of(bed), sql.to_owned());
    let run = move || Client::connect(&url, NoTls).unwrap().batch_execute(&sql).unwrap();
    std::thread::spawn(run).join().unwrap();
}

#[tokio::test]
async fn unusable_urls_are_refused() {
    let Some(bed) = Bed::new_postgres() else { return };
    let url = url_of(&bed);
    let check = |from: &str, to: &str, expected: &str| {
        let changed = url.replace(from, to);
        let why = refusal(&bed, |config| config.store.url = Some(Secret::new(changed)));
        assert!(why.contains(expected), "{why}");
    };
    check("host=", "hos=", "`store.url` cannot be read");
    check("host=", "host=/nowhere", "PostgreSQL cannot be used");
    if postgres_server::is_pooled() {
        return; // It answers for databases that are not there, and comes as a user of its own.
    }
    check("dbname=", "dbname=no_", "make this database");
    run_sql(&bed, "CREATE ROLE no_rights LOGIN");
    check("user=postgres", "user=no_rights", "right to create and use the schema");
}

/// Regression: a command that lists made the tables of a database that was just being restored.
#[tokio::test]
async fn commands_make_no_tables() {
    let Some(bed) = Bed::new_postgres() else { return };
    let why = || Store::open_in_place(&bed.config).unwrap_err().0;
    assert!(why().contains("has no tables of respool"), "{}", why());
    assert_eq!(Store::has_schema(&bed.config), Ok(Some(false)));
    drop(bed.open());
    assert_eq!(Store::has_schema(&bed.config), Ok(Some(true)));
    drop(Store::open_in_place(&bed.config).unwrap());
    run_sql(&bed, "UPDATE respool.schema_version SET version = 4");
    assert!(why().contains("schema 4"), "{}", why());
    assert_eq!(Store::has_schema(&bed.config), Ok(Some(false)));
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let Some(bed) = Bed::new_postgres() else { return };
    drop(bed.open());
    run_sql(&bed, "UPDATE respool.schema_version SET version = 99");
    drop(bed.open());
    run_sql(&bed, "UPDATE respool.schema_version SET oldest_that_may_use_it = 98");
    let why = refusal(&bed, |_| {});
    assert!(why.contains("schema 99 of a newer respool"), "{why}");
}

/// A function before the server's own stands for a server of version 14.
#[tokio::test]
async fn an_old_server_is_refused() {
    let Some(bed) = Bed::new_postgres() else { return };
    run_sql(
        &bed,
        "CREATE SCHEMA older;
        CREATE FUNCTION older.current_setting(name text) RETURNS text LANGUAGE sql AS
            $$ SELECT CASE name WHEN 'server_version_num' THEN '140009' ELSE '14.9' END $$;
        DO $$ BEGIN
            EXECUTE format('ALTER DATABASE %I SET search_path = older, pg_catalog', current_database());
        END $$",
    );
    let why = refusal(&bed, |_| {});
    assert!(why.contains("14.9"), "{why}");
}

#[tokio::test]
async fn two_nodes_need_two_names() {
    let Some(bed) = Bed::new_postgres() else { return };
    let node = |is_server| NodeConfig { name: Some("a".to_owned()), is_server, commit: None };
    let first = bed.open_with(|config| config.node = node(true));
    let why = refusal(&bed, |config| config.node = node(true));
    assert!(why.contains("another process named \"a\""), "{why}");
    drop(bed.open_with(|config| config.node = node(false)));
    drop(first);
    drop(bed.open_with(|config| config.node = node(true)));
}

/// A process that was killed leaves its row, and the next one serves at once.
#[tokio::test]
async fn a_killed_node_is_waited_for() {
    let Some(bed) = Bed::new_postgres() else { return };
    drop(bed.open());
    let kill = |name: &str, ago: &str| {
        run_sql(
            &bed,
            &format!(
                "INSERT INTO respool.nodes (owner, name, version, began, seen)
                VALUES ('killed-{name}', '{name}', '0', 0, respool.now_ms() - {ago})"
            ),
        );
    };
    let open = |name: &str, shared: Option<&str>| {
        bed.open_with(|config| {
            config.node = NodeConfig { name: Some(name.to_owned()), is_server: true, commit: None };
            config.store.shared_dir = shared.map(Into::into);
        })
    };
    kill("a", "6000");
    let store = open("a", None);
    assert!(store.waits_for_name());
    let why = store.nodes().await.unwrap_err().0;
    assert!(why.contains("\"a\" was here a moment ago"), "{why}");
    testing::waiting::wait_until("it has joined", async || store.check_file().is_ok()).await;
    assert!(!store.waits_for_name() && store.nodes().await.is_ok());
    kill("b", "12000");
    let store = open("b", Some("/shared"));
    assert!(store.check_file().is_ok(), "it has looked at its folder");
}

#[tokio::test]
async fn a_database_that_is_away_is_noticed() {
    let Some(bed) = Bed::new_postgres() else { return };
    let store = bed.open();
    store.check_file().unwrap();
    run_sql(&bed, "ALTER TABLE respool.nodes RENAME TO gone");
    let is_noticed = async || store.check_file().is_err();
    testing::waiting::wait_until("the store notices", is_noticed).await;
    run_sql(&bed, "ALTER TABLE respool.gone RENAME TO nodes");
    testing::waiting::wait_until("the store recovers", async || store.check_file().is_ok()).await;
}
