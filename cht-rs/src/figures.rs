//! What can be read off an index.

use crate::hash::Level;
use crate::index::Index;
use crate::node::{Arrival, Entry, Lead, Node, NodeId, ROOT};
use crate::request::Request;
use crate::tree::Work;

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

    /// Running rows in depth-first order, siblings adjacent, and the published tokens that each has in common with the
    /// one before it. The order of families depends on the operations so far alone, not on the hash key.
    ///
    /// O(nodes on their paths + rows log rows).
    #[must_use]
    pub fn rows_by_family(&self) -> (Vec<u64>, Vec<u64>) {
        let mut rows: Vec<(Vec<NodeId>, Arrival, NodeId, u64)> = vec![];
        for request in self.rows.iter().map(|&slot| self.request(slot)) {
            let mut path = vec![];
            let mut v = request.published;
            while v != ROOT {
                path.push(v);
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

    fn bytes(&self) -> u64 {
        use std::mem::size_of;
        let heaps =
            |n: &Node| n.queue.capacity() * size_of::<(Entry, u32)>() + n.leads.capacity() * size_of::<(Lead, u32)>();
        let contents: usize = self.tree.nodes.iter().map(|n| n.label.capacity() * size_of::<Level>() + heaps(n)).sum();
        let nodes = self.tree.nodes.capacity() * size_of::<Node>();
        let requests = self.requests.capacity() * size_of::<Option<Request>>() + self.tree.queue_at.capacity() * 4;
        let maps = (self.ids.capacity() + self.tree.edges()) * 24 + self.ages.capacity() * 24;
        (nodes + contents + requests + maps) as u64
    }
}
