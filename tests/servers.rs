//! Servers by address, until the test kit starts its own.

use std::sync::atomic::{AtomicUsize, Ordering};

static COUNT: AtomicUsize = AtomicUsize::new(0);

async fn create(variable: &str, scheme: &str) -> Result<String, sqlx::Error> {
    use sqlx::Connection as _;
    let base = std::env::var(variable).expect(variable);
    let name = format!("test_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let mut admin = sqlx::MySqlConnection::connect(&format!("mysql://{base}/mysql")).await?;
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}")))
        .execute(&mut admin)
        .await?;
    Ok(format!("{scheme}://{base}/{name}"))
}

pub struct MySqlServer;
impl MySqlServer {
    pub async fn shared() -> Result<Self, sqlx::Error> {
        Ok(Self)
    }
    pub async fn create_database(&self) -> Result<String, sqlx::Error> {
        create("EKBATAN_MYSQL", "mysql").await
    }
}
pub struct MariaDbServer;
impl MariaDbServer {
    pub async fn shared() -> Result<Self, sqlx::Error> {
        Ok(Self)
    }
    pub async fn create_database(&self) -> Result<String, sqlx::Error> {
        create("EKBATAN_MARIADB", "mariadb").await
    }
}
