//! A request: as it arrives, and as the index keeps it.

use crate::hash::{Level, Stream};
use crate::node::{Arrival, NodeId};

/// A request as it enters the waiting queue, its tokens hashed.
#[derive(Clone, Debug)]
pub struct Arriving {
    /// Unique among the requests alive.
    pub id: u64,
    /// Tokens in all.
    pub length: u64,
    /// KV tokens the engine sets aside for its output.
    pub reserve: u64,
    /// Kept when the request comes back after a retraction.
    pub arrival: Arrival,
    /// Less than [`crate::LANES`]: lanes are served one after the other, but for the fairness bound.
    pub lane: u8,
    /// Whether its KV will be published for others.
    pub leads: bool,
    /// Cumulative hashes of its whole shareable chunks.
    pub path: Vec<Level>,
    /// The state of the hash after them, for [`crate::Index::grow`]; absent if the request can't grow a shareable path.
    pub stream: Option<Stream>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    /// Named by `plan`, not settled yet.
    Tentative,
    Running,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub id: u64,
    pub length: u64,
    pub reserve: u64,
    pub arrival: Arrival,
    pub lane: u8,
    pub state: State,
    pub leads: bool,
    /// It counts in `Counts::leading` along its path.
    pub computing: bool,
    /// Waiting and offered to the orders (not set aside).
    pub queued: bool,
    /// Its place in [`crate::Index::ages`], or in [`crate::Index::rows`].
    pub at: u32,
    /// The pass in which it became a row.
    pub admitted: u64,
    /// Tokens scheduled by then.
    pub since: u64,
    /// The pass in which the engine refused it last; 0: never.
    pub refused: u64,
    /// Where its path ends; pinned.
    pub end: NodeId,
    /// Where its published prefix ends while it runs; pinned.
    pub published: NodeId,
    pub stream: Option<Stream>,
}
