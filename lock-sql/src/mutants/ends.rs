//! Mistakes in when a lease ends.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "renewal_of_what_has_ended",
        what_is_wrong: "a renewal prolongs a lease that has ended",
        killed_by: "c06_a_renewal_after_the_end_is_lost",
        sqlite: &[("AND boot = :boot AND expires > :now", "AND boot = :boot")],
        postgres: &[("AND l.expires > clock_timestamp() ORDER BY", "ORDER BY")],
        mysql: &[("AND owner = :owner AND expires > ", "AND owner = :owner AND 0 < ")],
    },
    Mutant {
        name: "a_lease_that_is_never_longer",
        what_is_wrong: "a renewal writes and prolongs nothing, as where the present is that of a transaction's start",
        killed_by: "c04_renewals_keep_the_lock",
        sqlite: &[("SET expires = max(expires, :now", "SET expires = min(expires, :now")],
        postgres: &[(
            "SET expires = greatest(l.expires, clock_timestamp() + due",
            "SET expires = least(l.expires, clock_timestamp() + due",
        )],
        mysql: &[(
            "expires = GREATEST(expires, {now} + :ttl) WHERE",
            "expires = expires + 0 * :ttl WHERE",
        )],
    },
    Mutant {
        name: "a_repeat_after_the_end_takes_anew",
        what_is_wrong: "a try that is repeated after the end of its lease gets another token",
        killed_by: "late_repeats",
        sqlite: &[],
        postgres: &[(
            "l.expires <= clock_timestamp() AND l.owner <> :owner::text",
            "l.expires <= clock_timestamp()",
        )],
        mysql: &[],
    },
    Mutant {
        name: "a_late_try_shortens_the_lease",
        what_is_wrong: "a try that is late ends the lease one ttl of its own after it",
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
    Mutant {
        name: "a_late_renewal_shortens_the_lease",
        what_is_wrong: "a renewal that is late ends the lease one ttl of its own after it",
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
    Mutant {
        name: "a_late_batch_shortens_the_lease",
        what_is_wrong: "renewals of many leases that are late end them one ttl of their own after it",
        killed_by: "late_requests",
        sqlite: &[],
        postgres: &[],
        mysql: &[(
            "FORCE INDEX (PRIMARY) SET expires = GREATEST(expires, {now} + :ttl)",
            "FORCE INDEX (PRIMARY) SET expires = {now} + :ttl",
        )],
    },
    Mutant {
        name: "a_repeat_shortens_the_lease",
        what_is_wrong: "a repeated try ends the lease at once",
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
];
