//! The rule of a pass over plain lists; see `plan.rs`.

use super::{Naive, Request, common};
use crate::bound::TOGETHER;
use crate::hash::Level;
use crate::plan::{KEPT_PASSES, LOOKS};
use crate::{Arrival, Budget, Candidate, End, Order, Plan, Planner};
use std::cmp::Reverse;

impl Naive {
    /// Forms the batch of a pass; nothing is tentative before.
    pub(super) fn form(&mut self, budget: Budget) -> Plan {
        if !self.looked_enough || budget.idle {
            self.requests.iter_mut().for_each(|r| r.set_aside = false);
        }
        self.looked_enough = false;
        self.now = self.now.max(budget.now);
        let (mut kv, mut rows, mut prefill) = (budget.kv, budget.rows, budget.prefill);
        let (mut alone, mut skipped, mut order, mut overdue, mut passed) = ((0, 0), 0, vec![], 0, vec![]);
        let end = loop {
            if rows == 0 {
                break End::Rows;
            }
            if prefill == 0 {
                break End::Prefill;
            }
            while let Some(first) = self.first_in_order().filter(|&i| budget.lane > Some(self.requests[i].given.lane)) {
                self.requests[first].set_aside = true;
                passed.push(first);
            }
            let kept = if budget.idle && order.is_empty() { (0, 0) } else { self.kept(alone) };
            let together = self.together(&budget, kv.saturating_sub(kept.1));
            let first = if together.is_some() { None } else { self.overdue(&budget, kv, order.is_empty()) };
            if first.is_none() && kept.0 >= rows {
                break End::Kept;
            }
            let is_overdue = together.is_some() || matches!(first, Some(Some(_)));
            let at = match (together, first) {
                (Some(at), _) | (None, Some(Some(at))) => at,
                (None, Some(None)) => break End::Room,
                (None, None) => {
                    let Some(first) = self.next_in_order(&budget) else {
                        break End::Nobody;
                    };
                    let at = self.leader_for(first);
                    let request = &self.requests[at];
                    if self.is_held(request) {
                        alone.0 += 1;
                        alone.1 += self.unheld(request) + request.given.reserve;
                        self.requests[at].set_aside = true;
                        continue;
                    }
                    if !self.fits(at, kv.saturating_sub(kept.1)) || self.was_refused(at) {
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
            let page = u64::from(self.config.page);
            let whole = self.uncomputed(&self.requests[at]).div_ceil(page) * page;
            if !budget.chunked && whole >= prefill && !order.is_empty() {
                break End::Prefill;
            }
            order.push(self.name(at, &mut kv, &mut rows, &mut prefill));
            if is_overdue {
                overdue = order.len();
            }
        };
        if budget.idle && order.is_empty() && budget.rows > 0 {
            let waiting = (0..self.requests.len()).filter(|&i| self.requests[i].waits());
            if let Some(at) = waiting.min_by_key(|&i| self.requests[i].given.arrival) {
                order.push(self.name(at, &mut kv, &mut rows, &mut prefill));
            }
        }
        for at in passed {
            self.requests[at].set_aside = false;
        }
        let kept = self.kept(alone).0.min(rows);
        Plan { order, held: self.figures().held + alone.0, kept, skipped, overdue, end }
    }

    /// Where a request stands in the order; smaller is earlier.
    fn key(&self, request: &Request) -> (u8, u64, u64, (u64, u64)) {
        let path = request.path();
        let held = self.active(path);
        let (lane, rank) = self.rank(request);
        match self.config.order {
            Order::Held => {
                let rows = if self.computing(path) > held {
                    0
                } else {
                    self.rows().filter(|row| common(path, row.held_path()) >= held).count()
                };
                (lane, u64::MAX - held as u64, u64::MAX - rows as u64, rank)
            }
            Order::Missing => (lane, 0, 0, (rank.0 - held as u64 * self.chunk() * 65_536, rank.1)),
        }
    }

    /// The order of requests that hold the same: lanes one after the other.
    fn rank(&self, request: &Request) -> (u8, (u64, u64)) {
        let Arrival { tokens, sequence } = request.given.arrival;
        let rank = match self.config.order {
            Order::Held => tokens,
            Order::Missing => {
                let aged = (self.config.aging * 65_536.0 * tokens as f64) as u64;
                (request.given.length * 65_536).saturating_add(aged)
            }
        };
        (request.given.lane, (rank.min((1 << 58) - 1), sequence))
    }

    fn next_in_order(&self, budget: &Budget) -> Option<usize> {
        self.first_in_order().filter(|&i| serves(budget, &self.requests[i]))
    }

    pub(super) fn first_in_order(&self) -> Option<usize> {
        let offered = || {
            let offered = |r: &Request| r.waits() && !r.set_aside && !self.is_blocked(r.path());
            (0..self.requests.len()).filter(move |&i| offered(&self.requests[i]))
        };
        let best = offered().min_by_key(|&i| self.key(&self.requests[i]))?;
        if self.config.order == Order::Missing {
            return Some(best);
        }
        let oldest = offered().min_by_key(|&i| (self.requests[i].given.lane, self.requests[i].given.arrival))?;
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
        let order = |i: usize| (Reverse(shares(i)), self.rank(&self.requests[i]));
        let leader = family.iter().copied().min_by_key(|&i| order(i));
        leader.filter(|&i| self.requests[i].given.lane == request.given.lane).unwrap_or(at)
    }

    fn is_held(&self, request: &Request) -> bool {
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

    fn was_refused(&self, at: usize) -> bool {
        let refused = self.requests[at].refused;
        refused != 0 && refused + 1 == self.pass
    }

    fn was_held_long(&self, request: &Request, budget: &Budget) -> bool {
        let published = self.published(request.path());
        let computes = |row: &&Request| row.computing && common(row.path(), request.path()) > published;
        self.rows().filter(computes).any(|row| budget.now.saturating_sub(row.since) > self.config.max_wait)
    }

    pub(super) fn is_overdue(&self, request: &Request, now: u64) -> bool {
        let bound = self.config.max_wait - self.config.max_wait / TOGETHER;
        now.saturating_sub(request.given.arrival.tokens) > bound
    }

    /// The next in order, if it came together with the oldest, and that is past the bound.
    fn together(&self, budget: &Budget, kv: u64) -> Option<usize> {
        let oldest = self.requests.iter().filter(|r| r.waits()).min_by_key(|r| r.given.arrival)?;
        let at = self.leader_for(self.next_in_order(budget)?);
        let request = &self.requests[at];
        let later = request.given.arrival.tokens - oldest.given.arrival.tokens;
        let may = later <= self.config.max_wait / TOGETHER && self.fits(at, kv) && !self.was_refused(at);
        (self.is_overdue(oldest, budget.now) && may && !self.is_held(request)).then_some(at)
    }

    /// `Some(None)`: room is kept for the oldest.
    fn overdue(&self, budget: &Budget, kv: u64, first: bool) -> Option<Option<usize>> {
        let waits = |&i: &usize| self.requests[i].waits() && serves(budget, &self.requests[i]);
        let mut waiting: Vec<usize> = (0..self.requests.len()).filter(waits).collect();
        waiting.sort_by_key(|&i| self.requests[i].given.arrival);
        for at in waiting.into_iter().take(LOOKS as usize) {
            let request = &self.requests[at];
            let given = &request.given;
            if !self.is_overdue(request, budget.now) {
                break;
            }
            if self.was_refused(at) || self.is_held(request) && !self.was_held_long(request, budget) {
                continue;
            }
            if self.fits(at, kv) || budget.idle && first {
                return Some(Some(at));
            }
            if !budget.idle && given.length + given.reserve <= self.config.capacity {
                return Some(None);
            }
        }
        None
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
}

/// Whether a request is in a lane that is to be served.
fn serves(budget: &Budget, request: &Request) -> bool {
    budget.lane.is_none() || budget.lane == Some(request.given.lane)
}
