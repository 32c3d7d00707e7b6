//! The index: requests on top of the tree. What each method does to the four states of a chunk is said there.

use crate::frontier::{Frontier, Order, RANK_UNIT};
use crate::hash::{HashKey, Level, Stream};
use crate::node::{Arrival, Counts, Entry, Key, NIL, NodeId, ROOT, Slot};
use crate::plan::KEPT_PASSES;
use crate::tree::{FastMap, Tree, Work};
use std::collections::BTreeSet;

/// What an index is made for. Equal on every rank.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Tokens a chunk; a multiple of the engine's page size.
    pub chunk: u32,
    /// Tokens a page of the engine's KV pool: prefill budgets are spent in pages.
    pub page: u32,
    /// How waiting requests are ordered.
    pub order: Order,
    /// Under [`Order::Missing`]: tokens of disadvantage for every token scheduled before the request arrived.
    pub aging: f64,
    /// Tokens that running rows must hold more, or that waiting must save, to depart from arrival order.
    pub barrier_min: u32,
    /// Scheduled tokens after which a request is served in arrival order, whatever else holds.
    pub max_wait: u64,
    /// Tokens of the engine's KV pool: so much published KV of finished requests is remembered.
    pub capacity: u64,
    /// The key of the hashes.
    pub key: [u64; 2],
}

