//! The frame around each call, and the registry of a cluster (`RPC.proto`, `Registry.proto`,
//! `HBase.proto`).

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct UserInformation {
    #[prost(string, required, tag = "1")]
    pub(crate) effective_user: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConnectionHeader {
    #[prost(message, optional, tag = "1")]
    pub(crate) user_info: Option<UserInformation>,
    #[prost(string, required, tag = "2")]
    pub(crate) service_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestHeader {
    #[prost(uint32, required, tag = "1")]
    pub(crate) call_id: u32,
    #[prost(string, required, tag = "3")]
    pub(crate) method_name: String,
    #[prost(bool, required, tag = "4")]
    pub(crate) request_param: bool,
    /// In milliseconds. The server drops a request that has waited for longer.
    #[prost(uint32, required, tag = "7")]
    pub(crate) timeout: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExceptionResponse {
    #[prost(string, optional, tag = "1")]
    pub(crate) exception_class_name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(crate) stack_trace: Option<String>,
    #[prost(bool, optional, tag = "5")]
    pub(crate) do_not_retry: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseHeader {
    #[prost(uint32, optional, tag = "1")]
    pub(crate) call_id: Option<u32>,
    #[prost(message, optional, tag = "2")]
    pub(crate) exception: Option<ExceptionResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServerName {
    #[prost(string, required, tag = "1")]
    pub(crate) host_name: String,
    #[prost(uint32, optional, tag = "2")]
    pub(crate) port: Option<u32>,
    #[prost(uint64, optional, tag = "3")]
    pub(crate) start_code: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TableName {
    #[prost(bytes = "vec", required, tag = "1")]
    pub(crate) namespace: Vec<u8>,
    #[prost(bytes = "vec", required, tag = "2")]
    pub(crate) qualifier: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RegionInfo {
    #[prost(uint64, required, tag = "1")]
    pub(crate) region_id: u64,
    #[prost(message, required, tag = "2")]
    pub(crate) table_name: TableName,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub(crate) start_key: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(crate) end_key: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "5")]
    pub(crate) offline: Option<bool>,
    #[prost(bool, optional, tag = "6")]
    pub(crate) split: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RegionLocation {
    #[prost(message, optional, tag = "1")]
    pub(crate) region_info: Option<RegionInfo>,
    #[prost(message, optional, tag = "2")]
    pub(crate) server_name: Option<ServerName>,
}

/// A request without parameters.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NoParameters {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetActiveMasterResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) server_name: Option<ServerName>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GetMetaRegionLocationsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) meta_locations: Vec<RegionLocation>,
}
