//! The start: checks the cluster, makes the table if it is missing, and tries what locks rely on.

use std::time::Duration;

use ekbatan_lock::{BackendError, FailureKind, LockError};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::address::{Table, refused};
use crate::client::{
    CallError, Change, Client, Effect, Expected, FAMILY, Found, MARKER, Put, RowOp, STATE,
};
use crate::locks::Locks;
use crate::messages::admin::{
    BytesBytesPair, CLUSTER_ID, ColumnFamilySchema, CreateTableRequest, CreateTableResponse,
    GetClusterStatusRequest, GetClusterStatusResponse, GetTableDescriptorsRequest,
    GetTableDescriptorsResponse, GetTableStateRequest, GetTableStateResponse, HBASE_VERSION,
    TABLE_DISABLED, TABLE_ENABLED, TableSchema,
};
use crate::messages::rpc::TableName;
use crate::safety;

/// How long a table may take to be open, and a master to be ready.
const PATIENCE: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(50);

/// What the row of no lock has in place of a state: the format of this crate.
const FORMAT: &[u8] = b"ekbatan-lock-hbase 1";

/// A mark with this term has to be hidden soon.
const TRIAL: Duration = Duration::from_millis(1);

/// How long the server may take to hide it.
const HIDDEN: Duration = Duration::from_secs(5);

/// Prepares the cluster for locks.
pub(crate) async fn prepare(locks: &Locks) -> Result<(), LockError> {
    let client = &locks.client;
    check_cluster(client).await?;
    let table = client.address().table();
    let found = find(client, table).await?;
    let is_new = found.is_none();
    let schema = match found {
        Some(schema) => schema,
        None => made(client, table).await?,
    };
    safety::check_table(&table.name(), &schema)?;
    until_enabled(client, table, is_new).await?;
    client.close_unused();
    try_terms(locks).await
}

fn failed(error: CallError) -> LockError {
    LockError::Start { source: error.of(Effect::None) }
}

async fn check_cluster(client: &Client) -> Result<(), LockError> {
    let request = GetClusterStatusRequest { options: vec![HBASE_VERSION, CLUSTER_ID] };
    let asked = Instant::now();
    let status = loop {
        let status = client.master("GetClusterStatus", &request).await;
        match status {
            Ok(status) => break status,
            // It has just become the active one, and says so in several ways.
            Err(error) if is_early(&error) && asked.elapsed() < PATIENCE => sleep(PAUSE).await,
            Err(error) => return Err(failed(error)),
        }
    };
    let GetClusterStatusResponse { cluster_status } = status;
    let version = cluster_status.hbase_version.map(|it| it.text).unwrap_or_default();
    let id = cluster_status.cluster_id.map(|it| it.text).unwrap_or_default();
    safety::check_version(&version)?;
    safety::check_identity(client.address().cluster(), &id)?;
    tracing::debug!(version, id, "locks are in this cluster of HBase");
    Ok(())
}

/// Whether the master is not ready yet.
fn is_early(error: &CallError) -> bool {
    error.may_pass()
}

fn named(table: &Table) -> TableName {
    TableName {
        namespace: table.namespace.clone().into_bytes(),
        qualifier: table.qualifier.clone().into_bytes(),
    }
}

