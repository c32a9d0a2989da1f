//! The public calls that MySQL and MariaDB servers share.

/// Implements the calls of `$Server`, which has a field `handle`, and `$Builder`, which has a
/// field `settings`, for the brand `$Brand`.
macro_rules! mysql_front {
    ($Server:ident, $Builder:ident, $Brand:ident, $shared_url:literal) => {
        $crate::front::front!(
            $Server,
            $Builder,
            $crate::mysql::family::Installed<$Brand>,
            $shared_url
        );

        impl $Server {
            /// The URL of one of the server's databases.
            pub fn url(&self, database: &str) -> String {
                self.handle.url().clone().with_database(database).to_string()
            }

            /// Creates an empty database with a unique name and returns its URL. The connection
            /// can use the other databases of the server too, see the
            /// [module](crate::mysql).
            ///
            /// # Errors
            ///
            /// Fails if the server does not accept connections.
            pub async fn create_database(&self) -> Result<String, $crate::server::ServerError> {
                $crate::mysql::client::create_database(self.handle.url()).await
            }
        }

        impl $Builder {
            fn new() -> Self {
                use $crate::mysql::{family::Brand, parameters::Parameters};
                Self { settings: Parameters::new($Brand::DEFAULTS) }
            }

            /// Makes the server write to disk before it acknowledges a commit, as in production.
            /// Off by default, because it costs time, and a killed server loses nothing that the
            /// operating system already has.
            pub fn durable(mut self) -> Self {
                self.settings.durable();
                self
            }

            /// Makes the server keep a binary log with global transaction identifiers, which
            /// replicas can follow. Off by default.
            pub fn binlog(mut self) -> Self {
                use $crate::mysql::family::Brand;
                self.settings.binlog($Brand::GTID);
                self
            }

            fn product(
                self,
            ) -> Result<$crate::mysql::family::Installed<$Brand>, $crate::server::ServerError> {
                $crate::mysql::family::Installed::find(self.settings)
            }
        }
    };
}

pub(super) use mysql_front;
