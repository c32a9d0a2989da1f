//! Reading and changing rows (`Client.proto`, `Cell.proto`, `Filter.proto`, `Comparator.proto`).

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RegionSpecifier {
    /// [`BY_REGION_NAME`].
    #[prost(int32, required, tag = "1")]
    pub(crate) kind: i32,
    #[prost(bytes = "vec", required, tag = "2")]
    pub(crate) value: Vec<u8>,
}

pub(crate) const BY_REGION_NAME: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NameBytesPair {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(crate) value: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Cell {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub(crate) row: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub(crate) qualifier: Option<Vec<u8>>,
    #[prost(uint64, optional, tag = "4")]
    pub(crate) timestamp: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "6")]
    pub(crate) value: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RowResult {
    #[prost(message, repeated, tag = "1")]
    pub(crate) cell: Vec<Cell>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Column {
    #[prost(bytes = "vec", required, tag = "1")]
    pub(crate) family: Vec<u8>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(crate) qualifier: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Get {
    #[prost(bytes = "vec", required, tag = "1")]
    pub(crate) row: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) column: Vec<Column>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct QualifierValue {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub(crate) qualifier: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(crate) value: Option<Vec<u8>>,
    #[prost(uint64, optional, tag = "3")]
    pub(crate) timestamp: Option<u64>,
    /// [`DELETE_FAMILY`].
    #[prost(int32, optional, tag = "4")]
    pub(crate) delete_type: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ColumnValue {
    #[prost(bytes = "vec", required, tag = "1")]
    pub(crate) family: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) qualifier_value: Vec<QualifierValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mutation {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub(crate) row: Option<Vec<u8>>,
    /// [`PUT`] or [`DELETE`].
    #[prost(int32, optional, tag = "2")]
    pub(crate) mutate_type: Option<i32>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) column_value: Vec<ColumnValue>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attribute: Vec<NameBytesPair>,
    /// [`SYNC_WAL`].
    #[prost(int32, optional, tag = "6")]
    pub(crate) durability: Option<i32>,
}

pub(crate) const PUT: i32 = 2;
pub(crate) const DELETE: i32 = 3;
/// Deletes all versions of all columns, up to a time.
pub(crate) const DELETE_FAMILY: i32 = 2;
/// The answer waits until the log has the change, whatever the table says.
pub(crate) const SYNC_WAL: i32 = 3;
/// The attribute with the milliseconds after which the server hides the cells.
pub(crate) const TTL: &str = "_ttl";

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Named {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(crate) serialized: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ByteArrayComparable {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub(crate) value: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct BinaryComparator {
    #[prost(message, required, tag = "1")]
    pub(crate) comparable: ByteArrayComparable,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SingleColumnValueFilter {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub(crate) column_family: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(crate) column_qualifier: Option<Vec<u8>>,
    #[prost(int32, required, tag = "3")]
    pub(crate) compare_op: i32,
    #[prost(message, required, tag = "4")]
    pub(crate) comparator: Named,
    #[prost(bool, optional, tag = "5")]
    pub(crate) filter_if_missing: Option<bool>,
    #[prost(bool, optional, tag = "6")]
    pub(crate) latest_version_only: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FilterList {
    /// [`MUST_PASS_ALL`].
    #[prost(int32, required, tag = "1")]
    pub(crate) operator: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) filters: Vec<Named>,
}

pub(crate) const MUST_PASS_ALL: i32 = 1;
pub(crate) const EQUAL: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Condition {
    #[prost(bytes = "vec", required, tag = "1")]
    pub(crate) row: Vec<u8>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(crate) family: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub(crate) qualifier: Option<Vec<u8>>,
    #[prost(int32, optional, tag = "4")]
    pub(crate) compare_type: Option<i32>,
    #[prost(message, optional, tag = "5")]
    pub(crate) comparator: Option<Named>,
    #[prost(message, optional, tag = "7")]
    pub(crate) filter: Option<Named>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Action {
    #[prost(uint32, optional, tag = "1")]
    pub(crate) index: Option<u32>,
    #[prost(message, optional, tag = "2")]
    pub(crate) mutation: Option<Mutation>,
    #[prost(message, optional, tag = "3")]
    pub(crate) get: Option<Get>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RegionAction {
    #[prost(message, required, tag = "1")]
    pub(crate) region: RegionSpecifier,
    #[prost(bool, optional, tag = "2")]
    pub(crate) atomic: Option<bool>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) action: Vec<Action>,
    #[prost(message, optional, tag = "4")]
    pub(crate) condition: Option<Condition>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MultiRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) region_action: Vec<RegionAction>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResultOrException {
    #[prost(message, optional, tag = "2")]
    pub(crate) result: Option<RowResult>,
    #[prost(message, optional, tag = "3")]
    pub(crate) exception: Option<NameBytesPair>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RegionActionResult {
    #[prost(message, repeated, tag = "1")]
    pub(crate) result_or_exception: Vec<ResultOrException>,
    #[prost(message, optional, tag = "2")]
    pub(crate) exception: Option<NameBytesPair>,
    #[prost(bool, optional, tag = "3")]
    pub(crate) processed: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MultiResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) region_action_result: Vec<RegionActionResult>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Scan {
    #[prost(message, repeated, tag = "1")]
    pub(crate) column: Vec<Column>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub(crate) start_row: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(crate) stop_row: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "15")]
    pub(crate) reversed: Option<bool>,
    #[prost(bool, optional, tag = "21")]
    pub(crate) include_start_row: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ScanRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) region: Option<RegionSpecifier>,
    #[prost(message, optional, tag = "2")]
    pub(crate) scan: Option<Scan>,
    #[prost(uint32, optional, tag = "4")]
    pub(crate) number_of_rows: Option<u32>,
    #[prost(bool, optional, tag = "5")]
    pub(crate) close_scanner: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ScanResponse {
    #[prost(bool, optional, tag = "3")]
    pub(crate) more_results: Option<bool>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) results: Vec<RowResult>,
    #[prost(bool, optional, tag = "8")]
    pub(crate) more_results_in_region: Option<bool>,
}
