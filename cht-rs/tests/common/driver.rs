//! Runs operations on an index and on the naive model, and compares every answer.

use super::operation::Op;
use super::sequence::Setup;
use cht::hash::HashKey;
use cht::naive::Naive;
use cht::{Arrival, Arriving, Budget, Config, End, Index, Plan, Planner, Work};
use std::fmt::Debug;

mod follow;

/// What differs, in one line.
pub type Violation = String;

/// An index that can also be asked whether it is sound.
pub trait Subject: Planner {
    fn check(&self) -> Result<(), String>;
    /// Nodes in use, where it has any.
    fn nodes(&self) -> u64;
    /// Work counted so far.
    fn work(&self) -> Work;
}

impl Subject for Index {
    fn check(&self) -> Result<(), String> {
        self.check_integrity()
    }

    fn nodes(&self) -> u64 {
        Index::nodes(self)
    }

    fn work(&self) -> Work {
        Index::work(self)
    }
}

pub struct Alive {
    pub id: u64,
    pub tokens: Vec<i64>,
    pub arrival: Arrival,
    space: u8,
    lane: u8,
}

pub struct Driver<S> {
    pub subject: S,
    pub model: Naive,
    pub alive: Vec<Alive>,
    /// Operations done so far.
    pub operations: u64,
    /// The last plan that was formed.
    pub last: Option<Plan>,
    /// The next plan goes on where the last one ended.
    goes_on: bool,
    config: Config,
    key: HashKey,
    lanes: u8,
    next: u64,
    now: u64,
}

/// The answer that both give.
#[allow(clippy::needless_pass_by_value)] // most answers are made for the comparison
fn agreed<T: PartialEq + Debug>(what: &str, subject: T, model: T) -> Result<T, Violation> {
    if subject == model { Ok(subject) } else { Err(format!("{what}: {subject:?} instead of {model:?}")) }
}

#[allow(clippy::needless_pass_by_value)] // most answers are made for the comparison
fn same<T: PartialEq + Debug>(what: &str, subject: T, model: T) -> Result<(), Violation> {
    agreed(what, subject, model).map(drop)
}

impl<S: Subject> Driver<S> {
    pub fn new(setup: Setup, subject: S) -> Self {
        let (config, key) = (setup.config, setup.key());
        let model = Naive::new(config, key);
        Driver {
            subject,
            model,
            alive: vec![],
            operations: 0,
            last: None,
            goes_on: false,
            config,
            key,
            lanes: setup.lanes,
            next: 0,
            now: 0,
        }
    }

    /// One operation on both.
    pub fn apply(&mut self, op: Op) -> Result<(), Violation> {
        self.operations += 1;
        match op {
            Op::Insert { .. } => self.arrive(op),
            Op::Pass { .. } => self.pass(op),
            Op::Follow { .. } => {
                self.follow(op);
                Ok(())
            }
            Op::Publish { who, share, computing } => {
                let Some((id, length)) = self.pick(who) else { return Ok(()) };
                let tokens = length * u64::from(share % 5) / 4;
                let model = self.model.publish(id, tokens, computing);
                same("publish", self.subject.publish(id, tokens, computing), model)
            }
            Op::Grow { who, tokens, symbol } => {
                let Some((id, _)) = self.pick(who) else { return Ok(()) };
                let grown = vec![i64::from(symbol % 3); usize::from(tokens % 11)];
                let model = self.model.grow(id, &grown);
                if agreed("grow", self.subject.grow(id, &grown), model)?.is_ok() {
                    self.now += grown.len() as u64;
                    self.request_mut(id).tokens.extend(grown);
                }
                Ok(())
            }
            Op::Leave { who, whole } => match self.pick(who) {
                Some((id, _)) => self.leave(id, whole),
                None => Ok(()),
            },
            Op::LeaveFirst => match self.model.best() {
                Some((id, _)) => self.leave(id, false),
                None => Ok(()),
            },
            Op::Retract { who, tokens } => {
                let Some((id, _)) = self.pick(who) else { return Ok(()) };
                same("leave", self.subject.leave(id, false), self.model.leave(id, false))?;
                let at = self.alive.iter().position(|r| r.id == id).expect("picked among them");
                self.alive[at].tokens.extend(vec![2; usize::from(tokens % 9)]);
                let new = self.arriving(&self.alive[at], 3, true, u64::MAX);
                self.insert(new)
            }
            Op::Activate { who } => {
                let Some((id, _)) = self.pick(who) else { return Ok(()) };
                same("activate", self.subject.activate(id), self.model.activate(id))
            }
            Op::Forget => {
                self.subject.forget();
                self.model.forget();
                Ok(())
            }
            Op::Bound { tokens } => {
                let tokens = u64::from(tokens % 700);
                self.subject.set_max_wait(tokens);
                self.model.set_max_wait(tokens);
                Ok(())
            }
            Op::Lane { who, lane } => {
                let Some((id, _)) = self.pick(who) else { return Ok(()) };
                let lane = lane % self.lanes;
                self.request_mut(id).lane = lane;
                same("lane", self.subject.set_lane(id, lane), self.model.set_lane(id, lane))
            }
            Op::Nonsense { who } => self.nonsense(who),
        }
    }

