//! The regions that were found so far: the parts of the table's rows, each at one server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::messages::data::{BY_REGION_NAME, RegionSpecifier};

/// The regions that were found so far.
#[derive(Default)]
pub(super) struct Regions {
    /// By the first row of each.
    known: Mutex<BTreeMap<Vec<u8>, Arc<Region>>>,
    /// The server that knows where regions are.
    meta: Mutex<Option<String>>,
    /// Held by the caller that looks for a region. If it finds it, the others need not look.
    pub(super) asking: tokio::sync::Mutex<()>,
}

/// A region, and its server.
#[derive(Debug, PartialEq)]
pub(super) struct Region {
    pub(super) name: Vec<u8>,
    pub(super) start: Vec<u8>,
    /// The first row behind it; empty for the last region.
    pub(super) end: Vec<u8>,
    pub(super) server: String,
}

impl Region {
    pub(super) fn specifier(&self) -> RegionSpecifier {
        RegionSpecifier { kind: BY_REGION_NAME, value: self.name.clone() }
    }

    pub(super) fn has(&self, row: &[u8]) -> bool {
        *self.start <= *row && (self.end.is_empty() || *row < *self.end)
    }
}

impl Regions {
    pub(super) fn known(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Arc<Region>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn meta(&self) -> MutexGuard<'_, Option<String>> {
        self.meta.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, row: &[u8]) -> Option<Arc<Region>> {
        let known = self.known();
        let (_, region) = known.range(..=row.to_vec()).next_back()?;
        region.has(row).then(|| region.clone())
    }

    pub(super) fn forget(&self, region: &Arc<Region>) {
        let mut known = self.known();
        if known.get(&region.start).is_some_and(|found| Arc::ptr_eq(found, region)) {
            known.remove(&region.start);
        }
    }
}
