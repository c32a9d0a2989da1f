//! Reading rows in the order of their names, page by page.

use std::time::Duration;

use ekbatan_lock::BackendError;
use tokio::time::{Instant, sleep};

use super::calls::Client;
use super::error::{Effect, Meaning};
use super::region::NotFound;
use super::rows::FAMILY;
use super::service::{ANSWER, Service};
use crate::messages::data::{Cell, Column, Scan, ScanRequest, ScanResponse};

/// The pauses before a page is asked for again whose region was not there.
const PAUSES: [u64; 5] = [0, 10, 40, 160, 320];

/// Some rows, and where the next ones begin, if there are more.
pub(crate) struct Page {
    pub(crate) rows: Vec<(Vec<u8>, Vec<Cell>)>,
    pub(crate) next: Option<Vec<u8>>,
}

impl Client {
    /// At most `most` rows from `first` on and before `end`, of one region.
    pub(crate) async fn page(
        &self,
        first: &[u8],
        end: &[u8],
        most: usize,
    ) -> Result<Page, BackendError> {
        let mut failure = BackendError::unavailable("HBase: it was not asked");
        for pause in PAUSES {
            if pause > 0 {
                sleep(Duration::from_millis(pause)).await;
            }
            let region = match self.region(first, Instant::now() + ANSWER).await {
                Ok(region) => region,
                Err(NotFound::Failed(error)) => return Err(error.of(Effect::None)),
                Err(not_found) => {
                    failure = self.not_found(not_found);
                    continue;
                }
            };
            let scan = Scan {
                column: vec![Column { family: FAMILY.to_vec(), qualifier: Vec::new() }],
                start_row: Some(first.to_vec()),
                stop_row: Some(end.to_vec()),
                reversed: None,
                include_start_row: Some(true),
            };
            let request = ScanRequest {
                region: Some(region.specifier()),
                scan: Some(scan),
                number_of_rows: Some(u32::try_from(most).unwrap_or(u32::MAX)),
                close_scanner: Some(true),
            };
            let asked = self.call(&region.server, Service::Rows, "Scan", &request).await;
            let answer: ScanResponse = match asked {
                Ok(answer) => answer,
                Err(error) => {
                    let meaning = error.meaning();
                    if meaning != Some(Meaning::Later) {
                        self.forget(&region);
                    }
                    if !matches!(meaning, Some(Meaning::Later | Meaning::Elsewhere)) {
                        return Err(error.of(Effect::None));
                    }
                    failure = error.of(Effect::None);
                    continue;
                }
            };
            let rows: Vec<_> = answer
                .results
                .into_iter()
                .filter_map(|it| Some((it.cell.first()?.row.clone()?, it.cell)))
                .collect();
            let behind_region = Some(region.end.clone()).filter(|it| !it.is_empty() && **it < *end);
            let next = match rows.last() {
                // The server may have stopped before.
                Some((last, _)) if answer.more_results_in_region != Some(false) => {
                    Some([last.as_slice(), &[0]].concat())
                }
                _ => behind_region,
            };
            return Ok(Page { rows, next });
        }
        Err(failure)
    }
}
