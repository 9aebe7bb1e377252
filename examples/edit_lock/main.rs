//! The edit lock of a web page.
//!
//! Several people share an account and open the same order. Their pages ask for the lock of the
//! order every two seconds, and send back the text that they were given; each request may reach
//! another process of this service. The bearer of the text keeps the lock; everybody else is told
//! who edits, and since when. A page that is closed gives the lock up, and if its browser is
//! killed, the lock lapses within five seconds.
//!
//! **What the lock gives:** one person edits at a time, and the others know who. **What it does not
//! give:** it cannot stop a save that is under way while the lock lapses. So a save compares the
//! *revision* (a page that shows an old order changes nothing) and the *fence* (nor does an editor
//! after whom another one has opened the order), in the statement that writes.
//!
//! The text comes back from a browser, so none of it is trusted: it is used with the lock of the
//! order in the request, and the store compares the rest. It is a secret of its page; the rights of
//! a user are not the lock's business, and are left out here.
//!
//! ```sh
//! cargo run -p distlock-examples --bin edit_lock -- \
//!     sqlite://target/locks.db 'sqlite://target/app.db?mode=rwc' 8001
//! ```
//!
//! Start a second one on port 8002, and open <http://127.0.0.1:8001/orders/42?user=ann> and
//! <http://127.0.0.1:8002/orders/42?user=bob>.

mod api;
mod orders;

use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use distlock::{Feature, Lock, Locks};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use orders::Orders;

/// What every request uses.
struct App {
    locks: Locks,
    orders: Orders,
}

impl App {
    /// The lock of an order. Every request uses the same settings, which are not in the text.
    fn lock(&self, order: i64) -> distlock::Result<Lock> {
        Ok(self.locks.named(format!("order:{order}"))?.ttl(Duration::from_secs(5)).no_renew())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, database, port] = &arguments[..] else {
        return Err("usage: edit_lock STORE DATABASE PORT".into());
    };
    let mut stop = signal(SignalKind::terminate())?;
    let locks = distlock::connect(store).await?;
    // A store that cannot hand a lock from request to request is refused now, and not by a page.
    locks.require([Feature::Detach, Feature::Inspect])?;
    let setup = locks.named("edit-lock:setup")?;
    let orders = setup.run(async |_| Orders::open(database).await).await??;

    let app = Arc::new(App { locks: locks.clone(), orders });
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse()?)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    // Requests in progress are dropped: that releases no lock whose text a page has, and every page
    // goes on with another process.
    tokio::select! {
        served = axum::serve(listener, api::router(app)) => served?,
        _ = stop.recv() => {}
    }
    locks.close(Duration::from_secs(5)).await?;
    Ok(())
}
