//! The suite that every store passes.
//!
//! A store's tests call [`conformance!`](crate::conformance!) with a [`Harness`]; each case becomes
//! a test of its own. The commits of the cases come from the real rules, on small flows.
//!
//! ```text
//! flowgate_store::conformance!(memory, MemoryHarness::new());
//! ```

#![expect(missing_docs, reason = "the name of a case is its documentation")]
#![expect(clippy::unwrap_used, reason = "these are tests, though not in a test target")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::Store;

pub mod backlog;
pub mod commits;
pub mod gates;
pub mod hints;
pub mod keeping;
pub mod leases;
pub mod listing;
pub mod log;
pub mod permits;
pub mod pools;
pub mod priority;
pub mod records;
pub mod terms;
pub mod waking;
pub mod world;

/// A fresh store for one case.
#[async_trait]
pub trait Harness: Send + Sync {
    /// The store. Clones of the handle stay usable until the store is opened again.
    fn store(&self) -> Arc<dyn Store>;

    /// Lets time pass on the store's clock.
    async fn advance(&self, span: Duration);

    /// Ends the store and opens it again; false where what it holds ends with it.
    async fn reopen(&mut self) -> bool;

    /// Whether other processes may use the store at the same time. Then an instance that ends
    /// does not end its leases: they end by time alone.
    fn is_shared(&self) -> bool {
        false
    }
}

/// Makes a module `$module` with one test for each case, on what `$harness` evaluates to.
#[macro_export]
macro_rules! conformance {
    ($module:ident, $harness:expr) => {
        mod $module {
            use super::*;
            $crate::conformance_cases!($harness);
        }
    };
}

