//! The queue of every node: the waiting requests that end there, and the first one below each child that is not live.

use crate::heap::NOWHERE;
use crate::node::{First, Item, Key, Lead, NodeId, REQUEST, ROOT, Slot};
use crate::tree::Tree;

/// Where a node stands in each heap that lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// In its parent's queue.
    pub queue: u32,
    /// In its parent's leads.
    pub leads: u32,
    /// In [`crate::frontier::Frontier::by_order`].
    pub order: u32,
    /// In [`crate::frontier::Frontier::by_age`].
    pub age: u32,
    /// In [`crate::frontier::Frontier::watched`].
    pub watched: u32,
}

impl Place {
    pub const NOWHERE: Place = Place { queue: NOWHERE, leads: NOWHERE, order: NOWHERE, age: NOWHERE, watched: NOWHERE };
}

/// Kept apart from nodes and requests: whatever re-orders a heap writes several of these, and nothing else of them.
#[derive(Debug, Default)]
pub(crate) struct Places {
    pub nodes: Vec<Place>,
    /// A waiting request in the queue of the node where it ends, by slot.
    pub requests: Vec<u32>,
}

impl Places {
    #[inline]
    fn queued(&mut self, item: Item, at: u32) {
        match item.of & REQUEST {
            0 => self.nodes[item.of as usize].queue = at,
            _ => self.requests[item.slot as usize] = at,
        }
    }
}

impl Tree {
    pub fn refresh_upward(&mut self, mut v: NodeId) {
        while self.refresh(v) && v != ROOT {
            v = self.node(v).parent;
        }
    }

    /// Makes the places where `v` is listed agree with its queue and state; tells whether its parent's queue changed.
    pub fn refresh(&mut self, v: NodeId) -> bool {
        if self.is_live(v) {
            self.put_rank(v, self.rank(v));
        }
        self.list(v)
    }

    /// The same, but for the rank of a live node.
    pub fn list(&mut self, v: NodeId) -> bool {
        if self.is_live(v) {
            // Its lead stays as it was: what is above it is live as well, and nobody asks a live node who would lead.
            return self.leave_queue(v);
        }
        self.unrank(v);
        let (node, place) = (self.node(v), self.place(v));
        let (parent, first, lead) = (node.parent, node.first(), node.lead());
        let lead_changed = match lead {
            Some((lead, slot)) => self.list_in_leads(parent, place.leads, lead, Item { of: v, slot }),
            None => self.leave_leads(v),
        };
        let first_changed = match first {
            Some(First { key, slot }) => self.list_in_queue(parent, place.queue, key, Item { of: v, slot }),
            None => self.leave_queue(v),
        };
        first_changed || lead_changed
    }

    /// Takes `v` out of its parent's lists.
    pub fn leave_parent(&mut self, v: NodeId) {
        self.leave_queue(v);
        self.leave_leads(v);
    }

    fn leave_queue(&mut self, v: NodeId) -> bool {
        let at = self.place(v).queue;
        if at != NOWHERE {
            self.remove_from_queue(self.node(v).parent, at);
        }
        at != NOWHERE
    }

    fn leave_leads(&mut self, v: NodeId) -> bool {
        let (parent, at) = (self.node(v).parent, self.place(v).leads);
        if at == NOWHERE {
            return false;
        }
        let Tree { nodes, places, queue_bytes, work, .. } = self;
        let leads = &mut nodes[parent as usize].leads;
        work.queue_operations += 1;
        *queue_bytes -= leads.bytes();
        leads.remove(at, |item, at| places.nodes[item.of as usize].leads = at);
        *queue_bytes += leads.bytes();
        true
    }

    /// Lists a child of `v`, which stands at `at`, in its leads; tells whether that changed anything.
    fn list_in_leads(&mut self, v: NodeId, at: u32, lead: Lead, item: Item) -> bool {
        let Tree { nodes, places, queue_bytes, work, .. } = self;
        let leads = &mut nodes[v as usize].leads;
        if leads.at(at) == Some((lead, item)) {
            return false;
        }
        work.queue_operations += 1;
        *queue_bytes -= leads.bytes();
        leads.put(at, (lead, item), |item, at| places.nodes[item.of as usize].leads = at);
        *queue_bytes += leads.bytes();
        true
    }

    /// Puts a waiting request into the queue of the node where it ends, or takes it out. The caller repairs upwards.
    pub fn set_queued(&mut self, v: NodeId, slot: Slot, key: Option<Key>) {
        if self.places.requests.len() <= slot as usize {
            self.places.requests.resize(slot as usize + 1, NOWHERE);
        }
        let at = self.places.requests[slot as usize];
        match key {
            Some(key) => drop(self.list_in_queue(v, at, key, Item { of: REQUEST | slot, slot })),
            None => self.remove_from_queue(v, at),
        }
    }

    /// Lists a child or a request of `v`, which stands at `at`, in its queue; tells whether that changed anything.
    #[inline]
    fn list_in_queue(&mut self, v: NodeId, at: u32, key: Key, item: Item) -> bool {
        let Tree { nodes, places, queue_bytes, work, .. } = self;
        let queue = &mut nodes[v as usize].queue;
        if queue.at(at) == Some((key, item)) {
            return false;
        }
        work.queue_operations += 1;
        *queue_bytes -= queue.bytes();
        queue.put(at, (key, item), |item, at| places.queued(item, at));
        *queue_bytes += queue.bytes();
        true
    }

    #[inline]
    fn remove_from_queue(&mut self, v: NodeId, at: u32) {
        let Tree { nodes, places, queue_bytes, work, .. } = self;
        let queue = &mut nodes[v as usize].queue;
        work.queue_operations += 1;
        *queue_bytes -= queue.bytes();
        queue.remove(at, |item, at| places.queued(item, at));
        *queue_bytes += queue.bytes();
    }

    pub fn place(&self, v: NodeId) -> Place {
        self.places.nodes[v as usize]
    }
}
