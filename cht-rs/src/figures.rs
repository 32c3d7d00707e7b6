//! What can be read off an index.

use crate::index::Index;
use crate::node::{Arrival, NodeId, ROOT, Slot};
use crate::request::Request;
use crate::tree::Work;

/// What an index counts all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
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
}

impl Index {
    /// The next request in order, whether or not it fits, and its tokens that no running row holds. O(log A).
    #[must_use]
    pub fn best(&self) -> Option<(u64, u64)> {
        let (request, looked) = (self.request(self.first_in_order()?), self.tree.looked());
        let active = self.tree.deepest(request.end, |counts| counts.rows > 0);
        self.tree.set_looked(looked); // who reads answers finds the counted work as it was
        Some((request.id, self.beyond(request, active)))
    }

    /// Tokens that had been scheduled when the oldest waiting request arrived. O(1).
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        self.ages.first().map(|(arrival, _)| arrival.tokens)
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

    /// What the index counts. O(pending nodes + nodes on one path).
    #[must_use]
    pub fn figures(&self) -> Figures {
        let (root, looked) = (self.tree.node(ROOT).counts, self.tree.looked());
        let figures = Figures {
            waiting: root.waiting as u64,
            held: self.held(),
            running: root.rows as u64,
            tip_chunks: self.tip().map_or(0, |v| self.tree.node(v).depth),
            total_kv: self.row_tokens,
            distinct_kv: self.distinct_kv(),
            cached_tokens: self.tree.cached_chunks * u64::from(self.config.chunk),
        };
        self.tree.set_looked(looked);
        figures
    }

    /// Work done so far.
    #[must_use]
    pub fn work(&self) -> Work {
        self.tree.work()
    }

    /// Nodes in use, the root included.
    #[must_use]
    pub fn nodes(&self) -> u64 {
        self.tree.len() as u64
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

    /// Bytes allocated, about. O(1).
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let requests = self.requests.capacity() * size_of::<Option<Request>>()
            + self.ages.bytes()
            + self.ids.capacity() * (size_of::<(u64, Slot)>() + 1)
            + (self.rows.capacity() + self.tentative.capacity() + self.computing.capacity()) * size_of::<Slot>();
        self.tree.bytes() + requests as u64
    }
}

impl std::fmt::Debug for Index {
    /// A line of figures: an index holds millions of nodes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (nodes, bytes) = (self.nodes(), self.bytes());
        f.debug_struct("Index")
            .field("figures", &self.figures())
            .field("nodes", &nodes)
            .field("bytes", &bytes)
            .finish_non_exhaustive()
    }
}
