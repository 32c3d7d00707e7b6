//! [`Index::check_integrity`]: everything the index keeps incrementally, computed again from the requests alone.

use crate::frontier::Order;
use crate::index::Index;
use crate::node::{Counts, Entry, NIL, Node, NodeId, ROOT};
use crate::request::State;
use std::collections::{BTreeSet, HashMap};

macro_rules! ensure {
    ($ok:expr, $($message:tt)+) => {
        if !$ok {
            return Err(format!($($message)+));
        }
    };
}

impl Index {
    /// Verifies every invariant. O(everything); for tests and soaks.
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn check_integrity(&self) -> Result<(), String> {
        let mut counts: HashMap<NodeId, Counts> = HashMap::new();
        let mut pins: HashMap<NodeId, u32> = HashMap::new();
        let mut add = |mut v: NodeId, delta: Counts| {
            *pins.entry(v).or_default() += 1;
            loop {
                *counts.entry(v).or_default() += delta;
                if v == ROOT {
                    break;
                }
                v = self.tree.node(v).parent;
            }
        };
        let (mut waiting, mut rows, mut tokens) = (0, BTreeSet::new(), 0);
        for (slot, request) in self.requests.iter().enumerate() {
            let Some(request) = request else { continue };
            let slot = slot as u32;
            ensure!(self.slot(request.id) == Ok(slot), "id {} is not mapped to its slot", request.id);
            if request.state == State::Waiting {
                waiting += 1;
                let demand = (request.length + request.reserve) as i64;
                add(request.end, Counts { waiting: 1, demand, ..Counts::default() });
                ensure!(self.ages.contains(&(request.arrival, slot)), "id {} waits without an age", request.id);
                ensure!(request.queued != self.aside.contains(&slot), "id {} is queued and set aside", request.id);
                let listed = self.tree.node(request.end).queue.contains(&self.entry(slot));
                ensure!(listed == request.queued, "id {}: its queue disagrees", request.id);
                ensure!(!request.computing, "id {} computes while it waits", request.id);
            } else {
                rows.insert(slot);
                tokens += request.length;
                let leading = i64::from(request.computing);
                add(request.end, Counts { leading, ..Counts::default() });
                add(request.published, Counts { rows: 1, ..Counts::default() });
                let known = self.tree.covering(request.end, self.tree.node(request.published).depth);
                ensure!(known == request.published, "id {}: its published prefix is not on its path", request.id);
                let tentative = self.tentative.contains(&slot);
                ensure!(tentative == (request.state == State::Tentative), "id {}: tentative or not", request.id);
            }
        }
        for (&stamp, &v) in self.tree.recency() {
            ensure!(self.tree.node(v).remembered == stamp, "node {v}: its last use is wrong");
            add(v, Counts { cached: 1, ..Counts::default() });
        }
        ensure!(waiting == self.ages.len(), "{} ages for {waiting} waiting requests", self.ages.len());
        ensure!(rows == self.rows, "rows differ");
        ensure!(tokens == self.row_tokens, "row tokens {} instead of {tokens}", self.row_tokens);
        self.check_nodes(&counts, &pins)?;
        self.check_distinct()
    }

    fn check_nodes(&self, counts: &HashMap<NodeId, Counts>, pins: &HashMap<NodeId, u32>) -> Result<(), String> {
        let tree = &self.tree;
        let free: BTreeSet<NodeId> = tree.free_nodes().iter().copied().collect();
        ensure!(free.len() == tree.free_nodes().len(), "a node is free twice");
        ensure!(tree.edges() + 1 == tree.len(), "{} edges for {} nodes", tree.edges(), tree.len());
        let (mut by_order, mut by_age, mut watched) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (mut active, mut cached) = (0, 0);
        for v in (0..tree.nodes.len() as NodeId).filter(|v| !free.contains(v)) {
            let node = tree.node(v);
            let expected = counts.get(&v).copied().unwrap_or_default();
            ensure!(node.counts == expected, "node {v}: {:?} instead of {expected:?}", node.counts);
            ensure!(node.pins == pins.get(&v).copied().unwrap_or(0), "node {v}: pins");
            self.check_shape(v, node)?;
            self.check_queue(v, node)?;
            if v != ROOT {
                active += if node.counts.rows > 0 { node.label.len() as u64 } else { 0 };
                cached += if node.counts.cached > 0 { node.label.len() as u64 } else { 0 };
            }
            if v != ROOT && node.counts.is_watched() {
                watched.insert(v);
            }
            let rank = if tree.is_live(v) { tree.rank(v) } else { None };
            ensure!(node.rank == rank, "node {v}: rank {:?} instead of {rank:?}", node.rank);
            if let Some(rank) = rank {
                by_order.insert((rank.order, v));
                by_age.insert((rank.age, v));
            }
        }
        ensure!(by_order == tree.frontier.by_order, "the order differs");
        ensure!(self.config.order == Order::Missing || by_age == tree.frontier.by_age, "the ages differ");
        ensure!(watched == tree.frontier.watched, "watched nodes differ");
        ensure!((active, cached) == (tree.active_chunks, tree.cached_chunks), "active or cached chunks differ");
        Ok(())
    }

    fn check_shape(&self, v: NodeId, node: &Node) -> Result<(), String> {
        let tree = &self.tree;
        let children: Vec<NodeId> = tree.children(v).collect();
        for &child in &children {
            let below = tree.node(child);
            ensure!(below.parent == v, "node {child}: parent");
            ensure!(!below.label.is_empty(), "node {child}: empty label");
            ensure!(below.depth == node.depth + below.label.len() as u32, "node {child}: depth");
            ensure!(tree.edge(v, below.label[0]) == Some(child), "node {child}: edge");
        }
        ensure!(v == ROOT || node.pins > 0 || children.len() >= 2, "node {v} is not compressed");
        Ok(())
    }

    fn check_queue(&self, v: NodeId, node: &Node) -> Result<(), String> {
        let tree = &self.tree;
        let (mut entries, mut leads) = (BTreeSet::new(), BTreeSet::new());
        for child in tree.children(v) {
            let below = tree.node(child);
            let first = below.queue.first().filter(|_| !tree.is_live(child));
            let entry = first.map(|first| Entry { child, ..*first });
            let lead = below.lead().filter(|_| !tree.is_live(child));
            ensure!((below.queued, below.leading) == (entry, lead), "node {child}: its entry above");
            entries.extend(entry);
            leads.extend(lead.map(|lead| (lead, child)));
        }
        let own = node.queue.iter().filter(|entry| entry.child == NIL);
        ensure!(own.clone().all(|entry| self.request(entry.slot).end == v), "node {v}: a foreign request");
        entries.extend(own);
        ensure!(entries == node.queue && leads == node.leads, "node {v}: its queue");
        Ok(())
    }

    fn check_distinct(&self) -> Result<(), String> {
        let chunk = u64::from(self.config.chunk);
        let mut nodes = BTreeSet::new();
        let mut distinct = 0;
        for request in self.rows.iter().map(|&slot| self.request(slot)) {
            let mut v = request.published;
            distinct += request.length - u64::from(self.tree.node(v).depth) * chunk;
            while v != ROOT && nodes.insert(v) {
                distinct += self.tree.node(v).label.len() as u64 * chunk;
                v = self.tree.node(v).parent;
            }
        }
        ensure!(self.distinct_kv() == distinct, "distinct tokens {} instead of {distinct}", self.distinct_kv());
        Ok(())
    }
}
