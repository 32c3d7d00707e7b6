//! The same rule in the plainest way: every answer computed anew from lists of requests and paths.
//!
//! Slow on purpose (O(requests²) a pass). Property tests drive it beside [`crate::Index`] and compare every answer.

use crate::plan::{Budget, Candidate, End, KEPT_PASSES, LOOKS, Plan};
use crate::{Arrival, Arriving, Config, Error, Order, hash::HashKey, hash::Level};
use std::cmp::Reverse;
use std::collections::HashSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Tentative,
    Running,
}

#[derive(Clone, Debug)]
struct Request {
    given: Arriving,
    state: State,
    /// Chunks of its path that it was told to have published.
    published: usize,
    computing: bool,
    set_aside: bool,
    admitted: u64,
    refused: u64,
}

/// The model of an index.
#[derive(Clone, Debug)]
pub struct Naive {
    config: Config,
    key: HashKey,
    /// In no particular order.
    requests: Vec<Request>,
    /// Ids of the plan that is not settled.
    tentative: Vec<u64>,
    /// Remembered paths, least recently used first.
    cached: Vec<Vec<Level>>,
    pass: u64,
    looked_enough: bool,
}

/// What [`Naive::figures`] and the index's stats are compared by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Waiting requests.
    pub waiting: u64,
    /// Those held back with all others below the same chunks.
    pub held: u64,
    /// Running rows.
    pub running: u64,
    /// Chunks all rows have in common.
    pub tip_chunks: u32,
    /// KV tokens of all rows.
    pub total_kv: u64,
    /// The same, a shared one counted once.
    pub distinct_kv: u64,
    /// Tokens of remembered paths.
    pub cached_tokens: u64,
}

