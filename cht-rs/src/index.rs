//! The index: requests on top of the tree, and the waiting queue.

use crate::config::{Config, Error};
use crate::frontier::{Frontier, Order, RANK_UNIT};
use crate::hash::{HashKey, Level, Stream};
use crate::heap::{Heap, NOWHERE};
use crate::node::{Arrival, Counts, Key, LANES, NodeId, ROOT, Slot};
use crate::request::{Arriving, Request, State};
use crate::tree::{FastMap, Tree};
use std::collections::BTreeSet;

/// Requests in the largest burst so far from which an empty index gives its memory back.
const WORTH_FREEING: usize = 1024;

/// The chunked hash tree with its waiting and running requests.
pub struct Index {
    pub(crate) config: Config,
    pub(crate) key: HashKey,
    pub(crate) tree: Tree,
    pub(crate) requests: Vec<Option<Request>>,
    free: Vec<Slot>,
    pub(crate) ids: FastMap<u64, Slot>,
    /// All waiting requests by arrival; items are slots.
    pub(crate) ages: Heap<Arrival>,
    /// Rows, tentative ones included, in no particular order.
    pub(crate) rows: Vec<Slot>,
    pub(crate) tentative: Vec<Slot>,
    /// The current pass.
    pub(crate) pass: u64,
    /// Rows that are computing for others, in no particular order.
    pub(crate) computing: Vec<Slot>,
    /// Tokens scheduled by the last plan.
    pub(crate) now: u64,
    /// Waiting requests that did not fit, out of the orders until the plan has looked at all others.
    pub(crate) aside: BTreeSet<Slot>,
    pub(crate) looked_enough: bool,
    /// Of the ids of the rows, whatever their order: see [`crate::follow`].
    pub(crate) row_sum: u64,
    /// Tokens of all running rows.
    pub(crate) row_tokens: u64,
    /// Chunks of their published prefixes, each row's counted by itself.
    pub(crate) row_published_chunks: u64,
}

impl Index {
    /// An empty index.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the chunk size is 0 or not a multiple of the page size, or the ageing rate is negative.
    pub fn new(config: Config) -> Result<Self, Error> {
        Index::with_key(config, HashKey::new(config.key))
    }

    /// The same, with a key made by the caller (tests mask it).
    ///
    /// # Errors
    /// As [`Index::new`].
    pub fn with_key(config: Config, key: HashKey) -> Result<Self, Error> {
        let Config { chunk, page, aging, .. } = config;
        if chunk == 0 || page == 0 || chunk % page != 0 {
            return Err(Error::Invalid(format!(
                "chunk_size {chunk}: expected a positive multiple of the page size ({page})"
            )));
        }
        if !aging.is_finite() || aging < 0.0 {
            return Err(Error::Invalid(format!("aging {aging}: expected a number of at least 0")));
        }
        let frontier = Frontier {
            order: config.order,
            chunk: u64::from(chunk),
            barrier_min: u64::from(config.barrier_min),
            by_order: Heap::default(),
            by_age: Heap::default(),
            watched: vec![],
            watched_are_stale: false,
            unsettled: vec![],
        };
        Ok(Index {
            config,
            key,
            tree: Tree::new(frontier),
            requests: vec![],
            free: vec![],
            ids: FastMap::default(),
            ages: Heap::default(),
            rows: vec![],
            tentative: vec![],
            pass: 1,
            computing: vec![],
            now: 0,
            aside: BTreeSet::new(),
            looked_enough: false,
            row_sum: 0,
            row_tokens: 0,
            row_published_chunks: 0,
        })
    }

    /// The key that paths must be hashed with.
    #[must_use]
    pub fn hash_key(&self) -> &HashKey {
        &self.key
    }

    /// Hashes the first `shareable` tokens of a request given in segments, for [`Arriving`].
    ///
    /// O(tokens).
    #[must_use]
    pub fn path(&self, namespace: &[Option<&[u8]>], segments: &[&[i64]], shareable: u64) -> (Vec<Level>, Stream) {
        self.key.path(namespace, self.config.chunk as usize, segments, shareable)
    }

