//! Locks of etcd itself: its lock service, as its clients and `etcdctl lock` use it, under one
//! lease for each client. A place in a queue is made for each lock, and the server answers when it
//! is the first.

use prost::Message;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use super::key::KEY;
use crate::failure::Failure;

/// Longer than any measurement. Leases end with the server.
const LEASE_SECONDS: i64 = 2 * 60 * 60;

#[derive(Clone, PartialEq, Message)]
struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

/// The name of the place, in the answer to a lock and in the request to unlock.
#[derive(Clone, PartialEq, Message)]
struct LockResponse {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockResponse {}

/// One client, with its own connection and lease.
pub struct EtcdMutex {
    server: Grpc<Channel>,
    lease: i64,
    place: Vec<u8>,
}

impl EtcdMutex {
    pub async fn connect(url: &str) -> Result<Self, Failure> {
        let address = url.replacen("etcd://", "http://", 1);
        let mut server = Grpc::new(Channel::from_shared(address)?.connect().await?);
        let request = LeaseGrantRequest { ttl: LEASE_SECONDS };
        let LeaseGrantResponse { id: lease } =
            call(&mut server, "/etcdserverpb.Lease/LeaseGrant", request).await?;
        Ok(Self { server, lease, place: Vec::new() })
    }

    pub async fn acquire(&mut self) -> Result<(), Failure> {
        let request = LockRequest { name: KEY.into(), lease: self.lease };
        let locked: LockResponse = call(&mut self.server, "/v3lockpb.Lock/Lock", request).await?;
        self.place = locked.key;
        Ok(())
    }

    pub async fn release(&mut self) -> Result<bool, Failure> {
        let request = UnlockRequest { key: std::mem::take(&mut self.place) };
        // It says nothing about the lock. One that had ended shows in the times of the holds.
        let _: UnlockResponse = call(&mut self.server, "/v3lockpb.Lock/Unlock", request).await?;
        Ok(true)
    }
}

async fn call<Q, A>(
    server: &mut Grpc<Channel>,
    path: &'static str,
    request: Q,
) -> Result<A, Failure>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    server.ready().await?;
    let path = PathAndQuery::from_static(path);
    Ok(server.unary(Request::new(request), path, ProstCodec::default()).await?.into_inner())
}