/// One test for each case; [`conformance!`](crate::conformance!) is what to call.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($harness:expr) => {
        $crate::conformance_cases! { @each $harness;
            commits: a_start_makes_a_run_with_its_first_events,
                a_run_that_was_never_started_is_not_there,
                a_second_start_of_a_run_is_refused,
                a_start_with_the_same_key_finds_the_same_run,
                a_refused_commit_writes_nothing,
                a_commit_with_one_guard_of_two_broken_writes_nothing,
                a_commit_on_an_old_version_is_refused,
                a_commit_on_a_run_that_is_not_there_is_refused,
                of_many_commits_on_one_version_exactly_one_applies,
                of_many_starts_of_one_run_exactly_one_applies,
                a_resent_start_is_recognised,
                a_resent_commit_is_recognised,
                a_resent_commit_is_recognised_under_later_commits,
                a_resent_last_commit_of_a_run_is_recognised,
                a_resent_commit_is_recognised_after_a_reopen,
                a_resent_commit_hands_off_the_same_leases_again,
                a_resent_commit_hands_off_only_what_is_still_leased,
                a_resent_commit_hands_off_nothing_to_somebody_else,
                another_commit_on_the_same_version_is_not_taken_for_a_resent_one,
                a_batch_has_an_outcome_for_each_commit_in_order,
                an_empty_batch_has_no_outcomes,
                commits_of_one_run_in_one_batch_build_on_each_other,
                a_commit_over_the_size_limit_is_refused_before_writing,
                a_commit_at_the_size_limit_is_applied,
                a_run_that_ended_has_no_jobs,
                a_cancelled_run_fences_its_attempts,
                a_run_that_ended_takes_no_further_commit,
                a_run_that_ends_in_its_first_commit_is_kept,
                a_signal_commits_without_a_lease;
            gates: a_gate_is_set_one_generation_after_the_other,
                a_start_that_names_another_generation_is_refused,
                what_is_beside_a_start_at_a_moved_gate_is_applied,
                a_held_run_has_no_job_until_it_is_released,
                a_gate_opens_only_if_nothing_is_held,
                a_gate_stays_closed_over_a_reopen,
                once_a_gate_is_set_no_older_start_comes_in,
                a_resent_start_is_recognised_when_the_gate_has_moved,
                a_moved_run_fences_its_attempts_and_goes_on,
                whoever_is_told_of_a_generation_finds_where_its_starts_go,
                the_queue_of_a_start_that_was_refused_is_found_when_it_comes_again;
            pools: whoever_wants_all_queues_gets_none_of_a_pool_that_it_does_not_name,
                a_hand_off_takes_nothing_of_another_pool,
                whoever_waits_for_a_pool_is_woken_by_its_jobs;
            leases: a_claim_returns_job_record_and_inputs,
                a_claim_counts_an_attempt,
                a_claimed_job_is_not_claimed_again,
                claims_take_the_longest_due_first,
                a_claim_takes_no_more_than_its_slots,
                a_claim_takes_only_from_its_queues,
                a_claim_over_several_queues_merges_them_by_due_time,
                concurrent_claims_share_no_job,
                tokens_only_grow,
                tokens_of_a_job_that_a_batch_adds_twice_grow,
                tokens_grow_over_a_reopen,
                an_expired_lease_cannot_settle_even_before_another_claim,
                a_lost_lease_cannot_settle,
                a_lease_settles_only_its_own_job,
                a_job_that_nobody_leased_cannot_be_settled,
                a_lost_lease_in_a_batch_refuses_its_own_commit_and_no_other,
                a_renewed_lease_outlives_its_first_span,
                a_renewed_lease_still_ends,
                of_the_leases_of_a_run_only_those_end_that_were_not_renewed,
                a_shorter_lease_after_a_longer_one_ends_when_it_says,
                an_expired_lease_cannot_be_renewed,
                renewals_have_their_own_outcomes_in_order,
                every_lost_lease_is_told_in_order,
                a_commit_under_a_later_lease_settles_what_was_lost,
                leases_of_an_owner_that_is_gone_are_lost_at_once,
                a_lease_in_a_shared_store_outlives_the_connection,
                lost_leases_survive_a_reopen,
                a_postponed_job_is_due_later_and_keeps_its_inputs,
                a_released_job_is_due_at_once_and_its_attempt_does_not_count,
                a_delayed_job_is_not_claimed_early,
                a_delayed_job_survives_a_reopen,
                a_job_is_handed_off_with_its_inputs,
                a_hand_off_takes_no_more_than_the_slots_of_the_batch,
                a_hand_off_takes_only_from_the_claimants_queues,
                a_delayed_job_is_not_handed_off,
                a_postponed_job_is_not_handed_off,
                a_handed_off_lease_expires_like_any_other;
            log: event_numbers_are_gapless,
                events_are_read_in_pages_that_begin_anywhere,
                folding_the_log_gives_the_record,
                each_feed_is_in_commit_order,
                refused_commits_leave_nothing_in_a_feed,
                a_run_is_in_one_feed,
                the_feed_is_read_in_pages_that_begin_anywhere,
                the_feed_never_grows_behind_a_reader,
                the_end_of_a_feed_is_where_it_grows,
                a_commit_wakes_a_reader_of_the_feed,
                a_wait_for_a_feed_that_has_grown_ends_at_once,
                a_wait_for_the_feed_ends_after_its_longest_time,
                the_log_and_its_positions_survive_a_reopen,
                payloads_are_kept_byte_for_byte,
                a_payload_of_one_mebibyte_reaches_its_job,
                payloads_beyond_the_memory_budget_reach_their_jobs,
                inputs_survive_a_reopen,
                the_payload_of_a_failed_step_is_its_error,
                a_write_is_seen_by_the_next_read,
                events_carry_the_stores_time;
            listing: runs_are_listed_latest_first,
                a_listing_shows_where_each_run_stands,
                runs_are_listed_by_flow_and_status,
                runs_are_listed_by_the_time_of_their_start,
                runs_are_listed_by_their_tags,
                runs_are_counted_as_they_are_listed,
                pages_of_runs_started_at_the_same_time_miss_none,
                pages_cover_ten_thousand_runs_once_while_runs_are_added,
                a_page_of_runs_is_bounded;
            keeping: log_lines_are_kept_in_order,
                log_lines_over_the_limit_are_counted_and_not_kept,
                log_lines_leave_the_run_as_it_is,
                log_lines_of_a_run_that_is_not_there_are_dropped,
                a_sweep_removes_events_before_records,
                a_sweep_never_touches_open_runs,
                a_sweep_works_in_small_batches,
                records_that_end_before_their_events_take_them_along,
                positions_go_on_after_a_sweep,
                revisions_are_listed_latest_first_and_the_last_is_active,
                one_revision_is_read_by_its_name_or_because_it_is_active,
                a_known_revision_keeps_its_time_and_becomes_active,
                a_revision_keeps_who_registered_it_first_and_what_for,
                an_instance_is_listed_from_its_first_beat_until_it_leaves,
                a_silent_instance_is_listed_for_a_day,
                an_imported_run_is_as_it_was,
                an_imported_job_is_claimed_when_it_is_due_with_what_it_lost,
                an_import_leaves_what_is_there_alone,
                tokens_grow_over_an_import;
            waking: a_wait_returns_at_once_when_a_job_is_ready,
                a_wait_returns_after_its_longest_time,
                a_commit_wakes_a_waiting_claimer,
                a_commit_wakes_every_claimer_of_its_queue,
                a_wait_is_not_ended_by_another_queue,
                a_wait_ends_when_a_delayed_job_is_due,
                a_wait_that_began_before_a_delayed_job_ends_when_it_is_due,
                a_wait_ends_when_a_lease_expires,
                a_wait_that_began_before_a_lease_ends_when_it_expires,
                a_released_job_wakes_a_waiting_claimer,
                no_wake_up_is_lost_between_a_claim_and_a_wait,
                losing_every_wake_up_loses_no_job;
            terms: a_name_that_nobody_holds_is_held_by_who_asks,
                of_many_askers_exactly_one_holds_a_name,
                a_holder_that_asks_again_keeps_its_term,
                a_renewed_term_outlives_its_first_span_and_still_ends,
                an_expired_term_cannot_be_renewed_even_if_nobody_took_the_name,
                a_renewal_by_somebody_else_or_of_another_number_is_refused,
                a_released_name_is_free_at_once_and_its_term_says_so,
                a_term_that_has_expired_is_not_released,
                numbers_grow_over_release_expiry_and_reopen,
                a_term_of_an_owner_that_is_gone_is_over,
                names_are_listed_by_prefix_in_their_order,
                past_terms_are_listed_latest_first_and_the_oldest_are_forgotten;
            records: a_record_is_read_as_it_was_written,
                records_are_read_by_kind_in_the_order_asked_for,
                a_record_is_written_only_where_its_expectation_holds,
                one_broken_expectation_of_many_writes_nothing,
                of_many_writes_on_one_version_exactly_one_is_written,
                versions_only_grow_and_are_never_used_twice,
                a_removed_record_is_gone,
                records_are_written_under_a_term_only_while_it_is_held,
                a_lost_term_is_told_before_a_broken_expectation,
                keys_are_listed_byte_by_byte_both_ways,
                a_listing_of_a_prefix_holds_nothing_beside_it,
                pages_of_records_begin_after_any_key,
                a_page_of_records_is_bounded,
                a_record_is_there_until_a_sweep_after_its_time,
                a_sweep_removes_records_in_small_batches,
                writes_over_a_limit_are_refused_before_writing;
            permits: never_more_than_the_limit_hold_a_permit,
                those_who_wait_are_served_in_their_order,
                a_holder_that_asks_again_keeps_its_one_permit,
                a_place_in_line_is_kept_when_asking_again,
                an_expired_permit_goes_to_who_waits_longest,
                a_renewed_permit_outlives_its_first_span,
                a_limit_may_change_between_calls,
                all_is_given_back_before_anybody_is_served,
                the_permits_of_each_key_are_apart,
                a_rate_spreads_its_places_evenly,
                a_share_of_a_rate_need_not_be_whole,
                a_rate_saves_nothing_up,
                a_granted_place_is_held_until_its_release_or_end,
                a_released_place_is_given_again,
                a_rate_may_change_between_calls,
                who_does_not_ask_again_for_a_day_is_forgotten,
                lines_and_places_survive_a_reopen;
            hints: a_word_wakes_all_who_wait_for_its_topic,
                a_word_of_another_topic_wakes_nobody,
                a_wait_to_be_told_ends_after_its_longest_time,
                losing_every_word_costs_a_wait_no_more_than_its_longest_time;
            backlog: a_woken_job_is_due_at_once,
                a_woken_job_wakes_a_waiting_claimer,
                a_woken_job_comes_after_those_that_were_due_before,
                waking_a_leased_job_changes_nothing,
                waking_a_job_that_is_due_changes_nothing,
                only_jobs_that_are_there_are_woken,
                queues_are_counted_by_what_is_due_and_what_is_later,
                only_what_nobody_has_is_counted;
            priority: a_job_of_high_priority_overtakes_those_that_are_due,
                nobody_is_overtaken_from_farther_than_a_head_start,
                a_priority_counts_over_all_queues_of_a_claim,
                the_due_time_stays_true_whatever_the_priority,
                a_delayed_job_gets_no_head_start,
                a_job_that_is_due_again_at_once_has_its_head_start;
        }
    };
    (@each $harness:expr; $($group:ident: $($case:ident),+;)+) => {
        $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let mut harness = $harness;
                $crate::conformance::$group::$case(&mut harness).await;
            }
        )+)+

        /// A case that is written and not listed would never run.
        #[test]
        fn every_case_is_listed() {
            let listed = [$($(stringify!($case)),+),+].len();
            assert_eq!(listed, $crate::conformance::written_cases());
        }
    };
}

/// How many cases the sources of the suite hold.
#[doc(hidden)]
pub fn written_cases() -> usize {
    let sources = [
        include_str!("conformance/commits.rs"),
        include_str!("conformance/leases.rs"),
        include_str!("conformance/log.rs"),
        include_str!("conformance/listing.rs"),
        include_str!("conformance/keeping.rs"),
        include_str!("conformance/waking.rs"),
        include_str!("conformance/terms.rs"),
        include_str!("conformance/records.rs"),
        include_str!("conformance/permits.rs"),
        include_str!("conformance/hints.rs"),
        include_str!("conformance/backlog.rs"),
        include_str!("conformance/priority.rs"),
        include_str!("conformance/gates.rs"),
        include_str!("conformance/pools.rs"),
    ];
    sources.iter().map(|source| source.matches("\npub async fn ").count()).sum()
}
