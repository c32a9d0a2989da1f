//! What the master is asked for (`Master.proto`, `ClusterStatus.proto`, `HBase.proto`).

use prost::Message;

use super::rpc::{ServerName, TableName};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct BytesBytesPair {
    #[prost(bytes = "vec", required, tag = "1")]
    pub(crate) first: Vec<u8>,
    #[prost(bytes = "vec", required, tag = "2")]
    pub(crate) second: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ColumnFamilySchema {
    #[prost(bytes = "vec", required, tag = "1")]
    pub(crate) name: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) attributes: Vec<BytesBytesPair>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TableSchema {
    #[prost(message, optional, tag = "1")]
    pub(crate) table_name: Option<TableName>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) attributes: Vec<BytesBytesPair>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) column_families: Vec<ColumnFamilySchema>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CreateTableRequest {
    #[prost(message, required, tag = "1")]
    pub(crate) table_schema: TableSchema,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CreateTableResponse {
    #[prost(uint64, optional, tag = "1")]
    pub(crate) proc_id: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetTableDescriptorsRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) table_names: Vec<TableName>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetTableDescriptorsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) table_schema: Vec<TableSchema>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetTableStateRequest {
    #[prost(message, required, tag = "1")]
    pub(crate) table_name: TableName,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TableState {
    /// [`TABLE_ENABLED`], [`TABLE_DISABLED`], or a state in between.
    #[prost(int32, required, tag = "1")]
    pub(crate) state: i32,
}

pub(crate) const TABLE_ENABLED: i32 = 0;

pub(crate) const TABLE_DISABLED: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetTableStateResponse {
    #[prost(message, required, tag = "1")]
    pub(crate) table_state: TableState,
}

/// The parts of a [`ClusterStatus`] that are read.
pub(crate) const HBASE_VERSION: i32 = 0;
pub(crate) const CLUSTER_ID: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetClusterStatusRequest {
    #[prost(int32, repeated, packed = "false", tag = "1")]
    pub(crate) options: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Text {
    #[prost(string, required, tag = "1")]
    pub(crate) text: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClusterStatus {
    #[prost(message, optional, tag = "1")]
    pub(crate) hbase_version: Option<Text>,
    #[prost(message, optional, tag = "5")]
    pub(crate) cluster_id: Option<Text>,
    #[prost(message, optional, tag = "7")]
    pub(crate) master: Option<ServerName>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetClusterStatusResponse {
    #[prost(message, required, tag = "1")]
    pub(crate) cluster_status: ClusterStatus,
}
