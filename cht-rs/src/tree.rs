//! The shape of the tree: a path-compressed trie over cumulative chunk hashes.
//!
//! Every node other than the root has a pin or at least two children; [`Tree::prune`] restores that after a removal.
//! A node keeps its id when an edge above it is split or merged, so requests can point at the node where they end.

use crate::frontier::Frontier;
use crate::hash::Level;
use crate::node::{Counts, NIL, Node, NodeId, ROOT};
use crate::queues::{Place, Places};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Levels are already hashes: one folded multiply spreads (parent, level) well enough, and is equal on every rank.
#[derive(Default, Clone, Copy)]
pub(crate) struct EdgeHasher(u64);

impl Hasher for EdgeHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(self.0.rotate_left(32) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = (wide as u64) ^ ((wide >> 64) as u64);
    }
}

pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<EdgeHasher>>;

/// Work done since the index was made: what complexity claims are tested with, instead of clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Insertions into and removals from the queues and the global orders.
    pub queue_operations: u64,
    /// Nodes visited on walks along paths.
    pub nodes_visited: u64,
    /// Requests looked at by `plan`.
    pub looked_at: u64,
}

#[derive(Debug)]
pub(crate) struct Tree {
    pub nodes: Vec<Node>,
    free: Vec<NodeId>,
    edges: FastMap<(NodeId, Level), NodeId>,
    pub frontier: Frontier,
    pub places: Places,
    /// Remembered paths, least recently used first.
    recency: BTreeMap<u64, NodeId>,
    uses: u64,
    pub active_chunks: u64,
    pub cached_chunks: u64,
    /// Chunks of all labels.
    label_chunks: usize,
    /// Bytes of all queues of nodes.
    pub queue_bytes: usize,
    pub work: Work,
    /// Nodes visited by walks that only look. Nobody else counts meanwhile, so that a load and a store will do.
    looked: AtomicU64,
}

impl Tree {
    pub fn new(frontier: Frontier) -> Self {
        Tree {
            nodes: vec![Node::new(Box::default(), NIL, 0)],
            free: vec![],
            edges: FastMap::default(),
            frontier,
            places: Places { nodes: vec![Place::NOWHERE], requests: vec![] },
            recency: BTreeMap::new(),
            uses: 0,
            active_chunks: 0,
            cached_chunks: 0,
            label_chunks: 0,
            queue_bytes: 0,
            work: Work::default(),
            looked: AtomicU64::new(0),
        }
    }

    pub fn node(&self, v: NodeId) -> &Node {
        &self.nodes[v as usize]
    }

    pub fn node_mut(&mut self, v: NodeId) -> &mut Node {
        &mut self.nodes[v as usize]
    }

    /// Nodes in use, the root included.
    pub fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// Bytes allocated, about: a map is taken to hold one control byte an entry.
    pub fn bytes(&self) -> u64 {
        let arena = self.nodes.capacity() * size_of::<Node>() + self.free.capacity() * size_of::<NodeId>();
        let edges = self.edges.capacity() * (size_of::<((NodeId, Level), NodeId)>() + 1);
        let orders = self.frontier.by_order.bytes() + self.frontier.by_age.bytes();
        let Places { nodes, requests } = &self.places;
        let places = nodes.capacity() * size_of::<Place>() + requests.capacity() * size_of::<u32>();
        let rest = places + self.recency.len() * 16;
        (arena + edges + orders + rest + self.label_chunks * size_of::<Level>() + self.queue_bytes) as u64
    }

    /// Chunks of all labels, and bytes of all queues, as counted.
    pub fn allocated(&self) -> (usize, usize) {
        (self.label_chunks, self.queue_bytes)
    }

    /// Gives back what an empty tree does not need.
    pub fn shrink(&mut self) {
        debug_assert_eq!(self.len(), 1);
        self.nodes.truncate(1);
        self.nodes.shrink_to_fit();
        self.free = vec![];
        self.edges = FastMap::default();
        self.places = Places { nodes: vec![Place::NOWHERE], requests: vec![] };
    }

    /// Counts nodes visited by a walk that only looks.
    pub fn walked(&self, nodes: u64) {
        self.set_looked(self.looked() + nodes);
    }

    /// Nodes visited by such walks so far.
    pub fn looked(&self) -> u64 {
        self.looked.load(Relaxed)
    }

