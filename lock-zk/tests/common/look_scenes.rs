//! Scenes of looks: see [`scenes`](super::scenes).

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::time::Duration;

use lock_core::{FencingToken, LockBackend, LockKey, OsRng, OwnerId, Renewal, Seen as Look};
use lock_testkit::servers::ZooKeeper;
use lock_zk::ZkBackend;
use zookeeper_client as zk;

use super::crossing::{self, Crossing};
use super::scenes::Seen;
use super::{
    CALL, DEFAULT, SESSION, SLACK, acquired, backend, backend_at, behind_proxy, busy, claim,
    connect, granted, hosts, plain, until,
};

/// No request that keeps a session comes between.
const SELDOM: &str = "lock_session_timeout=30s";

/// A look at one name, and one at so many, which are read by one request.
const ALONE: usize = 1;
const AMONG: usize = 8;

/// Looks at a name among others that nobody uses.
async fn try_look(backend: &ZkBackend, name: &str, names: usize) -> lock_core::Result<Look> {
    let mut keys: Vec<_> =
        (1..names).map(|at| LockKey::new("", format!("idle-{at}")).unwrap()).collect();
    keys.insert(names / 2, LockKey::new("", name).unwrap());
    let mut seen = backend.look(&keys).await?;
    assert_eq!(seen.len(), names);
    let looked_at = seen.remove(names / 2);
    assert!(seen.iter().all(|seen| matches!(seen, Look::Free { .. })), "{seen:?}");
    Ok(looked_at)
}

async fn look(backend: &ZkBackend, name: &str, names: usize) -> Look {
    try_look(backend, name, names).await.unwrap()
}

fn held_by(fence: FencingToken) -> Look {
    Look::Held { fence: Some(fence), label: None }
}

fn must_be(seen: Look, expected: &Look, when: &str) -> Seen {
    match seen == *expected {
        true => Ok(()),
        false => Err(format!("violated: {when} a look shows {seen:?}, not {expected:?}")),
    }
}

/// The floor of a lock that is free.
fn floor(seen: &Look, when: &str) -> Result<FencingToken, String> {
    match seen {
        Look::Free { floor: Some(floor) } => Ok(*floor),
        other => Err(format!("violated: {when} the lock is free, and a look shows {other:?}")),
    }
}

/// The fence of one hold.
async fn hold(backend: &ZkBackend, name: &str) -> FencingToken {
    let mut holder = claim(backend, name, true);
    let fence = acquired(&mut *holder).await;
    holder.release().await.unwrap();
    fence
}

/// Waits until the servers have removed this node, as they do when it is empty.
async fn is_gone(plain: &zk::Client, path: &str) {
    until("an empty node is removed", SLACK * 2, async || {
        plain.check_stat(path).await.unwrap().is_none()
    })
    .await;
}

/// From the grant to the release, also where the lock was handed to one who does not know it yet, and
/// whoever it is.
pub(crate) async fn a_look_shows_the_first_in_the_queue() -> Seen {
    for names in [ALONE, AMONG] {
        shows_the_first(names).await?;
    }
    Ok(())
}

async fn shows_the_first(names: usize) -> Seen {
    let servers = super::server().await;
    let (ours, others) = (backend(&servers).await, backend(&servers).await);
    let plain = plain(&servers).await;
    let lock = async |backend: &ZkBackend| look(backend, "lock", names).await;
    // Nobody has given a fence.
    must_be(lock(&ours).await, &Look::Free { floor: None }, "at first")?;
    let (key, owner) = (LockKey::new("", "lock").unwrap(), OwnerId::generate(&OsRng).unwrap());
    let request = lock_core::ClaimRequest::new(key, owner, SESSION).with_call_timeout(CALL);
    let mut holder = ours.claim(request.with_label(Some("ci-7".to_owned()))).unwrap();
    let fence = granted(&mut *holder).await;
    let [mut second, mut third] = [(); 2].map(|()| claim(&others, "lock", true));
    busy(&mut *second).await;
    busy(&mut *third).await;
    let mode = zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());
    let path = "/locks/lock/00000000000000000000000000000000__lock__";
    let (stat, sequence) = plain.create(path, b"a secret", &mode).await.unwrap();
    let held = Look::Held { fence: Some(fence), label: Some("ci-7".to_owned()) };
    must_be(lock(&others).await, &held, "with waiters")?;
    holder.release().await.unwrap();
    let handed = lock(&ours).await;
    must_be(handed, &held_by(granted(&mut *second).await), "after a hand-over")?;
    third.release().await.unwrap();
    second.release().await.unwrap();
    // Fences count from one base.
    let behind = u64::try_from(stat.czxid).unwrap() - czxid_of(fence, &ours, &plain).await;
    let foreign = FencingToken::new(fence.get() + behind).unwrap();
    must_be(lock(&ours).await, &held_by(foreign), "with a client of another kind")?;
    // It is no contender.
    super::make(&plain, "/locks/lock/notes").await;
    plain.delete(&format!("{path}{sequence}"), None).await.unwrap();
    plain.sync("/").await.unwrap();
    if floor(&lock(&ours).await, "at last")? < foreign {
        return Err("violated: a floor is below an earlier fence".into());
    }
    Ok(())
}

