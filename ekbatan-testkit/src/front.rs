//! The public calls that every kind of server has.
//!
//! Invariants: these calls have the same name and meaning for every kind of server.

/// Implements the shared calls of `$Server`, which has a field `handle`, and of `$Builder`, which
/// has a field `settings`.
macro_rules! front {
    ($Server:ident, $Builder:ident, $product:ty, $shared_url:literal) => {
        impl $Server {
            /// Starts a private server and waits until it accepts connections.
            ///
            /// # Errors
            ///
            /// Fails if the server is not installed or does not start.
            pub async fn start() -> Result<Self, $crate::server::ServerError> {
                Self::builder().start().await
            }

            /// Configures a private server with other settings than the defaults.
            pub fn builder() -> $Builder {
                $Builder::new()
            }

            /// The server that all tests of this process share. The first call starts it. Any
            /// number of runtimes may use it, and it ends with the process.
            ///
            #[doc = concat!("If the environment variable `", $shared_url, "` is set, this is")]
            /// the server at that URL. It cannot be killed or restarted, and it keeps its data.
            /// Its user must be allowed to create databases if tests do so.
            ///
            /// # Errors
            ///
            /// Fails if the server does not start. The next call tries again.
            pub async fn shared() -> Result<&'static Self, $crate::server::ServerError> {
                // Never dropped: the end of the process ends the server.
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

            /// The port of the server.
            pub fn port(&self) -> u16 {
                self.handle.port()
            }

            /// Ends all processes of the server with `SIGKILL`, as a crash would, and returns
            /// when all have ended. Does nothing if the server is not running.
            ///
            /// # Errors
            ///
            /// [`NotOurs`](crate::ServerError::NotOurs) for a server that was not started here.
            pub async fn kill(&self) -> Result<(), $crate::server::ServerError> {
                self.handle.kill().await
            }

            /// Starts the server again, on the same port and with the same data, and returns
            /// when it accepts connections. A running server is shut down first, in an orderly
            /// way.
            ///
            /// # Errors
            ///
            /// [`NotOurs`](crate::ServerError::NotOurs) for a server that was not started here.
            /// Other errors if the server does not start.
            pub async fn restart(&self) -> Result<(), $crate::server::ServerError> {
                self.handle.restart().await
            }

            /// Ends the server and removes its folder, as `drop` does, but without blocking the
            /// thread. Does nothing to a server that was not started here.
            ///
            /// # Errors
            ///
            /// Fails if the runtime shuts down first; the server still ends.
            pub async fn stop(self) -> Result<(), $crate::server::ServerError> {
                self.handle.stop().await
            }
        }

        impl std::fmt::Debug for $Server {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                // No URL: that of a given server may contain a password.
                out.debug_struct(stringify!($Server))
                    .field("port", &self.port())
                    .field("private", &self.handle.is_private())
                    .finish_non_exhaustive()
            }
        }

        impl $Builder {
            /// Sets a parameter of the server's configuration. The last value of a parameter
            /// wins, but the server's address, port and folders cannot be changed.
            pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
                self.settings.push(name.into(), value.into());
                self
            }

            /// Starts the server and waits until it accepts connections.
            ///
            /// # Errors
            ///
            /// Fails if the server is not installed or does not start.
            pub async fn start(self) -> Result<$Server, $crate::server::ServerError> {
                let handle = $crate::server::Handle::start(move || self.product()).await?;
                Ok($Server { handle })
            }
        }
    };
}

pub(crate) use front;