    fn arriving(&self, request: &Alive, reserve: u64, leads: bool, shareable: u64) -> Arriving {
        let spaces: [&[Option<&[u8]>]; 3] = [&[None], &[Some(b"")], &[Some(b"a")]];
        let namespace = spaces[usize::from(request.space) % 3];
        let (head, tail) = request.tokens.split_at(request.tokens.len() / 2);
        let (path, stream) = self.key.path(namespace, self.config.chunk as usize, &[head, tail], shareable);
        let length = request.tokens.len() as u64;
        let stream = (shareable >= length).then_some(stream);
        Arriving { id: request.id, length, reserve, arrival: request.arrival, lane: request.lane, leads, path, stream }
    }

    fn insert(&mut self, new: Arriving) -> Result<(), Violation> {
        same("insert", self.subject.insert(new.clone()), self.model.insert(new))
    }

    fn arrive(&mut self, op: Op) -> Result<(), Violation> {
        let Op::Insert { base, keep, chunks, symbol, tail, reserve, flags } = op else { unreachable!() };
        let chunk = self.config.chunk as usize;
        let mut tokens = vec![];
        if !self.alive.is_empty() && flags & 3 != 0 {
            let base = &self.alive[usize::from(base) % self.alive.len()].tokens;
            let keep = if flags & 3 == 1 { base.len() } else { usize::from(keep) % (base.len() + 1) };
            tokens.extend_from_slice(&base[..keep / chunk * chunk]);
        }
        for i in 0..chunks % 5 {
            tokens.extend(vec![i64::from(symbol.wrapping_add(i) % 3); chunk]);
        }
        tokens.extend((0..usize::from(tail) % (chunk + 1)).map(|i| i as i64));
        tokens.push(7);
        self.next += 1;
        // Unique, but not monotone in the order of insertion.
        let late = u64::from(flags >> 5) * 40;
        let arrival = Arrival { tokens: self.now.saturating_sub(late), sequence: self.next };
        let request =
            Alive { id: self.next, tokens, arrival, space: flags >> 2 & 3, lane: (reserve >> 4) % self.lanes };
        let shareable = if flags & 0x10 == 0 { u64::MAX } else { u64::from(keep) % 20 };
        let new = self.arriving(&request, u64::from(reserve % 16), flags & 0x60 != 0, shareable);
        self.insert(new)?;
        self.alive.push(request);
        Ok(())
    }

    fn pass(&mut self, op: Op) -> Result<(), Violation> {
        let Op::Pass { kv, rows, prefill, cut, flags } = op else { unreachable!() };
        let flag = |bit| Op::flag(flags, bit);
        self.subject.begin();
        self.model.begin();
        let idle = flags >> 8 & 7 == 1;
        let kv = if flag(0) { u64::from(kv % 300) } else { 1 << 30 };
        let (rows, prefill, chunked) = (u32::from(rows % 9), u64::from(prefill), !flag(11));
        let lane = (flag(12) && flag(13)).then_some(cut % self.lanes);
        let budget = Budget { now: self.now, kv, rows, prefill, chunked, idle, lane };
        let mut plan = agreed("plan", self.subject.plan(budget), self.model.plan(budget))?;
        self.compare()?;
        // One that goes on where the last one ended, or ends there, is not the same again.
        let goes_on = std::mem::replace(&mut self.goes_on, plan.end == End::Looked);
        if flag(1) && !goes_on && plan.end != End::Looked {
            plan = self.plan_again(budget, &plan)?;
        }
        self.last = Some(plan.clone());
        let keep = usize::from(cut) % (plan.order.len() + 1);
        self.subject.undo(keep);
        self.model.undo(keep);
        self.compare()?;
        if flag(2) && flag(3) {
            return Ok(()); // left tentative, until somebody plans or leaves
        }
        let mut reused = vec![];
        for (i, candidate) in plan.order[..keep].iter().enumerate() {
            let length = self.request_mut(candidate.id).tokens.len() as u64;
            self.now += candidate.uncomputed;
            let partly = (length * i as u64 / 3).min(length - 1);
            reused.push((candidate.id, if flag(4) { length - candidate.uncomputed } else { partly }));
        }
        let refused: Vec<u64> = if flag(5) { reused.pop().map(|(id, _)| id).into_iter().collect() } else { vec![] };
        if flag(6) && flag(7) {
            // Others than planned: one that may wait, run or not exist.
            reused.push(self.pick(u16::from(cut)).unwrap_or((u64::MAX, 1)));
        }
        same("settle", self.subject.settle(&reused, &refused), self.model.settle(&reused, &refused))
    }

