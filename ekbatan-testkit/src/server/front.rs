//! What every kind of server offers, written once.
//!
//! What always holds: the kinds differ in what they offer besides, never in the
//! names or the meaning of these calls.

/// Gives `$Server`, which has a field `handle`, and `$Builder`, which has a field
/// `settings`, what servers of every kind have in common.
macro_rules! front {
    ($Server:ident, $Builder:ident, $product:ty, $shared_url:literal) => {
        impl $Server {
            /// Starts a private server and waits until it accepts connections.
            ///
            /// # Errors
            ///
            /// When it is not installed, or does not start.
            pub async fn start() -> Result<Self, $crate::ServerError> {
                Self::builder().start().await
            }

            /// A private server with other settings than the usual.
            pub fn builder() -> $Builder {
                $Builder::new()
            }

            /// The server that all tests of this process share, started when the
            /// first of them asks for it. It may be used from any number of
            /// runtimes, and ends with the process.
            ///
            #[doc = concat!("If the environment variable `", $shared_url, "` is set, it is")]
            /// the server at that address. It can be neither killed nor restarted,
            /// and keeps what is written to it. If tests create databases, its
            /// user must be allowed to.
            ///
            /// # Errors
            ///
            /// When the server does not start. The next call tries again.
            pub async fn shared() -> Result<&'static Self, $crate::ServerError> {
                // Never dropped; ending the process ends the server.
                static SHARED: tokio::sync::OnceCell<$Server> = tokio::sync::OnceCell::const_new();
                SHARED
                    .get_or_try_init(|| async {
                        match $crate::server::Handle::<$product>::given()? {
                            Some(handle) => Ok(Self { handle }),
                            None => Self::start().await,
                        }
                    })
                    .await
            }

            /// The port on which the server listens.
            pub fn port(&self) -> u16 {
                self.handle.port()
            }

            /// Ends all of the server's processes with `SIGKILL`, as a crash would,
            /// and returns when none is left. Nothing happens if it does not run.
            ///
            /// # Errors
            ///
            /// [`NotOurs`](crate::ServerError::NotOurs) for a server that was not
            /// started here.
            pub async fn kill(&self) -> Result<(), $crate::ServerError> {
                self.handle.kill().await
            }

            /// Starts the server again, on the same port and with the same data,
            /// and returns when it accepts connections. If it runs it is shut down
            /// in good order first.
            ///
            /// # Errors
            ///
            /// [`NotOurs`](crate::ServerError::NotOurs) for a server that was not
            /// started here; others when the server does not start.
            pub async fn restart(&self) -> Result<(), $crate::ServerError> {
                self.handle.restart().await
            }

            /// Ends the server and removes its folder. Other than dropping it, this
            /// leaves the thread to other tasks meanwhile. A server that was not
            /// started here is left alone.
            ///
            /// # Errors
            ///
            /// When the runtime ends first; the server ends all the same.
            pub async fn stop(self) -> Result<(), $crate::ServerError> {
                self.handle.stop().await
            }
        }

        impl std::fmt::Debug for $Server {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                // Somebody else's address may contain a password.
                out.debug_struct(stringify!($Server))
                    .field("port", &self.port())
                    .field("private", &self.handle.is_private())
                    .finish_non_exhaustive()
            }
        }

        impl $Builder {
            /// Sets a parameter of the server's configuration. The last value given
            /// for a parameter counts, except for where the server listens and
            /// keeps its data, which is always its own.
            pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
                self.settings.push(name.into(), value.into());
                self
            }

            /// Starts the server and waits until it accepts connections.
            ///
            /// # Errors
            ///
            /// When it is not installed, or does not start.
            pub async fn start(self) -> Result<$Server, $crate::ServerError> {
                let handle = $crate::server::Handle::start(move || self.product()).await?;
                Ok($Server { handle })
            }
        }
    };
}

pub(crate) use front;
