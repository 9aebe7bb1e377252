//! The messages of etcd's API that locks use, with the fields that they use: protobuf skips all
//! others. Generating them from etcd's own files would make every build need `protoc`.

use prost::{Enumeration, Message, Oneof};

use crate::driver::Call;

macro_rules! calls {
    ($($question:ty => $reply:ty: $method:literal;)+) => {
        $(impl Call for $question {
            const METHOD: &'static str = $method;
            type Reply = $reply;
        })+
    };
}

calls! {
    TxnRequest => TxnResponse: "/etcdserverpb.KV/Txn";
    WatchRequest => WatchResponse: "/etcdserverpb.Watch/Watch";
    LeaseGrantRequest => LeaseGrantResponse: "/etcdserverpb.Lease/LeaseGrant";
    LeaseRevokeRequest => LeaseRevokeResponse: "/etcdserverpb.Lease/LeaseRevoke";
    LeaseTimeToLiveRequest => LeaseTimeToLiveResponse: "/etcdserverpb.Lease/LeaseTimeToLive";
    LeaseKeepAliveRequest => LeaseKeepAliveResponse: "/etcdserverpb.Lease/LeaseKeepAlive";
    StatusRequest => StatusResponse: "/etcdserverpb.Maintenance/Status";
    MemberListRequest => MemberListResponse: "/etcdserverpb.Cluster/MemberList";
    AuthenticateRequest => AuthenticateResponse: "/etcdserverpb.Auth/Authenticate";
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct ResponseHeader {
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(crate) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(crate) lease: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum SortOrder {
    None = 0,
    Ascend = 1,
    Descend = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum SortTarget {
    Key = 0,
    Create = 2,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    /// The first key after the range; empty for the one key.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(int64, tag = "4")]
    pub(crate) revision: i64,
    #[prost(enumeration = "SortOrder", tag = "5")]
    pub(crate) sort_order: i32,
    #[prost(enumeration = "SortTarget", tag = "6")]
    pub(crate) sort_target: i32,
    #[prost(bool, tag = "8")]
    pub(crate) keys_only: bool,
    #[prost(int64, tag = "13")]
    pub(crate) max_create_revision: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
enum CompareTarget {
    Version = 0,
    CreateRevision = 1,
    Value = 3,
    Lease = 4,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
enum Operand {
    #[prost(int64, tag = "4")]
    Version(i64),
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(bytes, tag = "7")]
    Value(Vec<u8>),
    #[prost(int64, tag = "8")]
    Lease(i64),
}

/// A condition that something of a key, or of every key of a range, is equal to the operand.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Compare {
    #[prost(enumeration = "CompareTarget", tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(oneof = "Operand", tags = "4, 5, 7, 8")]
    operand: Option<Operand>,
    #[prost(bytes = "vec", tag = "64")]
    pub(crate) range_end: Vec<u8>,
}

impl Compare {
    fn new(key: impl Into<Vec<u8>>, target: CompareTarget, operand: Operand) -> Self {
        let (target, operand) = (target.into(), Some(operand));
        Self { target, key: key.into(), operand, range_end: Vec::new() }
    }

    /// A version of 0 is that of a key that does not exist.
    pub(crate) fn version(key: impl Into<Vec<u8>>, version: i64) -> Self {
        Self::new(key, CompareTarget::Version, Operand::Version(version))
    }

    /// A revision of 0 is that of a key that does not exist.
    pub(crate) fn create_revision(key: impl Into<Vec<u8>>, revision: i64) -> Self {
        Self::new(key, CompareTarget::CreateRevision, Operand::CreateRevision(revision))
    }

    pub(crate) fn value(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        Self::new(key, CompareTarget::Value, Operand::Value(value.into()))
    }

    pub(crate) fn lease(key: impl Into<Vec<u8>>, lease: i64) -> Self {
        Self::new(key, CompareTarget::Lease, Operand::Lease(lease))
    }
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub(crate) enum Operation {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct RequestOp {
    #[prost(oneof = "Operation", tags = "1, 2, 3")]
    pub(crate) operation: Option<Operation>,
}

impl From<Operation> for RequestOp {
    fn from(operation: Operation) -> Self {
        Self { operation: Some(operation) }
    }
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ResponseOp {
    /// Empty if the operation was no read.
    #[prost(message, optional, tag = "1")]
    pub(crate) range: Option<RangeResponse>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(crate) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) start_revision: i64,
    #[prost(bool, tag = "4")]
    pub(crate) progress_notify: bool,
    #[prost(int64, tag = "7")]
    pub(crate) watch_id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct WatchCancelRequest {
    #[prost(int64, tag = "1")]
    watch_id: i64,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
enum WatchOperation {
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    #[prost(message, tag = "2")]
    Cancel(WatchCancelRequest),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct WatchRequest {
    #[prost(oneof = "WatchOperation", tags = "1, 2")]
    operation: Option<WatchOperation>,
}

impl WatchRequest {
    pub(crate) fn cancel(watch_id: i64) -> Self {
        Self { operation: Some(WatchOperation::Cancel(WatchCancelRequest { watch_id })) }
    }
}

impl From<WatchCreateRequest> for WatchRequest {
    fn from(create: WatchCreateRequest) -> Self {
        Self { operation: Some(WatchOperation::Create(create)) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum EventType {
    Put = 0,
    Delete = 1,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Event {
    #[prost(enumeration = "EventType", tag = "1")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) watch_id: i64,
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(crate) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(crate) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<Event>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseGrantRequest {
    /// In seconds, as everywhere in this API.
    #[prost(int64, tag = "1")]
    pub(crate) ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseRevokeResponse {}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseTimeToLiveRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseTimeToLiveResponse {
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    /// Negative if there is no such lease.
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
    #[prost(int64, tag = "4")]
    pub(crate) granted_ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseKeepAliveResponse {
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    /// 0 if there is no such lease.
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct StatusRequest {}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct StatusResponse {
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    /// 0 if there is none.
    #[prost(uint64, tag = "4")]
    pub(crate) leader: u64,
    #[prost(string, repeated, tag = "8")]
    pub(crate) errors: Vec<String>,
    #[prost(bool, tag = "10")]
    pub(crate) is_learner: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct MemberListRequest {}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Member {
    #[prost(bool, tag = "5")]
    pub(crate) is_learner: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct MemberListResponse {
    #[prost(message, repeated, tag = "2")]
    pub(crate) members: Vec<Member>,
}

/// Its `Debug` would show the password.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub(crate) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

/// Its `Debug` would show the token.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub(crate) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}
