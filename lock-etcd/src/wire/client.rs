//! The same calls over a client of the user. What it is asked becomes options of that crate. Its replies are read again
//! as messages of ours, since both are those of etcd.

use etcd_client::{Client, Error, GetOptions, LeaseKeepAliveStream, LeaseKeeper, PutOptions};
use etcd_client::{CompareOp, Txn, TxnOp, WatchOptions};
use prost::Message;
use tokio::sync::mpsc::Sender;
use tokio_stream::{Stream, StreamExt};
use tonic::{Status, Streaming};

use crate::wire::connection::Replies;
use crate::wire::protobuf::{
    Call, Compare, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, MemberListRequest, Operand, RangeRequest, RequestOp, SortOrder,
    SortTarget, StatusRequest, TxnOperation, TxnRequest, WatchOperation, WatchRequest,
};

/// Makes one request.
pub(crate) async fn call<C: Call>(client: &Client, message: &C) -> Result<C::Reply, Status> {
    match C::METHOD {
        TxnRequest::METHOD => {
            let mut keys = client.kv_client().max_decoding_message_size(usize::MAX);
            let txn = txn(again(message)?).ok_or_else(unknown::<C>)?;
            again(&keys.txn(txn).await.map_err(told)?.0)
        }
        LeaseGrantRequest::METHOD => {
            let LeaseGrantRequest { ttl } = again(message)?;
            again(&client.lease_client().grant(ttl, None).await.map_err(told)?.0)
        }
        LeaseRevokeRequest::METHOD => {
            let LeaseRevokeRequest { id } = again(message)?;
            again(&client.lease_client().revoke(id).await.map_err(told)?.0)
        }
        LeaseTimeToLiveRequest::METHOD => {
            let LeaseTimeToLiveRequest { id } = again(message)?;
            again(&client.lease_client().time_to_live(id, None).await.map_err(told)?.0)
        }
        StatusRequest::METHOD => {
            again(&client.maintenance_client().status().await.map_err(told)?.0)
        }
        MemberListRequest::METHOD => {
            again(&client.cluster_client().member_list().await.map_err(told)?.0)
        }
        _ => Err(unknown::<C>()),
    }
}

/// Opens a stream.
pub(crate) async fn open<C: Call>(
    client: &Client,
    mut messages: impl Stream<Item = C> + Send + Unpin + 'static,
) -> Result<Replies<C::Reply>, Status> {
    let Some(first) = messages.next().await else { return Err(unknown::<C>()) };
    match C::METHOD {
        LeaseKeepAliveRequest::METHOD => {
            let LeaseKeepAliveRequest { id } = again(&first)?;
            let (keeper, replies) = keep_alive(client, id).await.map_err(told)?;
            // The client has kept the answer to the first one, so that is asked again.
            let messages = tokio_stream::once(first).chain(messages);
            Ok(carried(messages, keeper.sender, replies.stream))
        }
        WatchRequest::METHOD => {
            let WatchRequest { operation: Some(WatchOperation::Create(watch)) } = again(&first)?
            else {
                return Err(unknown::<C>());
            };
            let options = WatchOptions::new().with_start_revision(watch.start_revision);
            let mut watches = client.watch_client().max_decoding_message_size(usize::MAX);
            let watched = watches.watch(watch.key, Some(options.with_progress_notify())).await;
            let watched = watched.map_err(told)?;
            Ok(carried(messages, watched.request_sender.0, watched.response_stream.0))
        }
        _ => Err(unknown::<C>()),
    }
}

/// Has the client sign in again, if it has a user.
pub(crate) async fn sign_in(client: &Client) -> Result<(), Status> {
    client.refresh_token().await.map_err(told)
}

/// A stream of keep-alives. The client gives out none that begins with a lease that is gone: then it begins with a new
/// one, which is left to expire.
async fn keep_alive(
    client: &Client,
    lease: i64,
) -> Result<(LeaseKeeper, LeaseKeepAliveStream), Error> {
    let mut leases = client.lease_client();
    match leases.keep_alive(lease).await {
        Err(Error::LeaseKeepAliveError(_)) => {
            let new = leases.grant(1, None).await?.id();
            leases.keep_alive(new).await
        }
        opened => opened,
    }
}

