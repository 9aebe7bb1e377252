//! The list of mistakes.

use lock_core::testing::Mutant;

/// The kind of memory store that a mistake is made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavour {
    Queued,
    PollOnly,
}

/// A mutant, and the mistake that it is. Other cases than the one that it names may fail, too.
#[derive(Clone, Copy, Debug)]
pub struct SuiteMutant {
    pub(super) bug: Bug,
    pub(super) flavour: Flavour,
    /// Its name, what it does wrong, and the case that must fail.
    pub mutant: Mutant,
}

/// The mistakes, and the mutants that make each: `name "what is wrong" => killed_by`. One mistake makes
/// several mutants where it breaks several rules.
macro_rules! mutants {
    ($([$flavour:ident $bug:ident] $($name:ident $wrong:literal => $killed_by:ident;)+)+) => {
        /// One mistake, made on purpose.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(super) enum Bug {
            $($bug,)+
        }

        /// All mutants.
        pub fn mutants() -> Vec<SuiteMutant> {
            vec![$($(
                SuiteMutant {
                    bug: Bug::$bug,
                    flavour: Flavour::$flavour,
                    mutant: Mutant {
                        name: stringify!($name),
                        what: $wrong,
                        killed_by: stringify!($killed_by),
                    },
                },
            )+)+]
        }
    };
}

