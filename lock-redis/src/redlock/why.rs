//! Why nodes do not vote yet, for people.

use std::time::Duration;

use lock_core::ClockInstant;

/// What one node waits for, or with `node: None` all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Why {
    node: Option<usize>,
    what: String,
    /// For how much longer, where that is known.
    left: Option<Duration>,
}

impl Why {
    pub(crate) fn all(what: impl Into<String>) -> Self {
        Self { node: None, what: what.into(), left: None }
    }

    pub(crate) fn node(node: usize, what: impl Into<String>) -> Self {
        Self { node: Some(node), what: what.into(), left: None }
    }

    pub(crate) fn left(self, left: Duration) -> Self {
        Self { left: Some(left), ..self }
    }

    /// Whether it is about this node.
    pub(crate) fn is_of(&self, node: usize) -> bool {
        self.node == Some(node)
    }

    /// Whether it is about all nodes.
    pub(crate) fn is_of_all(&self) -> bool {
        self.node.is_none()
    }

    /// For how much longer, where that is known.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        self.left
    }

    pub(crate) fn text<'a>(&self, endpoint: impl Fn(usize) -> &'a str, passed: Duration) -> String {
        let mut text = match self.node {
            Some(node) => format!("{} {}", endpoint(node), self.what),
            None => self.what.clone(),
        };
        if let Some(left) = self.left {
            text.push_str(&format!(", in {:.1?}", left.saturating_sub(passed)));
        }
        text
    }
}

/// The known reasons, and when they were noted.
#[derive(Debug, Default)]
pub(crate) struct Whys {
    list: Vec<Why>,
    noted: Option<ClockInstant>,
    /// Whether the log has it.
    warned: bool,
}

impl Whys {
    /// Notes what nodes wait for, and says whether to log it: not while the work is under way, and
    /// only once.
    pub(crate) fn note(&mut self, list: &[Why], is_under_way: bool, now: ClockInstant) -> bool {
        self.list = list.to_vec();
        self.noted = Some(now);
        let warn = !list.is_empty() && !is_under_way && !self.warned;
        self.warned = !list.is_empty() && (self.warned || warn);
        warn
    }

    /// In words, with the times as they are now; `None` if there is nothing to report.
    pub(crate) fn text<'a>(
        &self,
        endpoint: impl Fn(usize) -> &'a str,
        now: ClockInstant,
    ) -> Option<String> {
        let passed = self.noted.map(|noted| now.since(noted)).unwrap_or_default();
        let lines: Vec<_> = self.list.iter().map(|why| why.text(&endpoint, passed)).collect();
        (!lines.is_empty()).then(|| lines.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_named_with_what_it_waits_for_and_until_when() {
        let start = ClockInstant::from_nanos(1);
        let endpoint = |node| ["a:1", "b:2"][node];
        let mut whys = Whys::default();
        let list =
            [Why::node(1, "was restarted").left(Duration::from_secs(9)), Why::all("it waits")];
        assert!(!whys.note(&list, true, start), "it may be over in a moment");
        assert!(whys.note(&list, false, start));
        assert!(!whys.note(&list, false, start), "the log has it");
        let later = start + Duration::from_millis(2500);
        let text = whys.text(endpoint, later).unwrap();
        assert_eq!(text, "b:2 was restarted, in 6.5s; it waits");
        assert!(!whys.note(&[], false, start));
        assert_eq!(whys.text(endpoint, later), None);
        assert!(whys.note(&list, false, start));
    }

    #[test]
    fn a_reason_is_of_one_node_or_of_all() {
        let left = Duration::from_secs(9);
        let (one, all) = (Why::node(1, "a").left(left), Why::all("b"));
        assert!(one.is_of(1) && !one.is_of(0) && !one.is_of_all());
        assert!(all.is_of_all() && !all.is_of(1));
        assert_eq!((one.time_left(), all.time_left()), (Some(left), None));
        assert_eq!(one.text(|_| "h", Duration::ZERO), "h a, in 9.0s");
    }
}