/// Passes messages on to a stream of the client for as long as there are any, and its replies back.
fn carried<C: Call, M: Message + Default + 'static, R: Message + 'static>(
    mut messages: impl Stream<Item = C> + Send + Unpin + 'static,
    to: Sender<M>,
    replies: Streaming<R>,
) -> Replies<C::Reply> {
    tokio::spawn(async move {
        while let Some(message) = messages.next().await {
            let Ok(message) = again(&message) else { return };
            if to.send(message).await.is_err() {
                return;
            }
        }
    });
    Box::pin(replies.map(|reply| again(&reply?)))
}

/// None if a part of it says nothing.
fn txn(transaction: TxnRequest) -> Option<Txn> {
    let TxnRequest { compare, success, failure } = transaction;
    let operations =
        |list: Vec<RequestOp>| list.into_iter().map(operation).collect::<Option<Vec<_>>>();
    let conditions = compare.into_iter().map(condition).collect::<Option<Vec<_>>>()?;
    let then = Txn::new().when(conditions).and_then(operations(success)?);
    Some(then.or_else(operations(failure)?))
}

fn condition(compare: Compare) -> Option<etcd_client::Compare> {
    use etcd_client::Compare as Its;
    let Compare { key, operand, range_end, .. } = compare;
    let condition = match operand? {
        Operand::Version(version) => Its::version(key, CompareOp::Equal, version),
        Operand::CreateRevision(at) => Its::create_revision(key, CompareOp::Equal, at),
        Operand::ModRevision(at) => Its::mod_revision(key, CompareOp::Equal, at),
        Operand::Value(value) => Its::value(key, CompareOp::Equal, value),
        Operand::Lease(lease) => Its::lease(key, CompareOp::Equal, lease),
    };
    Some(condition.with_range(range_end))
}

fn operation(operation: RequestOp) -> Option<TxnOp> {
    Some(match operation.operation? {
        TxnOperation::Range(range) => TxnOp::get(range.key.clone(), Some(read(range))),
        TxnOperation::Put(put) => {
            let mut options = PutOptions::new().with_lease(put.lease);
            if put.ignore_value {
                options = options.with_ignore_value();
            }
            if put.ignore_lease {
                options = options.with_ignore_lease();
            }
            TxnOp::put(put.key, put.value, Some(options))
        }
        TxnOperation::DeleteRange(deleted) => TxnOp::delete(deleted.key, None),
    })
}

fn read(range: RangeRequest) -> GetOptions {
    let order = match range.sort_order() {
        SortOrder::None => etcd_client::SortOrder::None,
        SortOrder::Ascend => etcd_client::SortOrder::Ascend,
        SortOrder::Descend => etcd_client::SortOrder::Descend,
    };
    let target = match range.sort_target() {
        SortTarget::Key => etcd_client::SortTarget::Key,
        SortTarget::Create => etcd_client::SortTarget::Create,
    };
    let options = GetOptions::new()
        .with_range(range.range_end)
        .with_limit(range.limit)
        .with_revision(range.revision)
        .with_sort(target, order)
        .with_max_create_revision(range.max_create_revision);
    if range.keys_only { options.with_keys_only() } else { options }
}

/// The same message as another type has it.
fn again<T: Message + Default>(message: &impl Message) -> Result<T, Status> {
    let read = T::decode(&*message.encode_to_vec());
    read.map_err(|error| Status::internal(error.to_string()))
}

/// What the server or the transport said. Whatever else the client says comes without a word about what was done.
fn told(error: Error) -> Status {
    match error {
        Error::GRpcStatus(status) => status,
        Error::TransportError(error) => Status::from_error(Box::new(error)),
        error => Status::unknown(error.to_string()),
    }
}

fn unknown<C: Call>() -> Status {
    Status::unimplemented(format!("the client has no {}", C::METHOD))
}
