//! Mistakes in what is kept and shown of a hold.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "the_last_label_stays",
        what_is_wrong: "a holder is shown under the label of the one before",
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
                "LEFT(CONVERT(:label USING utf8mb4), 255), label)",
                "COALESCE(label, LEFT(CONVERT(:label USING utf8mb4), 255)), label)",
            ),
            ("owner = NULL, label = NULL,", "owner = NULL,"),
        ],
    },
    Mutant {
        name: "owners_compared_in_part",
        what_is_wrong: "owners are compared without their last letter, as in a column that is too short",
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
    Mutant {
        name: "a_ttl_of_whole_seconds",
        what_is_wrong: "a lease is kept in whole seconds",
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
    Mutant {
        name: "held_since_the_renewal",
        what_is_wrong: "a renewal begins the hold anew",
        killed_by: "c01_inspection_follows_the_hold",
        sqlite: &[("SET expires = max(", "SET acquired = :now, expires = max(")],
        postgres: &[(
            "SET expires = greatest(l.expires, clock_timestamp() +",
            "SET acquired = clock_timestamp(), expires = greatest(l.expires, clock_timestamp() +",
        )],
        mysql: &[(
            "expires = GREATEST(expires, {now} + :ttl) WHERE",
            "acquired = {now}, expires = GREATEST(expires, {now} + :ttl) WHERE",
        )],
    },
    Mutant {
        name: "list_of_the_first_hundred",
        what_is_wrong: "a list ends after its first page",
        killed_by: "c11_a_thousand_names_are_a_thousand_locks",
        sqlite: &[("< :booted END) ORDER BY name", "< :booted END) ORDER BY name LIMIT 100")],
        postgres: &[(
            "AND starts_with(l.name, :start::text)",
            "AND starts_with(l.name, :start::text) AND (SELECT count(*) FROM {t} AS c WHERE c.name < l.name) < 100",
        )],
        mysql: &[("> {now} ORDER BY name", "> {now} ORDER BY name LIMIT 100")],
    },
    Mutant {
        name: "list_by_pattern",
        what_is_wrong: "the start of a name is a pattern",
        killed_by: "c11_names_that_share_a_prefix_are_told_apart",
        sqlite: &[(
            "name >= :start AND substr(name, 1, length(:start)) = :start",
            "name LIKE :start || '%'",
        )],
        postgres: &[("starts_with(l.name, :start::text)", "l.name LIKE :start::text || '%'")],
        mysql: &[("LEFT(name, :length) = :start", "name LIKE CONCAT(:start, '%')")],
    },
];
