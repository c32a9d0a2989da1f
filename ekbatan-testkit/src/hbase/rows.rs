//! Rows of a table, read and written by hand.

use std::io;

use super::client::Connection;
use super::message::{Value, bytes, count, field, fields};

/// The column family of all tables of tests.
const FAMILY: &str = "l";

/// A connection to the region of a table, see [`HBaseServer::rows`](super::HBaseServer::rows). Its
/// requests are those that a lock by hand would send.
#[derive(Debug)]
pub struct HBaseRows {
    connection: Connection,
    region: Vec<u8>,
}

/// A cell: the name of its column, its value, and its time in milliseconds.
pub type HBaseCell = (String, Vec<u8>, u64);

impl HBaseRows {
    /// Connects to the region server at `port` of this machine, which has the only region of the
    /// table.
    ///
    /// # Errors
    ///
    /// Fails if there is no such table, or no server.
    pub async fn open(port: u16, table: &str) -> io::Result<Self> {
        Self::find(port, table).await.map(|(rows, _)| rows)
    }

    /// The region by its short name, which is the last part of its whole one.
    pub(super) fn encoded_region(&self) -> Vec<u8> {
        let name = String::from_utf8_lossy(field(&self.region, 2)).into_owned();
        let short = name.trim_end_matches('.').rsplit('.').next().unwrap_or_default().to_owned();
        [count(1, 2), bytes(2, short)].concat()
    }

    /// Asks the server at `port`, which has the table of regions, for the only region of a table.
    /// Also returns its description.
    pub(super) async fn find(port: u16, table: &str) -> io::Result<(Self, Vec<u8>)> {
        let mut connection = Connection::open(port, "ClientService").await?;
        let scan = [
            bytes(1, bytes(1, "info")),
            bytes(3, format!("{table},,99999999999999")),
            bytes(4, format!("{table},,")),
            count(15, 1),
        ];
        let request = [
            bytes(1, [count(1, 1), bytes(2, "hbase:meta,,1")].concat()),
            bytes(2, scan.concat()),
            count(4, 1),
            count(5, 1),
        ];
        let answer = connection.call("Scan", &request.concat()).await?;
        let cells = field(&answer, 5);
        let row = field(field(cells, 1), 1);
        if row.is_empty() {
            return Err(io::Error::other(format!("there is no table {table}")));
        }
        let region = [count(1, 1), bytes(2, row)].concat();
        let stored = fields(cells, 1).into_iter().find_map(|cell| match cell {
            Value::Bytes(cell) if field(cell, 3) == b"regioninfo" => Some(field(cell, 6)),
            _ => None,
        });
        // What comes before the stored message.
        let info = stored.and_then(|it| it.strip_prefix(b"PBUF")).unwrap_or_default().to_vec();
        Ok((Self { connection, region }, info))
    }

    /// Writes a cell.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer, or refuses the request.
    pub async fn put(&mut self, row: &str, column: &str, value: &[u8]) -> io::Result<()> {
        self.mutate(put(row, column, value, None), None).await.map(drop)
    }

    /// Writes a cell with a time that is so many milliseconds before that of the server.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer, or refuses the request.
    pub async fn put_at(
        &mut self,
        row: &str,
        column: &str,
        value: &[u8],
        before: u64,
    ) -> io::Result<()> {
        // The server's time is that of a cell that it has just written.
        self.put(row, "now", &[]).await?;
        let cells = self.get(row).await?;
        let now = cells.iter().find(|(column, _, _)| column == "now").map_or(0, |(_, _, now)| *now);
        let value = [bytes(1, column), bytes(2, value), count(3, (now - before) as usize)].concat();
        let of_family = [bytes(1, FAMILY), bytes(2, value)].concat();
        let put = [bytes(1, row), count(2, 2), bytes(3, of_family)].concat();
        self.mutate(put, None).await?;
        self.delete(row, "now").await
    }

    /// Writes a cell if the column has this value, or nothing if that is empty. The server hides
    /// the cell after the milliseconds of `ttl`.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer, or refuses the request.
    pub async fn put_if(
        &mut self,
        row: &str,
        column: &str,
        expected: &[u8],
        (value, ttl): (&[u8], Option<u64>),
    ) -> io::Result<bool> {
        let comparator = [
            bytes(1, "org.apache.hadoop.hbase.filter.BinaryComparator"),
            bytes(2, bytes(1, bytes(1, expected))),
        ];
        let condition = [
            bytes(1, row),
            bytes(2, FAMILY),
            bytes(3, column),
            count(4, 2),
            bytes(5, comparator.concat()),
        ];
        self.mutate(put(row, column, value, ttl), Some(condition.concat())).await
    }

    /// Deletes all versions of a column.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer, or refuses the request.
    pub async fn delete(&mut self, row: &str, column: &str) -> io::Result<()> {
        let value = [bytes(1, column), count(4, 1)].concat();
        let of_family = [bytes(1, FAMILY), bytes(2, value)].concat();
        let deletion = [bytes(1, row), count(2, 3), bytes(3, of_family)].concat();
        self.mutate(deletion, None).await.map(drop)
    }

    /// The cells of a row.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer, or refuses the request.
    pub async fn get(&mut self, row: &str) -> io::Result<Vec<HBaseCell>> {
        let get = [bytes(1, row), bytes(2, bytes(1, FAMILY))].concat();
        let request = [bytes(1, &self.region), bytes(2, get)].concat();
        let answer = self.connection.call("Get", &request).await?;
        let cells = fields(field(&answer, 1), 1).into_iter().filter_map(|cell| match cell {
            Value::Bytes(cell) => Some(cell),
            Value::Number(_) => None,
        });
        let time = |cell| match fields(cell, 4).first() {
            Some(Value::Number(time)) => *time as u64,
            _ => 0,
        };
        let column = |cell| String::from_utf8_lossy(field(cell, 3)).into_owned();
        Ok(cells.map(|cell| (column(cell), field(cell, 6).to_vec(), time(cell))).collect())
    }

    async fn mutate(&mut self, mutation: Vec<u8>, condition: Option<Vec<u8>>) -> io::Result<bool> {
        let condition = condition.map(|it| bytes(3, it)).unwrap_or_default();
        let request = [bytes(1, &self.region), bytes(2, mutation), condition].concat();
        let answer = self.connection.call("Mutate", &request).await?;
        Ok(fields(&answer, 2).first() == Some(&Value::Number(1)))
    }
}

fn put(row: &str, column: &str, value: &[u8], ttl: Option<u64>) -> Vec<u8> {
    let value = [bytes(1, column), bytes(2, value)].concat();
    let of_family = [bytes(1, FAMILY), bytes(2, value)].concat();
    let ttl = ttl.map(|ttl| bytes(5, [bytes(1, "_ttl"), bytes(2, ttl.to_be_bytes())].concat()));
    [bytes(1, row), count(2, 2), bytes(3, of_family), ttl.unwrap_or_default()].concat()
}
