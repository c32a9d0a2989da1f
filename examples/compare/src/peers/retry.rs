//! Which database errors the alternatives retry.

/// Whether the deposit should be retried: after a deadlock, a serialization failure or,
/// on SQLite, a busy writer.
pub fn is_transient(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    let Some(code) = error.code() else { return false };
    matches!(&*code, "40001" | "40P01") || code.parse::<i32>().is_ok_and(|code| code & 0xff == 5)
}
