//! Which stores must be available.

/// The variable that makes missing stores a failure: `all`, or the names of harnesses.
const REQUIRE: &str = "LOCK_TEST_REQUIRE";

/// Whether `LOCK_TEST_REQUIRE` names this harness, or all.
pub(crate) fn is_required(name: &str) -> bool {
    std::env::var(REQUIRE).is_ok_and(|list| names(&list, name))
}

fn names(list: &str, name: &str) -> bool {
    list.split(',').map(str::trim).any(|item| item == "all" || item == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_required_by_its_name_or_by_all() {
        assert!(names("all", "redis") && names("sqlite, redis", "redis"));
        assert!(!names("", "redis") && !names("redlock", "redis"));
    }
}
