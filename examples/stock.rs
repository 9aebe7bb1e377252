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
//! or that uses another lock store by mistake. So the transaction that saves compares the fence:
//! a machine that a later one has overtaken changes nothing.
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

use distlock::{ErrorKind, FencingToken, Held, Lock};
use sqlx::AnyPool;

const TTL: Duration = Duration::from_secs(5);
/// How long a customer waits while others buy the same product.
const PATIENCE: Duration = Duration::from_secs(10);

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// What became of an order.
enum Order {
    Saved,
    SoldOut,
    /// A later holder of the lock has been at the product.
    Overtaken,
}

/// What is sold here, and to whom.
struct Shop {
    database: AnyPool,
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
    let locks = distlock::builder(store).default_ttl(TTL).label(machine).connect().await?;
    sqlx::any::install_default_drivers();
    let database = AnyPool::connect(database).await?;
    locks.named("stock:setup")?.run(async |_| set_up(&database).await).await??;

    let shop = Shop { database, machine: machine.clone(), product: product.clone(), payment };
    let lock = locks.named(format!("stock:{product}"))?;
    for _ in 0..orders.parse()? {
        match shop.order(&lock).await {
            Ok(Order::Saved) => println!("{machine}: saved"),
            Ok(Order::SoldOut) => println!("{machine}: sold out"),
            Ok(Order::Overtaken) => println!("{machine}: refused, a later holder was here"),
            Err(error) => println!("{machine}: not saved: {error}"),
        }
    }
    locks.close(TTL).await?;
    Ok(())
}

impl Shop {
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
        let fence = held.token()?;
        let Some(left) = self.look(fence).await? else { return Ok(Order::Overtaken) };
        if left == 0 {
            return Ok(Order::SoldOut);
        }
        println!("{}: {left} left, waiting for the payment", self.machine);
        tokio::time::sleep(self.payment).await;
        self.save(fence).await
    }

    /// How much is left. The look presents the fence too, so no earlier holder saves after it.
    async fn look(&self, fence: FencingToken) -> sqlx::Result<Option<i64>> {
        let look =
            "UPDATE products SET fence = $1 WHERE name = $2 AND fence <= $1 RETURNING amount";
        let look = sqlx::query_scalar(look).bind(fence.as_i64()).bind(&self.product);
        look.fetch_optional(&self.database).await
    }

    /// Both rows, or none of them.
    async fn save(&self, fence: FencingToken) -> Result<Order> {
        let mut transaction = self.database.begin().await?;
        let take = "UPDATE products SET amount = amount - 1 WHERE name = $1 AND fence = $2";
        let take = sqlx::query(take).bind(&self.product).bind(fence.as_i64());
        if take.execute(&mut *transaction).await?.rows_affected() == 0 {
            transaction.rollback().await?;
            return Ok(Order::Overtaken);
        }
        let order = sqlx::query("INSERT INTO orders (product, machine, fence) VALUES ($1, $2, $3)")
            .bind(&self.product)
            .bind(&self.machine)
            .bind(fence.as_i64());
        order.execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(Order::Saved)
    }
}

/// Twenty pieces of each of two products.
async fn set_up(database: &AnyPool) -> sqlx::Result<()> {
    for step in [
        "CREATE TABLE IF NOT EXISTS products (
            name TEXT PRIMARY KEY, amount BIGINT NOT NULL, fence BIGINT NOT NULL)",
        "CREATE TABLE IF NOT EXISTS orders (
            product TEXT NOT NULL, machine TEXT NOT NULL, fence BIGINT NOT NULL)",
        "INSERT INTO products VALUES ('apple', 20, 0), ('pear', 20, 0)
            ON CONFLICT (name) DO NOTHING",
    ] {
        sqlx::query(step).execute(database).await?;
    }
    Ok(())
}
