//! What a node knows of the streams that it handles.
//!
//! Invariant: a stream is known up to a version if each of its deliveries up to that version is
//! handled, or held by this node so that it is handled before later ones. Who drops a held delivery
//! forgets the stream. What is not known is only claimed later, so forgetting is always safe.

use std::collections::HashMap;

use uuid::Uuid;

/// How many streams are remembered at least, if there are so many.
const STREAMS: usize = 32 * 1_024;

/// How many deliveries of a stream a node holds. One that takes long would keep others from being
/// claimed.
pub const LONGEST_RUN: usize = 16;

/// A version of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ModelVersion {
    pub(crate) model: &'static str,
    pub(crate) id: Uuid,
    pub(crate) version: i64,
}

/// A handler, by its position among those of the node, and a model's id.
type StreamKey = (usize, Uuid);

/// The streams of a node's handlers. It remembers those that were used last.
#[derive(Debug)]
pub(super) struct KnownStreams {
    /// Those that were used since `old` was replaced by this.
    young: HashMap<StreamKey, KnownStream>,
    old: HashMap<StreamKey, KnownStream>,
    limit: usize,
}

#[derive(Debug)]
struct KnownStream {
    /// Models of several types may have one id, and versions that say nothing of each other.
    model: &'static str,
    known: Option<i64>,
    /// The last version that is being committed with this node as the owner of its deliveries.
    expected: Option<i64>,
    awaited: Option<Awaited>,
    /// About how many deliveries of the stream the node holds, or is going to hold.
    held: usize,
}

/// A version that was committed without an owner.
#[derive(Debug)]
struct Awaited {
    version: i64,
    /// Its deliveries that this node has not claimed yet.
    left: Vec<Uuid>,
}

impl Default for KnownStreams {
    fn default() -> Self {
        Self::remembering(STREAMS)
    }
}

impl KnownStreams {
    fn remembering(limit: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), limit }
    }

    /// Whether a version that is about to be committed follows the last one that is known, or that
    /// may be known by then. This is a guess: [`hold`](Self::hold) decides.
    pub(super) fn expect(&mut self, handler: usize, of: ModelVersion, count: usize) -> bool {
        // Nothing is earlier than the first version.
        let Some(stream) = self.get(handler, of) else { return of.version == 1 };
        let before = of.version.checked_sub(1);
        let follows = stream.known == before || stream.expected == before;
        if !follows || stream.held >= LONGEST_RUN {
            return false;
        }
        stream.expected = Some(of.version);
        stream.held += count;
        true
    }

    /// Takes back an expectation: the version is not committed.
    pub(super) fn give_up(&mut self, handler: usize, of: ModelVersion, count: usize) {
        if let Some(stream) = self.get(handler, of) {
            stream.expected = None;
            stream.held = stream.held.saturating_sub(count);
        }
    }

    /// Takes all deliveries of an expected version as held, if nothing stands before them now.
    pub(super) fn hold(&mut self, handler: usize, of: ModelVersion, count: usize) -> bool {
        match self.get(handler, of) {
            Some(stream) if stream.known == of.version.checked_sub(1) => {
                stream.known = Some(of.version);
                true
            }
            None if of.version == 1 => {
                let stream = self.add(handler, of);
                (stream.known, stream.held) = (Some(1), count);
                true
            }
            _ => {
                self.give_up(handler, of, count);
                false
            }
        }
    }

    /// Takes note of a version without deliveries.
    pub(super) fn pass(&mut self, handler: usize, of: ModelVersion) {
        if let Some(stream) = self.get(handler, of)
            && stream.known == of.version.checked_sub(1)
        {
            stream.known = Some(of.version);
        }
    }

    /// Takes note of a version whose deliveries have no owner. The stream is known up to it once
    /// this node has claimed them all.
    pub(super) fn await_claims(&mut self, handler: usize, of: ModelVersion, left: Vec<Uuid>) {
        let stream = match self.get(handler, of) {
            Some(stream) => stream,
            None => self.add(handler, of),
        };
        if stream.awaited.as_ref().is_none_or(|awaited| awaited.version < of.version) {
            stream.awaited = Some(Awaited { version: of.version, left });
        }
    }

    /// Takes note of a delivery that this node has claimed. Nodes claim only deliveries before which
    /// there is none that they have not claimed.
    pub(super) fn claimed(&mut self, handler: usize, stream: Uuid, version: i64, id: Uuid) {
        let Some(stream) = self.find((handler, stream)) else { return };
        stream.held += 1;
        let Some(awaited) = &mut stream.awaited else { return };
        if awaited.version != version {
            return;
        }
        awaited.left.retain(|left| *left != id);
        if awaited.left.is_empty() {
            stream.awaited = None;
            stream.known = Some(stream.known.map_or(version, |known| known.max(version)));
        }
    }

    /// Takes note of a held delivery that is handled.
    pub(super) fn handled(&mut self, handler: usize, stream: Uuid) {
        if let Some(stream) = self.find((handler, stream)) {
            stream.held = stream.held.saturating_sub(1);
        }
    }

    /// Forgets a stream, because a held delivery of it is not handled.
    pub(super) fn forget(&mut self, handler: usize, stream: Uuid) {
        self.young.remove(&(handler, stream));
        self.old.remove(&(handler, stream));
    }

    pub(super) fn clear(&mut self) {
        *self = Self::remembering(self.limit);
    }

    /// A stream, unless its versions are those of another model.
    fn get(&mut self, handler: usize, of: ModelVersion) -> Option<&mut KnownStream> {
        let stream = self.find((handler, of.id))?;
        if stream.model != of.model {
            // It is not forgotten: the first version of this model is not the first of the stream.
            *stream = KnownStream { held: stream.held, ..KnownStream::of(of.model) };
        }
        Some(stream)
    }

    fn find(&mut self, key: StreamKey) -> Option<&mut KnownStream> {
        match self.old.remove(&key) {
            Some(stream) => Some(self.insert(key, stream)),
            None => self.young.get_mut(&key),
        }
    }

    fn add(&mut self, handler: usize, of: ModelVersion) -> &mut KnownStream {
        self.insert((handler, of.id), KnownStream::of(of.model))
    }

    fn insert(&mut self, key: StreamKey, stream: KnownStream) -> &mut KnownStream {
        if self.young.len() >= self.limit {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.entry(key).insert_entry(stream).into_mut()
    }
}

