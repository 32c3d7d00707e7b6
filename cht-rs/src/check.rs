//! [`Index::check_integrity`]: everything the index keeps incrementally, computed again from the requests alone.

use crate::frontier::Order;
use crate::index::Index;
use crate::node::{Counts, Item, Node, NodeId, REQUEST, ROOT, is_watched};
use crate::request::State;
use std::cmp::Reverse;
use std::collections::BTreeSet;

#[cfg(test)]
mod tests;

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
        let mut counts = vec![Counts::default(); self.tree.nodes.len()];
        let mut pins = vec![0; self.tree.nodes.len()];
        let mut add = |v: NodeId, delta: Counts| {
            pins[v as usize] += 1;
            counts[v as usize] += delta;
        };
        let (mut waiting, mut rows, mut tokens) = (0, 0, 0);
        for (slot, request) in self.requests.iter().enumerate() {
            let Some(request) = request else { continue };
            let slot = slot as u32;
            ensure!(self.slot(request.id) == Ok(slot), "id {} is not mapped to its slot", request.id);
            if request.state == State::Waiting {
                waiting += 1;
                add(request.end, self.demand(slot));
                ensure!(self.ages.key(request.at) == Some(request.arrival), "id {} waits without an age", request.id);
                ensure!(request.queued != self.aside.contains(&slot), "id {} is queued and set aside", request.id);
                let listed = self.tree.node(request.end).queue.at(self.tree.places.requests[slot as usize]);
                let item = Item { of: REQUEST | slot, slot };
                ensure!(
                    listed == request.queued.then(|| (self.queue_key(slot), item)),
                    "id {}: its queue disagrees",
                    request.id
                );
                ensure!(!request.computing, "id {} computes while it waits", request.id);
            } else {
                rows += 1;
                ensure!(self.rows.get(request.at as usize) == Some(&slot), "id {} runs without a row", request.id);
                tokens += request.length;
                let leading = i32::from(request.computing);
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
        ensure!(rows == self.rows.len(), "{} rows instead of {rows}", self.rows.len());
        ensure!(self.ages.is_sound(|slot| self.request(slot).at), "the ages are out of order");
        ensure!(tokens == self.row_tokens, "row tokens {} instead of {tokens}", self.row_tokens);
        self.sum_up(&mut counts);
        self.check_nodes(&counts, &pins)?;
        self.check_distinct()
    }

    /// Adds to every node what was counted below it, the deepest first.
    fn sum_up(&self, counts: &mut [Counts]) {
        let free: BTreeSet<NodeId> = self.tree.free_nodes().iter().copied().collect();
        let mut nodes: Vec<NodeId> = (1..counts.len() as NodeId).filter(|v| !free.contains(v)).collect();
        nodes.sort_by_key(|&v| Reverse(self.tree.node(v).depth));
        for v in nodes {
            let below = counts[v as usize];
            counts[self.tree.node(v).parent as usize] += below;
        }
    }

    fn check_nodes(&self, counts: &[Counts], pins: &[u32]) -> Result<(), String> {
        let tree = &self.tree;
        let free: BTreeSet<NodeId> = tree.free_nodes().iter().copied().collect();
        ensure!(free.len() == tree.free_nodes().len(), "a node is free twice");
        ensure!(tree.edges() + 1 == tree.len(), "{} edges for {} nodes", tree.edges(), tree.len());
        let (mut ranked, mut active, mut cached) = (0, 0, 0);
        let (mut chunks, mut queues, mut all_watched) = (0, 0, 0);
        for v in (0..tree.nodes.len() as NodeId).filter(|v| !free.contains(v)) {
            let node = tree.node(v);
            let expected = counts[v as usize];
            ensure!(node.counts == expected, "node {v}: {:?} instead of {expected:?}", node.counts);
            ensure!(node.pins == pins[v as usize], "node {v}: pins");
            self.check_shape(v, node)?;
            self.check_queue(v, node)?;
            chunks += node.label.len();
            queues += node.queue.bytes() + node.leads.bytes();
            if v != ROOT {
                active += if node.counts.rows > 0 { node.label.len() as u64 } else { 0 };
                cached += if node.counts.cached > 0 { node.label.len() as u64 } else { 0 };
            }
            let watched = v != ROOT && is_watched(node.counts.state());
            ensure!(
                watched == (tree.frontier.watched.get(tree.place(v).watched as usize) == Some(&v)),
                "node {v}: watched"
            );
            all_watched += usize::from(watched);
            let rank = if tree.is_live(v) { tree.rank(v) } else { None };
            ranked += usize::from(rank.is_some());
            let order = tree.frontier.by_order.key(tree.place(v).order);
            ensure!(order == rank.map(|r| r.order), "node {v}: order {order:?} instead of {rank:?}");
            let age = tree.frontier.by_age.key(tree.place(v).age);
            let expected = rank.map(|r| r.age).filter(|_| self.config.order == Order::Held);
            ensure!(age == expected, "node {v}: age {age:?} instead of {expected:?}");
        }
        let frontier = &tree.frontier;
        ensure!(frontier.by_order.len() == ranked, "{} nodes in order, not {ranked}", frontier.by_order.len());
        ensure!(frontier.by_order.is_sound(|v| tree.place(v).order), "the order is not sound");
        ensure!(frontier.by_age.is_sound(|v| tree.place(v).age), "the ages are not sound");
        ensure!(frontier.watched.len() == all_watched, "{} watched, not {all_watched}", frontier.watched.len());
        ensure!((active, cached) == (tree.active_chunks, tree.cached_chunks), "active or cached chunks differ");
        ensure!(tree.allocated() == (chunks, queues), "{chunks} chunks, {queues} bytes of queues are counted wrong");
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
        let (mut queued, mut leads) = (0, 0);
        for child in tree.children(v) {
            let (below, listed) = (tree.node(child), !tree.is_live(child));
            let item = |slot| Item { of: child, slot };
            let first = below.first().filter(|_| listed).map(|first| (first.key, item(first.slot)));
            let (lead, known) =
                (below.lead().map(|(lead, slot)| (lead, item(slot))), node.leads.at(tree.place(child).leads));
            ensure!(node.queue.at(tree.place(child).queue) == first, "node {child}: its entry above");
            ensure!(known == lead || !listed, "node {child}: its lead above");
            queued += usize::from(first.is_some());
            leads += usize::from(known.is_some());
        }
        for &(_, item) in node.queue.entries().iter().filter(|entry| entry.1.of & REQUEST != 0) {
            ensure!(self.request(item.slot).end == v, "node {v}: a foreign request");
            queued += 1;
        }
        let place = |item: Item| match item.of & REQUEST {
            0 => tree.place(item.of).queue,
            _ => tree.places.requests[item.slot as usize],
        };
        let lead_place = |item: Item| tree.place(item.of).leads;
        ensure!(node.queue.len() == queued && node.queue.is_sound(place), "node {v}: its queue");
        ensure!(node.leads.len() == leads && node.leads.is_sound(lead_place), "node {v}: its leads");
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