/// Why an operation was refused. The index is unchanged after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A request with this id is waiting or running already.
    Duplicate(u64),
    /// No request with this id is waiting or running.
    Unknown(u64),
    /// The request is not in the state that the operation needs; the second field names that state.
    WrongState(u64, &'static str),
    /// A field of the request or of the configuration is out of range.
    Invalid(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Duplicate(id) => {
                write!(f, "id {id}: a request with this id is waiting or running; expected a new id, or `leave` first")
            }
            Error::Unknown(id) => write!(f, "id {id}: no such request; expected the id of one that waits or runs"),
            Error::WrongState(id, expected) => write!(f, "id {id}: the request is not {expected}"),
            Error::Invalid(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

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
    /// Whether its KV will be published for others.
    pub leads: bool,
    /// Cumulative hashes of its whole shareable chunks.
    pub path: Vec<Level>,
    /// The state of the hash after them, for [`Index::grow`]; absent if the request can't grow a shareable path.
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
    pub state: State,
    pub leads: bool,
    /// It counts in `Counts::leading` along its path.
    pub computing: bool,
    /// Waiting and offered to the orders (not set aside).
    pub queued: bool,
    /// The pass in which it became a row.
    pub admitted: u64,
    /// The pass in which the engine refused it last; 0: never.
    pub refused: u64,
    /// Where its path ends; pinned.
    pub end: NodeId,
    /// Where its published prefix ends while it runs; pinned.
    pub published: NodeId,
    pub stream: Option<Stream>,
}

/// The chunked hash tree with its waiting and running requests.
#[derive(Debug)]
pub struct Index {
    pub(crate) config: Config,
    pub(crate) key: HashKey,
    pub(crate) tree: Tree,
    pub(crate) requests: Vec<Option<Request>>,
    free: Vec<Slot>,
    ids: FastMap<u64, Slot>,
    /// All waiting requests, oldest first.
    pub(crate) ages: BTreeSet<(Arrival, Slot)>,
    /// Rows, tentative ones included.
    pub(crate) rows: BTreeSet<Slot>,
    pub(crate) tentative: Vec<Slot>,
    /// The current pass.
    pub(crate) pass: u64,
    /// Rows that started to compute for others in the last passes: rows are kept free for those who wait for them.
    pub(crate) leaders: Vec<Slot>,
    /// Waiting requests that did not fit, out of the orders until the plan has looked at all others.
    pub(crate) aside: BTreeSet<Slot>,
    pub(crate) looked_enough: bool,
    /// Tokens of all running rows.
    pub(crate) row_tokens: u64,
    /// Chunks of their published prefixes, each row's counted by itself.
    row_published_chunks: u64,
}

/// Figures of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Waiting requests.
    pub waiting: u64,
    /// Waiting requests that the barrier holds back with all others below the same pending chunks.
    pub held: u64,
    /// Running rows, tentative ones included.
    pub running: u64,
    /// Chunks that all running rows have in common.
    pub tip_chunks: u32,
    /// KV tokens of the running rows, a shared one counted once for each row.
    pub total_kv: u64,
    /// KV tokens of the running rows, a shared one counted once.
    pub distinct_kv: u64,
    /// Tokens of remembered paths.
    pub cached_tokens: u64,
    /// Nodes in use.
    pub nodes: u64,
    /// Bytes allocated, about.
    pub bytes: u64,
    /// Work done so far.
    pub work: Work,
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
            by_order: BTreeSet::new(),
            by_age: BTreeSet::new(),
            watched: BTreeSet::new(),
            watched_are_stale: false,
        };
        Ok(Index {
            config,
            key,
            tree: Tree::new(frontier),
            requests: vec![],
            free: vec![],
            ids: FastMap::default(),
            ages: BTreeSet::new(),
            rows: BTreeSet::new(),
            tentative: vec![],
            pass: 1,
            leaders: vec![],
            aside: BTreeSet::new(),
            looked_enough: false,
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
        let mut stream = self.key.start(namespace);
        let mut path = vec![];
        let mut left = shareable;
        for segment in segments {
            let take = usize::try_from(left).unwrap_or(usize::MAX).min(segment.len());
            self.key.absorb(&mut stream, self.config.chunk as usize, &segment[..take], &mut path);
            left -= take as u64;
        }
        (path, stream)
    }

    /// Adds a request to the waiting queue.
    ///
    /// O(nodes on its path), each O(log) where its first request changes.
    ///
    /// # Errors
    /// [`Error::Duplicate`]; [`Error::Invalid`] if it is empty, or shorter than its path.
    pub fn insert(&mut self, new: Arriving) -> Result<(), Error> {
        let Arriving { id, length, reserve, arrival, leads, path, stream } = new;
        if self.ids.contains_key(&id) {
            return Err(Error::Duplicate(id));
        }
        let most = 1u64 << 40;
        if length == 0 || length > most || reserve > most || arrival.tokens > most {
            return Err(Error::Invalid(format!(
                "id {id}: length {length}, reserve {reserve}, arrival {}: expected a length of at least 1, and each at most 2^40",
                arrival.tokens
            )));
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
            state: State::Waiting,
            leads,
            computing: false,
            queued: false,
            admitted: 0,
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
        self.ages.insert((arrival, slot));
        self.enter_queue(slot, true);
        Ok(())
    }

    /// Starts a pass: bounds that last "for two passes" count these.
    pub fn begin(&mut self) {
        self.pass += 1;
        let mut leaders = std::mem::take(&mut self.leaders);
        leaders.retain(|&slot| self.pass - self.request(slot).admitted < KEPT_PASSES);
        self.leaders = leaders;
    }

    /// The engine runs a waiting request that was not planned, or a row that never waited.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::WrongState`] if it does not wait.
    pub fn activate(&mut self, id: u64) -> Result<(), Error> {
        let slot = self.slot(id)?;
        if self.request(slot).state != State::Waiting {
            return Err(Error::WrongState(id, "waiting"));
        }
        self.admit(slot);
        self.request_mut(slot).state = State::Running;
        Ok(())
    }

    /// Tells how much of a running row others can reuse now, and whether it still computes its prompt.
    ///
    /// Published chunks become active; what it computes beyond them stays pending while `computing`, and is nobody's
    /// otherwise. O(nodes on its path).
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::WrongState`] if it does not run.
    pub fn publish(&mut self, id: u64, tokens: u64, computing: bool) -> Result<(), Error> {
        let slot = self.running(id)?;
        self.set_published(slot, tokens);
        if !computing {
            self.set_computing(slot, false);
        }
        Ok(())
    }

    /// Output tokens of a running row: its path grows, unpublished until told.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::WrongState`] if it does not run.
    pub fn grow(&mut self, id: u64, tokens: &[i64]) -> Result<(), Error> {
        let slot = self.running(id)?;
        let chunk = self.config.chunk as usize;
        let Request { end, computing, mut stream, .. } = *self.request(slot);
        self.row_tokens += tokens.len() as u64;
        self.request_mut(slot).length += tokens.len() as u64;
        let Some(state) = stream.as_mut() else { return Ok(()) };
        let mut path = vec![];
        self.key.absorb(state, chunk, tokens, &mut path);
        self.request_mut(slot).stream = stream;
        if path.is_empty() {
            return Ok(());
        }
        self.set_computing(slot, false);
        let grown = self.tree.descend(end, &path);
        self.tree.pin(grown);
        self.request_mut(slot).end = grown;
        self.tree.unpin(end);
        self.set_computing(slot, computing);
        Ok(())
    }

    /// A request is gone. Returns whether it was known: a second call changes nothing.
    ///
    /// `whole`: the engine keeps the KV of its whole path (it finished); otherwise of what was published. Kept paths
    /// are remembered as cached.
    pub fn leave(&mut self, id: u64, whole: bool) -> bool {
        let Some(&slot) = self.ids.get(&id) else { return false };
        match self.request(slot).state {
            State::Waiting => {
                if self.request(slot).queued {
                    self.leave_queue(slot, true);
                } else {
                    self.aside.remove(&slot);
                    self.count_waiting(slot, -1, false);
                }
                let Request { arrival, .. } = *self.request(slot);
                self.ages.remove(&(arrival, slot));
            }
            State::Tentative | State::Running => {
                self.tentative.retain(|&other| other != slot);
                let Request { end, published, .. } = *self.request(slot);
                let capacity = self.config.capacity / u64::from(self.config.chunk);
                self.tree.remember(if whole { end } else { published }, capacity);
                self.set_computing(slot, false);
                self.drop_row(slot);
            }
        }
        let end = self.request(slot).end;
        self.tree.unpin(end);
        self.ids.remove(&id);
        self.requests[slot as usize] = None;
        self.free.push(slot);
        true
    }

    /// The engine dropped its cache.
    pub fn forget(&mut self) {
        self.tree.forget_all();
    }

    /// The next request in order, whether or not it fits, and its tokens that no running row holds. O(log A).
    #[must_use]
    pub fn best(&self) -> Option<(u64, u64)> {
        let slot = self.first_in_order()?;
        let request = self.request(slot);
        Some((request.id, self.unheld(request)))
    }

    /// Ids of the running rows.
    pub fn running_ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.rows.iter().map(|&slot| self.request(slot).id)
    }

    /// Whether a request with this id waits or runs.
    #[must_use]
    pub fn contains(&self, id: u64) -> bool {
        self.ids.contains_key(&id)
    }

    /// Running rows in depth-first order (siblings are neighbours, sorted by hash), and the published tokens that each
    /// has in common with the one before it.
    ///
    /// O(nodes on their paths + rows log rows).
    #[must_use]
    pub fn rows_by_family(&self) -> (Vec<u64>, Vec<u64>) {
        let mut rows: Vec<(Vec<Level>, Arrival, NodeId, u64)> = vec![];
        for request in self.rows.iter().map(|&slot| self.request(slot)) {
            let mut path = vec![];
            let mut v = request.published;
            while v != ROOT {
                path.push(self.tree.node(v).label[0]);
                v = self.tree.node(v).parent;
            }
            path.reverse();
            rows.push((path, request.arrival, request.published, request.id));
        }
        rows.sort_unstable();
        let shared = |i: usize| {
            let Some(before) = i.checked_sub(1) else { return 0 };
            let common = rows[before].0.iter().zip(&rows[i].0).take_while(|(a, b)| a == b).count();
            let mut v = rows[i].2;
            for _ in common..rows[i].0.len() {
                v = self.tree.node(v).parent;
            }
            u64::from(self.tree.node(v).depth) * u64::from(self.config.chunk)
        };
        let common = (0..rows.len()).map(shared).collect();
        (rows.into_iter().map(|row| row.3).collect(), common)
    }

    /// Figures of the index. O(pending nodes + nodes on one path), but for `bytes`: O(nodes).
    #[must_use]
    pub fn stats(&self) -> Stats {
        let chunk = u64::from(self.config.chunk);
        let root = self.tree.node(ROOT).counts;
        Stats {
            waiting: root.waiting as u64,
            held: self.held(),
            running: root.rows as u64,
            tip_chunks: self.tip().map_or(0, |v| self.tree.node(v).depth),
            total_kv: self.row_tokens,
            distinct_kv: self.distinct_kv(),
            cached_tokens: self.tree.cached_chunks * chunk,
            nodes: self.tree.len() as u64,
            bytes: self.bytes(),
            work: self.tree.work,
        }
    }

    /// KV tokens of the running rows, a shared one counted once. O(1).
    #[must_use]
    pub fn distinct_kv(&self) -> u64 {
        let chunk = u64::from(self.config.chunk);
        self.tree.active_chunks * chunk + self.row_tokens - self.row_published_chunks * chunk
    }

    /// The deepest node that all running rows hold.
    pub(crate) fn tip(&self) -> Option<NodeId> {
        let rows = self.tree.node(ROOT).counts.rows;
        let any = self.request(*self.rows.first()?).published;
        Some(self.tree.deepest(any, |counts| counts.rows == rows))
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

    fn running(&self, id: u64) -> Result<Slot, Error> {
        let slot = self.slot(id)?;
        if self.request(slot).state == State::Waiting {
            return Err(Error::WrongState(id, "running"));
        }
        Ok(slot)
    }

    /// Tokens of a waiting request that no running row holds; the engine always recomputes the last one.
    pub(crate) fn unheld(&self, request: &Request) -> u64 {
        let active = self.tree.deepest(request.end, |counts| counts.rows > 0);
        self.beyond(request, active)
    }

    /// Tokens of a request that are not published.
    pub(crate) fn uncomputed(&self, request: &Request) -> u64 {
        let published = self.tree.deepest(request.end, Counts::published);
        self.beyond(request, published)
    }

    fn beyond(&self, request: &Request, v: NodeId) -> u64 {
        let covered = u64::from(self.tree.node(v).depth) * u64::from(self.config.chunk);
        (request.length - covered).max(1)
    }

    /// Makes a waiting request a row: what is published of its path becomes active, the rest pending if it leads.
    pub(crate) fn admit(&mut self, slot: Slot) {
        if self.request(slot).queued {
            self.leave_queue(slot, true);
        } else {
            self.aside.remove(&slot);
            self.count_waiting(slot, -1, false);
        }
        let Request { arrival, end, length, leads, .. } = *self.request(slot);
        self.ages.remove(&(arrival, slot));
        self.rows.insert(slot);
        let published = self.tree.deepest(end, Counts::published);
        self.row_tokens += length;
        self.hold(slot, published);
        self.request_mut(slot).state = State::Tentative;
        self.request_mut(slot).admitted = self.pass;
        self.set_computing(slot, leads && published != end);
    }

    /// Takes back [`Index::admit`].
    pub(crate) fn unadmit(&mut self, slot: Slot) {
        self.set_computing(slot, false);
        self.drop_row(slot);
        let arrival = self.request(slot).arrival;
        self.request_mut(slot).state = State::Waiting;
        self.ages.insert((arrival, slot));
        self.enter_queue(slot, true);
    }

    /// Offers a waiting request to the orders; `arrives`: it also counts as waiting from now on.
    pub(crate) fn enter_queue(&mut self, slot: Slot, arrives: bool) {
        let entry = self.entry(slot);
        self.tree.set_queued(self.request(slot).end, entry, true);
        self.request_mut(slot).queued = true;
        self.count_waiting(slot, i64::from(arrives), true);
    }

    /// Takes a waiting request out of the orders; `leaves`: it also stops counting as waiting.
    pub(crate) fn leave_queue(&mut self, slot: Slot, leaves: bool) {
        let entry = self.entry(slot);
        self.tree.set_queued(self.request(slot).end, entry, false);
        self.request_mut(slot).queued = false;
        self.count_waiting(slot, -i64::from(leaves), true);
    }

    fn count_waiting(&mut self, slot: Slot, by: i64, queue_changed: bool) {
        let Request { end, length, reserve, .. } = *self.request(slot);
        let delta = Counts { waiting: by, demand: by * (length + reserve) as i64, ..Counts::default() };
        if by == 0 {
            self.tree.refresh_upward(end);
        } else {
            self.tree.add(end, delta, queue_changed);
        }
    }

    pub(crate) fn entry(&self, slot: Slot) -> Entry {
        let request = self.request(slot);
        let rank = match self.config.order {
            Order::Held => 0,
            Order::Missing => {
                // Rounded once from the same numbers on every rank.
                let aged = (self.config.aging * RANK_UNIT as f64 * request.arrival.tokens as f64) as u64;
                (request.length * RANK_UNIT).saturating_add(aged)
            }
        };
        Entry { key: Key { rank, arrival: request.arrival }, slot, child: NIL }
    }

    fn hold(&mut self, slot: Slot, v: NodeId) {
        self.tree.pin(v);
        self.row_published_chunks += u64::from(self.tree.node(v).depth);
        self.request_mut(slot).published = v;
        self.tree.add(v, Counts { rows: 1, ..Counts::default() }, false);
    }

    fn release(&mut self, v: NodeId) {
        self.row_published_chunks -= u64::from(self.tree.node(v).depth);
        self.tree.add(v, Counts { rows: -1, ..Counts::default() }, false);
        self.tree.unpin(v);
    }

    fn drop_row(&mut self, slot: Slot) {
        let Request { published, length, .. } = *self.request(slot);
        self.row_tokens -= length;
        self.request_mut(slot).published = ROOT;
        self.rows.remove(&slot);
        self.release(published);
    }

    pub(crate) fn set_published(&mut self, slot: Slot, tokens: u64) {
        let Request { end, published, .. } = *self.request(slot);
        let chunks = tokens / u64::from(self.config.chunk);
        let depth = u32::try_from(chunks).unwrap_or(u32::MAX).min(self.tree.node(end).depth);
        if depth == self.tree.node(published).depth {
            return;
        }
        let v = self.tree.cut(end, depth);
        self.hold(slot, v); // before the old one is released, so that nothing flips twice
        self.release(published);
    }

    pub(crate) fn set_computing(&mut self, slot: Slot, computing: bool) {
        let Request { end, computing: before, .. } = *self.request(slot);
        if before == computing {
            return;
        }
        self.request_mut(slot).computing = computing;
        if computing && self.pass - self.request(slot).admitted < KEPT_PASSES {
            self.leaders.push(slot);
        } else {
            self.leaders.retain(|&other| other != slot);
        }
        let by = if computing { 1 } else { -1 };
        self.tree.add(end, Counts { leading: by, ..Counts::default() }, false);
    }

    fn bytes(&self) -> u64 {
        use std::mem::size_of;
        let nodes = self.tree.nodes.capacity() * size_of::<crate::node::Node>();
        let contents: usize = self
            .tree
            .nodes
            .iter()
            .map(|n| {
                // A B-tree leaf holds up to 11 entries and is allocated whole.
                let leaves = n.queue.len().div_ceil(8) * 11 * size_of::<Entry>();
                n.label.capacity() * size_of::<Level>() + leaves + n.leads.len().div_ceil(8) * 11 * 48
            })
            .sum();
        let requests = self.requests.capacity() * size_of::<Option<Request>>();
        let maps = (self.ids.capacity() + self.tree.edges()) * 24 + self.ages.len() * 32;
        (nodes + contents + requests + maps) as u64
    }
}
