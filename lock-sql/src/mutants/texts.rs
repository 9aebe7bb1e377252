//! The mistakes, and the texts that make them.

use crate::mutants::WrongTexts;

pub(super) const ALL: &[WrongTexts] = &[
    WrongTexts {
        name: "client_clock",
        what: "the lease is judged by the clock of the asking client",
        killed_by: "c03_two_releases_make_one_grant",
        sqlite: &[(":now", "(:now + {skew})")],
        postgres: &[(
            "clock_timestamp()",
            "(clock_timestamp() + {skew} * interval '1 microsecond')",
        )],
        mysql: &[("UTC_TIMESTAMP(6)", "(UTC_TIMESTAMP(6) + INTERVAL {skew} MICROSECOND)")],
    },
    WrongTexts {
        name: "affected_rows_trusted",
        what: "a row that was affected is taken for ours, also if it was found and left alone",
        killed_by: "s01_a_lock_is_not_reentrant",
        sqlite: &[],
        postgres: &[],
        mysql: &[
            ("fence + 0 * LAST_INSERT_ID(VALUES(acquired) - expires)", "LAST_INSERT_ID(fence)"),
            ("fence + 0 * LAST_INSERT_ID({now} - expires)", "LAST_INSERT_ID(fence)"),
        ],
    },
    WrongTexts {
        name: "a_place_on_the_list_is_a_grant",
        what: "a row that was written is taken for ours, also by those who have only put themselves on the list",
        killed_by: "c13_a_waiter_that_declines_passes_it_on",
        sqlite: &[],
        postgres: &[("RETURNING l.owner = :owner::text AS mine", "RETURNING true AS mine")],
        mysql: &[],
    },
    WrongTexts {
        name: "fence_reset_by_delete",
        what: "a release deletes the row, and its fence with it",
        killed_by: "c09_fences_rise_over_releases",
        sqlite: &[
            ("max(coalesce((SELECT fence", "min(coalesce((SELECT fence"),
            (
                "UPDATE {t} SET owner = NULL, label = NULL, expires = min(expires, :now) WHERE",
                "DELETE FROM {t} WHERE",
            ),
            ("THEN expires = :now ELSE", "THEN expires > :now ELSE"),
        ],
        postgres: &[
            ("greatest(coalesce((SELECT fence", "least(1, coalesce((SELECT fence"),
            (
                "UPDATE {t} AS l SET owner = NULL, label = NULL, expires = least(l.expires, statement_timestamp()), \
                 woken = l.waiters[1], waiters = l.waiters[2:] WHERE",
                "DELETE FROM {t} AS l WHERE",
            ),
            (
                "RETURNING l.expires = statement_timestamp()",
                "RETURNING l.expires > statement_timestamp()",
            ),
        ],
        mysql: &[
            ("LAST_INSERT_ID(GREATEST(COALESCE(", "LAST_INSERT_ID(LEAST(1, COALESCE("),
            // A deleted row would not say that it was there.
            (
                "fence = fence + 0 * LAST_INSERT_ID(IF(expires",
                "fence = 0 * LAST_INSERT_ID(IF(expires",
            ),
            ("LAST_INSERT_ID(GREATEST(fence + 1, {now})", "LAST_INSERT_ID(LEAST(fence + 1, {now})"),
        ],
    },
    WrongTexts {
        name: "case_folding_names",
        what: "names are compared as under a collation that ignores case",
        killed_by: "c11_distinct_names_never_block_each_other",
        sqlite: &[
            ("VALUES (:name,", "VALUES (lower(:name),"),
            ("name = :name", "name = lower(:name)"),
        ],
        postgres: &[
            ("SELECT :name::text,", "SELECT lower(:name::text),"),
            ("l.name = :name::text", "l.name = lower(:name::text)"),
        ],
        mysql: &[
            ("VALUES (:name,", "VALUES (LOWER(CONVERT(:name USING utf8mb4)),"),
            ("name = :name", "name = LOWER(CONVERT(:name USING utf8mb4))"),
        ],
    },
    WrongTexts {
        name: "trailing_blanks_ignored",
        what: "names are compared as under a collation that pads with blanks, such as utf8mb4_bin",
        killed_by: "c11_distinct_names_never_block_each_other",
        sqlite: &[
            ("VALUES (:name,", "VALUES (rtrim(:name),"),
            ("name = :name", "name = rtrim(:name)"),
        ],
        postgres: &[],
        mysql: &[
            ("VALUES (:name,", "VALUES (TRIM(TRAILING ' ' FROM :name),"),
            ("name = :name", "name = TRIM(TRAILING ' ' FROM :name)"),
        ],
    },
    WrongTexts {
        name: "advisory_lock_left_in_the_pool",
        what: "a lock of the session in place of the lease: it stays with the pooled connection that has taken it for as long as that lives",
        killed_by: "l01_an_abandoned_lock_is_free_after_its_ttl",
        sqlite: &[],
        postgres: &[
            (
                "AS present WHERE NOT EXISTS (",
                "AS present WHERE pg_try_advisory_lock(hashtext(:name::text)) AND NOT EXISTS (",
            ),
            (
                "(l.owner IS NULL OR l.owner = excluded.owner OR l.expires <= excluded.acquired)",
                "true",
            ),
            (
                "(l.owner IS NULL OR l.expires <= clock_timestamp() AND l.owner <> :owner::text)",
                "pg_try_advisory_lock(hashtext(:name::text))",
            ),
            (
                "l.owner = :owner::text AND :fence::bigint IN (0, l.fence) RETURNING l.expires = statement_timestamp()",
                "l.owner = :owner::text AND :fence::bigint IN (0, l.fence) AND pg_advisory_unlock(hashtext(l.name)) RETURNING l.expires = statement_timestamp()",
            ),
        ],
        mysql: &[
            (
                "LAST_INSERT_ID(GREATEST(COALESCE(",
                "LAST_INSERT_ID(GREATEST(GET_LOCK(SHA1(name), 0), COALESCE(",
            ),
            ("IF(expires <= {now}, LAST", "IF(GET_LOCK(SHA1(name), 0) = 1, LAST"),
            ("expires <= {now},", "IS_USED_LOCK(SHA1(name)) = CONNECTION_ID(),"),
            ("LAST_INSERT_ID({now} - expires)", "LAST_INSERT_ID(-1)"),
            ("IF(expires <= VALUES(acquired), LAST", "IF(GET_LOCK(SHA1(name), 0) = 1, LAST"),
            ("expires <= VALUES(acquired),", "IS_USED_LOCK(SHA1(name)) = CONNECTION_ID(),"),
            ("LAST_INSERT_ID(VALUES(acquired) - expires)", "LAST_INSERT_ID(-1)"),
            (
                "expires = 0 WHERE name = :name AND owner = :owner",
                "expires = 0 WHERE name = :name AND owner = :owner AND RELEASE_LOCK(SHA1(name)) = 1",
            ),
        ],
    },
    WrongTexts {
        name: "a_plain_read_is_proof",
        what: "a read without a lock says that a hold is gone, and may be a standby's",
        killed_by: "reads_that_are_behind",
        sqlite: &[],
        postgres: &[(" FOR KEY SHARE", "")],
        mysql: &[],
    },
    WrongTexts {
        name: "every_look_locks_the_row",
        what: "a waiter goes to the row of a lock that is held",
        killed_by: "looks_write_nothing",
        sqlite: &[],
        postgres: &[(
            "AND h.expires > present.now AND",
            "AND h.expires > present.now AND false AND",
        )],
        mysql: &[],
    },
    WrongTexts {
        name: "the_lease_of_another_is_taken",
        what: "a lease is taken that still runs",
        killed_by: "s01_a_lock_is_not_reentrant",
        sqlite: &[("THEN expires <= :now ELSE", "THEN expires - 300000000 <= :now ELSE")],
        postgres: &[
            ("OR l.expires <= excluded.acquired", "OR l.expires > excluded.acquired"),
            ("AND h.expires > present.now", "AND h.expires <= present.now"),
            (
                "l.expires <= clock_timestamp() AND l.owner <> :owner::text",
                "l.expires > clock_timestamp() AND l.owner <> :owner::text",
            ),
        ],
        mysql: &[
            ("IF(expires <= VALUES(acquired)", "IF(expires - 300000000 <= VALUES(acquired)"),
            ("IF(expires <= {now}", "IF(expires - 300000000 <= {now}"),
        ],
    },
    WrongTexts {
        name: "release_without_owner",
        what: "a release frees the hold of anybody",
        killed_by: "c07_a_release_after_busy_does_nothing",
        sqlite: &[("(:owner IS NULL OR owner = :owner)", "(:owner IS NULL OR :owner <> '')")],
        postgres: &[(
            "WHERE l.name = :name::text AND l.owner = :owner::text AND :fence::bigint IN (0, l.fence) RETURNING",
            "WHERE l.name = :name::text AND :owner::text <> '' AND :fence::bigint >= 0 RETURNING",
        )],
        mysql: &[(
            "WHERE name = :name AND owner = :owner AND",
            "WHERE name = :name AND :owner <> '' AND",
        )],
    },
    WrongTexts {
        name: "the_fence_of_a_takeover_is_believed",
        what: "the token in the text of a lease, which its bearer can edit, is believed",
        killed_by: "c14_a_greater_fence_is_not_believed",
        sqlite: &[(":fence IN (0, fence)", ":fence >= 0")],
        postgres: &[(
            "l.owner = :owner::text AND :fence::bigint IN (0, l.fence)",
            "l.owner = :owner::text AND :fence::bigint >= 0",
        )],
        mysql: &[(":fence IN (0, fence)", ":fence >= 0")],
    },
    WrongTexts {
        name: "renewal_without_fence",
        what: "a renewal prolongs a hold of another token",
        killed_by: "c14_a_greater_fence_is_not_believed",
        sqlite: &[("due.value ->> 3 IN (0, fence)", "due.value ->> 3 >= 0")],
        postgres: &[("due.fence IN (0, l.fence)", "due.fence >= 0")],
        mysql: &[],
    },
    WrongTexts {
        name: "renewal_without_owner",
        what: "a renewal prolongs the hold of anybody, whatever its token",
        killed_by: "s03_a_late_renewal_does_not_touch_the_next_holder",
        sqlite: &[
            ("AND owner = due.value ->> 1 ", ""),
            ("due.value ->> 3 IN (0, fence)", "due.value ->> 3 >= 0"),
        ],
        postgres: &[
            ("l.owner = due.owner AND ", ""),
            ("AND l.owner = due.owner", ""),
            ("due.fence IN (0, l.fence)", "due.fence >= 0"),
        ],
        mysql: &[
            (
                "WHERE name = :name AND owner = :owner AND expires",
                "WHERE name = :name AND :owner <> '' AND expires",
            ),
            ("> {now} AND :fence IN (0, fence)", "> {now} AND :fence >= 0"),
        ],
    },
    WrongTexts {
        name: "new_token_on_repeat",
        what: "a repeated try gets another token",
        killed_by: "c02_a_repeated_try_returns_the_same_token",
        sqlite: &[("WHEN owner = excluded.owner THEN fence", "WHEN owner = '' THEN fence")],
        postgres: &[("WHEN l.owner = excluded.owner OR NOT", "WHEN NOT")],
        mysql: &[("LAST_INSERT_ID(fence), IF(", "LAST_INSERT_ID(fence + 1), IF(")],
    },
    WrongTexts {
        name: "block_of_one",
        what: "the fence moves by one, whatever block was asked for",
        killed_by: "c16_blocks_rise_over_releases",
        sqlite: &[("+ :more", "+ 0 * :more")],
        postgres: &[("+ :more::bigint", "+ 0 * :more::bigint")],
        mysql: &[("+ :more", "+ 0 * :more")],
    },
    WrongTexts {
        name: "the_fence_stays",
        what: "the next holder gets the token of the last one",
        killed_by: "c09_fences_rise_over_releases",
        sqlite: &[("ELSE max(fence + 1, :wall) + :more END", "ELSE fence END")],
        postgres: &[
            ("ELSE greatest(l.fence + 1,", "ELSE least(l.fence,"),
            ("fence = greatest(l.fence + 1,", "fence = least(l.fence,"),
        ],
        mysql: &[
            ("GREATEST(fence + 1, VALUES(acquired))", "fence"),
            ("GREATEST(fence + 1, {now})", "fence"),
        ],
    },
    WrongTexts {
        name: "a_waiter_is_not_on_the_list",
        what: "a waiter is not put on the list",
        killed_by: "c05_a_release_is_pushed",
        sqlite: &[],
        postgres: &[("OR (:client::text IS NOT NULL AND", "OR (:client::text IS NULL AND")],
        mysql: &[],
    },
    WrongTexts {
        name: "a_release_tells_nobody",
        what: "a release notifies no waiter",
        killed_by: "c05_a_release_is_pushed",
        sqlite: &[],
        postgres: &[("l.woken IS NOT NULL AND :tell::bool", "l.woken IS NULL AND :tell::bool")],
        mysql: &[],
    },
    WrongTexts {
        name: "force_by_owner_frees_any",
        what: "a release by force frees another owner's hold",
        killed_by: "s03_a_forced_release_of_another_hold_does_nothing",
        sqlite: &[(
            "(:owner IS NULL OR owner = :owner) AND :fence IN (0, fence)",
            "(:owner IS NULL OR :owner <> '') AND :fence = :fence",
        )],
        postgres: &[(
            "(:owner::text IS NULL OR l.owner = :owner::text) \
                   AND :fence::bigint IN (0, l.fence)",
            "(:owner::text IS NULL OR :owner::text <> '') AND :fence::bigint = :fence::bigint",
        )],
        mysql: &[(
            "(:owner IS NULL OR owner = :owner) AND :fence IN (0, fence)",
            "(:owner IS NULL OR :owner <> '') AND :fence = :fence",
        )],
    },
    // Mistakes in what a look shows.
    WrongTexts {
        name: "a_look_at_any_server",
        what: "a look is a plain read, which a standby or a former primary answers",
        killed_by: "looks_away_from_the_primary",
        sqlite: &[],
        postgres: &[("WITH unchanged AS (DELETE FROM {t} WHERE false) SELECT", "SELECT")],
        mysql: &[("WHERE 1 = 0 FOR UPDATE)", "WHERE 1 = 0)")],
    },
    WrongTexts {
        name: "a_look_reads_the_clock_last",
        what: "a look judges a lease by a clock that is read after the row was seen",
        killed_by: "late_looks",
        sqlite: &[],
        postgres: &[("l.expires - statement_timestamp())", "l.expires - clock_timestamp())")],
        mysql: &[],
    },
    WrongTexts {
        name: "a_look_locks_rows",
        what: "a look has the rows locked",
        killed_by: "looks_write_nothing",
        sqlite: &[],
        postgres: &[(
            "l.label FROM {t} AS l WHERE l.name = ANY (:names::text[])",
            "l.label FROM {t} AS l WHERE l.name = ANY (:names::text[]) FOR KEY SHARE",
        )],
        mysql: &[],
    },
    WrongTexts {
        name: "a_lease_that_has_ended_is_held",
        what: "a look shows a lease some time longer",
        killed_by: "looks",
        sqlite: &[("THEN expires - :now WHEN", "THEN expires + 300000000 - :now WHEN")],
        postgres: &[(
            "l.expires - statement_timestamp())",
            "l.expires + interval '5 min' - statement_timestamp())",
        )],
        mysql: &[("fence, expires - {now},", "fence, expires + 300000000 - {now},")],
    },
    WrongTexts {
        name: "a_floor_that_is_one_too_few",
        what: "the floor is below the last fence",
        killed_by: "looks",
        sqlite: &[("name, owner, fence, CASE", "name, owner, fence - (owner IS NULL), CASE")],
        postgres: &[("ELSE l.fence END,", "ELSE l.fence - (l.owner IS NULL)::int END,")],
        mysql: &[(
            "name, owner, fence, expires - {now},",
            "name, owner, fence - (owner IS NULL), expires - {now},",
        )],
    },
    WrongTexts {
        name: "a_removed_row_has_no_floor",
        what: "a name without a row has no floor",
        killed_by: "looks",
        sqlite: &[(
            "boot FROM {t} WHERE name IN (:[names])",
            "boot FROM {t} WHERE name IN (:[names]) AND name <> '\u{1}fence'",
        )],
        postgres: &[(
            "l.label FROM {t} AS l WHERE l.name = ANY (:names::text[])",
            "l.label FROM {t} AS l WHERE l.name = ANY (:names::text[]) AND l.name <> '\u{1}fence'",
        )],
        mysql: &[(
            "label FROM {t} WHERE name IN (:[names]))",
            "label FROM {t} WHERE name IN (:[names]) AND name <> x'0166656E6365')",
        )],
    },
    WrongTexts {
        name: "the_floor_of_a_sweep_under_way",
        what: "the floor of a name without a row is where new rows start from now on",
        killed_by: "floors_below_late_inserts",
        sqlite: &[],
        postgres: &[("THEN coalesce(l.label::bigint, l.fence) ELSE", "THEN l.fence ELSE")],
        mysql: &[],
    },
    // Mistakes in when a lease ends.
    WrongTexts {
        name: "a_late_insert",
        what: "an insert that has taken as long as it takes a sweep to delete the row starts below the fence of that",
        killed_by: "late_inserts",
        sqlite: &[],
        postgres: &[("interval '1.5 s' THEN 0", "interval '1.5 s' THEN 1")],
        mysql: &[],
    },
    WrongTexts {
        name: "renewal_of_what_has_ended",
        what: "a renewal prolongs a lease that has ended",
        killed_by: "c06_a_renewal_after_the_end_is_lost",
        sqlite: &[("AND boot = :boot AND expires > :now", "AND boot = :boot")],
        postgres: &[("AND l.expires > clock_timestamp() ORDER BY", "ORDER BY")],
        mysql: &[("AND owner = :owner AND expires > ", "AND owner = :owner AND 0 < ")],
    },
    WrongTexts {
        name: "a_lease_that_is_never_longer",
        what: "a renewal writes and prolongs nothing, as where the present is that of a transaction's start",
        killed_by: "c04_renewals_keep_the_lock",
        sqlite: &[("SET expires = max(expires, :now", "SET expires = min(expires, :now")],
        postgres: &[(
            "SET expires = greatest(l.expires, clock_timestamp() + due",
            "SET expires = least(l.expires, clock_timestamp() + due",
        )],
        mysql: &[
            (
                "expires = GREATEST(expires, {now} + :ttl) WHERE",
                "expires = expires + 0 * :ttl WHERE",
            ),
            (
                "GREATEST(l.expires, LAST_INSERT_ID({now} + :ttl))",
                "l.expires + 0 * LAST_INSERT_ID({now} + :ttl)",
            ),
        ],
    },
    WrongTexts {
        name: "a_repeat_after_the_end_takes_anew",
        what: "a try that is repeated after the end of its lease gets another token",
        killed_by: "late_repeats",
        sqlite: &[],
        postgres: &[(
            "l.expires <= clock_timestamp() AND l.owner <> :owner::text",
            "l.expires <= clock_timestamp()",
        )],
        mysql: &[],
    },
    WrongTexts {
        name: "a_late_try_shortens_the_lease",
        what: "a try that is late ends the lease one ttl of its own after it",
        killed_by: "late_requests",
        sqlite: &[("THEN max(expires, excluded.expires)", "THEN excluded.expires")],
        postgres: &[("THEN greatest(l.expires, excluded.expires)", "THEN excluded.expires")],
        mysql: &[
            ("GREATEST(expires, VALUES(expires))", "VALUES(expires)"),
            (
                "IF(owner <=> :owner, GREATEST(expires, {now} + :ttl)",
                "IF(owner <=> :owner, {now} + :ttl",
            ),
        ],
    },
    WrongTexts {
        name: "a_late_renewal_shortens_the_lease",
        what: "a renewal that is late ends the lease one ttl of its own after it",
        killed_by: "late_requests",
        sqlite: &[(
            "SET expires = max(expires, :now + 1 + (due.value ->> 2))",
            "SET expires = :now + 1 + (due.value ->> 2)",
        )],
        postgres: &[(
            "SET expires = greatest(l.expires, clock_timestamp() + due.ttl * interval '1 microsecond')",
            "SET expires = clock_timestamp() + due.ttl * interval '1 microsecond'",
        )],
        mysql: &[(
            "SET fence = LAST_INSERT_ID(fence), expires = GREATEST(expires, {now} + :ttl)",
            "SET fence = LAST_INSERT_ID(fence), expires = {now} + :ttl",
        )],
    },
    WrongTexts {
        name: "a_late_batch_shortens_the_lease",
        what: "renewals of many leases that are late end them one ttl of their own after it",
        killed_by: "late_requests",
        sqlite: &[],
        postgres: &[],
        mysql: &[(
            "SET l.expires = GREATEST(l.expires, LAST_INSERT_ID({now} + :ttl))",
            "SET l.expires = LAST_INSERT_ID({now} + :ttl)",
        )],
    },
    WrongTexts {
        name: "a_repeat_shortens_the_lease",
        what: "a repeated try ends the lease at once",
        killed_by: "c04_a_repeat_is_kept_as_long_as_promised",
        sqlite: &[("THEN max(expires, excluded.expires)", "THEN excluded.acquired")],
        postgres: &[("THEN greatest(l.expires, excluded.expires)", "THEN excluded.acquired")],
        mysql: &[
            ("GREATEST(expires, VALUES(expires))", "VALUES(acquired)"),
            (
                "IF(owner <=> :owner, GREATEST(expires, {now} + :ttl)",
                "IF(owner <=> :owner, {now} + 0 * :ttl",
            ),
        ],
    },
    WrongTexts {
        name: "the_log_alone_knows",
        what: "what was granted stays in the log for long, and is forgotten when that is removed",
        killed_by: "removed_log",
        sqlite: &[("PRAGMA wal_checkpoint(PASSIVE)", "SELECT 1")],
        postgres: &[],
        mysql: &[],
    },
    // Mistakes in what is kept and shown of a hold.
    WrongTexts {
        name: "the_table_of_a_search_path",
        what: "the table is looked up by each statement anew, on a path that others may have set",
        killed_by: "paths_of_others",
        sqlite: &[],
        postgres: &[("{t}", "\"distlock\"")],
        mysql: &[],
    },
    WrongTexts {
        name: "a_block_of_any_size_attaches",
        what: "who takes a hold over says how many fences it has",
        killed_by: "c16_only_its_own_block_attaches",
        sqlite: &[],
        postgres: &[("ELSE 1 END > :more::bigint", "ELSE 1 END > 0 * :more::bigint")],
        mysql: &[("AS SIGNED), 1) > :more", "AS SIGNED), 1) > 0 * :more")],
    },
    WrongTexts {
        name: "the_last_label_stays",
        what: "a holder is shown under the label of the one before",
        killed_by: "c15_a_busy_answer_names_the_true_holder",
        sqlite: &[
            ("label = excluded.label WHERE", "label = coalesce(label, excluded.label) WHERE"),
            ("SET owner = NULL, label = NULL,", "SET owner = NULL,"),
        ],
        postgres: &[
            ("THEN excluded.label ELSE", "THEN coalesce(l.label, excluded.label) ELSE"),
            (
                "acquired = clock_timestamp(), label = :label::text",
                "acquired = clock_timestamp(), label = coalesce(l.label, :label::text)",
            ),
            ("SET owner = NULL, label = NULL,", "SET owner = NULL,"),
        ],
        mysql: &[
            (
                "LEFT(CONVERT(:label USING utf8mb4), 523), label)",
                "COALESCE(label, LEFT(CONVERT(:label USING utf8mb4), 523)), label)",
            ),
            ("owner = NULL, label = NULL,", "owner = NULL,"),
        ],
    },
    WrongTexts {
        name: "owners_compared_in_part",
        what: "owners are compared without their last letter, as in a column that is too short",
        killed_by: "c01_owners_that_differ_in_one_bit_are_two",
        sqlite: &[(
            "OR owner = excluded.owner OR",
            "OR substr(owner, 1, 31) = substr(excluded.owner, 1, 31) OR",
        )],
        postgres: &[
            (
                "OR l.owner = excluded.owner OR",
                "OR left(l.owner, 31) = left(excluded.owner, 31) OR",
            ),
            ("h.owner <> :owner::text", "left(h.owner, 31) <> left(:owner::text, 31)"),
        ],
        mysql: &[("IF(owner <=> :owner", "IF(LEFT(owner, 31) <=> LEFT(:owner, 31)")],
    },
    WrongTexts {
        name: "a_ttl_of_whole_seconds",
        what: "a lease is kept in whole seconds",
        killed_by: "c04_a_ttl_with_a_fraction_is_kept",
        sqlite: &[("+ 1 + :ttl, :now", "+ 1 + :ttl / 1000000 * 1000000, :now")],
        postgres: &[
            ("present.now + :ttl::bigint *", "present.now + (:ttl::bigint / 1000000 * 1000000) *"),
            (
                "expires = clock_timestamp() + :ttl::bigint *",
                "expires = clock_timestamp() + (:ttl::bigint / 1000000 * 1000000) *",
            ),
        ],
        mysql: &[
            ("{now} + :ttl, {now}, LEFT", "{now} + :ttl DIV 1000000 * 1000000, {now}, LEFT"),
            (
                "GREATEST(expires, {now} + :ttl), expires)",
                "GREATEST(expires, {now} + :ttl DIV 1000000 * 1000000), expires)",
            ),
        ],
    },
    WrongTexts {
        name: "held_since_the_renewal",
        what: "a renewal begins the hold anew",
        killed_by: "c01_inspection_follows_the_hold",
        sqlite: &[("SET expires = max(", "SET acquired = :now, expires = max(")],
        postgres: &[(
            "SET expires = greatest(l.expires, clock_timestamp() +",
            "SET acquired = clock_timestamp(), expires = greatest(l.expires, clock_timestamp() +",
        )],
        mysql: &[
            (
                "expires = GREATEST(expires, {now} + :ttl) WHERE",
                "acquired = {now}, expires = GREATEST(expires, {now} + :ttl) WHERE",
            ),
            ("SET l.expires =", "SET l.acquired = {now}, l.expires ="),
        ],
    },
    WrongTexts {
        name: "list_of_the_first_hundred",
        what: "a list ends after its first page",
        killed_by: "c11_a_thousand_names_are_a_thousand_locks",
        sqlite: &[("< :booted END) ORDER BY name", "< :booted END) ORDER BY name LIMIT 100")],
        postgres: &[(
            "AND starts_with(l.name, :start::text)",
            "AND starts_with(l.name, :start::text) AND (SELECT count(*) FROM {t} AS c WHERE c.name < l.name) < 100",
        )],
        mysql: &[("> {now} ORDER BY name", "> {now} ORDER BY name LIMIT 100")],
    },
    WrongTexts {
        name: "list_by_pattern",
        what: "the start of a name is a pattern",
        killed_by: "c11_names_that_share_a_prefix_are_told_apart",
        sqlite: &[(
            "name >= :start AND substr(name, 1, length(:start)) = :start",
            "name LIKE :start || '%'",
        )],
        postgres: &[("starts_with(l.name, :start::text)", "l.name LIKE :start::text || '%'")],
        mysql: &[("LEFT(name, :length) = :start", "name LIKE CONCAT(:start, '%')")],
    },
];
