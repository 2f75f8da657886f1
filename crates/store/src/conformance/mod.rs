//! Tests that every engine behind the port must pass.

mod histories;
mod migration;
mod nodes;
mod outbox;
mod queue;
mod refusals;
mod responses;
mod runs;
mod speed;

use tempfile::TempDir;
use testing::postgres_server;
use wire::units::Secret;

use crate::{DatabaseConfig, Store, StoreConfig};

/// A place for the data of one test. Each store that is opened on it is that of a process of its own.
struct Bed {
    config: StoreConfig,
    _dir: TempDir,
}

impl Bed {
    fn new_sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig { state_dir: dir.path().to_owned(), ..StoreConfig::default() };
        Self { config, _dir: dir }
    }

    /// A database of its own in the server of the tests; `None` on a machine without `PostgreSQL`.
    fn new_postgres() -> Option<Self> {
        let url = Some(Secret::new(postgres_server::new_database()?));
        let mut bed = Self::new_sqlite();
        bed.config.store = DatabaseConfig { url, pool: 3, ..DatabaseConfig::default() };
        Some(bed)
    }

    fn open(&self) -> Store {
        self.open_with(|_| {})
    }

    fn open_with(&self, change: impl FnOnce(&mut StoreConfig)) -> Store {
        let mut config = self.config.clone();
        change(&mut config);
        Store::open(&config).unwrap()
    }
}

macro_rules! on_every_engine {
    ($($module:ident: $($test:ident),+;)+) => {
        mod postgres {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    if let Some(bed) = super::Bed::new_postgres() {
                        super::$module::$test(&bed).await;
                    }
                }
            )+)+
        }

        mod sqlite {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$module::$test(&super::Bed::new_sqlite()).await;
                }
            )+)+
        }
    };
}

on_every_engine! {
    histories: the_queue_equals_its_model;
    queue: an_entry_holds_its_lane_through_attempts, a_pause_holds_its_lane, the_same_event_is_queued_once, a_run_begins_only_with_a_valid_lease, two_processes_share_the_work, dead_letters_outlive_ended_entries, a_worker_wakes_for_new_entries, a_clock_fires_once_for_a_time, a_forgotten_clock_still_fires, a_returned_lease_keeps_its_attempt, a_clock_and_a_key_are_one_commit, nobody_takes_over_from_themselves, runs_of_repeatable_work_are_not_deleted, each_attempt_has_its_own_run, a_cancelled_run_frees_its_lane, a_goal_limits_what_is_claimed, several_entries_are_queued_together_or_not_at_all;
    migration: a_sound_store_has_no_problems;
    nodes: a_shared_secret_is_the_first_one, a_duty_is_kept, a_sent_alert_outlives_its_process;
    runs: commits_outlive_the_process, a_run_belongs_to_one_process_at_a_time, only_the_holder_forgets_a_cancel, what_an_earlier_owner_writes_is_refused, a_cancelled_run_waits_for_nobody, the_last_failures_are_found, what_needs_a_person_is_found_together, an_approval_is_decided_once, runs_awaiting_approval_are_not_deleted, a_cancel_reaches_the_process_at_work, one_bad_row_does_not_take_others_with_it, a_repeated_commit_adds_nothing, old_runs_are_deleted_with_their_events, runs_are_filtered_by_client, key_usage_outlives_the_process;
    responses: a_conversation_survives_a_restart, reads_stop_at_the_limit, old_responses_are_deleted_first, unfinished_responses_take_half_at_most, unfinished_responses_are_claimed_once;
    outbox: a_message_is_delivered_once, operators_are_replaced_together;
}