    pub fn set_looked(&self, nodes: u64) {
        self.looked.store(nodes, Relaxed);
    }

    /// Work done so far.
    pub fn work(&self) -> Work {
        Work { nodes_visited: self.work.nodes_visited + self.looked(), ..self.work }
    }

    pub fn edges(&self) -> usize {
        self.edges.len()
    }

    pub fn edge(&self, parent: NodeId, level: Level) -> Option<NodeId> {
        self.edges.get(&(parent, level)).copied()
    }

    pub fn free_nodes(&self) -> &[NodeId] {
        &self.free
    }

    pub fn recency(&self) -> &BTreeMap<u64, NodeId> {
        &self.recency
    }

    /// The node at the end of `path` below `v`, made (and edges split) where it is missing.
    pub fn descend(&mut self, mut v: NodeId, mut path: &[Level]) -> NodeId {
        while let Some(&next) = path.first() {
            self.work.nodes_visited += 1;
            let Some(child) = self.edge(v, next) else {
                let depth = self.node(v).depth + path.len() as u32;
                let leaf = self.allocate(Node::new(path.into(), v, depth));
                self.attach(v, leaf);
                return leaf;
            };
            let label = &self.node(child).label;
            // Linear on purpose: a binary search would trust monotonicity, which a collision breaks.
            let common = label.iter().zip(path).take_while(|(a, b)| a == b).count();
            v = if common == label.len() { child } else { self.split(child, common) };
            path = &path[common..];
        }
        v
    }

    /// The node on the path to `end` that ends at `depth` chunks, split off where an edge crosses that depth.
    pub fn cut(&mut self, end: NodeId, depth: u32) -> NodeId {
        let v = self.covering(end, depth);
        if self.node(v).depth == depth {
            return v;
        }
        let above = self.node(self.node(v).parent).depth;
        self.split(v, (depth - above) as usize)
    }

    /// The node on the path to `end` whose label holds chunk number `depth` (1-based); the root for 0.
    pub fn covering(&self, end: NodeId, depth: u32) -> NodeId {
        debug_assert!(depth <= self.node(end).depth);
        if depth == 0 {
            return ROOT;
        }
        let (mut v, mut walked) = (end, 1);
        while self.node(self.node(v).parent).depth >= depth {
            v = self.node(v).parent;
            walked += 1;
        }
        self.walked(walked);
        v
    }

    /// The deepest node on the path to `v`, itself included, for which `holds`; the root if none does.
    pub fn deepest(&self, mut v: NodeId, holds: impl Fn(&Counts) -> bool) -> NodeId {
        let mut walked = 1;
        while v != ROOT && !holds(&self.node(v).counts) {
            v = self.node(v).parent;
            walked += 1;
        }
        self.walked(walked);
        v
    }

    pub fn pin(&mut self, v: NodeId) {
        self.node_mut(v).pins += 1;
    }

    pub fn unpin(&mut self, v: NodeId) {
        self.node_mut(v).pins -= 1;
        self.prune(v);
    }

    /// Splits the edge into `child` after `chunks` of its label; returns the new upper node.
    fn split(&mut self, child: NodeId, chunks: usize) -> NodeId {
        let parent = self.node(child).parent;
        self.leave_parent(child);
        self.detach(parent, child);
        let node = self.node_mut(child);
        let mut above = std::mem::take(&mut node.label).into_vec();
        node.label = above.split_off(chunks).into_boxed_slice();
        let mut upper = Node::new(above.into_boxed_slice(), parent, node.depth - node.label.len() as u32);
        upper.counts = node.counts;
        self.label_chunks -= chunks; // they are counted again with the new node
        let upper = self.allocate(upper);
        self.attach(parent, upper);
        self.attach(upper, child);
        self.watch(upper);
        self.refresh(child);
        self.refresh_upward(upper);
        upper
    }

    /// Removes empty leaves from `v` upwards and fuses a node that only passes through with its child.
    fn prune(&mut self, mut v: NodeId) {
        while v != ROOT && self.node(v).pins == 0 {
            let Node { parent, first_child, .. } = *self.node(v);
            if first_child == NIL {
                debug_assert_eq!(self.node(v).counts, Counts::default());
                self.detach(parent, v);
                self.release(v);
                v = parent;
                continue;
            }
            if self.node(first_child).next_sibling != NIL {
                return;
            }
            self.leave_parent(first_child);
            self.detach(v, first_child);
            self.leave_parent(v);
            self.unrank(v);
            self.detach(parent, v);
            let label = [&*self.node(v).label, &*self.node(first_child).label].concat().into_boxed_slice();
            self.label_chunks += self.node(v).label.len();
            self.node_mut(first_child).label = label;
            self.release(v);
            self.attach(parent, first_child);
            self.refresh_upward(first_child);
            return;
        }
    }