    /// Adds a request to the waiting queue.
    ///
    /// O(nodes on its path), each O(log) where its first request changes.
    ///
    /// # Errors
    /// [`Error::Duplicate`]; [`Error::Invalid`] if it is empty, or shorter than its path.
    pub fn insert(&mut self, new: Arriving) -> Result<(), Error> {
        let Arriving { id, length, reserve, arrival, lane, leads, path, stream } = new;
        if self.ids.contains_key(&id) {
            return Err(Error::Duplicate(id));
        }
        let most = 1u64 << 40;
        if length == 0 || length > most || reserve > most {
            return Err(Error::Invalid(format!(
                "id {id}: length {length}, reserve {reserve}: expected a length of at least 1, and both at most 2^40"
            )));
        }
        if lane >= LANES {
            return Err(Error::Invalid(format!("id {id}: lane {lane}: expected less than {LANES}")));
        }
        if path.len() as u64 * u64::from(self.config.chunk) > length {
            return Err(Error::Invalid(format!(
                "id {id}: {} chunks of {} tokens are more than its length {length}",
                path.len(),
                self.config.chunk
            )));
        }
        let end = self.tree.descend(ROOT, &path);
        self.tree.pin(end);
        let request = Request {
            id,
            length,
            reserve,
            arrival,
            lane,
            state: State::Waiting,
            leads,
            computing: false,
            queued: false,
            at: NOWHERE,
            admitted: 0,
            since: 0,
            refused: 0,
            end,
            published: ROOT,
            stream,
        };
        let slot = if let Some(slot) = self.free.pop() {
            self.requests[slot as usize] = Some(request);
            slot
        } else {
            self.requests.push(Some(request));
            Slot::try_from(self.requests.len() - 1).expect("fewer than 2^32 requests")
        };
        self.ids.insert(id, slot);
        self.set_age(slot);
        self.set_queued(slot, true);
        self.tree.add_along(&[(end, self.demand(slot))], true);
        Ok(())
    }

    /// Whether this is a running row, settled.
    #[must_use]
    pub fn runs(&self, id: u64) -> bool {
        self.ids.get(&id).is_some_and(|&slot| self.request(slot).state == State::Running)
    }

    /// Tokens of a request that waits or runs.
    #[must_use]
    pub fn length(&self, id: u64) -> Option<u64> {
        Some(self.request(*self.ids.get(&id)?).length)
    }

    /// Starts a pass: bounds that last "for two passes" count these.
    pub fn begin(&mut self) {
        self.pass += 1;
    }

    /// A request is gone. Returns whether it was known: a second call changes nothing.
    ///
    /// `whole`: the engine keeps the KV of its whole path (it finished); otherwise of what was published. Kept paths
    /// are remembered as cached.
    pub fn leave(&mut self, id: u64, whole: bool) -> bool {
        let Some(&slot) = self.ids.get(&id) else { return false };
        match self.request(slot).state {
            State::Waiting => {
                self.set_queued(slot, false);
                self.unset_age(slot);
                let end = self.request(slot).end;
                self.tree.add_along(&[(end, -self.demand(slot))], true);
            }
            State::Tentative | State::Running => {
                self.tentative.retain(|&other| other != slot);
                let Request { end, published, length, .. } = *self.request(slot);
                let none = Counts::default();
                // What the other rows hold for themselves leaves no room for a cache.
                let chunk = u64::from(self.config.chunk);
                let shared = self.row_published_chunks - u64::from(self.tree.node(published).depth);
                let private = self.row_tokens - length - shared * chunk;
                let capacity = self.config.capacity.saturating_sub(private) / chunk;
                let last = if whole { end } else { published };
                let kept = self.tree.remember(last);
                self.drop_row(slot, if whole { [kept, none] } else { [none, kept] });
                if last != ROOT {
                    self.tree.forget_beyond(capacity);
                }
            }
        }
        let end = self.request(slot).end;
        self.tree.unpin(end);
        self.ids.remove(&id);
        self.requests[slot as usize] = None;
        self.free.push(slot);
        self.shrink_if_empty();
        true
    }

