//! What a node of the tree holds, and how waiting requests are keyed.

use crate::hash::Level;
use crate::heap::Heap;
use std::cmp::Reverse;
use std::ops::{Add, AddAssign, Neg};

/// Index of a node in the arena.
pub type NodeId = u32;
/// Index of a request in the table of [`crate::Index`].
pub type Slot = u32;

pub(crate) const ROOT: NodeId = 0;
pub(crate) const NIL: NodeId = u32::MAX;

/// When a request first arrived: tokens the engine had scheduled by then, and a sequence number that makes it unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arrival {
    /// Tokens (prefill and decode) that had been scheduled when the request arrived.
    pub tokens: u64,
    /// Unique among all requests alive.
    pub sequence: u64,
}

/// Orders waiting requests below one node: lanes one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// Of the lane, and below it: tokens scheduled before it arrived under [`crate::Order::Held`], its own (aged) under
    /// [`crate::Order::Missing`].
    pub rank: u64,
    /// Of its arrival: unique.
    pub sequence: u64,
}

/// There are fewer than [`LANES`]; ranks within one are less than this.
pub(crate) const LANE: u64 = 1 << 58;
/// Lanes there may be.
pub const LANES: u8 = 64;

impl Key {
    /// `rank`: within the lane; what is beyond all ranks comes last.
    pub fn new(lane: u8, rank: u64, sequence: u64) -> Self {
        Key { rank: u64::from(lane) * LANE + rank.min(LANE - 1), sequence }
    }

    #[inline]
    pub fn lane(self) -> u64 {
        self.rank / LANE
    }

    /// Both in one number: compared without a branch.
    #[inline]
    fn wide(self) -> u128 {
        u128::from(self.rank) << 64 | u128::from(self.sequence)
    }
}

impl Ord for Key {
    #[inline]
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.wide().cmp(&other.wide())
    }
}

impl PartialOrd for Key {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The first waiting request of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct First {
    pub key: Key,
    pub slot: Slot,
}

/// What a queue lists: a child node, or a request that ends at the node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// A [`NodeId`], or a [`Slot`] marked [`REQUEST`].
    pub of: u32,
    /// The request that has the key.
    pub slot: Slot,
}

/// Marks an [`Item`] that is a request and not a child node.
pub(crate) const REQUEST: u32 = 1 << 31;

/// The deepest node below (or at) a node whose path two waiting requests share, and the key of the first one under it.
pub(crate) type Lead = (Reverse<u32>, Key);

/// What lies at or below a node. Also used as the difference that one operation adds along a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Waiting requests.
    pub waiting: i32,
    /// Running rows whose published prefix reaches here: more than none makes the node *active*.
    pub rows: i32,
    /// Running rows that are computing this path for others: *pending*, where it is not published.
    pub leading: i32,
    /// Remembered paths of requests that left: published and not active is *cached*.
    pub cached: i32,
    /// Tokens that the waiting requests need when nothing is shared: length + reserve.
    pub demand: i64,
}

impl Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts {
            waiting: self.waiting + other.waiting,
            demand: self.demand + other.demand,
            rows: self.rows + other.rows,
            leading: self.leading + other.leading,
            cached: self.cached + other.cached,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        *self = *self + other;
    }
}

impl Neg for Counts {
    type Output = Counts;

    fn neg(self) -> Counts {
        Counts {
            waiting: -self.waiting,
            demand: -self.demand,
            rows: -self.rows,
            leading: -self.leading,
            cached: -self.cached,
        }
    }
}

impl Counts {
    #[inline]
    pub fn published(&self) -> bool {
        self.rows > 0 || self.cached > 0
    }

    /// Which of the counts that decide a node's state are not zero.
    #[inline]
    pub fn state(&self) -> u8 {
        let bit = |count, bit| if count > 0 { bit } else { 0 };
        bit(self.rows, ACTIVE) | bit(self.cached, CACHED) | bit(self.leading, LED) | bit(self.waiting, WAITED_FOR)
    }
}

/// Bits of [`Counts::state`].
pub(crate) const ACTIVE: u8 = 1;
pub(crate) const CACHED: u8 = 2;
pub(crate) const LED: u8 = 4;
pub(crate) const WAITED_FOR: u8 = 8;

/// Being computed, not active, and with waiting requests below: its rank depends on what lies above it.
pub(crate) fn is_watched(state: u8) -> bool {
    state & (ACTIVE | LED | WAITED_FOR) == LED | WAITED_FOR
}

/// Where a live node stands in the global orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rank {
    pub order: OrderKey,
    /// Under [`crate::Order::Held`]: by age.
    pub age: Key,
}

/// See [`crate::frontier::Frontier::by_order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrderKey {
    /// 0 but under [`crate::Order::Held`].
    most: u64,
    key: Key,
}

impl Ord for OrderKey {
    /// The most held is asked for within a lane.
    #[inline]
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.key.lane(), self.most, self.key).cmp(&(other.key.lane(), other.most, other.key))
    }
}

impl PartialOrd for OrderKey {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl OrderKey {
    /// The most chunks held come first, then the most rows that hold them.
    pub fn by_most_held(held: u32, rows: u32, key: Key) -> Self {
        OrderKey { most: u64::from(u32::MAX - held) << 32 | u64::from(u32::MAX - rows), key }
    }

    pub fn by_key(key: Key) -> Self {
        OrderKey { most: 0, key }
    }

    /// Chunks held, as it was made.
    pub fn held(self) -> u32 {
        u32::MAX - (self.most >> 32) as u32
    }
}

/// A run of chunks without a branch.
#[derive(Debug)]
pub(crate) struct Node {
    /// Cumulative hashes of its chunks; owned, since the request that brought them can leave.
    pub label: Box<[Level]>,
    /// Chunks from the root to the end of the label.
    pub depth: u32,
    pub parent: NodeId,
    pub first_child: NodeId,
    pub next_sibling: NodeId,
    pub previous_sibling: NodeId,
    /// Requests, markers of rows and remembered paths that end exactly here; they keep the node from being merged away.
    pub pins: u32,
    pub counts: Counts,
    /// When the remembered path that ends here was last used; 0: none does.
    pub remembered: u64,
    /// Waiting requests that end here (items marked [`REQUEST`]), and the first of those below each child that is not
    /// live.
    pub queue: Heap<Key, Item>,
    /// The [`Lead`] of every child that has one; that of a live child is the last it had before.
    pub leads: Heap<Lead, Item>,
}

impl Node {
    pub fn new(label: Box<[Level]>, parent: NodeId, depth: u32) -> Self {
        Node {
            label,
            depth,
            parent,
            first_child: NIL,
            next_sibling: NIL,
            previous_sibling: NIL,
            pins: 0,
            counts: Counts::default(),
            remembered: 0,
            queue: Heap::default(),
            leads: Heap::default(),
        }
    }

    /// The first waiting request at or below it, but for those below live children.
    #[inline]
    pub fn first(&self) -> Option<First> {
        self.queue.first().map(|(key, item)| First { key, slot: item.slot })
    }

    /// The request that would lead for others if it were admitted now; right where the node is not live.
    #[inline]
    pub fn lead(&self) -> Option<(Lead, Slot)> {
        match self.leads.first() {
            Some((lead, item)) => Some((lead, item.slot)),
            None if self.queue.len() >= 2 => self.first().map(|first| ((Reverse(self.depth), first.key), first.slot)),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn what_is_taken_away_is_what_was_added() {
        let some = Counts { waiting: 1, rows: 2, leading: 3, cached: 4, demand: 5 };
        assert_eq!(some + -some, Counts::default());
    }
}
