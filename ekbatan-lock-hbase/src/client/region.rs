//! Looking for the regions of the table.
//!
//! Invariant: a region that is not where it was found is forgotten, and looked for again.

use std::sync::Arc;

use prost::Message;
use tokio::time::{Instant, timeout_at};

use super::calls::Client;
use super::error::{CallError, Meaning};
use super::known_regions::Region;
use super::service::Service;
use crate::messages::data::{
    BY_REGION_NAME, Column, RegionSpecifier, RowResult, Scan, ScanRequest, ScanResponse,
};
use crate::messages::rpc::RegionInfo;

/// The table of all regions has one region, with a name that does not change.
const META: &[u8] = b"hbase:meta,,1";

/// Later than the creation of any region.
const LATEST: &str = "99999999999999";

/// What comes before each stored message.
const MAGIC: &[u8] = b"PBUF";

/// Why a region was not found.
pub(super) enum NotFound {
    /// The table does not exist.
    NoTable,
    /// The region has no server at present.
    NotOpen,
    /// The servers that know where regions are took too long to answer.
    NoAnswer,
    Failed(CallError),
}

impl Client {
    /// The region of a row. Looks for it only if that can begin before `until`: other callers may be
    /// looking, and may be slow.
    pub(super) async fn region(&self, row: &[u8], until: Instant) -> Result<Arc<Region>, NotFound> {
        if let Some(found) = self.regions.find(row) {
            return Ok(found);
        }
        let asking = timeout_at(until, self.regions.asking.lock()).await;
        let Some(_asking) = asking.ok().filter(|_| Instant::now() < until) else {
            return Err(NotFound::NoAnswer);
        };
        if let Some(found) = self.regions.find(row) {
            return Ok(found);
        }
        let found = Arc::new(self.look_for(row).await?);
        self.regions.known().insert(found.start.clone(), found.clone());
        Ok(found)
    }

    /// The server of a row, if its region was found before.
    pub(crate) fn server_of(&self, row: &[u8]) -> Option<String> {
        self.regions.find(row).map(|region| region.server.clone())
    }

    /// Has the next caller look for the region again.
    pub(super) fn forget(&self, region: &Arc<Region>) {
        self.regions.forget(region);
    }

    async fn look_for(&self, row: &[u8]) -> Result<Region, NotFound> {
        let known = self.regions.meta().clone();
        let meta = match &known {
            Some(meta) => meta.clone(),
            None => self.meta_server().await.map_err(NotFound::Failed)?,
        };
        let table = self.address().table().name();
        let first = [table.as_bytes(), b",", row, b",", LATEST.as_bytes()].concat();
        let scan = Scan {
            column: vec![Column { family: b"info".to_vec(), qualifier: Vec::new() }],
            start_row: Some(first),
            stop_row: Some(format!("{table},,").into_bytes()),
            reversed: Some(true),
            include_start_row: Some(true),
        };
        let request = ScanRequest {
            region: Some(RegionSpecifier { kind: BY_REGION_NAME, value: META.to_vec() }),
            scan: Some(scan),
            number_of_rows: Some(1),
            close_scanner: Some(true),
        };
        let asked = self.call(&meta, Service::Rows, "Scan", &request).await;
        let answer: ScanResponse = match asked {
            Ok(answer) => answer,
            Err(error) => {
                *self.regions.meta() = None;
                // If this server no longer has the meta table, the region may still be open.
                return Err(match error.meaning() {
                    Some(Meaning::Elsewhere | Meaning::Later) => NotFound::NotOpen,
                    _ => NotFound::Failed(error),
                });
            }
        };
        *self.regions.meta() = Some(meta);
        self.close_unused();
        let found = answer.results.first().ok_or(NotFound::NoTable)?;
        let region = read(found).ok_or(NotFound::NotOpen)?;
        if region.has(row) { Ok(region) } else { Err(NotFound::NotOpen) }
    }
}

/// Reads a row of the table of regions.
fn read(found: &RowResult) -> Option<Region> {
    let cell = |name: &[u8]| {
        let cell = found.cell.iter().find(|cell| cell.qualifier.as_deref() == Some(name))?;
        cell.value.as_deref()
    };
    let info = RegionInfo::decode(cell(b"regioninfo")?.strip_prefix(MAGIC)?).ok()?;
    let server = String::from_utf8(cell(b"server")?.to_vec()).ok()?;
    let is_open = cell(b"state").is_none_or(|state| state == b"OPEN");
    let is_gone = info.offline == Some(true) || info.split == Some(true);
    if server.is_empty() || is_gone || !is_open {
        return None;
    }
    let name = found.cell.first()?.row.clone()?;
    let (start, end) = (info.start_key.unwrap_or_default(), info.end_key.unwrap_or_default());
    Some(Region { name, start, end, server })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::known_regions::Regions;
    use crate::messages::data::Cell;
    use crate::messages::rpc::TableName;

    fn row(state: &[u8], offline: bool) -> RowResult {
        let info = RegionInfo {
            region_id: 1,
            table_name: TableName { namespace: b"default".to_vec(), qualifier: b"t".to_vec() },
            start_key: Some(b"b".to_vec()),
            end_key: Some(b"d".to_vec()),
            offline: Some(offline),
            split: None,
        };
        let cell = |name: &[u8], value: Vec<u8>| Cell {
            row: Some(b"t,b,1.x.".to_vec()),
            qualifier: Some(name.to_vec()),
            timestamp: None,
            value: Some(value),
        };
        let stored = [MAGIC, &info.encode_to_vec()].concat();
        RowResult {
            cell: vec![
                cell(b"regioninfo", stored),
                cell(b"server", b"h:16020".to_vec()),
                cell(b"state", state.to_vec()),
            ],
        }
    }

    #[test]
    fn a_region_has_the_rows_from_its_first_to_that_of_the_next() {
        let region = read(&row(b"OPEN", false)).unwrap();
        assert_eq!((region.server.as_str(), &region.name[..]), ("h:16020", &b"t,b,1.x."[..]));
        for (row, inside) in [(&b"a"[..], false), (b"b", true), (b"c\xff", true), (b"d", false)] {
            assert_eq!(region.has(row), inside);
        }
        let regions = Regions::default();
        let region = Arc::new(region);
        regions.known().insert(region.start.clone(), region.clone());
        assert_eq!(regions.find(b"c"), Some(region.clone()));
        assert_eq!(regions.find(b"a"), None);
        assert_eq!(regions.find(b"d"), None);
        let other = Arc::new(read(&row(b"OPEN", false)).unwrap());
        regions.forget(&other);
        assert!(regions.find(b"c").is_some(), "it was found again meanwhile");
        regions.forget(&region);
        assert_eq!(regions.find(b"c"), None);
    }

    #[test]
    fn a_region_that_is_not_open_has_no_server() {
        assert_eq!(read(&row(b"OPENING", false)), None);
        assert_eq!(read(&row(b"OPEN", true)), None);
        assert_eq!(read(&RowResult { cell: Vec::new() }), None);
    }
}
