//! The one connection to the cluster, and calls over it.
//!
//! Invariants: there is one connection, whatever the number of requests. A call that gets no
//! answer in time fails, and the next call uses a new connection, to the next member if there
//! are several. A request that no server has received is sent again. One that was cut off is sent
//! once more; if that fails as well, the error says that the first one may have had its effect.

use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::Stream;
use prost::Message;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::address::{ANSWER, Address, Login, Member};
use crate::answer::{CallError, is_cut, is_unanswered, is_unreachable};
use crate::messages::{AuthenticateRequest, AuthenticateResponse};

pub(crate) struct Client {
    first: Member,
    others: Vec<Member>,
    login: Option<Login>,
    current: Mutex<Current>,
    /// Receives the number of the connection when it is replaced.
    replaced: watch::Sender<u64>,
}

#[derive(Clone)]
struct Current {
    channel: Channel,
    /// The number of connections before this one. It also chooses the member.
    generation: u64,
    /// Proves the login to the server.
    token: Option<MetadataValue<Ascii>>,
}

/// The answers of the server on a connection.
pub(crate) struct Answers<A> {
    pub(crate) stream: Streaming<A>,
    /// Resolves when the connection is given up.
    pub(crate) replaced: watch::Receiver<u64>,
}

impl Client {
    /// A client, which connects with the first call. Needs a Tokio runtime.
    pub(crate) fn new(address: Address) -> Self {
        let Address { first, others, login } = address;
        let channel = first.endpoint.connect_lazy();
        let current = Mutex::new(Current { channel, generation: 0, token: None });
        let replaced = watch::Sender::new(0);
        Self { first, others, login, current, replaced }
    }

    /// A client of one of the members only.
    fn of_member(&self, member: &Member) -> Self {
        let (first, login) = (member.clone(), self.login.clone());
        Self::new(Address { first, others: Vec::new(), login })
    }

    /// A client of each of the members that the configuration names.
    pub(crate) fn of_each(&self) -> impl Iterator<Item = Self> {
        std::iter::once(&self.first).chain(&self.others).map(|member| self.of_member(member))
    }

    /// The member that calls go to.
    pub(crate) fn member(&self) -> &str {
        &self.member_of(self.current().generation).name
    }

    /// Has the next calls go to this member.
    pub(crate) fn begin_with(&self, name: &str) {
        for _ in &self.others {
            if self.member() != name {
                let generation = self.current().generation;
                self.replace(generation);
            }
        }
    }

    fn member_of(&self, generation: u64) -> &Member {
        let members = self.others.len() as u64 + 1;
        let chosen = usize::try_from(generation % members).unwrap_or_default();
        chosen.checked_sub(1).and_then(|other| self.others.get(other)).unwrap_or(&self.first)
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request that has one answer.
    pub(crate) async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, CallError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.repeated(|current| unary(current, path, request.clone())).await
    }

    /// Sends requests and returns the stream of their answers. Fails when there are no requests, such as
    /// those that cannot be sent again.
    pub(crate) async fn stream<Q, A, S>(
        &self,
        path: &'static str,
        requests: impl Fn() -> Option<S>,
    ) -> Result<Answers<A>, CallError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
        S: Stream<Item = Q> + Send + 'static,
    {
        self.repeated(|current| {
            let requests = requests();
            let mut replaced = self.replaced.subscribe();
            let is_current = *replaced.borrow_and_update() == current.generation;
            async move {
                let Some(requests) = requests else {
                    return Err(Status::aborted("the requests cannot be sent again"));
                };
                if !is_current {
                    return Err(Status::unavailable("the connection has just been replaced"));
                }
                let stream = streaming(current, path, requests).await?;
                Ok(Answers { stream, replaced })
            }
        })
        .await
    }

