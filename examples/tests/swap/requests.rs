//! HTTP, as a page or a driver of a browser speaks it.

use std::time::Duration;

use serde_json::Value;
use ureq::Agent;

/// The status and the JSON body of an answer; `Null` without a body.
pub(crate) type Answer = (u16, Value);

fn agent() -> Agent {
    let limit = Some(Duration::from_secs(60));
    Agent::config_builder().http_status_as_error(false).timeout_global(limit).build().into()
}

fn answer(response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Answer {
    let mut response = response.expect("an answer");
    let body = response.body_mut().with_config().limit(50 << 20).read_to_string();
    let body = serde_json::from_str(&body.expect("a body")).unwrap_or(Value::Null);
    (response.status().as_u16(), body)
}

pub(crate) fn get(url: &str) -> Answer {
    answer(agent().get(url).call())
}

pub(crate) fn post(url: &str, body: &Value) -> Answer {
    answer(agent().post(url).send_json(body))
}

/// With a text as its body.
pub(crate) fn post_text(url: &str, body: &str) -> Answer {
    answer(agent().post(url).send(body))
}

pub(crate) fn delete(url: &str) -> Answer {
    answer(agent().delete(url).call())
}

pub(crate) fn put(url: &str, body: &Value) -> Answer {
    answer(agent().put(url).send_json(body))
}