/// The description of the table, if it exists.
async fn find(client: &Client, table: &Table) -> Result<Option<TableSchema>, LockError> {
    let request = GetTableDescriptorsRequest { table_names: vec![named(table)] };
    match client.master("GetTableDescriptors", &request).await {
        Ok(GetTableDescriptorsResponse { table_schema }) => Ok(table_schema.into_iter().next()),
        Err(error) if error.is("TableNotFoundException") => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Makes the table, and waits until it is there.
async fn made(client: &Client, table: &Table) -> Result<TableSchema, LockError> {
    make(client, table).await?;
    let asked = Instant::now();
    loop {
        match find(client, table).await? {
            Some(schema) => return Ok(schema),
            None if asked.elapsed() < PATIENCE => sleep(PAUSE).await,
            None => {
                let why = format!("HBase: the table `{}` was made and is not there", table.name());
                return Err(LockError::Start { source: BackendError::unavailable(why) });
            }
        }
    }
}

async fn make(client: &Client, table: &Table) -> Result<(), LockError> {
    let attribute = |first: &str, second: &str| BytesBytesPair {
        first: first.as_bytes().to_vec(),
        second: second.as_bytes().to_vec(),
    };
    let family = ColumnFamilySchema {
        name: FAMILY.to_vec(),
        attributes: safety::FAMILY_ATTRIBUTES.map(|(name, value)| attribute(name, value)).to_vec(),
    };
    let table_schema = TableSchema {
        table_name: Some(named(table)),
        attributes: Vec::new(),
        column_families: vec![family],
    };
    let request = CreateTableRequest { table_schema };
    let made: Result<CreateTableResponse, _> = client.master("CreateTable", &request).await;
    match made {
        Ok(_) => {
            tracing::info!(table = table.name(), "a table for locks was made");
            Ok(())
        }
        // Another process has just made it.
        Err(error) if error.is("TableExistsException") => Ok(()),
        Err(error) if error.is("NamespaceNotFoundException") => Err(refused(&format!(
            "the namespace `{}` of the table `{}` does not exist; make it, or name another table",
            table.namespace,
            table.name()
        ))),
        Err(error) => {
            let source = error.of(Effect::None);
            let message = format!(
                "the table `{0}` does not exist and could not be made ({source}); make it with \
                 `create '{0}', {{NAME => 'l', VERSIONS => 1}}`",
                table.name()
            );
            Err(LockError::Start { source: BackendError::new(message) })
        }
    }
}

/// Waits until the table is enabled. One that was there before and is disabled stays so.
async fn until_enabled(client: &Client, table: &Table, is_new: bool) -> Result<(), LockError> {
    let request = GetTableStateRequest { table_name: named(table) };
    let asked = Instant::now();
    loop {
        let state: Result<GetTableStateResponse, _> =
            client.master("GetTableState", &request).await;
        let state = match state {
            Ok(GetTableStateResponse { table_state }) => Some(table_state.state),
            // The procedure that makes it has not got that far.
            Err(error) if error.is("TableNotFoundException") => None,
            Err(error) => return Err(failed(error)),
        };
        match state {
            Some(TABLE_ENABLED) => return Ok(()),
            _ if asked.elapsed() < PATIENCE && (is_new || state != Some(TABLE_DISABLED)) => {
                sleep(PAUSE).await;
            }
            _ => {
                return Err(refused(&format!(
                    "the table `{0}` is disabled; write `enable '{0}'`",
                    table.name()
                )));
            }
        }
    }
}

/// Checks that the server ends cells by their terms, and learns its time.
async fn try_terms(locks: &Locks) -> Result<(), LockError> {
    let (row, value) = (locks.names.trial(), Uuid::new_v4().to_string().into_bytes());
    let format = Put { qualifier: STATE.to_vec(), value: FORMAT.to_vec(), term: None };
    let mark = Put { qualifier: MARKER.to_vec(), value: value.clone(), term: Some(TRIAL) };
    let first = RowOp { row: row.clone(), change: None };
    let stored = |found: &Found, qualifier: &[u8]| {
        let cells = found.cells.iter();
        let mut cells = cells.filter(|cell| cell.qualifier.as_deref() == Some(qualifier));
        cells.next().cloned()
    };
    let found = until_open(locks, first).await?;
    if let Some(other) = stored(&found, STATE).and_then(|cell| cell.value)
        && other != FORMAT
    {
        return Err(refused(&format!(
            "the row `{}` of the table has `{}` in place of `{}`: locks of another version are in \
             it; use another namespace, or stop all processes and empty the table",
            String::from_utf8_lossy(&row),
            String::from_utf8_lossy(&other),
            String::from_utf8_lossy(FORMAT)
        )));
    }
    let change = Some(Change::Put(Expected::Anything, vec![format, mark]));
    let found = until_open(locks, RowOp { row: row.clone(), change }).await?;
    if let Some(stamp) = stored(&found, STATE).and_then(|cell| cell.timestamp) {
        locks.clock.note(stamp);
    }
    let asked = Instant::now();
    loop {
        let found = until_open(locks, RowOp { row: row.clone(), change: None }).await?;
        let mark = stored(&found, MARKER).and_then(|cell| cell.value);
        // Another process may have started at the same time, and have written its own.
        if mark != Some(value.clone()) {
            return Ok(());
        }
        if asked.elapsed() > HIDDEN {
            return Err(refused(
                "the server does not hide cells when their terms are over, so the key of a dead \
                 process would stay taken; locks need HFiles of version 3 and no coprocessor that \
                 removes the attribute `_ttl`",
            ));
        }
        sleep(TRIAL).await;
    }
}

/// Executes an operation, and waits for the region if the table has just been made.
async fn until_open(locks: &Locks, op: RowOp) -> Result<Found, LockError> {
    let asked = Instant::now();
    loop {
        match locks.client.exchange(op.clone()).await {
            Ok(found) => return Ok(found),
            Err(error)
                if error.kind() == FailureKind::Unavailable && asked.elapsed() < PATIENCE =>
            {
                sleep(PAUSE).await;
            }
            Err(source) => return Err(LockError::Start { source }),
        }
    }
}