    /// Sends a request again, as long as that is known to do no harm and likely to help.
    async fn repeated<A, F>(&self, send: impl Fn(Current) -> F) -> Result<A, CallError>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let mut resent = false;
        let answer = self.answer(send, &mut resent).await;
        answer.map_err(|error| if resent { CallError::AfterEffect(Box::new(error)) } else { error })
    }

    /// The answer to a request, with whether it was sent again after the connection broke.
    async fn answer<A, F>(
        &self,
        send: impl Fn(Current) -> F,
        resent: &mut bool,
    ) -> Result<A, CallError>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let (mut logged_in, mut others) = (false, self.others.len());
        loop {
            let current = match self.logged_in().await {
                Ok(current) => current,
                // The connection to the member is replaced already.
                Err(CallError::Login(_, _, status)) if is_unanswered(&status) && others > 0 => {
                    others -= 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let generation = current.generation;
            let status = match timeout(ANSWER, send(current)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) => status,
                Err(_) => {
                    self.replace(generation);
                    return Err(CallError::Silent(self.member_of(generation).name.clone()));
                }
            };
            if is_login_over(&status) && self.login.is_some() && !logged_in {
                logged_in = true;
                self.forget_login(generation);
            } else if is_unreachable(&status) && others > 0 {
                others -= 1;
                self.replace(generation);
            } else if is_cut(&status) && !*resent {
                // Every request may be sent twice: it answers the same, or that there is
                // nothing to do any more.
                *resent = true;
                // It may not know yet that it is closed, and would fail again.
                self.replace(generation);
            } else {
                if !self.others.is_empty() && status.code() == Code::Unavailable {
                    // This member may have no leader, and another one may have one.
                    self.replace(generation);
                }
                return Err(CallError::Status(self.member_of(generation).name.clone(), status));
            }
        }
    }

    /// Replaces the connection, unless another caller has replaced it.
    fn replace(&self, generation: u64) {
        let mut current = self.current();
        if current.generation != generation {
            return;
        }
        let next = generation + 1;
        let channel = self.member_of(next).endpoint.connect_lazy();
        *current = Current { channel, generation: next, token: None };
        drop(current);
        self.replaced.send_replace(next);
    }

    fn forget_login(&self, generation: u64) {
        let mut current = self.current();
        if current.generation == generation {
            current.token = None;
        }
    }

    /// The connection, with a proof of the login if there is one.
    async fn logged_in(&self) -> Result<Current, CallError> {
        let mut current = self.current().clone();
        let Some(login) = self.login.as_ref().filter(|_| current.token.is_none()) else {
            return Ok(current);
        };
        let request =
            AuthenticateRequest { name: login.user.clone(), password: login.password.clone() };
        let generation = current.generation;
        let member = || self.member_of(generation).name.clone();
        let asking = unary(current.clone(), "/etcdserverpb.Auth/Authenticate", request);
        let answer: AuthenticateResponse = match timeout(ANSWER, asking).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(status)) if status.message().contains("authentication is not enabled") => {
                tracing::debug!("etcd needs no login, and the configuration names one");
                return Ok(current);
            }
            Ok(Err(status)) => {
                if is_unanswered(&status) {
                    self.replace(generation);
                }
                return Err(CallError::Login(member(), login.user.clone(), status));
            }
            Err(_) => {
                self.replace(generation);
                return Err(CallError::Silent(member()));
            }
        };
        current.token = answer.token.parse().ok();
        let mut shared = self.current();
        if shared.generation == generation {
            shared.token.clone_from(&current.token);
        }
        drop(shared);
        Ok(current)
    }
}

fn request_with<M>(message: M, token: Option<MetadataValue<Ascii>>) -> Request<M> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
    request
}

async fn unary<Q, A>(current: Current, path: &'static str, message: Q) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut server = ready(current.channel).await?;
    let request = request_with(message, current.token);
    let path = PathAndQuery::from_static(path);
    Ok(server.unary(request, path, ProstCodec::default()).await?.into_inner())
}

async fn streaming<Q, A>(
    current: Current,
    path: &'static str,
    messages: impl Stream<Item = Q> + Send + 'static,
) -> Result<Streaming<A>, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut server = ready(current.channel).await?;
    let request = request_with(messages, current.token);
    let path = PathAndQuery::from_static(path);
    Ok(server.streaming(request, path, ProstCodec::default()).await?.into_inner())
}

async fn ready(channel: Channel) -> Result<Grpc<Channel>, Status> {
    // A page of a listing may be larger than the usual limit.
    let mut server = Grpc::new(channel).max_decoding_message_size(usize::MAX);
    server.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    Ok(server)
}

fn is_login_over(status: &Status) -> bool {
    status.code() == Code::Unauthenticated
        || status.message().contains("revision of auth store is old")
}

#[cfg(test)]
mod tests {
    use ekbatan_core::config::DataSourceConfig;
    use ekbatan_lock::FailureKind;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::answer::Effect;
    use crate::messages::{StatusRequest, StatusResponse};

    fn client(addresses: &str) -> Client {
        let config = DataSourceConfig::new(format!("etcd://{addresses}"));
        Client::new(Address::of(&config).unwrap())
    }

    async fn called(client: &Client) -> CallError {
        let answer = client.call::<_, StatusResponse>("/test.Test/Test", StatusRequest {});
        answer.await.unwrap_err()
    }

    #[tokio::test]
    async fn a_request_that_was_sent_before_may_have_had_its_effect() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = client(&listener.local_addr().unwrap().to_string());
        let breaking = async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // The listener ends first, so that no second connection is accepted.
            drop(listener);
            assert!(stream.read(&mut [0; 512]).await.unwrap() > 0, "the greeting arrives");
        };
        let (error, ()) = tokio::join!(called(&client), breaking);
        let CallError::AfterEffect(last) = &error else { panic!("{error:?}") };
        assert!(
            matches!(&**last, CallError::Status(_, status) if is_unreachable(status)),
            "{error:?}"
        );
        assert_eq!(error.of(Effect::Possible).kind(), FailureKind::InDoubt);
        let never_sent = called(&client).await;
        assert_eq!(never_sent.of(Effect::Possible).kind(), FailureKind::Unavailable);
    }

    #[tokio::test]
    async fn calls_begin_with_the_member_that_is_named() {
        let client = client("a:1,b:2,c:3");
        for name in ["b:2", "b:2", "a:1", "c:3"] {
            client.begin_with(name);
            assert_eq!(client.member(), name);
        }
    }
}