impl KnownStream {
    fn of(model: &'static str) -> Self {
        Self { model, known: None, expected: None, awaited: None, held: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLER: usize = 0;

    fn wallet(id: u128, version: i64) -> ModelVersion {
        ModelVersion { model: "Wallet", id: Uuid::from_u128(id), version }
    }

    fn delivery(id: u128) -> Uuid {
        Uuid::from_u128(1_000 + id)
    }

    /// Commits a version with this node as the owner of its delivery.
    fn bear(streams: &mut KnownStreams, of: ModelVersion) -> bool {
        streams.expect(HANDLER, of, 1) && streams.hold(HANDLER, of, 1)
    }

    /// Whether the node may be the owner of a version, which is then not committed.
    fn may_follow(streams: &mut KnownStreams, of: ModelVersion) -> bool {
        let may = streams.expect(HANDLER, of, 1);
        if may {
            streams.give_up(HANDLER, of, 1);
        }
        may
    }

    #[test]
    fn a_version_follows_the_one_before_it_and_no_other() {
        let mut streams = KnownStreams::default();
        assert!(!may_follow(&mut streams, wallet(1, 2)), "nothing is known of the first one");
        assert!(bear(&mut streams, wallet(1, 1)));
        assert!(!streams.hold(HANDLER, wallet(1, 1), 1), "it is held once");
        assert!(!may_follow(&mut streams, wallet(1, 3)), "another process commits the second");
        assert!(!streams.hold(HANDLER, wallet(1, 3), 1));
        assert!(may_follow(&mut streams, wallet(1, 2)));
        assert!(!streams.expect(1, wallet(1, 2), 1), "another handler");
        assert!(!may_follow(&mut streams, wallet(2, 2)), "another model");
    }

    #[test]
    fn versions_that_are_committed_together_follow_each_other() {
        let mut streams = KnownStreams::default();
        assert!(bear(&mut streams, wallet(1, 1)));
        assert!(streams.expect(HANDLER, wallet(1, 2), 1));
        assert!(streams.expect(HANDLER, wallet(1, 3), 1));
        // The later one is not held if the earlier one is not.
        assert!(!streams.hold(HANDLER, wallet(1, 3), 1));
        assert!(streams.hold(HANDLER, wallet(1, 2), 1));
        assert!(streams.expect(HANDLER, wallet(1, 3), 1));
        assert!(streams.expect(HANDLER, wallet(1, 4), 1));
        streams.give_up(HANDLER, wallet(1, 3), 1);
        assert!(!may_follow(&mut streams, wallet(1, 5)), "the third one was not committed");
        assert!(may_follow(&mut streams, wallet(1, 3)));
    }

    #[test]
    fn a_version_without_deliveries_breaks_no_chain() {
        let mut streams = KnownStreams::default();
        assert!(bear(&mut streams, wallet(1, 1)));
        streams.pass(HANDLER, wallet(1, 3));
        assert!(!may_follow(&mut streams, wallet(1, 4)), "the second version is not known");
        streams.pass(HANDLER, wallet(1, 2));
        assert!(may_follow(&mut streams, wallet(1, 3)));
        streams.pass(HANDLER, wallet(2, 1));
        assert!(!may_follow(&mut streams, wallet(2, 2)), "nothing is kept of what nobody wants");
    }

    #[test]
    fn what_relied_on_a_forgotten_stream_is_not_held() {
        let mut streams = KnownStreams::default();
        assert!(bear(&mut streams, wallet(1, 1)));
        assert!(streams.expect(HANDLER, wallet(1, 2), 1));
        // The second version is being committed while the run of the first one fails.
        streams.forget(HANDLER, wallet(1, 1).id);
        assert!(!streams.hold(HANDLER, wallet(1, 2), 1));
        assert!(bear(&mut streams, wallet(2, 1)));
        assert!(streams.expect(HANDLER, wallet(2, 2), 1));
        streams.clear();
        assert!(!streams.hold(HANDLER, wallet(2, 2), 1));
    }

    #[test]
    fn claims_of_all_deliveries_of_a_version_make_it_known() {
        let mut streams = KnownStreams::default();
        let of = wallet(1, 7);
        streams.claimed(HANDLER, of.id, 7, delivery(1));
        streams.await_claims(HANDLER, of, vec![delivery(1), delivery(2)]);
        streams.claimed(HANDLER, of.id, 7, delivery(1));
        assert!(!may_follow(&mut streams, wallet(1, 8)), "one of them is not claimed");
        streams.claimed(HANDLER, of.id, 6, delivery(2));
        assert!(!may_follow(&mut streams, wallet(1, 8)), "of another version");
        streams.claimed(HANDLER, of.id, 7, delivery(2));
        assert!(may_follow(&mut streams, wallet(1, 8)));
        // Word of an earlier commit comes late.
        streams.await_claims(HANDLER, wallet(1, 5), vec![delivery(3)]);
        streams.claimed(HANDLER, of.id, 5, delivery(3));
        assert!(may_follow(&mut streams, wallet(1, 8)));
        // What was claimed is given back.
        streams.await_claims(HANDLER, wallet(1, 9), vec![delivery(4), delivery(5)]);
        streams.claimed(HANDLER, of.id, 9, delivery(4));
        streams.forget(HANDLER, of.id);
        streams.claimed(HANDLER, of.id, 9, delivery(5));
        assert!(!may_follow(&mut streams, wallet(1, 10)));
    }

    #[test]
    fn models_of_two_types_with_one_id_are_told_apart() {
        let mut streams = KnownStreams::default();
        let account = |version| ModelVersion { model: "Account", ..wallet(1, version) };
        assert!(bear(&mut streams, account(1)));
        assert!(!may_follow(&mut streams, wallet(1, 2)), "the first wallet is not known");
        assert!(!streams.hold(HANDLER, wallet(1, 2), 1));
        assert!(!bear(&mut streams, wallet(1, 1)), "there are deliveries before");
        streams.await_claims(HANDLER, wallet(1, 2), vec![delivery(1)]);
        streams.claimed(HANDLER, wallet(1, 2).id, 2, delivery(1));
        assert!(may_follow(&mut streams, wallet(1, 3)));
        assert!(!may_follow(&mut streams, account(3)));
    }

    #[test]
    fn one_stream_does_not_fill_the_node() {
        let mut streams = KnownStreams::default();
        for version in 1..=LONGEST_RUN as i64 {
            assert!(bear(&mut streams, wallet(1, version)));
        }
        let next = wallet(1, LONGEST_RUN as i64 + 1);
        assert!(!may_follow(&mut streams, next));
        streams.handled(HANDLER, next.id);
        assert!(streams.expect(HANDLER, next, 1));
        assert!(!streams.expect(HANDLER, wallet(1, next.version + 1), 1));
        streams.give_up(HANDLER, next, 1);
        assert!(may_follow(&mut streams, next));
    }

    #[test]
    fn the_streams_that_were_used_last_are_remembered() {
        let mut streams = KnownStreams::remembering(4);
        assert!(bear(&mut streams, wallet(1, 1)));
        for id in 2..100 {
            assert!(bear(&mut streams, wallet(id, 1)));
            assert!(may_follow(&mut streams, wallet(1, 2)), "it is in use");
            assert!(streams.young.len() <= 4 && streams.old.len() <= 4);
        }
        assert!(!may_follow(&mut streams, wallet(2, 2)), "it was forgotten");
    }
}
