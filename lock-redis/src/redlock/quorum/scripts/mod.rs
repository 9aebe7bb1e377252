//! The scripts of a Redlock node.

use crate::node::scripts;

/// The node's own record: its marker and its mark. No lock key can read so (see [`Keys`]).
///
/// [`Keys`]: crate::names::Keys
pub(crate) const NODE_KEY: &str = "distlock\u{1e}quorum";

scripts! {
    ACQUIRE_VOTE = "../../../shared_lua/value" "../../../shared_lua/shared" "vote" "common" "acquire";
    RAISE_VOTE = "../../../shared_lua/value" "vote" "common" "raise";
    RENEW_VOTE = "../../../shared_lua/value" "../../../shared_lua/shared" "vote" "common" "renew";
    RELEASE_VOTE = "../../../shared_lua/value" "vote" "wake" "release";
    FORCE_VOTE = "../../../shared_lua/value" "../../../shared_lua/shared" "vote" "hold" "wake" "force";
    LOOK = "../../../shared_lua/value" "../../../shared_lua/values" "../../../shared_lua/shared" "vote" "hold" "common" "look";
    INSPECT = "../../../shared_lua/value" "../../../shared_lua/shared" "vote" "hold" "inspect";
    REPORT = "process" "report";
    BEGIN = "process" "begin";
    ADMIT = "process" "admit";
    PROBE_NODE = "../../../shared_lua/try" "probe";
}

#[cfg(test)]
mod tests {
    use lock_testkit::servers::RedisServer;

    use super::{ACQUIRE_VOTE, ADMIT, BEGIN};
    use crate::node::process_in;

    /// Microseconds.
    const MINUTE: u64 = 60_000_000;

    /// An admitted node of the quorum `q`.
    async fn node() -> (RedisServer, redis::aio::MultiplexedConnection, String) {
        let server = RedisServer::builder().start().await.unwrap();
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let info = redis::cmd("INFO").query_async(&mut connection).await.unwrap();
        let process = process_in(&info).to_string();
        let mut admit = redis::cmd("HSET");
        admit.arg("node").arg(&["run_id", &process, "state", "admitted", "quorum", "q"]);
        admit.exec_async(&mut connection).await.unwrap();
        (server, connection, process)
    }

    async fn time(connection: &mut redis::aio::MultiplexedConnection) -> u64 {
        let (seconds, micros): (u64, u64) =
            redis::cmd("TIME").query_async(connection).await.unwrap();
        seconds * 1_000_000 + micros
    }

    /// A waiter stands where the node's own clock puts it: one client whose clock is ahead would never
    /// be among those that are pushed to.
    #[tokio::test]
    async fn the_ticket_of_a_waiter_is_by_the_clock_of_the_node() {
        let (_server, mut connection, process) = node().await;
        redis::cmd("SET").arg(&["a", "foreign"]).exec_async(&mut connection).await.unwrap();
        let parts = ["a", "a:waiters"];
        // It says for how long it has waited, and what time its own clock shows only in its proposal.
        let ahead = time(&mut connection).await + 60 * MINUTE;
        for waited in [0, 30 * MINUTE] {
            let call = ACQUIRE_VOTE.call().key("node").keys(&parts).arg("q").arg("owner");
            let call = call.number(1).number(30_000).number(ahead).arg("channel");
            let before = time(&mut connection).await;
            call.number(waited)
                .arg("")
                .number(1)
                .number(MINUTE)
                .by_text(Some(&process))
                .exec_async(&mut connection)
                .await
                .unwrap();
            let after = time(&mut connection).await;
            let mut score = redis::cmd("ZSCORE");
            score.arg(&["a:waiters", "channel"]);
            let score: f64 = score.query_async(&mut connection).await.unwrap();
            let ticket = std::time::Duration::from_secs_f64(score / 1e6);
            let at = |micros| std::time::Duration::from_micros(micros);
            assert!(ticket >= at(before - waited - 1), "{ticket:?} after {waited}");
            assert!(ticket <= at(after - waited + 1), "{ticket:?} after {waited}");
        }
    }

    /// What a node has counted to may have been written before it lost what came after. The marks of the others are
    /// above that.
    #[tokio::test]
    async fn an_admitted_node_counts_on_from_its_seed() {
        const SEED: u64 = 1000;
        let (_server, mut connection, process) = node().await;
        let parts = ["a", "a:waiters"];
        let acquire =
            async |connection: &mut redis::aio::MultiplexedConnection| -> (u64, u64, u64, i64) {
                let call = ACQUIRE_VOTE.call().key("node").keys(&parts).arg("q").arg("owner");
                let call = call.number(1).number(1000).number(0).arg("").arg("").arg("");
                call.number(1)
                    .number(MINUTE)
                    .by_text(Some(&process))
                    .query_async(connection)
                    .await
                    .unwrap()
            };
        assert_eq!(acquire(&mut connection).await, (1, 1, 1, -1));
        redis::cmd("DEL").arg("a").exec_async(&mut connection).await.unwrap();
        let begin = BEGIN.call().key("node").arg("quarantine").arg("nonce").arg("q");
        let begin = begin.arg("boot").arg(&process).arg("0").arg("");
        let begun: u64 = begin.by_text(None).query_async(&mut connection).await.unwrap();
        let admit = ADMIT.call().key("node").arg("nonce").number(SEED).number(0).arg("boot");
        let admitted: u64 = admit.by_text(None).query_async(&mut connection).await.unwrap();
        assert_eq!((begun, admitted), (1, 1));
        assert_eq!(acquire(&mut connection).await, (1, SEED + 1, SEED + 1, -1));
    }

    /// A client whose clock is centuries ahead must not use up the counters of a node.
    #[tokio::test]
    async fn a_proposal_is_held_to_the_clock_of_the_node() {
        let (_server, mut connection, process) = node().await;
        const LEAD: u64 = MINUTE / 4;
        let mut last = 0;
        for (lock, proposal) in [("a", 1 << 52), ("b", 1 << 52), ("c", 0)] {
            let parts = [lock.to_owned(), format!("{lock}:waiters")];
            let call = ACQUIRE_VOTE.call().key("node").keys(&parts).arg("q").arg("owner");
            let call = call.number(1).number(30_000).number(proposal).arg("").arg("").arg("");
            let call = call.number(1).number(LEAD);
            let (granted, counter, mark, _): (u64, u64, u64, i64) =
                call.by_text(Some(&process)).query_async(&mut connection).await.unwrap();
            let now = time(&mut connection).await;
            assert_eq!((granted, counter), (1, mark), "{lock}");
            assert!(counter > last, "{lock}: {counter} after {last}");
            assert!(counter <= now + LEAD, "{lock}: {counter}");
            last = counter;
        }
    }
}