    /// Remembers that the path to `v` is published, as the most recently used; returns what the caller has to add there.
    pub fn remember(&mut self, v: NodeId) -> Counts {
        if v == ROOT {
            return Counts::default();
        }
        self.uses += 1;
        let uses = self.uses;
        let old = std::mem::replace(&mut self.node_mut(v).remembered, uses);
        self.recency.insert(uses, v);
        if old != 0 {
            self.recency.remove(&old);
            return Counts::default();
        }
        self.pin(v);
        Counts { cached: 1, ..Counts::default() }
    }

    /// Forgets the paths that were used longest ago, until at most `capacity` chunks are remembered.
    pub fn forget_beyond(&mut self, capacity: u64) {
        while self.cached_chunks > capacity {
            let Some((_, &oldest)) = self.recency.first_key_value() else {
                break;
            };
            self.forget(oldest);
        }
    }

    /// Forgets the remembered path that ends at `v`.
    pub fn forget(&mut self, v: NodeId) {
        let stamp = std::mem::replace(&mut self.node_mut(v).remembered, 0);
        debug_assert_ne!(stamp, 0);
        self.recency.remove(&stamp);
        self.add(v, Counts { cached: -1, ..Counts::default() });
        self.unpin(v);
    }

    pub fn forget_all(&mut self) {
        while let Some((_, &oldest)) = self.recency.first_key_value() {
            self.forget(oldest);
        }
    }

    /// Forgets every remembered path that goes through or ends at `v`. O(nodes remembered below).
    pub fn forget_below(&mut self, v: NodeId) {
        let mut found = vec![];
        let mut open = vec![v];
        while let Some(v) = open.pop() {
            if self.node(v).counts.cached == 0 {
                continue;
            }
            if self.node(v).remembered != 0 {
                found.push(v);
            }
            open.extend(self.children(v));
        }
        for v in found {
            self.forget(v);
        }
    }

    pub fn children(&self, v: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let first = self.node(v).first_child;
        std::iter::successors((first != NIL).then_some(first), |&c| {
            let next = self.node(c).next_sibling;
            (next != NIL).then_some(next)
        })
    }

    fn allocate(&mut self, node: Node) -> NodeId {
        self.label_chunks += node.label.len();
        if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = node;
            return id;
        }
        self.nodes.push(node);
        self.places.nodes.push(Place::NOWHERE);
        NodeId::try_from(self.nodes.len() - 1).expect("fewer than 2^32 nodes")
    }

    fn release(&mut self, v: NodeId) {
        self.node_mut(v).counts = Counts::default();
        self.watch(v);
        debug_assert_eq!(self.place(v), Place::NOWHERE);
        self.label_chunks -= self.node(v).label.len();
        self.queue_bytes -= self.node(v).queue.bytes() + self.node(v).leads.bytes(); // empty, but for their room
        self.nodes[v as usize] = Node::new(Box::default(), NIL, 0);
        self.free.push(v);
    }

    fn attach(&mut self, parent: NodeId, child: NodeId) {
        let level = self.node(child).label[0];
        self.edges.insert((parent, level), child);
        let next = std::mem::replace(&mut self.node_mut(parent).first_child, child);
        if next != NIL {
            self.node_mut(next).previous_sibling = child;
        }
        let node = self.node_mut(child);
        node.parent = parent;
        node.next_sibling = next;
        node.previous_sibling = NIL;
    }

    fn detach(&mut self, parent: NodeId, child: NodeId) {
        let level = self.node(child).label[0];
        self.edges.remove(&(parent, level));
        let Node { next_sibling, previous_sibling, .. } = *self.node(child);
        if previous_sibling == NIL {
            self.node_mut(parent).first_child = next_sibling;
        } else {
            self.node_mut(previous_sibling).next_sibling = next_sibling;
        }
        if next_sibling != NIL {
            self.node_mut(next_sibling).previous_sibling = previous_sibling;
        }
    }
}