fn common(a: &[Level], b: &[Level]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

impl Request {
    fn path(&self) -> &[Level] {
        &self.given.path
    }

    fn held_path(&self) -> &[Level] {
        &self.given.path[..self.published]
    }

    fn waits(&self) -> bool {
        self.state == State::Waiting
    }
}

impl Naive {
    /// An empty model.
    #[must_use]
    pub fn new(config: Config, key: HashKey) -> Self {
        Naive { config, key, requests: vec![], tentative: vec![], cached: vec![], pass: 1, looked_enough: false }
    }

    fn chunk(&self) -> u64 {
        u64::from(self.config.chunk)
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.requests.iter().position(|r| r.given.id == id)
    }

    fn rows(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(|r| !r.waits())
    }

    fn active(&self, path: &[Level]) -> usize {
        self.rows().map(|row| common(path, row.held_path())).max().unwrap_or(0)
    }

    fn published(&self, path: &[Level]) -> usize {
        let cached = self.cached.iter().map(|kept| common(path, kept)).max().unwrap_or(0);
        self.active(path).max(cached)
    }

    /// Chunks of `path` that running rows are computing for others, or have computed.
    fn computing(&self, path: &[Level]) -> usize {
        self.rows().filter(|row| row.computing).map(|row| common(path, row.path())).max().unwrap_or(0)
    }

    fn saved(&self, path: &[Level]) -> u64 {
        self.computing(path).saturating_sub(self.published(path)) as u64 * self.chunk()
    }

    fn is_pending(&self, path: &[Level]) -> bool {
        self.computing(path) > self.published(path)
    }

    fn is_blocked(&self, path: &[Level]) -> bool {
        self.is_pending(path) && self.saved(path) >= u64::from(self.config.barrier_min)
    }

    fn beyond(&self, request: &Request, chunks: usize) -> u64 {
        (request.given.length - chunks as u64 * self.chunk()).max(1)
    }

    fn unheld(&self, request: &Request) -> u64 {
        self.beyond(request, self.active(request.path()))
    }

    fn uncomputed(&self, request: &Request) -> u64 {
        self.beyond(request, self.published(request.path()))
    }

    /// See [`crate::Index::insert`].
    ///
    /// # Errors
    /// [`Error::Duplicate`].
    pub fn insert(&mut self, given: Arriving) -> Result<(), Error> {
        if self.find(given.id).is_some() {
            return Err(Error::Duplicate(given.id));
        }
        self.requests.push(Request {
            given,
            state: State::Waiting,
            published: 0,
            computing: false,
            set_aside: false,
            admitted: 0,
            refused: 0,
        });
        Ok(())
    }

    /// See [`crate::Index::begin`].
    pub fn begin(&mut self) {
        self.pass += 1;
    }

    fn admit(&mut self, at: usize) {
        let published = self.published(self.requests[at].path());
        let pass = self.pass;
        let request = &mut self.requests[at];
        request.state = State::Tentative;
        request.set_aside = false;
        request.published = published;
        request.computing = request.given.leads && published != request.given.path.len();
        request.admitted = pass;
    }

    fn unadmit(&mut self, at: usize) {
        let request = &mut self.requests[at];
        request.state = State::Waiting;
        request.published = 0;
        request.computing = false;
    }

    /// See [`crate::Index::activate`].
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::WrongState`].
    pub fn activate(&mut self, id: u64) -> Result<(), Error> {
        let at = self.find(id).ok_or(Error::Unknown(id))?;
        if !self.requests[at].waits() {
            return Err(Error::WrongState(id, "waiting"));
        }
        self.admit(at);
        self.requests[at].state = State::Running;
        Ok(())
    }

    fn running(&self, id: u64) -> Result<usize, Error> {
        let at = self.find(id).ok_or(Error::Unknown(id))?;
        if self.requests[at].waits() { Err(Error::WrongState(id, "running")) } else { Ok(at) }
    }

    /// See [`crate::Index::publish`].
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::WrongState`].
    pub fn publish(&mut self, id: u64, tokens: u64, computing: bool) -> Result<(), Error> {
        let at = self.running(id)?;
        let chunks = (tokens / self.chunk()) as usize;
        let request = &mut self.requests[at];
        request.published = chunks.min(request.given.path.len());
        request.computing &= computing;
        Ok(())
    }

    /// See [`crate::Index::grow`].
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::WrongState`].
    pub fn grow(&mut self, id: u64, tokens: &[i64]) -> Result<(), Error> {
        let at = self.running(id)?;
        let (key, chunk) = (self.key, self.config.chunk as usize);
        let given = &mut self.requests[at].given;
        given.length += tokens.len() as u64;
        if let Some(stream) = given.stream.as_mut() {
            key.absorb(stream, chunk, tokens, &mut given.path);
        }
        Ok(())
    }

    /// See [`crate::Index::leave`].
    pub fn leave(&mut self, id: u64, whole: bool) -> bool {
        let Some(at) = self.find(id) else { return false };
        let request = self.requests.swap_remove(at);
        self.tentative.retain(|&other| other != id);
        if !request.waits() {
            let path = if whole { request.path() } else { request.held_path() };
            self.remember(path.to_vec());
        }
        true
    }

    fn remember(&mut self, path: Vec<Level>) {
        if path.is_empty() {
            return;
        }
        self.cached.retain(|kept| *kept != path);
        self.cached.push(path);
        while self.cached_chunks() > self.config.capacity / self.chunk() {
            self.cached.remove(0);
        }
    }

    fn cached_chunks(&self) -> u64 {
        let mut seen = HashSet::new();
        for path in &self.cached {
            seen.extend((1..=path.len()).map(|n| &path[..n]));
        }
        seen.len() as u64
    }

    /// See [`crate::Index::forget`].
    pub fn forget(&mut self) {
        self.cached.clear();
    }

    /// See [`crate::Index::stats`].
    #[must_use]
    pub fn figures(&self) -> Figures {
        let mut seen = HashSet::new();
        let mut distinct = 0;
        for row in self.rows() {
            distinct += row.given.length - row.published as u64 * self.chunk();
            seen.extend((1..=row.published).map(|n| &row.path()[..n]));
        }
        let blocked = self.requests.iter().filter(|r| r.waits() && self.is_blocked(r.path()));
        Figures {
            waiting: self.requests.iter().filter(|r| r.waits()).count() as u64,
            held: blocked.count() as u64,
            running: self.rows().count() as u64,
            tip_chunks: self.tip() as u32,
            total_kv: self.rows().map(|row| row.given.length).sum(),
            distinct_kv: distinct + seen.len() as u64 * self.chunk(),
            cached_tokens: self.cached_chunks() * self.chunk(),
        }
    }

    fn tip(&self) -> usize {
        let Some(first) = self.rows().next() else { return 0 };
        self.rows().map(|row| common(first.held_path(), row.held_path())).min().unwrap_or(0)
    }

    /// Where a request stands in the order; smaller is earlier.
    fn key(&self, request: &Request) -> (u64, u64, Arrival) {
        let (path, arrival) = (request.path(), request.given.arrival);
        let held = self.active(path);
        match self.config.order {
            Order::Held => {
                let rows = if self.computing(path) > held {
                    0
                } else {
                    self.rows().filter(|row| common(path, row.held_path()) >= held).count()
                };
                (u64::MAX - held as u64, u64::MAX - rows as u64, arrival)
            }
            Order::Missing => (self.rank(request) - held as u64 * self.chunk() * 65_536, 0, arrival),
        }
    }

    fn rank(&self, request: &Request) -> u64 {
        let aged = (self.config.aging * 65_536.0 * request.given.arrival.tokens as f64) as u64;
        (request.given.length * 65_536).saturating_add(aged)
    }

    /// The next request in order that is not held back, and its tokens that no row holds. See [`crate::Index::best`].
    #[must_use]
    pub fn best(&self) -> Option<(u64, u64)> {
        let at = self.first_in_order()?;
        Some((self.requests[at].given.id, self.unheld(&self.requests[at])))
    }

    fn first_in_order(&self) -> Option<usize> {
        let offered = || {
            let offered = |r: &Request| r.waits() && !r.set_aside && !self.is_blocked(r.path());
            (0..self.requests.len()).filter(move |&i| offered(&self.requests[i]))
        };
        let best = offered().min_by_key(|&i| self.key(&self.requests[i]))?;
        if self.config.order == Order::Missing {
            return Some(best);
        }
        let oldest = offered().min_by_key(|&i| self.requests[i].given.arrival)?;
        let held = |i: usize| self.active(self.requests[i].path()) as u64 * self.chunk();
        let clearly_more = held(best) >= held(oldest) + u64::from(self.config.barrier_min);
        Some(if clearly_more { best } else { oldest })
    }

    fn leader_for(&self, at: usize) -> usize {
        let request = &self.requests[at];
        let published = self.published(request.path());
        if published == request.path().len() || !request.given.leads || self.is_pending(request.path()) {
            return at;
        }
        let same = |r: &Request| r.waits() && !r.set_aside && common(r.path(), request.path()) > published;
        let family: Vec<usize> = (0..self.requests.len()).filter(|&i| same(&self.requests[i])).collect();
        let shares = |i: usize| {
            let others = family.iter().filter(|&&j| j != i);
            others.map(|&j| common(self.requests[i].path(), self.requests[j].path())).max().unwrap_or(0)
        };
        let order = |i: usize| {
            let request = &self.requests[i];
            let rank = if self.config.order == Order::Missing { self.rank(request) } else { 0 };
            (Reverse(shares(i)), rank, request.given.arrival)
        };
        family.iter().copied().min_by_key(|&i| order(i)).unwrap_or(at)
    }

    fn is_held_alone(&self, request: &Request) -> bool {
        let (path, saved) = (request.path(), self.saved(request.path()));
        self.is_pending(path) && (saved >= u64::from(self.config.barrier_min) || 4 * saved >= self.uncomputed(request))
    }

    fn kept(&self, alone: (u64, u64)) -> (u32, u64) {
        let chunk = self.chunk();
        let worth_it = (u64::from(self.config.barrier_min).div_ceil(chunk)).max(1) as usize;
        let recent = |row: &&Request| row.computing && self.pass - row.admitted < KEPT_PASSES;
        let (mut rows, mut kv) = alone;
        for waiting in self.requests.iter().filter(|r| r.waits()) {
            let depth = |row: &Request| self.published(row.path()) + worth_it;
            let leader = self.rows().filter(recent).find(|row| common(waiting.path(), row.path()) >= depth(row));
            if let Some(leader) = leader {
                rows += 1;
                let shared = self.node_end(leader.path(), depth(leader)) as u64 * chunk;
                kv += waiting.given.length + waiting.given.reserve - shared;
            }
        }
        (u32::try_from(rows).unwrap(), kv)
    }

    /// Where the run of chunks around `depth` ends before the next branch or end of a known path.
    fn node_end(&self, path: &[Level], depth: usize) -> usize {
        let ends = self.requests.iter().flat_map(|r| [r.path(), r.held_path()]);
        let known = ends.chain(self.cached.iter().map(Vec::as_slice));
        known.map(|other| common(path, other)).filter(|&at| at >= depth).min().unwrap_or(path.len())
    }

    fn fits(&self, at: usize, kv: u64) -> bool {
        self.unheld(&self.requests[at]) + self.requests[at].given.reserve <= kv
    }

    fn was_refused(&self, at: usize, budget: &Budget) -> bool {
        let refused = self.requests[at].refused;
        !budget.idle && refused != 0 && refused + 1 == self.pass
    }

    /// `Some(None)`: room is kept for the oldest.
    fn overdue(&self, budget: &Budget, kv: u64) -> Option<Option<usize>> {
        let mut waiting: Vec<usize> = (0..self.requests.len()).filter(|&i| self.requests[i].waits()).collect();
        waiting.sort_by_key(|&i| self.requests[i].given.arrival);
        for at in waiting.into_iter().take(LOOKS as usize) {
            let given = &self.requests[at].given;
            if budget.now.saturating_sub(given.arrival.tokens) <= self.config.max_wait {
                break;
            }
            if self.was_refused(at, budget) {
                continue;
            }
            if self.fits(at, kv) {
                return Some(Some(at));
            }
            if !budget.idle && given.length + given.reserve <= self.config.capacity {
                return Some(None);
            }
        }
        None
    }

    /// See [`crate::Index::plan`].
    pub fn plan(&mut self, budget: Budget) -> Plan {
        self.undo(0);
        if !self.looked_enough || budget.idle {
            self.requests.iter_mut().for_each(|r| r.set_aside = false);
        }
        self.looked_enough = false;
        let (mut kv, mut rows, mut prefill) = (budget.kv, budget.rows, budget.prefill);
        let (mut alone, mut skipped, mut order) = ((0, 0), 0, vec![]);
        let end = loop {
            if rows == 0 {
                break End::Rows;
            }
            if prefill == 0 {
                break End::Prefill;
            }
            let at = match self.overdue(&budget, kv) {
                Some(None) => break End::Room,
                Some(Some(at)) => at,
                None => {
                    let kept = if budget.idle && order.is_empty() { (0, 0) } else { self.kept(alone) };
                    if kept.0 >= rows {
                        break End::Kept;
                    }
                    let Some(first) = self.first_in_order() else {
                        break End::Nobody;
                    };
                    let at = self.leader_for(first);
                    let request = &self.requests[at];
                    if self.is_held_alone(request) {
                        alone.0 += 1;
                        alone.1 += self.unheld(request) + request.given.reserve;
                        self.requests[at].set_aside = true;
                        continue;
                    }
                    if !self.fits(at, kv.saturating_sub(kept.1)) || self.was_refused(at, &budget) {
                        self.requests[at].set_aside = true;
                        skipped += 1;
                        if skipped >= LOOKS && !budget.idle {
                            self.looked_enough = true;
                            break End::Looked;
                        }
                        continue;
                    }
                    at
                }
            };
            order.push(self.name(at, &mut kv, &mut rows, &mut prefill));
        };
        if budget.idle && order.is_empty() && budget.rows > 0 {
            let waiting = (0..self.requests.len()).filter(|&i| self.requests[i].waits());
            if let Some(at) = waiting.min_by_key(|&i| self.requests[i].given.arrival) {
                order.push(self.name(at, &mut kv, &mut rows, &mut prefill));
            }
        }
        let kept = self.kept(alone).0.min(rows);
        Plan { order, held: self.figures().held + alone.0, kept, skipped, end }
    }

    fn name(&mut self, at: usize, kv: &mut u64, rows: &mut u32, prefill: &mut u64) -> Candidate {
        let request = &self.requests[at];
        let (id, length, path) = (request.given.id, request.given.length, request.path().to_vec());
        let (uncomputed, unheld) = (self.uncomputed(request), self.unheld(request));
        let published = self.published(&path);
        let before = self.tip();
        let shared = self.rows().map(|row| common(&path[..published], row.held_path())).min().unwrap_or(published);
        *rows -= 1;
        *kv = kv.saturating_sub(unheld + request.given.reserve);
        let page = u64::from(self.config.page);
        *prefill = prefill.saturating_sub(uncomputed.div_ceil(page) * page);
        self.admit(at);
        self.tentative.push(id);
        let peers = self.requests.iter().filter(|r| r.waits() && common(r.path(), &path) >= shared).count();
        Candidate {
            id,
            uncomputed,
            add_total: length,
            add_distinct: unheld,
            chunks_before: before as u32,
            chunks_after: shared as u32,
            peers: peers as u64,
        }
    }

    /// See [`crate::Index::undo`].
    pub fn undo(&mut self, keep: usize) {
        while self.tentative.len() > keep {
            let id = self.tentative.pop().unwrap();
            let at = self.find(id).unwrap();
            self.unadmit(at);
        }
    }

    /// See [`crate::Index::settle`].
    pub fn settle(&mut self, reused: &[(u64, u64)], refused: &[u64]) {
        for id in std::mem::take(&mut self.tentative) {
            if !reused.iter().any(|&(other, _)| other == id) {
                let at = self.find(id).unwrap();
                self.unadmit(at);
            }
        }
        for &(id, tokens) in reused {
            let Some(at) = self.find(id) else { continue };
            if self.requests[at].waits() {
                self.admit(at);
            }
            self.requests[at].state = State::Running;
            self.correct(at, tokens);
        }
        for &id in refused {
            if let Some(at) = self.find(id) {
                self.requests[at].refused = self.pass;
            }
        }
    }

    fn correct(&mut self, at: usize, tokens: u64) {
        let request = &mut self.requests[at];
        let page = u64::from(self.config.page);
        let chunk = u64::from(self.config.chunk);
        let matchable = ((request.given.length - 1) / page * page / chunk) as usize;
        let (expected, found) = (request.published, (tokens / chunk) as usize);
        request.published = found.min(request.given.path.len());
        if found < expected.min(matchable) {
            request.computing = request.given.leads;
            let path = request.path().to_vec();
            if self.active(&path) <= found {
                self.cached.retain(|kept| common(kept, &path) <= found);
            }
        }
    }
}