/// The transaction of a fence, by another hold whose node shows both.
async fn czxid_of(fence: FencingToken, ours: &ZkBackend, plain: &zk::Client) -> u64 {
    let mut other = claim(ours, "other", true);
    let later = granted(&mut *other).await;
    let node = super::children(plain, "other").await.pop().unwrap();
    let stat = plain.check_stat(&format!("/locks/other/{node}")).await.unwrap().unwrap();
    other.release().await.unwrap();
    u64::try_from(stat.czxid).unwrap() - (later.get() - fence.get())
}

/// A floor is above all fences before it, and below all after it: also when the node of the lock was
/// removed, when the root was, and after a restart.
pub(crate) async fn a_floor_lies_between_the_fences() -> Seen {
    let servers = super::server().await;
    for parameters in ["lock_session_timeout=2s&lock_fence=revision", DEFAULT] {
        let (ours, others) = (
            connect(hosts(&servers), parameters).await,
            connect(hosts(&servers), parameters).await,
        );
        let plain = plain(&servers).await;
        let first = look(&ours, "lock", ALONE).await;
        let mut last = hold(&ours, "lock").await;
        if !matches!(first, Look::Free { floor } if floor.is_none_or(|floor| floor < last)) {
            return Err(format!("violated: a look shows {first:?} before the fence {last}"));
        }
        for round in 0..8 {
            match round {
                2 => is_gone(&plain, "/locks/lock").await,
                4 => {
                    servers.restart().await.unwrap();
                    for client in [&ours, &others] {
                        until("it is connected", SLACK, async || client.ping().await.is_ok()).await;
                    }
                }
                // Without the base of the fences in it.
                6 if parameters != DEFAULT => is_gone(&plain, "/locks").await,
                _ => {}
            }
            let when = format!("in round {round} with {parameters}");
            let names = if round / 2 % 2 == 0 { ALONE } else { AMONG };
            let seen = look(if round % 2 == 0 { &others } else { &ours }, "lock", names).await;
            let floor = floor(&seen, &when)?;
            if floor < last {
                return Err(format!("violated: {when} the floor {floor} came after {last}"));
            }
            last = hold(&ours, "lock").await;
            if last <= floor {
                return Err(format!("violated: {when} the fence {last} came after {floor}"));
            }
        }
    }
    Ok(())
}

/// The node of the lock comes and goes while a look is under way.
pub(crate) async fn a_floor_stands_on_what_did_not_change() -> Seen {
    for (names, lists) in [(ALONE, crossing::LIST), (AMONG, crossing::READS)] {
        stands_on_what_did_not_change(names, lists).await?;
    }
    Ok(())
}

async fn stands_on_what_did_not_change(names: usize, lists: i32) -> Seen {
    let servers = super::server().await;
    let crossing = Crossing::start(servers.address(0).unwrap()).await;
    let ours = connect(crossing.address(), SELDOM).await;
    let others = connect(hosts(&servers), SELDOM).await;
    let plain = plain(&servers).await;
    hold(&ours, "other").await;
    // It has looked at the node above, and not yet at that of the lock.
    let mut held = crossing.hold(lists, 0);
    let (seen, fence) = tokio::join!(look(&ours, "lock", names), async {
        held.arrived().await;
        let fence = hold(&others, "lock").await;
        is_gone(&plain, "/locks/lock").await;
        drop(held);
        fence
    });
    let floor_then = floor(&seen, "after a hold")?;
    if floor_then < fence {
        return Err(format!("violated: the floor {floor_then} came after {fence}"));
    }
    // The other way round.
    let mut held = crossing.hold(crossing::EXISTS, 1);
    let mut holder = claim(&others, "lock", true);
    let (seen, fence) = tokio::join!(look(&ours, "lock", names), async {
        held.arrived().await;
        let fence = granted(&mut *holder).await;
        hold(&others, "another").await;
        drop(held);
        fence
    });
    let result = match seen {
        Look::Free { floor: Some(floor) } if floor < fence => Ok(()),
        seen => must_be(seen, &held_by(fence), "after a grant"),
    };
    holder.release().await.unwrap();
    result
}

