//! The same rule in the plainest way: every answer computed anew from lists of requests and paths.
//!
//! Slow on purpose (O(requests²) a pass). Property tests drive it beside [`crate::Index`] and compare every answer; the rule
//! of a pass is in `rule.rs`.

mod follow;
mod rule;

use crate::hash::{HashKey, Level};
use crate::{Arriving, Budget, Config, Error, Figures, Plan, Planner, Row};
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
    since: u64,
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
    now: u64,
    looked_enough: bool,
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
        Naive {
            config,
            key,
            requests: vec![],
            tentative: vec![],
            cached: vec![],
            pass: 1,
            now: 0,
            looked_enough: false,
        }
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

    fn admit(&mut self, at: usize) {
        let published = self.published(self.requests[at].path());
        let (pass, now) = (self.pass, self.now);
        let request = &mut self.requests[at];
        request.state = State::Tentative;
        request.set_aside = false;
        request.published = published;
        request.computing = request.given.leads && published != request.given.path.len();
        request.admitted = pass;
        request.since = now;
    }

    fn unadmit(&mut self, at: usize) {
        let request = &mut self.requests[at];
        request.state = State::Waiting;
        request.published = 0;
        request.computing = false;
    }

    fn running(&self, id: u64) -> Result<usize, Error> {
        let at = self.find(id).ok_or(Error::Unknown(id))?;
        if self.requests[at].waits() { Err(Error::WrongState(id, "running")) } else { Ok(at) }
    }

    fn remember(&mut self, path: Vec<Level>) {
        if path.is_empty() {
            return;
        }
        self.cached.retain(|kept| *kept != path);
        self.cached.push(path);
        let private: u64 = self.rows().map(|row| row.given.length - row.published as u64 * self.chunk()).sum();
        let capacity = self.config.capacity.saturating_sub(private) / self.chunk();
        while self.cached_chunks() > capacity {
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

    fn tip(&self) -> usize {
        let Some(first) = self.rows().next() else { return 0 };
        self.rows().map(|row| common(first.held_path(), row.held_path())).min().unwrap_or(0)
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

    /// Whether a request with this id waits or runs.
    #[must_use]
    pub fn contains(&self, id: u64) -> bool {
        self.find(id).is_some()
    }

    /// Published tokens that each row of `order` has in common with the one before it.
    #[must_use]
    pub fn shared_along(&self, order: &[u64]) -> Vec<u64> {
        let held = |id: u64| self.find(id).map_or(&[][..], |at| self.requests[at].held_path());
        let shared = |i: usize| if i == 0 { 0 } else { common(held(order[i - 1]), held(order[i])) as u64 };
        (0..order.len()).map(|i| shared(i) * self.chunk()).collect()
    }
}

impl Planner for Naive {
    fn insert(&mut self, given: Arriving) -> Result<(), Error> {
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
            since: 0,
            refused: 0,
        });
        Ok(())
    }

    fn begin(&mut self) {
        self.pass += 1;
    }

    fn follow(&mut self, alive: &[u64], changed: &[Row<'_>], finished: &[u64]) {
        self.begin();
        self.undo(0);
        self.reconcile(alive);
        for row in changed {
            self.told(row);
        }
        for &id in finished {
            self.leave(id, true);
        }
    }

    fn activate(&mut self, id: u64) -> Result<(), Error> {
        let at = self.find(id).ok_or(Error::Unknown(id))?;
        if !self.requests[at].waits() {
            return Err(Error::WrongState(id, "waiting"));
        }
        self.admit(at);
        self.requests[at].state = State::Running;
        Ok(())
    }

    fn publish(&mut self, id: u64, tokens: u64, computing: bool) -> Result<(), Error> {
        let at = self.running(id)?;
        let chunks = (tokens / self.chunk()) as usize;
        let request = &mut self.requests[at];
        request.published = chunks.min(request.given.path.len());
        request.computing &= computing;
        Ok(())
    }

    fn grow(&mut self, id: u64, tokens: &[i64]) -> Result<(), Error> {
        let at = self.running(id)?;
        let (key, chunk) = (self.key, self.config.chunk as usize);
        let given = &mut self.requests[at].given;
        given.length += tokens.len() as u64;
        if let Some(stream) = given.stream.as_mut() {
            key.absorb(stream, chunk, tokens, &mut given.path);
        }
        Ok(())
    }

    fn leave(&mut self, id: u64, whole: bool) -> bool {
        let Some(at) = self.find(id) else { return false };
        let request = self.requests.swap_remove(at);
        self.tentative.retain(|&other| other != id);
        if !request.waits() {
            let path = if whole { request.path() } else { request.held_path() };
            self.remember(path.to_vec());
        }
        true
    }

    fn forget(&mut self) {
        self.cached.clear();
    }

    fn set_max_wait(&mut self, tokens: u64) {
        self.config.max_wait = tokens;
    }

    fn set_lane(&mut self, id: u64, lane: u8) -> bool {
        let Some(at) = self.find(id) else { return false };
        self.requests[at].given.lane = lane;
        true
    }

    fn overdue_lane(&self, now: u64) -> Option<u8> {
        let oldest = self.requests.iter().filter(|r| r.waits()).min_by_key(|r| r.given.arrival)?;
        self.is_overdue(oldest, now).then_some(oldest.given.lane)
    }

    fn plan(&mut self, budget: Budget) -> Plan {
        self.undo(0);
        self.form(budget)
    }

    fn undo(&mut self, keep: usize) {
        while self.tentative.len() > keep {
            let id = self.tentative.pop().unwrap();
            let at = self.find(id).unwrap();
            self.unadmit(at);
        }
    }

    fn settle(&mut self, reused: &[(u64, u64)], refused: &[u64]) -> Result<(), Error> {
        let mut unknown = Ok(());
        for id in std::mem::take(&mut self.tentative) {
            if !reused.iter().any(|&(other, _)| other == id) {
                let at = self.find(id).unwrap();
                self.unadmit(at);
            }
        }
        for &(id, tokens) in reused {
            let Some(at) = self.find(id) else {
                unknown = Err(Error::Unknown(id));
                continue;
            };
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
        unknown
    }

    fn best(&self) -> Option<(u64, u64)> {
        let at = self.first_in_order()?;
        Some((self.requests[at].given.id, self.unheld(&self.requests[at])))
    }

    fn figures(&self) -> Figures {
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

    fn rows_by_family(&self) -> (Vec<u64>, Vec<u64>) {
        let mut rows: Vec<&Request> = self.rows().collect();
        rows.sort_by_key(|row| (row.held_path(), row.given.arrival));
        let order: Vec<u64> = rows.iter().map(|row| row.given.id).collect();
        let shared = self.shared_along(&order);
        (order, shared)
    }
}
