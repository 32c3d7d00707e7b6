//! What a node of the tree holds, and how waiting requests are keyed.

use crate::hash::Level;
use crate::heap::{Heap, NOWHERE};
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

/// Orders waiting requests below one node. `rank` is 0 under [`crate::Order::Held`], so that arrival decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub rank: u64,
    pub arrival: Arrival,
}

/// A waiting request as a queue lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub key: Key,
    pub slot: Slot,
}

/// Marks an item of a queue that is a request and not a child node.
pub(crate) const REQUEST: u32 = 1 << 31;

/// The deepest node below (or at) a node whose path two waiting requests share, and the first request under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lead {
    pub depth: u32,
    pub key: Key,
    pub slot: Slot,
}

impl Ord for Lead {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.depth, self.key, self.slot).cmp(&(self.depth, other.key, other.slot))
    }
}

impl PartialOrd for Lead {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

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
    pub fn published(&self) -> bool {
        self.rows > 0 || self.cached > 0
    }

    /// Being computed, not active, and with waiting requests below: its rank depends on what lies above it.
    pub fn is_watched(&self) -> bool {
        self.leading > 0 && self.rows == 0 && self.waiting > 0
    }
}

/// Where a live node stands in the global orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rank {
    pub order: OrderKey,
    pub age: Arrival,
}

/// See [`crate::frontier::Frontier::by_order`].
pub(crate) type OrderKey = (u64, u64, Arrival);

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
    pub queue: Heap<Entry>,
    /// The [`Lead`] of every child that has one and is not live.
    pub leads: Heap<Lead>,
    /// This node's place in its parent's `queue`.
    pub queue_at: u32,
    /// This node's place in its parent's `leads`.
    pub leads_at: u32,
    /// This node's place in [`crate::frontier::Frontier::by_order`].
    pub order_at: u32,
    /// This node's place in [`crate::frontier::Frontier::by_age`].
    pub age_at: u32,
    /// This node's place in [`crate::frontier::Frontier::watched`].
    pub watched_at: u32,
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
            queue_at: NOWHERE,
            leads_at: NOWHERE,
            order_at: NOWHERE,
            age_at: NOWHERE,
            watched_at: NOWHERE,
        }
    }

    /// The requests that would lead for others if one of them were admitted now.
    pub fn lead(&self) -> Option<Lead> {
        match self.leads.first() {
            Some((lead, _)) => Some(lead),
            None if self.queue.len() >= 2 => {
                let (first, _) = self.queue.first()?;
                Some(Lead { depth: self.depth, key: first.key, slot: first.slot })
            }
            None => None,
        }
    }
}