mutants! {
    [PollOnly CheckThenSet]
        check_then_set "looks whether the key exists, then sets it"
        => c03_of_many_tries_at_once_one_is_granted;
        try_in_steps "looks whether the lock is free, then takes it"
        => c03_a_late_answer_in_a_try_is_no_second_grant;
    [PollOnly RepeatLastsLonger] repeat_lasts_longer "adds another ttl to the lease with each repeated try"
        => l01_a_repeated_try_ends_one_ttl_later;
    [PollOnly EndSetAnew]
        renewal_sets_the_end_anew "sets the end of the lease to one ttl from now with each renewal"
        => c17_a_renewal_with_a_shorter_ttl_ends_nothing_sooner;
        late_try_sets_the_end_anew "sets the end of the lease to one ttl from now with each repeated try"
        => c17_a_late_try_with_a_shorter_ttl_ends_nothing_sooner;
    [Queued HandOverLastsLonger] hand_over_lasts_longer "gives a waiter that it hands the lock to two ttls"
        => l01_a_hand_over_ends_one_ttl_later;
    [PollOnly ForceInSteps] force_in_steps "compares the holder, then takes the lock away from whoever has it by then"
        => s03_a_late_answer_in_a_forced_release_takes_no_later_hold;
    [PollOnly NoAnswerIsFree] no_answer_is_free "shows a lock that it cannot ask for as free"
        => s06_an_operator_without_an_answer_gets_an_error;
    [PollOnly SetThenExpire] set_then_expire "takes the lock and sets its expiry in two commands"
        => l01_a_try_that_died_half_way_blocks_for_one_ttl;
    [PollOnly LosersProlong] losers_prolong "lets a client that fails to get the lock prolong it"
        => c04_failed_tries_prolong_nothing;
    [PollOnly SharedOwner] shared_owner "gives one owner id to all claims of a host"
        => c01_another_claim_is_another_owner;
    [PollOnly ReleaseWithoutCompare] release_without_compare "releases the lock of any holder"
        => s03_a_late_release_does_not_free_the_next_holder;
    [PollOnly ReadThenDelete] read_then_delete "reads the owner, then deletes, in two commands"
        => s03_a_slow_release_does_not_free_the_next_holder;
    [PollOnly ReleaseWithoutHaving] release_without_having "releases in `finally`, although the lock was never taken"
        => c07_a_release_after_busy_does_nothing;
    [PollOnly ReleaseByMemory]
        release_by_memory "releases only what it remembers acquiring"
        => c07_a_release_after_a_failed_try_frees_the_lock;
        release_by_its_own_memory "releases only what this very claim remembers acquiring"
        => c12_a_new_claim_releases_what_a_dropped_one_left;
    [PollOnly RenewalThatLies]
        renewal_that_lies "does not renew, but says that it did" => c04_renewals_keep_the_lock;
        renewal_that_does_not_ask "says that it has renewed what it does not ask about"
        => s05_a_lock_that_was_taken_is_seen_by_renew;
    [PollOnly RenewWithoutCompare] renew_without_compare "renews the lock of any holder"
        => s03_a_late_renewal_does_not_touch_the_next_holder;
    [PollOnly RenewRecreates] renew_recreates "recreates the lock by a late renewal"
        => c06_a_renewal_after_the_end_is_lost;
    [PollOnly ValidityFromReply] validity_from_reply "counts validity from the reply"
        => c04_a_slow_answer_promises_no_more;
    [PollOnly ErrorIsBusy] error_is_busy "reports an error of the store as busy" => s06_an_error_is_not_busy;
    [PollOnly BusyIsError] busy_is_error "reports busy as an error" => s06_busy_is_not_an_error;
    [PollOnly ErrorIsLost]
        error_is_lost "takes a failed renewal for a loss" => c06_an_error_is_not_a_loss;
        error_is_lost_to_a_token "takes a failed renewal by token for a loss"
        => s04_a_call_with_a_token_that_gets_no_answer_loses_nothing;
    [PollOnly LostIsAlive]
        lost_is_alive "takes a lost lock for a renewed one" => c06_a_renewal_after_a_loss_is_lost;
        loss_in_a_restart_is_alive "takes a lock that a restart has lost for a renewed one"
        => s01_a_hold_survives_a_restart_of_the_store;
        guard_of_a_loss_in_a_restart "takes a lock that a restart has lost for one that its guard has renewed"
        => s05_a_hold_and_a_wait_go_on_after_a_restart;
        end_is_alive "takes a lease that has ended for one that is checked" => c06_a_check_after_the_end_is_lost;
        loss_is_renewed "takes a lock that was taken away for one that its guard has renewed"
        => s05_a_lock_that_was_taken_is_seen_by_renew;
        loss_does_more "goes on with a lock that was taken away" => s05_a_lost_guard_does_nothing_more;
    [PollOnly UnknownIsLost] unknown_is_lost "takes an attempt without an answer for one that left nothing, and does not ask"
        => c06_a_check_after_an_unknown_try_asks;
    [PollOnly FenceRestarts] fence_restarts "deletes the fence with the lock" => c09_fences_rise_over_releases;
    [PollOnly FenceRisesOnRepeat] fence_rises_on_repeat "gives a new fence to a repeated call"
        => c02_a_repeated_try_returns_the_same_token;
    [PollOnly FenceFromClock] fence_from_clock "takes the fence from the clock alone"
        => c09_fences_rise_from_waiter_to_waiter;
    [Queued BlockOfOne]
        block_of_one "moves its counter by one, whatever block was asked for"
        => c16_blocks_rise_over_releases;
        handed_block_of_one "hands a waiter one token, whatever block it has asked for"
        => c16_blocks_rise_from_waiter_to_waiter;
    [PollOnly FencePerClient]
        terms_of_each_client "counts the terms of a leader in each client" => s02_terms_rise_under_faults;
        fence_per_client "counts the fence in each client" => s02_later_guards_have_greater_tokens;
        register_of_each_client "counts the fence in each client, so that an earlier holder may still write"
        => s07_a_guarded_register_loses_no_update;
    [Queued SecondEntry]
        second_entry "makes a second entry when it asks again after an error" => c02_a_lost_reply_is_found_again;
        second_place "makes a second entry when it looks again after an error"
        => c02_a_look_without_an_answer_finds_its_grant;
        second_wait "makes a second entry when a waiter has met an error" => l02_a_waiter_outlives_lost_answers;
    [PollOnly RepeatIsBusy] repeat_is_busy "blocks itself when it asks again"
        => c02_a_repeated_try_returns_the_same_token;
    [Queued PlaceLeftBehind] place_left_behind "takes a place in the queue for a claim that does not wait"
        => c13_a_refused_try_leaves_no_place;
    [Queued PushLost] push_lost "looks, then listens: changes in between are missed"
        => c05_a_change_before_the_wait_is_not_missed;
    [Queued CheckIsLook] check_is_look "forgets what was pushed when it is only checked" => c05_a_check_is_no_look;
    [Queued PushBelieved] push_believed "takes a push for the lock" => c05_a_change_is_no_grant;
    [PollOnly FairnessClaimed] fairness_claimed "claims to be fair, and is not" => l03_waiters_are_served_in_order;
    [PollOnly NamesFolded] names_folded "folds the case of names" => c11_distinct_names_never_block_each_other;
    [PollOnly NamesTrimmed] names_trimmed "drops blanks at the end of names"
        => c11_distinct_names_never_block_each_other;
    [PollOnly PrefixGlued] prefix_glued "glues prefix and name together" => c11_prefix_and_name_are_kept_apart;
    [PollOnly NamesShortened] names_shortened "cuts long names" => c11_long_names_are_not_cut;
    [Queued QueuesFolded] queues_folded "keeps one queue for names that differ in case only"
        => c11_waiters_of_distinct_names_never_meet;
    [Queued QueuesShortened] queues_shortened "cuts the name of a queue to 255 bytes"
        => c11_waiters_of_distinct_names_never_meet;
    [Queued QueueIsAName] queue_is_a_name "keeps the queue of a lock under its name and `:queue`, which may be a lock"
        => c11_names_that_look_like_ours_are_names;
    [PollOnly NeverExpires]
        never_expires "keeps the lock of a dead holder"
        => l01_an_abandoned_lock_is_free_after_its_ttl;
        turn_never_ends "keeps the turn of a dead waiter"
        => l05_a_first_waiter_that_is_gone_keeps_no_permit_from_others;
    [PollOnly ExpiresLate] expires_late "keeps the lock of a dead holder for two ttls, and declares no step"
        => l01_an_abandoned_lock_is_free_after_its_ttl;
    [PollOnly PromisesLittle] promises_little "keeps a lease, but promises too little of it to renew it in time"
        => c04_a_grant_says_how_long_it_lasts;
    [PollOnly ExpiresEarly]
        expires_early "ends a lease before its time" => c04_the_lock_is_kept_as_long_as_promised;
        permits_expire_early "ends the leases of permits before their time"
        => s01_permits_are_never_more_under_faults;
        names_expire_early "ends the leases of a set of locks before their time"
        => s01_several_names_exclude_each_other_under_faults;
        kinds_expire_early "ends the leases of which other kinds of lock are made before their time"
        => l01_what_was_held_of_each_kind_is_free_after_a_lease;
    [Queued HandOverWithoutTtl] hand_over_without_ttl "hands over the lock with the rest of the place's lease"
        => c04_a_hand_over_has_its_full_ttl;
    [Queued DeadWaitersStay] dead_waiters_stay "keeps the places of dead waiters"
        => l05_a_waiter_that_died_long_ago_delays_nobody;
    [PollOnly SecondReleaseFails] second_release_fails "fails a second release" => c07_a_release_can_be_repeated;
    [PollOnly DropReleases] drop_releases "releases in the background when a claim is dropped"
        => c08_a_dropped_claim_writes_nothing;
    [PollOnly CheckWrites] check_writes "prolongs the lock when it is only checked" => c04_a_check_prolongs_nothing;
    [PollOnly DetachReleases]
        detach_releases "releases the lock when it is handed over" => c04_a_detached_lock_is_kept_for_its_ttl;
        detach_again_releases "releases the lock when it is handed over again"
        => c08_a_detach_without_an_answer_can_be_repeated;
    [PollOnly ForceIgnoresOwner] force_ignores_owner "takes the lock from any holder, although one owner was named"
        => s03_a_forced_release_of_another_hold_does_nothing;
    [PollOnly HiddenCall] hidden_call "puts a claim into the store before its first call"
        => c01_making_a_claim_sends_nothing;
    [PollOnly ResumeIgnoresFence]
        resume_ignores_fence "renews a hold for any bearer of its owner id, whatever fence it claims"
        => c14_a_greater_fence_is_not_believed;
        resume_ignores_smaller_fence "renews a hold for any bearer of its owner id, even with an earlier fence"
        => c14_a_smaller_fence_is_not_believed;
        text_is_believed "gives a guard the fence that the text of a lease token claims"
        => c14_an_edited_text_gives_no_guard;
    [PollOnly ResumeIsRefused] resume_is_refused "declares that holds can be handed on, and takes no lease token"
        => c17_a_guard_outlives_the_late_try_of_the_one_before;
    [PollOnly ResumeReleasesByOwner] resume_releases_by_owner "releases the true hold when a refused claim is released"
        => c14_a_greater_fence_is_not_believed;
    [PollOnly ResumeBelievesTtl]
        resume_keeps_long_ttl "keeps a resumed hold for the ttl that its token names, however long"
        => c14_a_shorter_ttl_is_the_requests;
        resume_keeps_short_ttl "keeps a resumed hold for the ttl that its token names, however short"
        => c14_a_longer_ttl_is_the_requests;
    [PollOnly ResumeBelievesData]
        resume_renews_by_data "renews whatever hold the data of a token name"
        => c14_the_data_of_another_hold_renew_nothing;
        resume_releases_by_data "releases whatever hold the data of a token name"
        => c14_the_data_of_another_hold_end_nothing;
        resume_ignores_name "resumes a hold by its data, under any name" => c14_another_name_is_not_believed;
        resume_ignores_prefix "resumes a hold by its data, under any prefix" => c14_another_prefix_is_not_believed;
        resume_ignores_owner "resumes a hold by its data, for any owner" => c14_another_owner_is_not_believed;
    [PollOnly DamagedDataRelease] damaged_data_release "releases the true hold after refusing damaged data"
        => c14_damaged_data_harm_nobody;
    [PollOnly StaleHolder]
        stale_holder "names the holder that it saw first" => c15_a_busy_answer_names_the_true_holder;
        stale_holder_in_errors "names the holder that it saw first, in the error of a failed wait"
        => c15_a_wait_in_vain_names_the_true_holder;
    [PollOnly LossNotDeclared]
        loss_not_declared "loses its locks in a restart, but does not declare it"
        => s01_a_hold_survives_a_restart_of_the_store;
        guard_loss_not_declared "loses a guard's lock in a restart, but does not declare it"
        => s05_a_hold_and_a_wait_go_on_after_a_restart;
    [PollOnly ReadsThenDeletes] release_in_steps "looks twice whether the lock is its own, then deletes it"
        => s03_a_late_answer_in_a_release_frees_nobody_else;
    [PollOnly ReadsThenRenews] renewal_in_steps "looks whether the lock is its own, then prolongs it"
        => s03_a_late_answer_in_a_renewal_touches_nobody_else;
    [PollOnly FenceDrawnFirst] fence_drawn_first "draws a token, then tries to get the lock for it"
        => c09_a_late_answer_in_a_try_gives_no_old_token;
    [PollOnly TokenRemembered]
        token_remembered "gives a claim the token of its last hold, which has ended"
        => c09_a_try_after_the_end_has_a_new_token;
        token_remembered_over_a_loss "gives a claim the token of its last hold, which was taken away"
        => c09_a_try_after_a_loss_has_a_new_token;
    [Queued ForceClearsQueue] force_clears_queue "removes the waiters with the holder"
        => l03_a_forced_release_keeps_the_queue;
    [Queued ForceLetsPast] force_lets_past "gives a lock that was taken away to the first to ask"
        => l03_no_newcomer_passes_after_a_forced_release;
    [Queued ForceKeepsFence] force_keeps_fence "hands over a lock that was taken away with its token"
        => c09_a_forced_release_with_a_queue_raises_the_fence;
    [Queued ForcePushesNobody] force_pushes_nobody "tells no waiter that a lock was taken away"
        => c05_a_forced_release_is_pushed;
    [Queued ForceBelievesWaiters] force_believes_waiters "takes the lock from its holder in the name of a waiter"
        => s03_a_forced_release_of_a_waiter_does_nothing;
    [Queued DeclinePushesNobody] decline_pushes_nobody "tells nobody that a lock was declined"
        => c05_a_declined_lock_is_pushed_on;
    [PollOnly NoLimit] no_limit "waits for an answer as long as it takes" => c12_calls_of_a_claim_are_bounded;
    [PollOnly ErrorIsAlive] error_is_alive "takes a renewal without an answer for a good one"
        => c06_no_answer_is_no_renewal;
    [PollOnly RefusedIsGone] refused_is_gone "takes a server that is down for one that has lost the lock"
        => c06_a_refused_connection_is_an_error;
    [PollOnly HintOfZero]
        hint_of_zero "proposes to try again at once" => c15_a_retry_hint_is_of_use;
        hint_of_zero_to_a_waiter "makes its waiters try all the time"
        => l02_a_waiter_does_not_besiege_the_store;
    [PollOnly HintOfAnHour] hint_of_an_hour "proposes to try again in an hour" => c15_a_retry_hint_is_of_use;
    [Queued ChangeIsASleep] change_is_a_sleep "declares pushes, and looks once a second"
        => l02_a_push_is_faster_than_a_look_now_and_then;
    [Queued WaitsByAsking] waits_by_asking "asks all the time whether something has changed"
        => c05_waiting_for_a_change_makes_few_requests;
    [PollOnly RenewsByAsking] renews_by_asking "asks fifty times before it renews"
        => c04_holding_makes_few_requests;
    [PollOnly TimersNeverFire]
        timers_never_fire "neither renews nor signals a loss: the ttl is shorter than the work"
        => s05_the_signal_comes_before_the_end;
        close_without_timers "lets a close wait for as long as the store is silent"
        => l04_closing_ends_in_time_when_the_store_is_silent;
    [PollOnly SlowClock]
        slow_clock "counts on a clock that runs at half the speed of the store's"
        => c04_validity_counts_from_the_send;
        slow_close "lets a close take twice its time" => l04_closing_ends_in_time_when_the_store_is_silent;
    [PollOnly ClockStopsInSuspend]
        clock_stops "counts on a clock that stops while the machine sleeps"
        => s01_the_next_holder_comes_after_the_end_of_belief;
        kinds_outlast_a_standstill "counts the validity of other kinds of lock on a clock that stops"
        => s05_who_stood_still_believes_in_no_kind_of_lock;
    [PollOnly ConstantRng] constant_rng "draws owner ids from a generator that repeats"
        => c01_every_claim_of_a_user_has_a_new_owner;
    [PollOnly LostPlaceIsFinal] lost_place_is_final "lets nobody wait again whose place was lost"
        => c06_a_place_that_has_ended_can_be_taken_again;
    [Queued PlaceErrorIsLost] place_error_is_lost "takes a failed renewal of a place for its loss"
        => c06_a_place_outlives_lost_answers;
    [Queued ReleasedOnce]
        released_once "takes a release without an answer for done"
        => c13_a_waiter_that_leaves_without_an_answer_is_gone;
        token_released_once "takes a release by token without an answer for done"
        => s04_a_call_with_a_token_that_gets_no_answer_loses_nothing;
    [PollOnly ReleasedLater]
        released_later "answers a release before it is made" => c07_a_released_lock_is_free_at_once;
        run_released_later "answers the release of a run before it is made" => s04_a_dropped_run_leaves_nothing;
    [PollOnly TriesOn] tries_on "tries again in the background when it is dropped in a try"
        => c08_a_dropped_claim_writes_nothing;
    [PollOnly DropPoisons] drop_poisons "leaves its client's connection unusable when it is dropped in a call"
        => c08_a_dropped_claim_disturbs_no_other;
    [PollOnly TwoErrorsAreBusy] two_errors_are_busy "takes the second try without an answer for a refusal"
        => c02_many_lost_answers_make_one_entry;
    [PollOnly DoubtIsAlive] doubt_is_alive "takes a try without an answer for a grant when it is checked"
        => s03_a_claim_in_doubt_does_not_touch_the_next_holder;
    [PollOnly DoubtReleasesAnybody] doubt_releases_anybody "releases the lock of any holder after a try without an answer"
        => s03_a_claim_in_doubt_does_not_touch_the_next_holder;
    [PollOnly CheckFromReply] check_from_reply "counts what a check promises from the reply"
        => c04_a_slow_check_promises_no_more;
    [PollOnly ForcedOnce] forced_once "takes a forced release without an answer for done"
        => c07_a_forced_release_can_be_repeated;
    [Queued CloseEndsAll] close_ends_all "ends every client's holds when one is closed"
        => s03_closing_a_client_leaves_the_others_alone;
    [Queued ErrorsAreFinal] errors_are_final "says of a call without an answer that repeating it is in vain"
        => l02_a_waiter_outlives_lost_answers;
    [Queued ChangeIsForgotten] change_is_forgotten "forgets a change if the wait is dropped between the change and the return"
        => c05_a_wait_dropped_with_its_event_keeps_it;
    [Queued PlaceEndsEarly] place_ends_early "keeps a place for half of its ttl" => c04_a_place_is_kept_as_long_as_promised;
    [Queued PlaceIsNotSeen] place_is_not_seen "looks for the lock only when a waiter is checked"
        => c06_a_check_of_a_waiter_says_whether_it_has_a_place;
    [Queued PlaceIsRemembered] place_is_remembered "answers the check of a waiter from memory"
        => c06_a_check_of_a_place_that_has_ended_is_lost;
    [Queued DoubtForgets] doubt_forgets "takes a renewal or a check without an answer for the end of the place, from the next call on"
        => c06_a_place_outlives_lost_answers;
    [Queued DoubtKeeps] doubt_keeps "does not give up a place after a renewal without an answer"
        => c13_a_waiter_that_leaves_after_a_failed_renewal_is_gone;
    [PollOnly TtlCut] ttl_cut "cuts a ttl to whole seconds" => c04_a_ttl_with_a_fraction_is_kept;
    [PollOnly TtlRoundedUp] ttl_rounded_up "keeps leases of whole seconds, and declares no such step"
        => c04_a_ttl_with_a_fraction_is_kept;
    [PollOnly ShortTtlRaised] short_ttl_raised "keeps no lease of less than a second, and declares a shorter one"
        => c04_the_shortest_ttl_is_kept;
    [PollOnly LongTtlWraps] long_ttl_wraps "counts a ttl in 32 bits" => c04_the_longest_ttl_is_kept;
    [PollOnly LimitNotDeclared] limit_not_declared "refuses a long ttl, and declares no limit"
        => c04_the_longest_ttl_is_kept;
    [PollOnly OwnersCut]
        owners_cut "compares all but the last byte of an owner id" => c01_owners_that_differ_in_one_bit_are_two;
        owners_cut_in_a_takeover "hands a hold over to an owner id that is wrong in its last byte"
        => c14_an_owner_that_differs_in_one_bit_takes_nothing_over;
    [PollOnly NamesHashed] names_hashed "keeps 16 bits of a hash of the name"
        => c11_a_thousand_names_are_a_thousand_locks;
    [PollOnly LaterPagesOfAll] later_pages_of_all "lists from the second hundred on whatever comes next, of any prefix and beginning"
        => c11_a_thousand_names_are_a_thousand_locks;
    [PollOnly ListCut] list_cut "lists the first hundred locks" => c11_a_thousand_names_are_a_thousand_locks;
    [PollOnly MarkOfTheLock] mark_of_the_lock "shows one mark for all holds of a lock"
        => c01_inspection_shows_what_was_asked_for;
    [PollOnly LabelStays] label_stays "shows the label of the first holder for ever"
        => c01_inspection_shows_what_was_asked_for;
    [PollOnly FenceOfTheNext] fence_of_the_next "shows the fence that the next holder will get"
        => c01_inspection_shows_what_was_asked_for;
    [PollOnly TtlIsShown] ttl_is_shown "shows the ttl as what is left of a lease" => c01_inspection_follows_the_lease;
    [PollOnly HeldSinceTheFirst] held_since_the_first "shows for how long the lock has been in use as how long it is held"
        => c01_inspection_follows_the_hold;
    [PollOnly AgeStandsStill] age_stands_still "shows no lock as held for longer than three seconds"
        => c01_inspection_follows_the_hold;
    [PollOnly LabelInSmallLetters] label_in_small_letters "keeps labels in small letters"
        => c01_inspection_shows_what_was_asked_for;
    [PollOnly LabelTrimmed] label_trimmed "drops blanks around labels"
        => c01_inspection_shows_what_was_asked_for;
    [Queued HandedIsHidden] handed_is_hidden "does not show a holder that had to wait"
        => c01_inspection_follows_the_hold;
    [Queued HandedLabelIsOld] handed_label_is_old "shows a holder that had to wait with the label of the one before"
        => c01_inspection_shows_what_was_asked_for;
    [Queued HandedLabelIsOldInAnswers] handed_label_is_old_in_answers "names a holder that had to wait by the label of the one before"
        => c15_a_busy_answer_names_the_true_holder;
    [Queued HandedFenceIsOld] handed_fence_is_old "shows a holder that had to wait with the token of the one before"
        => c01_inspection_shows_what_was_asked_for;
    [Queued OneLeavesForAll] one_leaves_for_all "gives up the places of all who wait at a client when one of them leaves"
        => c13_a_waiter_that_gives_up_leaves_no_place;
    [Queued DeclineKeeps] decline_keeps "keeps a lock that was handed over and is declined after the push has come"
        => c05_a_declined_lock_is_pushed_on;
    [PollOnly HintOfZeroLater] hint_of_zero_later "proposes from the second look on to try again at once"
        => c15_a_retry_hint_is_of_use;
    [Queued ChangedOnce] changed_once "tells each claim of one change" => c05_a_holder_is_told_of_its_loss;
    [Queued WaiterIsToldOnce] waiter_is_told_once "tells each waiter of one change"
        => c05_who_was_told_in_vain_is_told_again;
    [Queued HandedIsNotTold] handed_is_not_told "tells a holder that had to wait of no loss"
        => c05_a_holder_is_told_of_its_loss;
    [Queued UnhandedIsNotTold] unhanded_is_not_told "tells a holder that did not have to wait of no loss"
        => c05_a_holder_is_told_of_its_loss;
    [Queued HandedIsToldAlways] handed_is_told_always "tells a holder that had to wait of changes without end"
        => c05_a_holder_is_told_of_its_loss;
    [Queued DeafAfterError] deaf_after_error "tells a claim nothing more after a call without an answer"
        => c05_a_change_after_an_error_is_not_missed;
    [Queued HolderDeafAfterError] holder_deaf_after_error "tells a holder of no loss if it had waited, and a call of that wait had no answer"
        => c05_a_change_after_an_error_is_not_missed;
    [Queued CloseDeafens] close_deafens "tells nobody anything once a client was closed"
        => c05_closing_a_client_deafens_no_other;
    [PollOnly DroppedInspectPoisons] dropped_inspect_poisons "leaves the connection unusable when an inspection is dropped"
        => c08_a_dropped_inspection_disturbs_nobody;
    [PollOnly DroppedForcePoisons] dropped_force_poisons "leaves the connection unusable when a forced release is dropped"
        => c08_a_dropped_inspection_disturbs_nobody;
    [Queued DropLeaves] drop_leaves "gives up the place of a waiter in the background when it is dropped"
        => c13_inspection_counts_no_place_that_has_ended;
    [Queued DropFreesOthers] drop_frees_others "releases its client's hold of the lock when a waiter for it is dropped"
        => c08_a_dropped_claim_disturbs_no_other;
    [PollOnly PingLeavesALock] ping_leaves_a_lock "pings by taking a lock, and leaves it"
        => c01_questions_about_the_store_take_no_lock;
    [PollOnly DiagnoseLeavesALock] diagnose_leaves_a_lock "takes a lock to see whether it may, and leaves it"
        => c01_questions_about_the_store_take_no_lock;
    [PollOnly FewAreRenewed] few_are_renewed "renews the first eight holds of a client"
        => c04_all_holds_of_a_client_are_renewed;
    [PollOnly SecondCloseFails] second_close_fails "fails to close a client that is closed"
        => l04_a_closed_client_refuses_every_lock;
    [PollOnly SecondReleaseIsGone] second_release_is_gone "says of a repeated release, which has freed the lock, that it was gone"
        => c07_a_release_that_never_arrived_is_repeated;
    [PollOnly SecondDetachFails] second_detach_fails "detaches a hold once, and never again"
        => c08_a_detach_without_an_answer_can_be_repeated;
    [Queued RenewedPlaceEndsEarly] renewed_place_ends_early "promises a place for longer after a renewal than it keeps it"
        => c04_a_place_is_kept_as_long_as_each_look_says;
    [PollOnly LossIsForgotten] loss_is_forgotten "answers a bearer of a lease token from its second renewal on that the lock is held"
        => s03_attaching_twice_is_one_hold;
    [Queued HandedIsCounted] handed_is_counted "counts a holder that had to wait among those who wait"
        => c13_inspection_counts_the_waiters;
    [Queued DeadAreCounted] dead_are_counted "counts the waiters that came and have not left"
        => c13_inspection_counts_no_place_that_has_ended;
    [PollOnly EndedAreListed] ended_are_listed "lists what was taken and not released, alive or not"
        => c01_a_list_shows_no_lease_that_has_ended;
    [PollOnly InspectByPrefix] inspect_by_prefix "shows the first lock that begins with the name"
        => c11_names_that_share_a_prefix_are_told_apart;
    [PollOnly ForceByPrefix] force_by_prefix "takes away every lock that begins with the name"
        => c11_names_that_share_a_prefix_are_told_apart;
    [Queued HandedIsNotRenewed] handed_is_not_renewed "renews the place of a holder that had to wait, and not its lock"
        => c04_a_hand_over_has_its_full_ttl;
    [Queued HandedCheckPromises] handed_check_promises "promises a whole ttl when a holder is checked that had to wait"
        => c04_a_check_promises_what_is_left;
    [PollOnly ResumedCheckPromises] resumed_check_promises "promises a whole ttl when a lock is checked by its lease token"
        => c04_a_check_promises_what_is_left;
    [PollOnly ResumedCheckRenews] resumed_check_renews "prolongs the lock when it is checked by its lease token"
        => c04_a_check_prolongs_nothing;
    [PollOnly RenewedIsNotResumed] renewed_is_not_resumed "hands no hold on that was renewed"
        => c04_a_renewal_by_token_keeps_the_lock;
    [Queued WaiterGetsHalf] waiter_gets_half "keeps a lock for half of its ttl that was free when a waiter came"
        => c04_the_lock_is_kept_as_long_as_promised;
    [PollOnly RenewalsAreCounted] renewals_are_counted "ends a hold that was renewed a hundred times"
        => c04_renewals_keep_the_lock;
    [Queued RenewalsOfAPlaceAreCounted] renewals_of_a_place_are_counted "ends a place that was renewed a hundred times"
        => l03_a_renewed_place_is_kept;
    [Queued RefusedTwiceWaits] refused_twice_waits "takes a place in the queue for a claim that does not wait, but asks again"
        => c13_a_refused_try_leaves_no_place;
    [Queued LooksKeepTheQueue] looks_keep_the_queue "prolongs the places of all who wait, dead or alive, when one of them looks"
        => l05_a_waiter_that_died_long_ago_delays_nobody;
    [Queued RenewalsKeepTheQueue] renewals_keep_the_queue "prolongs the places of all who wait, dead or alive, when the holder renews"
        => l05_a_waiter_that_died_long_ago_delays_nobody;
    [Queued LooksAreTold] looks_are_told "tells all who wait that one of them has looked"
        => l02_a_waiter_does_not_besiege_the_store;
    [PollOnly AsksOn] asks_on "goes on asking in the background for each hold whose claim is gone"
        => c04_holding_makes_few_requests;
    [PollOnly ForceByMarkAlone] force_by_mark_alone "takes a lock away by the mark of its holder, whichever lock was named"
        => s03_a_forced_release_of_another_hold_does_nothing;
    [PollOnly ForceMissesRenewed] force_misses_renewed "takes no hold away that was renewed since it was shown"
        => s03_a_forced_release_of_another_hold_does_nothing;
    [PollOnly ForceMissesResumed] force_misses_resumed "takes no hold away that was taken over by its lease token, if it is named"
        => s03_a_forced_release_of_another_hold_does_nothing;
    [PollOnly ForceMissesDetached] force_misses_detached "takes no hold away that is detached and has no bearer yet, if it is named"
        => s03_a_forced_release_of_another_hold_does_nothing;
    [Queued ForceMissesUnaware] force_misses_unaware "takes no lock from a waiter that does not know yet that it has it, if it is named"
        => s03_a_forced_release_of_another_hold_does_nothing;
    [Queued ForceMissesHanded] force_misses_handed "takes no hold away that came by a wait, if it is named"
        => s03_a_forced_release_of_another_hold_does_nothing;
    [PollOnly ForceFlagStays] force_flag_stays "tells of a forced release whoever renews the lock next"
        => s03_a_forced_release_of_another_hold_does_nothing;
    [PollOnly ForceFlagsInAdvance] force_flags_in_advance "takes a lock away at its next renewal, if the hold that was named has ended"
        => s03_a_forced_release_of_another_hold_does_nothing;
    [Queued AnswersCountTheWait] answers_count_the_wait "names a holder as one that has held the lock since it began to wait"
        => c15_a_busy_answer_names_the_true_holder;
    [PollOnly AnswersShowTheTtl] answers_show_the_ttl "names a holder with its ttl as what is left of its lease"
        => c15_a_busy_answer_names_the_true_holder;
    [PollOnly ListShowsTheTtl] list_shows_the_ttl "lists the ttl as what is left of a lease"
        => c01_inspection_follows_the_lease;
    [Queued ListCountsNobody] list_counts_nobody "lists a held lock without its waiters"
        => c13_inspection_counts_the_waiters;
    [PollOnly ResumedIsYoung] resumed_is_young "shows a hold that was taken over as old as the last renewal by its token"
        => c01_inspection_follows_the_hold;
    [PollOnly ResumedHasItsMark] resumed_has_its_mark "shows a hold that was taken over with another mark"
        => c01_inspection_follows_the_hold;
    [PollOnly PrefixesShortened] prefixes_shortened "cuts long prefixes" => c11_long_names_are_not_cut;
    [PollOnly NamesEndAtWide] names_end_at_wide "cuts a name at its first character of four bytes"
        => c11_distinct_names_never_block_each_other;
    [PollOnly LabelsEndAtWide] labels_end_at_wide "cuts a label at its first character of four bytes"
        => c01_inspection_shows_what_was_asked_for;
    [Queued FenceOf32Bits] fence_of_32_bits "counts the fence in 32 bits" => c16_blocks_rise_over_releases;
    [Queued TurnIsNotRenewed] turn_is_not_renewed "renews the place of a waiter at its turn, and not its lock"
        => c04_a_hand_over_has_its_full_ttl;
    [Queued ForcedHandOverWithoutTtl] forced_hand_over_without_ttl "hands over a lock that was taken away with the rest of the place's lease"
        => c04_a_hand_over_has_its_full_ttl;
    [Queued AnswersNameAWaiter] answers_name_a_waiter "names the first that waits as the holder"
        => c15_a_busy_answer_names_the_true_holder;
    [Queued TurnIsNotSeen] turn_is_not_seen "looks only for a place when a waiter is checked"
        => c13_a_waiter_that_declines_passes_it_on;
    [Queued DeclineIsNotSeen] decline_is_not_seen "says of a waiter that declines the lock that it had nothing"
        => c13_a_waiter_that_declines_passes_it_on;
    [Queued HandedBlockIsNotResumed] handed_block_is_not_resumed "forgets how many tokens a waiter has got"
        => c16_only_its_own_block_attaches;
    [PollOnly LastBytesOnly] last_bytes_only "ends a lease token when its bearer makes another"
        => c07_a_release_by_token_frees_the_lock;
    [PollOnly LimitOfTheFirst] limit_of_the_first "gives all claims of a client the time of the first"
        => c12_calls_of_a_claim_are_bounded;
    [PollOnly AnswersNameNobody] answers_name_nobody "names a holder without a label by an empty one"
        => c15_a_wait_in_vain_names_the_true_holder;
    [Queued LongNamesAreNotTold] long_names_are_not_told "tells nobody who waits for a long name"
        => c05_a_release_is_pushed;
    [PollOnly LongNamesAreNotShown] long_names_are_not_shown "shows long names as free"
        => c11_a_lock_is_found_under_its_name;
    [PollOnly NamesEscapedOnce] names_escaped_once "escapes the first slash of a name, and no other"
        => c11_distinct_names_never_block_each_other;
    [PollOnly PrefixesDotted] prefixes_dotted "takes the dots of a prefix for slashes"
        => c11_prefix_and_name_are_kept_apart;
    [PollOnly RenewalIsCut] renewal_is_cut "cuts the ttl of a renewal to whole seconds"
        => c04_a_ttl_with_a_fraction_is_kept;
    [PollOnly RenewalIsClamped] renewal_is_clamped "keeps no lock for more than three seconds by a renewal, whatever it says"
        => c01_inspection_follows_the_lease;
    [PollOnly TokenRenewalIsClamped] token_renewal_is_clamped "keeps no lock for more than three seconds by a renewal by token, whatever it says"
        => c01_inspection_follows_the_lease;
    [PollOnly RenewedCheckPromises] renewed_check_promises "promises a whole ttl when a holder is checked that has renewed"
        => c04_a_check_promises_what_is_left;
    [Queued RepeatOfAHandOverIsKept] repeat_of_a_hand_over_is_kept "answers a repeated try from memory, after a wait"
        => c04_a_repeat_is_kept_as_long_as_promised;
    [PollOnly HoldsGrowOld] holds_grow_old "ends a hold after a minute, although it was renewed"
        => c04_renewals_keep_the_lock;
    [PollOnly DetachRenews] detach_renews "begins a new lease with a detach" => l01_a_detached_lock_ends_by_itself;
    [PollOnly DetachedIsYoung] detached_is_young "shows a detached hold as old as its lease token"
        => c01_inspection_follows_the_hold;
    [Queued PlaceIsTakenOver] place_is_taken_over "renews a place in the queue for the bearer of a lease token"
        => c14_another_owner_is_not_believed;
    [PollOnly NoLimitByToken] no_limit_by_token "waits for an answer to a call by token as long as it takes"
        => c12_calls_of_a_claim_are_bounded;
    [Queued ReleaseByTokenIsSilent] release_by_token_is_silent "tells nobody of a release by token"
        => c05_a_release_is_pushed;
    [Queued DeafInTime] deaf_in_time "tells a waiter nothing after half a minute" => c05_a_release_is_pushed;
    [Queued ChangesAreLookedFor] changes_are_looked_for "declares pushes, and looks every 400 ms"
        => l02_a_push_is_faster_than_a_look_now_and_then;
    [Queued ForceTellsNotItself] force_tells_not_itself "tells no holder of its loss if its own client took the lock away"
        => c05_a_holder_is_told_of_its_loss;
    [Queued ForceWakesTheOnlyOne] force_wakes_the_only_one "tells a waiter that a lock was taken away only if no other waits"
        => c05_a_forced_release_is_pushed;
    [Queued ForceTakesAPlace] force_takes_a_place "takes the place of the second waiter with the lock"
        => l03_a_forced_release_keeps_the_queue;
    [PollOnly MarkIsShort] mark_is_short "compares the beginning of a mark"
        => c01_owners_that_differ_in_one_bit_are_two;
    [Queued ListJoinsWaiters] list_joins_waiters "lists a lock once for each of its waiters"
        => c13_inspection_counts_the_waiters;
    [PollOnly ListByPattern] list_by_pattern "takes an underscore in the prefix of a list for any letter"
        => c11_names_that_share_a_prefix_are_told_apart;
    [Queued RenewedLabelIsGone] renewed_label_is_gone "forgets the label of a holder that had to wait when it renews"
        => c01_inspection_shows_what_was_asked_for;
    [PollOnly LabelsShortened] labels_shortened "cuts long labels" => c01_inspection_shows_what_was_asked_for;
    [PollOnly LookIsKept] look_is_kept "answers a second look at a name from memory"
        => c18_a_look_shows_each_hold_at_once;
    [PollOnly LookIsOld]
        look_is_old "answers a look from a copy that is behind the store"
        => c18_a_look_shows_each_hold_at_once;
        look_of_an_older_moment "answers looks of all clients from a copy that is behind the store"
        => c18_each_look_is_of_a_moment_between_its_ends;
        readers_see_no_writer "lets readers and writers look at a copy that is behind the store"
        => s01_nobody_reads_beside_a_writer_under_faults;
    [PollOnly LookAtOwn] look_at_own "shows what its own claims hold, and all else as free"
        => c18_a_look_shows_each_hold_at_once;
    [PollOnly ReleasedIsSeen] released_is_seen "shows a hold that it has seen until it sees another"
        => c18_a_look_shows_each_hold_at_once;
    [PollOnly SeenFenceIsTheNext] seen_fence_is_the_next "shows a hold with the token after its own"
        => c18_a_look_shows_each_hold_at_once;
    [PollOnly SeenLabelIsMissing] seen_label_is_missing "shows a hold without its label"
        => c18_a_look_shows_each_hold_at_once;
    [PollOnly SeenLabelIsTheFirst] seen_label_is_the_first "shows each hold of a lock under the label of the first"
        => c18_a_look_shows_each_hold_at_once;
    [PollOnly LookSorts] look_sorts "answers a look in the order of the alphabet"
        => c18_a_look_answers_in_the_order_of_the_names;
    [PollOnly LookTellsOnce] look_tells_once "answers a look once for a name that it is asked for twice"
        => c18_a_look_answers_in_the_order_of_the_names;
    [PollOnly LookAtNothingFails] look_at_nothing_fails "refuses a look at no name"
        => c18_a_look_answers_in_the_order_of_the_names;
    [PollOnly LookOfFew] look_of_few "looks at the first 32 names, and shows the others as free"
        => c18_a_look_answers_in_the_order_of_the_names;
    [PollOnly LookFolds] look_folds "folds the case of the names that it looks at"
        => c18_a_look_takes_no_name_for_another;
    [PollOnly LookShortens] look_shortens "cuts long names when it looks at them"
        => c18_a_look_takes_no_name_for_another;
    [PollOnly LookIgnoresPrefix] look_ignores_prefix "looks at a name without its prefix"
        => c18_a_look_takes_no_name_for_another;
    [PollOnly RenewedIsNotSeen] renewed_is_not_seen "shows a lock as free that its holder has renewed"
        => c18_a_look_follows_the_hold;
    [PollOnly ResumedIsNotSeen] resumed_is_not_seen "shows a lock as free that was taken over by its lease token"
        => c18_a_look_follows_the_hold;
    [Queued UnknownIsNotSeen] handed_is_not_seen "shows a lock as free until the next holder knows that it has it"
        => c18_a_look_sees_a_hand_over;
    [Queued UnknownIsPassed]
        floor_passes_the_next "shows a lock that was handed on as free, with the token of the next holder as its floor"
        => c18_a_look_sees_a_hand_over;
        floor_passes_the_next_after_an_end "shows a lock whose lease has ended as free, with the token of the next holder as its floor"
        => c18_a_look_sees_the_end_of_a_lease_with_a_queue;
        floor_passes_the_unanswered "shows a lock as free whose grant had no answer, with its token as the floor"
        => c18_a_grant_without_an_answer_is_shown;
    [Queued HandedSeenFenceIsOld] handed_seen_fence_is_old "shows a holder that had to wait with the token of the one before, to those who look"
        => c18_a_look_sees_a_hand_over;
    [Queued HandedSeenLabelIsOld] handed_seen_label_is_old "shows a holder that had to wait with the label of the one before, to those who look"
        => c18_a_look_sees_a_hand_over;
    [Queued WaiterIsSeen] waiter_is_seen "shows the last one in line as the holder" => c18_a_look_sees_a_hand_over;
    [PollOnly TakenIsSeen]
        ended_is_seen "shows who has taken a lock until it is released, also when the lease has ended"
        => c18_a_look_sees_the_end_of_a_lease;
        forced_is_seen "shows who has taken a lock until it is released, also when it was taken away"
        => c18_a_look_sees_a_forced_release;
        loss_in_a_restart_is_seen "shows who has taken a lock until it is released, also when a restart has lost it"
        => c18_a_look_after_a_restart_shows_what_the_store_has;
    [PollOnly FloorTooLow] floor_too_low "shows a floor of one less than the last token"
        => c18_a_floor_lies_between_the_last_token_and_the_next;
    [PollOnly FloorTooHigh] floor_too_high "shows the next token as the floor"
        => c18_a_floor_lies_between_the_last_token_and_the_next;
    [PollOnly FloorEnds] floor_ends "forgets the floor of a name a minute after its last lease"
        => c18_a_floor_lies_between_the_last_token_and_the_next;
    [PollOnly FloorIsMissing] floor_is_missing "shows no floor of a name that had tokens"
        => c18_a_floor_lies_between_the_last_token_and_the_next;
    [PollOnly FloorIsKept]
        floor_is_kept "shows the floor of a name that it has shown first"
        => c18_a_floor_lies_between_the_last_token_and_the_next;
        reader_below_a_writer "gives a reader the token of a look of the past"
        => s01_nobody_reads_beside_a_writer_under_faults;
    [PollOnly FloorOfTheFirstName] floor_of_the_first_name "shows the floor of the first name for all names of a look"
        => c18_a_floor_lies_between_the_last_token_and_the_next;
    [PollOnly FloorIsTheFirst] floor_is_the_first "shows the first token of the last block as the floor"
        => c18_a_floor_is_not_below_the_last_of_a_block;
    [PollOnly SeenFenceIsTheLast] seen_fence_is_the_last "shows a hold with the last token of its block"
        => c18_a_floor_is_not_below_the_last_of_a_block;
    [PollOnly LookInTwoSteps] look_in_two_steps "asks who has a lock, and then for the floor"
        => c18_each_look_is_of_a_moment_between_its_ends;
    [PollOnly LookTakes] look_takes "looks by taking what is free, and leaves it"
        => c18_a_look_leaves_nothing_behind;
    [PollOnly LookTakesForAMoment] look_takes_for_a_moment "looks by taking what is free, and gives it back"
        => c18_a_look_is_in_nobodys_way;
    [PollOnly LookProlongs] look_prolongs "prolongs the lease of a holder that others look at"
        => c18_a_look_prolongs_nothing;
    [Queued LookProlongsPlaces] look_prolongs_places "prolongs the places of those who wait when others look"
        => c18_a_look_prolongs_nothing;
    [Queued LookWakes] look_wakes "tells all who have or want a lock that another has looked"
        => c18_a_look_wakes_nobody;
    [PollOnly LookPerName] look_per_name "makes one request for each name of a look"
        => c18_a_look_at_many_names_makes_no_more_requests;
    [PollOnly UnansweredLookIsFree] unanswered_look_is_free "shows names that it cannot ask for as free"
        => c18_a_look_without_an_answer_is_an_error;
    [PollOnly UnansweredLookIsOld] unanswered_look_is_old "answers a look from memory when the store does not"
        => c18_a_look_without_an_answer_is_an_error;
    [PollOnly FailedLookIsTheLast] failed_look_is_the_last "can look no more when one look has failed"
        => c18_a_look_after_one_that_failed_is_answered;
    [PollOnly LookReadsTheLast]
        look_reads_the_last "answers a look with the answer to one that was not answered"
        => c18_a_look_after_one_that_failed_is_answered;
        look_reads_the_dropped "answers a look with the answer to one that was dropped"
        => c18_a_dropped_look_disturbs_nobody;
    [PollOnly LooksAreJoined] looks_are_joined "answers a look with the answer to one that is under way"
        => c18_a_look_joins_no_earlier_one;
    [PollOnly DroppedLookPoisons] dropped_look_poisons "leaves the connection unusable when a look is dropped"
        => c18_a_dropped_look_disturbs_nobody;
    [PollOnly PasswordInFindings] password_in_findings "names the URL that it was given in a diagnosis"
        => s08_clients_claims_and_guards_show_no_secret;
    [PollOnly PasswordWhenClosed] password_when_closed "names the URL that it was given once it is closed"
        => s08_errors_of_calls_show_no_secret;
    [PollOnly OwnerInDebug] owner_in_debug "prints the owner id of a claim"
        => s08_a_lease_token_is_shown_to_its_bearer_only;
    [PollOnly OwnerIsTheLabel] owner_is_the_label "names the owner id in the error of a wait in vain"
        => s08_a_lease_token_is_shown_to_its_bearer_only;
    [PollOnly OwnerInErrors] owner_in_errors "names the owner id in its errors" => s08_errors_of_a_link_show_no_secret;
    [PollOnly PasswordInDebug] password_in_debug "prints the URL that it was given"
        => s08_clients_claims_and_guards_show_no_secret;
    [PollOnly PasswordInErrors] password_in_errors "names the URL that it was given in an error"
        => s08_errors_of_a_silent_store_show_no_secret;
}
