//! The messages of etcd's API that locks use, with the fields that they use: protobuf skips all
//! others. Generating them from etcd's own files would make every build need `protoc`.

use prost::{Enumeration, Message, Oneof};

/// The request of a method.
pub(crate) trait Call: Message + 'static {
    const METHOD: &'static str;
    type Reply: Message + Default + 'static;
}

macro_rules! calls {
    ($($question:ty => $reply:ty: $method:literal;)+) => {
        $(impl Call for $question {
            const METHOD: &'static str = $method;
            type Reply = $reply;
        })+
    };
}

/// One line a field, as in the files of etcd.
macro_rules! messages {
    ($($(#[$about:meta])* $name:ident { $($(#[$note:meta])* $field:ident: $type:ty = ($($prost:tt)*),)* })+) => {
        $(#[derive(Clone, PartialEq, Eq, Message)] $(#[$about])*
        pub(crate) struct $name {
            $($(#[$note])* #[prost($($prost)*)] pub(crate) $field: $type,)*
        })+
    };
}

calls! {
    TxnRequest => TxnResponse: "/etcdserverpb.KV/Txn";
    WatchRequest => WatchResponse: "/etcdserverpb.Watch/Watch";
    LeaseGrantRequest => LeaseResponse: "/etcdserverpb.Lease/LeaseGrant";
    LeaseRevokeRequest => (): "/etcdserverpb.Lease/LeaseRevoke";
    LeaseTimeToLiveRequest => LeaseTimeToLiveResponse: "/etcdserverpb.Lease/LeaseTimeToLive";
    LeaseKeepAliveRequest => LeaseResponse: "/etcdserverpb.Lease/LeaseKeepAlive";
    StatusRequest => StatusResponse: "/etcdserverpb.Maintenance/Status";
    MemberListRequest => MemberListResponse: "/etcdserverpb.Cluster/MemberList";
    AuthenticateRequest => AuthenticateResponse: "/etcdserverpb.Auth/Authenticate";
}

messages! {
    ResponseHeader {
        revision: i64 = (int64, tag = "3"),
        raft_term: u64 = (uint64, tag = "4"),
    }

    KeyValue {
        key: Vec<u8> = (bytes = "vec", tag = "1"),
        create_revision: i64 = (int64, tag = "2"),
        mod_revision: i64 = (int64, tag = "3"),
        value: Vec<u8> = (bytes = "vec", tag = "5"),
        lease: i64 = (int64, tag = "6"),
    }
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

messages! {
    RangeRequest {
        key: Vec<u8> = (bytes = "vec", tag = "1"),
        /// The first key after the range; empty for the one key.
        range_end: Vec<u8> = (bytes = "vec", tag = "2"),
        limit: i64 = (int64, tag = "3"),
        revision: i64 = (int64, tag = "4"),
        sort_order: i32 = (enumeration = "SortOrder", tag = "5"),
        sort_target: i32 = (enumeration = "SortTarget", tag = "6"),
        keys_only: bool = (bool, tag = "8"),
        max_create_revision: i64 = (int64, tag = "13"),
    }

    RangeResponse {
        kvs: Vec<KeyValue> = (message, repeated, tag = "2"),
    }

    PutRequest {
        key: Vec<u8> = (bytes = "vec", tag = "1"),
        value: Vec<u8> = (bytes = "vec", tag = "2"),
        lease: i64 = (int64, tag = "3"),
        ignore_value: bool = (bool, tag = "5"),
        ignore_lease: bool = (bool, tag = "6"),
    }

    DeleteRangeRequest {
        key: Vec<u8> = (bytes = "vec", tag = "1"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum CompareTarget {
    Version = 0,
    CreateRevision = 1,
    ModRevision = 2,
    Value = 3,
    Lease = 4,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub(crate) enum Operand {
    #[prost(int64, tag = "4")]
    Version(i64),
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    #[prost(bytes, tag = "7")]
    Value(Vec<u8>),
    #[prost(int64, tag = "8")]
    Lease(i64),
}

messages! {
    /// A condition that something of a key, or of every key of a range, is equal to the operand.
    Compare {
        target: i32 = (enumeration = "CompareTarget", tag = "2"),
        key: Vec<u8> = (bytes = "vec", tag = "3"),
        operand: Option<Operand> = (oneof = "Operand", tags = "4, 5, 6, 7, 8"),
        range_end: Vec<u8> = (bytes = "vec", tag = "64"),
    }
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

    /// When the key was written last.
    pub(crate) fn mod_revision(key: impl Into<Vec<u8>>, revision: i64) -> Self {
        Self::new(key, CompareTarget::ModRevision, Operand::ModRevision(revision))
    }

    pub(crate) fn value(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        Self::new(key, CompareTarget::Value, Operand::Value(value.into()))
    }

    pub(crate) fn lease(key: impl Into<Vec<u8>>, lease: i64) -> Self {
        Self::new(key, CompareTarget::Lease, Operand::Lease(lease))
    }
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub(crate) enum TxnOperation {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
}

messages! {
    RequestOp {
        operation: Option<TxnOperation> = (oneof = "TxnOperation", tags = "1, 2, 3"),
    }
}

impl From<TxnOperation> for RequestOp {
    fn from(operation: TxnOperation) -> Self {
        Self { operation: Some(operation) }
    }
}

messages! {
    ResponseOp {
        /// Empty if the operation was no read.
        range: Option<RangeResponse> = (message, optional, tag = "1"),
    }

    TxnRequest {
        compare: Vec<Compare> = (message, repeated, tag = "1"),
        success: Vec<RequestOp> = (message, repeated, tag = "2"),
        failure: Vec<RequestOp> = (message, repeated, tag = "3"),
    }

    TxnResponse {
        header: Option<ResponseHeader> = (message, optional, tag = "1"),
        succeeded: bool = (bool, tag = "2"),
        responses: Vec<ResponseOp> = (message, repeated, tag = "3"),
    }

    WatchCreateRequest {
        key: Vec<u8> = (bytes = "vec", tag = "1"),
        start_revision: i64 = (int64, tag = "3"),
        progress_notify: bool = (bool, tag = "4"),
    }

    WatchCancelRequest {
        watch_id: i64 = (int64, tag = "1"),
    }
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub(crate) enum WatchOperation {
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    #[prost(message, tag = "2")]
    Cancel(WatchCancelRequest),
}

messages! {
    WatchRequest {
        operation: Option<WatchOperation> = (oneof = "WatchOperation", tags = "1, 2"),
    }
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

messages! {
    KeyEvent {
        kind: i32 = (enumeration = "EventType", tag = "1"),
        kv: Option<KeyValue> = (message, optional, tag = "2"),
    }

    WatchResponse {
        header: Option<ResponseHeader> = (message, optional, tag = "1"),
        watch_id: i64 = (int64, tag = "2"),
        created: bool = (bool, tag = "3"),
        canceled: bool = (bool, tag = "4"),
        compact_revision: i64 = (int64, tag = "5"),
        cancel_reason: String = (string, tag = "6"),
        events: Vec<KeyEvent> = (message, repeated, tag = "11"),
    }

    LeaseGrantRequest {
        /// In seconds, as everywhere in this API.
        ttl: i64 = (int64, tag = "1"),
    }

    /// Of a grant, and of a keep-alive.
    LeaseResponse {
        id: i64 = (int64, tag = "2"),
        /// 0 to a keep-alive if there is no such lease.
        ttl: i64 = (int64, tag = "3"),
    }

    LeaseTimeToLiveResponse {
        id: i64 = (int64, tag = "2"),
        /// Negative if there is no such lease.
        ttl: i64 = (int64, tag = "3"),
        granted_ttl: i64 = (int64, tag = "4"),
    }

    LeaseRevokeRequest {
        id: i64 = (int64, tag = "1"),
    }

    LeaseTimeToLiveRequest {
        id: i64 = (int64, tag = "1"),
    }

    LeaseKeepAliveRequest {
        id: i64 = (int64, tag = "1"),
    }

    StatusRequest {}

    StatusResponse {
        version: String = (string, tag = "2"),
        /// 0 if there is none.
        leader: u64 = (uint64, tag = "4"),
        errors: Vec<String> = (string, repeated, tag = "8"),
        is_learner: bool = (bool, tag = "10"),
    }

    MemberListRequest {}

    Member {
        is_learner: bool = (bool, tag = "5"),
    }

    MemberListResponse {
        members: Vec<Member> = (message, repeated, tag = "2"),
    }

    /// Its `Debug` would show the password.
    #[prost(skip_debug)]
    AuthenticateRequest {
        name: String = (string, tag = "1"),
        password: String = (string, tag = "2"),
    }

    /// Its `Debug` would show the token.
    #[prost(skip_debug)]
    AuthenticateResponse {
        token: String = (string, tag = "2"),
    }
}