/// A server before 3.6 refuses to read several nodes by one request, and closes the connection.
pub(crate) async fn a_look_at_an_old_server_reads_node_by_node() -> Seen {
    let servers = super::server().await;
    let crossing = Crossing::start(servers.address(0).unwrap()).await;
    crossing.grow_old();
    let ours = connect(crossing.address(), SELDOM).await;
    let mut holder = claim(&ours, "lock", true);
    let fence = granted(&mut *holder).await;
    for nth in 1..=3 {
        let seen = try_look(&ours, "lock", AMONG).await;
        let seen = seen.map_err(|error| format!("look {nth} fails: {error}"))?;
        must_be(seen, &held_by(fence), &format!("at look {nth}"))?;
    }
    match crossing.refused_reads() {
        1 => {}
        refused => return Err(format!("an old server was asked {refused} times to read many")),
    }
    // The session has another connection.
    assert!(matches!(holder.check().await.unwrap(), Renewal::Alive { .. }));
    holder.release().await.unwrap();
    Ok(())
}

/// The servers end a session by their own clock.
pub(crate) async fn a_lock_of_a_dead_client_becomes_free_for_a_look() -> Seen {
    let servers = super::server().await;
    let (dead, proxy) = behind_proxy(&servers, DEFAULT).await;
    let others = backend(&servers).await;
    let mut holder = claim(&dead, "lock", true);
    let fence = granted(&mut *holder).await;
    proxy.stall();
    let mut seen = look(&others, "lock", AMONG).await;
    must_be(seen.clone(), &held_by(fence), "at first")?;
    until("the session ends", SESSION + SLACK, async || {
        seen = look(&others, "lock", AMONG).await;
        seen != held_by(fence)
    })
    .await;
    match floor(&seen, "after the session")? {
        floor if floor < fence => Err(format!("violated: the floor {floor} came after {fence}")),
        _ => Ok(()),
    }
}

/// A server that has not heard of a grant is not asked on its own.
pub(crate) async fn a_server_that_is_behind_shows_no_free_lock() -> Seen {
    let (servers, link) = ZooKeeper::with_distant_follower().await.unwrap();
    let ours = backend_at(&servers, 0, SELDOM).await;
    let others = backend_at(&servers, servers.leader().unwrap(), SELDOM).await;
    hold(&ours, "warm").await;
    let mut answered = 0;
    for round in 0..5 {
        hold(&others, "lock").await;
        link.stall();
        let mut holder = claim(&others, "lock", true);
        let fence = granted(&mut *holder).await;
        let names = if round % 2 == 0 { ALONE } else { AMONG };
        let (seen, ()) = tokio::join!(try_look(&ours, "lock", names), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            link.pass();
        });
        if let Ok(seen) = seen {
            must_be(seen, &held_by(fence), &format!("in round {round}"))?;
            answered += 1;
        }
        until("it is released", SLACK, async || holder.release().await.is_ok()).await;
    }
    assert!(answered > 2, "only {answered} looks were answered");
    Ok(())
}

/// A leader that stood still was deposed, and does not know it when it goes on. It knows of no grant since.
pub(crate) async fn a_leader_that_was_deposed_shows_no_free_lock() -> Seen {
    const ROUNDS: usize = 8;
    let servers = ZooKeeper::ensemble().await.unwrap();
    for server in 0..servers.len() {
        // The others leave a silent leader sooner, and long before our client does.
        servers.configure_one(server, "syncLimit=15\n").unwrap();
    }
    servers.restart().await.unwrap();
    for round in 0..ROUNDS {
        let leader = servers.leader().unwrap();
        let ours = client_of(&servers, leader).await;
        let others = client_of(&servers, (leader + 1) % 3).await;
        hold(&ours, "lock").await;
        hold(&others, "lock").await;
        servers.freeze_one(leader).unwrap();
        let mut holder = claim(&others, "lock", true);
        let fence = acquired(&mut *holder).await;
        let names = if round % 2 == 0 { ALONE } else { AMONG };
        let (seen, ()) = tokio::join!(try_look(&ours, "lock", names), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            servers.thaw_one(leader).unwrap();
        });
        if let Ok(seen) = seen {
            must_be(seen, &held_by(fence), &format!("in round {round}"))?;
        }
        until("it is released", SLACK, async || holder.release().await.is_ok()).await;
        servers.serve().await.unwrap();
    }
    Ok(())
}

/// A client of one server, which may have to find its leader first.
async fn client_of(servers: &ZooKeeper, member: usize) -> ZkBackend {
    let url = format!("zookeeper://{}?lock_session_timeout=60s", servers.address(member).unwrap());
    let mut client = None;
    until("it is connected", SLACK * 4, async || {
        client = lock_zk::connect(&url).await.ok();
        client.is_some()
    })
    .await;
    client.unwrap()
}
