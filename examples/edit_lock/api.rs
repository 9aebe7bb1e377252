//! What the page asks. No request depends on an earlier one to this process.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use distlock::ErrorKind;
use serde::{Deserialize, Serialize};

use crate::App;
use crate::orders::{Order, Saved};

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/orders/{order}", get(async || Html(include_str!("page.html"))))
        .route("/orders/{order}/edit", post(edit))
        .route("/orders/{order}/close", post(close))
        .route("/orders/{order}/text", put(save))
        .with_state(app)
}

/// The heartbeat of a page.
#[derive(Deserialize)]
struct Edit {
    user: String,
    /// What the last heartbeat was answered.
    lease: Option<String>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    /// You edit: send this lease back within this time, counted from when you asked.
    Yours { lease: String, remaining_ms: u128, order: Option<Order> },
    /// Someone else edits; the order is for looking at.
    Theirs { editor: String, since: String, order: Option<Order> },
}

/// A browser that goes away drops this at any await. That never releases a lock whose lease it has.
async fn edit(
    State(app): State<Arc<App>>,
    Path(order): Path<i64>,
    Json(asked): Json<Edit>,
) -> Result<Json<Answer>, Refused> {
    let lock = app.lock(order)?;
    if let Some(lease) = asked.lease {
        match lock.renew(&lease.parse()?).await {
            Ok(renewed) => {
                let remaining_ms = renewed.remaining.as_millis();
                return Ok(Json(Answer::Yours { lease, remaining_ms, order: None }));
            }
            // The page was away too long; perhaps the lock is free.
            Err(lost) if lost.lost_reason().is_some() => {}
            Err(error) => return Err(error.into()),
        }
    }
    // The label is what others are shown. Not every store knows for how long a lock has been held.
    let now = humantime::format_rfc3339_seconds(SystemTime::now());
    let lock = lock.label(format!("{}, since {now}", asked.user));
    let Some(guard) = lock.try_acquire().await? else {
        let holder = app.locks.inspect(lock.key().name()).await?.and_then(|info| info.holder);
        let label = holder.and_then(|holder| holder.label).unwrap_or_default();
        let (editor, since) = label.rsplit_once(", since ").unwrap_or(("someone", ""));
        let (editor, since) = (editor.to_owned(), since.to_owned());
        return Ok(Json(Answer::Theirs { editor, since, order: app.orders.read(order).await? }));
    };
    // If this fails, the guard is dropped, and the lock is free again.
    let opened = app.orders.open_for_edit(order, guard.token()?).await?;
    let opened = opened
        .ok_or_else(|| Refused::overtaken("this order does not exist, or has a later editor"))?;
    let remaining_ms = guard.remaining().as_millis();
    // From here on the lock belongs to the bearer of the lease, and not to this request.
    let lease = guard.detach().await.map_err(distlock::Error::from)?.to_text();
    Ok(Json(Answer::Yours { lease, remaining_ms, order: Some(opened) }))
}

/// The page is closed: others need not wait until the lock lapses.
async fn close(
    State(app): State<Arc<App>>,
    Path(order): Path<i64>,
    lease: String,
) -> Result<StatusCode, Refused> {
    app.lock(order)?.release(lease.parse()?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What a page has made of a revision.
#[derive(Deserialize)]
struct Edited {
    lease: String,
    revision: i64,
    text: String,
}

/// The new revision.
async fn save(
    State(app): State<Arc<App>>,
    Path(order): Path<i64>,
    Json(edited): Json<Edited>,
) -> Result<Json<i64>, Refused> {
    // The store confirms that the page has the lock, and says with which fence.
    let lease = app.lock(order)?.renew(&edited.lease.parse()?).await?;
    match app.orders.save(order, edited.revision, &edited.text, lease.fence).await? {
        Saved::As(revision) => Ok(Json(revision)),
        Saved::Refused(why) => Err(Refused::overtaken(why)),
    }
}

/// An error as the page gets it.
struct Refused(StatusCode, String);

impl Refused {
    /// A later editor was here.
    fn overtaken(why: &str) -> Self {
        Self(StatusCode::PRECONDITION_FAILED, why.to_owned())
    }
}

impl From<distlock::Error> for Refused {
    fn from(error: distlock::Error) -> Self {
        let status = match error.kind() {
            ErrorKind::InvalidInput => StatusCode::BAD_REQUEST,
            ErrorKind::Lost(_) => StatusCode::CONFLICT,
            _ if error.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_client_error() {
            return Self(status, error.message().to_owned());
        }
        // No error shows a credential or a lease, but this one may name the hosts of the store.
        eprintln!("the locks: {error}");
        Self(status, "the locks cannot be reached".to_owned())
    }
}

impl From<sqlx::Error> for Refused {
    fn from(error: sqlx::Error) -> Self {
        eprintln!("the database: {error}");
        Self(StatusCode::INTERNAL_SERVER_ERROR, "the database does not answer".to_owned())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}
