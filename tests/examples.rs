//! The examples do what they say, on more than one store, by changing the URL only.

#[path = "../examples/edit_lock.rs"]
mod edit_lock;
#[path = "../examples/tasks.rs"]
mod tasks;

/// One URL for each store of this build; each test has stores of its own.
fn urls(test: &str) -> Vec<String> {
    let mut urls = vec![format!("memory://{test}")];
    if distlock::schemes().contains(&"sqlite") {
        let folder =
            std::env::temp_dir().join(format!("distlock-example-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        urls.push(format!("sqlite://{}/locks.db", folder.display()));
    }
    urls
}

fn remove(url: &str) {
    if let Some(file) = url.strip_prefix("sqlite://") {
        let folder = std::path::Path::new(file).parent().expect("a folder");
        std::fs::remove_dir_all(folder).expect("it was made by this test");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_is_done_once() {
    for url in urls("tasks") {
        let runs = tasks::run(&url).await.expect(&url);
        assert_eq!(runs, [1; 20], "{url}");
        remove(&url);
    }
}

#[tokio::test]
async fn an_edit_lock_goes_from_request_to_request() {
    for url in urls("edit") {
        let (before, after) = edit_lock::run(&url).await.expect(&url);
        assert!(matches!(before, edit_lock::Answer::Taken(who) if who == "ann"), "{url}");
        assert!(matches!(after, edit_lock::Answer::Yours(_)), "{url}");
        remove(&url);
    }
}