    /// Another lane for a request; one that runs has it when it comes back. Returns whether it was known.
    ///
    /// # Panics
    /// If there is no such lane (see [`LANES`]).
    pub fn set_lane(&mut self, id: u64, lane: u8) -> bool {
        assert!(lane < LANES, "lane {lane}: expected less than {LANES}");
        let Some(&slot) = self.ids.get(&id) else { return false };
        let Request { end, queued, .. } = *self.request(slot);
        if queued {
            self.set_queued(slot, false);
        }
        self.request_mut(slot).lane = lane;
        if queued {
            self.set_queued(slot, true);
            self.tree.refresh_upward(end);
        }
        true
    }

    /// The engine dropped its cache.
    pub fn forget(&mut self) {
        self.tree.forget_all();
        self.shrink_if_empty();
    }

    /// Another bound from the next plan on: see [`Config::max_wait`].
    pub fn set_max_wait(&mut self, tokens: u64) {
        self.config.max_wait = tokens;
    }

    /// A burst is over: its memory goes back, unless it is too little to be worth allocating again.
    fn shrink_if_empty(&mut self) {
        if self.ids.is_empty() && self.tree.len() == 1 && self.requests.len() >= WORTH_FREEING {
            self.requests = vec![];
            self.free = vec![];
            self.ids = FastMap::default();
            self.rows = vec![];
            self.tree.shrink();
        }
    }

    /// Whether a request with this id waits or runs.
    #[must_use]
    pub fn contains(&self, id: u64) -> bool {
        self.ids.contains_key(&id)
    }

    /// The topmost nodes whose waiting requests are all held back.
    pub(crate) fn blocked(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.tree.frontier.watched.iter().copied().filter(|&v| {
            let parent = self.tree.node(v).parent;
            self.tree.is_blocked(v) && !self.tree.is_blocked(parent)
        })
    }

    pub(crate) fn request(&self, slot: Slot) -> &Request {
        self.requests[slot as usize].as_ref().expect("slots in use hold a request")
    }

    pub(crate) fn request_mut(&mut self, slot: Slot) -> &mut Request {
        self.requests[slot as usize].as_mut().expect("slots in use hold a request")
    }

    pub(crate) fn slot(&self, id: u64) -> Result<Slot, Error> {
        self.ids.get(&id).copied().ok_or(Error::Unknown(id))
    }

    /// Tokens of a request beyond the node `v` of its path; at least the last one.
    pub(crate) fn beyond(&self, request: &Request, v: NodeId) -> u64 {
        let covered = u64::from(self.tree.node(v).depth) * u64::from(self.config.chunk);
        (request.length - covered).max(1)
    }

    /// Offers a waiting request to the orders, or takes it out; the caller repairs upwards.
    pub(crate) fn set_queued(&mut self, slot: Slot, queued: bool) {
        let Request { end, queued: before, .. } = *self.request(slot);
        if queued != before {
            self.request_mut(slot).queued = queued;
            let key = queued.then(|| self.queue_key(slot));
            self.tree.set_queued(end, slot, key);
        } else if !queued {
            self.aside.remove(&slot);
        }
    }

    /// Lists a waiting request by its age.
    pub(crate) fn set_age(&mut self, slot: Slot) {
        let (arrival, requests) = (self.request(slot).arrival, &mut self.requests);
        self.ages.put(NOWHERE, (arrival, slot), |slot, at| {
            requests[slot as usize].as_mut().expect("slots in use hold a request").at = at;
        });
    }

    /// Lists it no more.
    pub(crate) fn unset_age(&mut self, slot: Slot) {
        let (at, requests) = (self.request(slot).at, &mut self.requests);
        self.ages.remove(at, |slot, at| {
            requests[slot as usize].as_mut().expect("slots in use hold a request").at = at;
        });
    }

    /// What a waiting request counts for along its path.
    pub(crate) fn demand(&self, slot: Slot) -> Counts {
        let request = self.request(slot);
        Counts { waiting: 1, demand: (request.length + request.reserve) as i64, ..Counts::default() }
    }

    pub(crate) fn queue_key(&self, slot: Slot) -> Key {
        let Request { arrival, lane, length, .. } = *self.request(slot);
        let rank = match self.config.order {
            Order::Held => arrival.tokens,
            Order::Missing => {
                // Rounded once from the same numbers on every rank.
                let aged = (self.config.aging * RANK_UNIT as f64 * arrival.tokens as f64) as u64;
                (length * RANK_UNIT).saturating_add(aged)
            }
        };
        Key::new(lane, rank, arrival.sequence)
    }
}
