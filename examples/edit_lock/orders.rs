//! The orders: a table of the application, guarded by a revision and a fence.

use distlock::FencingToken;
use serde::Serialize;
use sqlx::AnyPool;

pub(crate) struct Orders(AnyPool);

#[derive(Serialize)]
pub(crate) struct Order {
    revision: i64,
    text: String,
}

impl From<(i64, String)> for Order {
    fn from((revision, text): (i64, String)) -> Self {
        Self { revision, text }
    }
}

/// What became of a save.
pub(crate) enum Saved {
    /// The new revision.
    As(i64),
    /// Why nothing was changed.
    Refused(&'static str),
}

impl Orders {
    /// Creates two orders if they are not there.
    pub(crate) async fn open(url: &str) -> sqlx::Result<Self> {
        sqlx::any::install_default_drivers();
        let pool = AnyPool::connect(url).await?;
        for step in [
            "CREATE TABLE IF NOT EXISTS edited_orders (
                id BIGINT PRIMARY KEY, revision BIGINT NOT NULL, text TEXT NOT NULL,
                fence BIGINT NOT NULL)",
            "INSERT INTO edited_orders VALUES (42, 1, 'Two boxes of apples', 0),
                (43, 1, 'A box of pears', 0) ON CONFLICT (id) DO NOTHING",
        ] {
            sqlx::query(step).execute(&pool).await?;
        }
        Ok(Self(pool))
    }

    /// The order for someone who only looks at it.
    pub(crate) async fn read(&self, id: i64) -> sqlx::Result<Option<Order>> {
        let read = "SELECT revision, text FROM edited_orders WHERE id = $1";
        let read = sqlx::query_as::<_, (i64, String)>(read).bind(id);
        Ok(read.fetch_optional(&self.0).await?.map(Order::from))
    }

    /// The order for an editor who has just got its lock: from now on no earlier editor saves.
    pub(crate) async fn open_for_edit(
        &self,
        id: i64,
        fence: FencingToken,
    ) -> sqlx::Result<Option<Order>> {
        let open = "UPDATE edited_orders SET fence = $1 WHERE id = $2 AND fence <= $1
                    RETURNING revision, text";
        let open = sqlx::query_as::<_, (i64, String)>(open).bind(fence.as_i64()).bind(id);
        Ok(open.fetch_optional(&self.0).await?.map(Order::from))
    }

    /// Saves what an editor has made of `revision`, if both guards let it pass.
    pub(crate) async fn save(
        &self,
        id: i64,
        revision: i64,
        text: &str,
        fence: FencingToken,
    ) -> sqlx::Result<Saved> {
        let save = "UPDATE edited_orders SET text = $1, revision = revision + 1, fence = $2
                    WHERE id = $3 AND revision = $4 AND fence <= $2 RETURNING revision";
        let save = sqlx::query_scalar(save).bind(text).bind(fence.as_i64()).bind(id).bind(revision);
        if let Some(revision) = save.fetch_optional(&self.0).await? {
            return Ok(Saved::As(revision));
        }
        // Only to say why; whatever has happened since, nothing was changed.
        let now = self.read(id).await?;
        Ok(Saved::Refused(match now {
            None => "there is no such order",
            Some(now) if now.revision != revision => "it was saved by someone else: open it again",
            Some(_) => "someone else has begun to edit it since: open it again",
        }))
    }
}
