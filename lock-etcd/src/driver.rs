//! Calls to one member, by gRPC.

use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::mpsc::{self, Sender};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// The sign of a user who has signed in.
pub(crate) type Token = AsciiMetadataValue;

/// How many messages of a stream may wait to be sent.
const AHEAD: usize = 100;

/// The request of a method.
pub(crate) trait Call: Message + 'static {
    const METHOD: &'static str;
    type Reply: Message + Default + 'static;
}

/// Calls a method with one request and one reply.
pub(crate) async fn call<C: Call>(
    channel: &Channel,
    token: Option<Token>,
    message: C,
) -> Result<C::Reply, Status> {
    let codec = ProstCodec::<C, C::Reply>::default();
    let mut grpc = ready(channel).await?;
    let reply = grpc.unary(request(message, token), method::<C>(), codec).await?;
    Ok(reply.into_inner())
}

/// Opens a stream. A member answers nothing before it has read the `first` request.
pub(crate) async fn open<C: Call>(
    channel: &Channel,
    token: Option<Token>,
    first: C,
) -> Result<(Sender<C>, Streaming<C::Reply>), Status> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    let messages = tokio_stream::once(first).chain(ReceiverStream::new(receiver));
    let codec = ProstCodec::<C, C::Reply>::default();
    let mut grpc = ready(channel).await?;
    let replies = grpc.streaming(request(messages, token), method::<C>(), codec).await?;
    Ok((sender, replies.into_inner()))
}

async fn ready(channel: &Channel) -> Result<Grpc<Channel>, Status> {
    let mut grpc = Grpc::new(channel.clone());
    match grpc.ready().await {
        Ok(()) => Ok(grpc),
        Err(error) => Err(Status::from_error(error.into())),
    }
}

fn method<C: Call>() -> PathAndQuery {
    PathAndQuery::from_static(C::METHOD)
}

fn request<T>(message: T, token: Option<Token>) -> Request<T> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    // A member that is cut off from the others refuses the request at once, and ends the stream.
    metadata.insert("hasleader", AsciiMetadataValue::from_static("true"));
    if let Some(token) = token {
        metadata.insert("token", token);
    }
    request
}
