//! The page of the edit lock in two windows of a real browser, each at another process.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::edit_lock::{Server, TTL};
use crate::programs::{Bench, now, pause};
use crate::stores::Store;
use crate::web_driver::Browser;

const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

/// If this is set, the picture in the documentation is taken anew.
const WRITE: &str = "DISTLOCK_WRITE_PICTURE";
const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/edit-lock.png");

pub(crate) fn works(store: &Store) {
    let bench = Bench::new(store);
    let [one, two] = [(); 2].map(|()| Server::start(&bench));
    let page = |server: &Server, user: &str| format!("{}/orders/42?user={user}", server.url);
    let browser = Browser::start();

    let ann = browser.open(&page(&one, "ann"));
    browser.shows("who", "You are editing.");
    let begun = now();
    let bob = browser.open(&page(&two, "bob"));
    browser.shows("who", "ann has been editing since");
    if std::env::var_os(WRITE).is_some() {
        take_picture(&browser, &ann, &bob);
    }

    browser.switch_to(&ann);
    browser.type_into("text", " and a melon");
    browser.click("save");
    browser.shows("said", "Saved as revision 2.");
    // The heartbeats keep the lock for longer than its ttl, and bob sees what ann has saved.
    pause((TTL + SECOND).saturating_sub(now().since(begun)));
    browser.shows("who", "You are editing.");
    browser.switch_to(&bob);
    browser.shows("who", "ann has been editing since");
    assert_eq!(text(&browser), "Two boxes of apples and a melon");

    browser.switch_to(&ann);
    browser.close();
    let closed = now();
    browser.switch_to(&bob);
    browser.shows("who", "You are editing.");
    // Bob asks every two seconds.
    assert!(now().since(closed) < TTL + 3 * SECOND, "{:?}", now().since(closed));
    an_old_page_saves_nothing(&browser, &bob, &page(&one, "carol"), &two);
}

/// Bob's process stands still, so his heartbeats fail and his lock lapses.
fn an_old_page_saves_nothing(browser: &Browser, bob: &str, page: &str, server: &Server) {
    let old = browser.run("return [lease, revision]", &[]);
    server.program.freeze();
    browser.shows("who", "Not connected");
    browser.open(page);
    browser.shows("who", "You are editing.");
    browser.type_into("text", " and a plum");
    browser.click("save");
    browser.shows("said", "Saved as revision 3.");
    server.program.thaw();

    browser.switch_to(bob);
    browser.shows("who", "carol has been editing since");
    browser.shows("said", "saved by someone else");
    assert_eq!(text(browser), "Two boxes of apples and a melon and a plum");
    // Bob's page as it was: it has not heard of any of this, and its button still works.
    let Value::Array(old) = old else { panic!("no list: {old}") };
    // In one step, since a heartbeat may come at any time.
    let save = "const now = [lease, revision];
        [lease, revision] = arguments;
        at('save').disabled = false;
        at('save').click();
        [lease, revision] = now";
    browser.run(save, &old);
    browser.shows("said", "Not saved:");
    assert_eq!(text(browser), "Two boxes of apples and a melon and a plum");
}

fn text(browser: &Browser) -> String {
    browser.run("return at('text').value", &[]).as_str().expect("a text").to_owned()
}

/// Both windows side by side.
fn take_picture(browser: &Browser, ann: &str, bob: &str) {
    let windows = [ann, bob].map(|window| {
        browser.switch_to(window);
        json!(browser.picture())
    });
    browser.open("about:blank");
    let script = "
        document.body.style = 'margin: 12px; display: flex; gap: 12px; align-items: start; background: #889';
        for (const picture of arguments) {
            const image = document.createElement('img');
            image.src = 'data:image/png;base64,' + picture;
            image.style = 'width: 440px; border-radius: 6px';
            document.body.append(image);
        }
        return Promise.all([...document.images].map(image => image.decode())).then(() => null)";
    browser.resize(920, 480);
    browser.run(script, &windows);
    let picture = STANDARD.decode(browser.picture()).expect("base64");
    std::fs::write(Path::new(PICTURE), picture).expect("docs is writable");
    browser.close();
}