    /// A plan that is taken back leaves nothing: the same plan again, for the same work.
    fn plan_again(&mut self, budget: Budget, first: &Plan) -> Result<Plan, Violation> {
        let mut spent = vec![];
        for _ in 0..2 {
            self.subject.undo(0);
            self.model.undo(0);
            let before = self.subject.work();
            let plan = agreed("plan again", self.subject.plan(budget), self.model.plan(budget))?;
            same("the plan after undo", &plan, first)?;
            spent.push(since(before, self.subject.work()));
        }
        same("work after undo", spent[1], spent[0])?;
        Ok(first.clone())
    }

    /// Operations on ids that are not there, twice on those that are: refused alike, and without effect.
    fn nonsense(&mut self, who: u16) -> Result<(), Violation> {
        let nobody = self.next + 1;
        same("leave", self.subject.leave(nobody, true), self.model.leave(nobody, true))?;
        same("publish", self.subject.publish(nobody, 8, true), self.model.publish(nobody, 8, true))?;
        same("grow", self.subject.grow(nobody, &[1; 9]), self.model.grow(nobody, &[1; 9]))?;
        same("activate", self.subject.activate(nobody), self.model.activate(nobody))?;
        same("lane", self.subject.set_lane(nobody, 0), self.model.set_lane(nobody, 0))?;
        if let Some((id, _)) = self.pick(who) {
            let request = self.alive.iter().find(|r| r.id == id).expect("picked among them");
            self.insert(self.arriving(request, 1, true, u64::MAX))?;
        }
        Ok(())
    }

    fn leave(&mut self, id: u64, whole: bool) -> Result<(), Violation> {
        same("leave", self.subject.leave(id, whole), self.model.leave(id, whole))?;
        same("leave twice", self.subject.leave(id, whole), false)?;
        self.alive.retain(|r| r.id != id);
        Ok(())
    }

    fn pick(&self, who: u16) -> Option<(u64, u64)> {
        let request = self.alive.get(usize::from(who) % self.alive.len().max(1))?;
        Some((request.id, request.tokens.len() as u64))
    }

    fn request_mut(&mut self, id: u64) -> &mut Alive {
        self.alive.iter_mut().find(|r| r.id == id).expect("it is alive")
    }

    /// Everything that can be asked without changing anything.
    pub fn compare(&self) -> Result<(), Violation> {
        self.subject.check()?;
        let figures = agreed("figures", self.subject.figures(), self.model.figures())?;
        same("best", self.subject.best(), self.model.best())?;
        same("lane", self.subject.overdue_lane(self.now), self.model.overdue_lane(self.now))?;
        let (mut order, shared) = self.subject.rows_by_family();
        same("shared along the rows", &shared, &self.model.shared_along(&order))?;
        // In a depth-first order every shared token is met once: the rows of a family are adjacent.
        let distinct = figures.total_kv - shared.iter().sum::<u64>();
        same("distinct along the rows", distinct, figures.distinct_kv)?;
        let mut expected = self.model.rows_by_family().0;
        order.sort_unstable();
        expected.sort_unstable();
        same("rows", order, expected)?;
        let paths = 2 * self.alive.len() as u64 + figures.cached_tokens / u64::from(self.config.chunk);
        let nodes = self.subject.nodes();
        if nodes <= 2 * paths + 1 { Ok(()) } else { Err(format!("{nodes} nodes for {paths} paths")) }
    }

    /// After everybody left and the cache was forgotten, nothing remains.
    pub fn drain(&mut self) -> Result<(), Violation> {
        for request in std::mem::take(&mut self.alive) {
            let id = request.id;
            same("leave", self.subject.leave(id, false), self.model.leave(id, false))?;
        }
        self.compare()?;
        self.subject.forget();
        self.model.forget();
        self.compare()?;
        same("nodes at the end", self.subject.nodes(), 1)
    }
}

/// Work between two readings.
pub fn since(before: Work, after: Work) -> Work {
    Work {
        queue_operations: after.queue_operations - before.queue_operations,
        nodes_visited: after.nodes_visited - before.nodes_visited,
        looked_at: after.looked_at - before.looked_at,
    }
}
