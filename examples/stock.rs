//! Orders that must not sell more than there is.
//!
//! Two machines sell the same product. Each takes the lock of the product, looks how much is left,
//! waits for the payment, and then saves the order and reduces the stock. A machine that has to
//! wait is woken when the other one releases the lock, on a store that can do so, and gives up
//! after ten seconds.
//!
//! **What the lock gives:** nobody else sells the product between the look and the save, however
//! long the payment takes. (If there is nothing in between, `UPDATE … WHERE amount > 0` needs no
//! lock.) **What it does not give:** it cannot stop a machine that was paused after its last check,
//! or that uses another lock store by mistake. So both transactions, the one that looks and the one
//! that saves, present the fencing token before anything else: a machine that a later one has
//! overtaken changes nothing.
//!
//! The lock store and the database are independent of each other: exchange the URL of the first,
//! and the second stays what it is, here PostgreSQL or SQLite.
//!
//! ```sh
//! cargo run -p distlock-examples --bin stock -- \
//!     redis://127.0.0.1 postgres://postgres@127.0.0.1/shop machine-1 apple 5 100
//! ```

use std::error::Error;
use std::time::Duration;

use distlock::sql::fence;
use distlock::{ErrorKind, Held, Lock, Locks};
use sqlx::{PgPool, SqlitePool};

const TTL: Duration = Duration::from_secs(5);
/// How long a customer waits while others buy the same product.
const PATIENCE: Duration = Duration::from_secs(10);

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// What became of an order.
enum Order {
    Saved,
    SoldOut,
}

/// What is sold here, and to whom.
struct Shop<S> {
    stock: S,
    machine: String,
    product: String,
    /// How long the payment takes.
    payment: Duration,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, database, machine, product, orders, payment_ms] = &arguments[..] else {
        return Err("usage: stock STORE DATABASE MACHINE PRODUCT ORDERS PAYMENT_MS".into());
    };
    let payment = Duration::from_millis(payment_ms.parse()?);
    let (machine, product, orders) = (machine.clone(), product.clone(), orders.parse::<u32>()?);
    let locks = distlock::builder(store).default_ttl(TTL).label(&machine).connect().await?;
    if database.starts_with("sqlite:") {
        let stock = SqlitePool::connect(database).await?;
        Shop { stock, machine, product, payment }.open(&locks, orders).await?;
    } else {
        let stock = PgPool::connect(database).await?;
        Shop { stock, machine, product, payment }.open(&locks, orders).await?;
    }
    locks.close(TTL).await?;
    Ok(())
}

impl<S: Stock> Shop<S> {
    async fn open(&self, locks: &Locks, orders: u32) -> Result<()> {
        locks.named("stock:setup")?.run(async |_| self.stock.set_up().await).await??;
        let lock = locks.named(format!("stock:{}", self.product))?;
        for _ in 0..orders {
            match self.order(&lock).await {
                Ok(Order::Saved) => println!("{}: saved", self.machine),
                Ok(Order::SoldOut) => println!("{}: sold out", self.machine),
                Err(error) => println!("{}: not saved: {error}", self.machine),
            }
        }
        Ok(())
    }

    /// One order of one piece, under the lock of the product.
    async fn order(&self, lock: &Lock) -> Result<Order> {
        let guard = match lock.acquire_timeout(PATIENCE).await {
            Ok(guard) => guard,
            Err(busy) if busy.kind() == ErrorKind::NotAcquired => {
                return Err(format!("too many customers, try again: {busy}").into());
            }
            Err(error) => return Err(error.into()),
        };
        // If the lock is lost meanwhile, this ends with an error before the order is saved.
        guard.run(async |held| self.sell(held).await).await?
    }

    async fn sell(&self, held: Held) -> Result<Order> {
        let left = self.stock.look(&held, &self.product).await?;
        if left == 0 {
            return Ok(Order::SoldOut);
        }
        println!("{}: {left} left, waiting for the payment", self.machine);
        tokio::time::sleep(self.payment).await;
        self.stock.save(&held, &self.product, &self.machine).await?;
        Ok(Order::Saved)
    }
}

/// A database with what is left, and the orders.
trait Stock {
    /// Twenty pieces of each of two products.
    async fn set_up(&self) -> Result<()>;
    /// How much is left. After this, no earlier holder of the lock saves anything.
    async fn look(&self, held: &Held, product: &str) -> Result<i64>;
    /// Both rows, or none of them; an error if a later holder has looked.
    async fn save(&self, held: &Held, product: &str, machine: &str) -> Result<()>;
}

/// The same statements in both databases.
macro_rules! stock {
    ($pool:ty, $begin:literal) => {
        impl Stock for $pool {
            async fn set_up(&self) -> Result<()> {
                fence::create_table(self).await?;
                for step in [
                    "CREATE TABLE IF NOT EXISTS products (
                        name TEXT PRIMARY KEY, amount BIGINT NOT NULL)",
                    "CREATE TABLE IF NOT EXISTS orders (
                        product TEXT NOT NULL, machine TEXT NOT NULL, fence BIGINT NOT NULL)",
                    "INSERT INTO products VALUES ('apple', 20), ('pear', 20)
                        ON CONFLICT (name) DO NOTHING",
                ] {
                    sqlx::query(step).execute(self).await?;
                }
                Ok(())
            }

            async fn look(&self, held: &Held, product: &str) -> Result<i64> {
                let mut transaction = self.begin_with($begin).await?;
                fence::admit(&mut transaction, held).await?;
                let look = sqlx::query_scalar("SELECT amount FROM products WHERE name = $1");
                let left = look.bind(product).fetch_one(&mut *transaction).await?;
                transaction.commit().await?;
                Ok(left)
            }

            async fn save(&self, held: &Held, product: &str, machine: &str) -> Result<()> {
                let mut transaction = self.begin_with($begin).await?;
                fence::admit(&mut transaction, held).await?;
                let take = sqlx::query("UPDATE products SET amount = amount - 1 WHERE name = $1");
                take.bind(product).execute(&mut *transaction).await?;
                let order = "INSERT INTO orders (product, machine, fence) VALUES ($1, $2, $3)";
                let order = sqlx::query(order).bind(product).bind(machine);
                let order = order.bind(held.token()?.as_i64());
                order.execute(&mut *transaction).await?;
                transaction.commit().await?;
                Ok(())
            }
        }
    };
}

stock!(PgPool, "BEGIN");
// A transaction that is to write waits for its turn before it reads.
stock!(SqlitePool, "BEGIN IMMEDIATE");
