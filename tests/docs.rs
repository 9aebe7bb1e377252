//! What the documents quote is what is tested.

use std::fs;

fn read(path: &str) -> String {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_small_backend_of_the_guide_is_the_one_that_is_tested() {
    let code = read("conformance-tests/tests/small_backend.rs");
    assert!(code.len() > 1000);
    assert!(
        read("docs/writing-a-backend.md").contains(&format!("```rust\n{code}```\n")),
        "docs/writing-a-backend.md quotes another text: copy conformance-tests/tests/small_backend.rs into it"
    );
}

#[test]
fn the_tests_of_the_testing_page_are_the_ones_that_run() {
    let code = read("tests/testing_your_code.rs");
    assert!(code.len() > 1000);
    assert!(
        read("docs/testing.md").contains(&format!("```rust\n{code}```\n")),
        "docs/testing.md quotes another text: copy tests/testing_your_code.rs into it"
    );
}

#[test]
fn local_links_of_the_documents_lead_somewhere() {
    let mut checked = 0;
    for page in [
        "README.md",
        "CONTRIBUTING.md",
        "conformance-tests/README.md",
        "docs/api.md",
        "docs/design.md",
        "docs/guarantees.md",
        "docs/performance.md",
        "docs/testing.md",
        "docs/writing-a-backend.md",
        "lock-cli/README.md",
        "lock-redis/README.md",
        "lock-redis/REDLOCK.md",
        "lock-etcd/README.md",
        "lock-zk/README.md",
        "lock-sql/README.md",
    ] {
        let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
        for link in read(page)
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split([')', '#']).next().map(str::to_owned))
        {
            if link.is_empty() || link.contains("://") {
                continue;
            }
            let path = format!("{}/{folder}/{link}", env!("CARGO_MANIFEST_DIR"));
            assert!(
                fs::exists(&path).unwrap_or(false),
                "{page} links to {link}, which is not there"
            );
            checked += 1;
        }
    }
    assert!(checked > 0);
}
