//! Damage of every kind, one at a time: each is noticed, and named.

use crate::heap::NOWHERE;
use crate::node::{Arrival, Counts, Node, NodeId, ROOT, Slot};
use crate::{Arriving, Budget, Config, Index, Order};

/// A prompt of two parts: `(name, chunks)`, a token each.
fn send(index: &mut Index, id: u64, parts: &[(u64, u64)], reserve: u64) {
    let path: Vec<u64> = parts.iter().flat_map(|&(name, n)| (0..n).map(move |i| name << 32 | i)).collect();
    let (length, arrival) = (path.len() as u64 + 1, Arrival { tokens: 0, sequence: id });
    let new = Arriving { id, length, reserve, arrival, lane: 0, leads: true, path, stream: None };
    index.insert(new).expect("new");
}

/// Rows, one of them tentative, and requests that wait: for a prefix, in a family, for room.
fn index() -> Index {
    let (chunk, page, order, aging, barrier_min) = (1, 1, Order::Held, 0.0, 4);
    let mut index =
        Index::new(Config { chunk, page, order, aging, barrier_min, max_wait: 1 << 40, capacity: 100, key: [1, 2] })
            .expect("valid");
    send(&mut index, 1, &[(1, 8)], 0);
    index.activate(1).expect("waits");
    index.publish(1, 4, true).expect("runs");
    send(&mut index, 2, &[(1, 8), (2, 3)], 0);
    send(&mut index, 5, &[(5, 5)], 0);
    index.activate(5).expect("waits");
    index.leave(5, true);
    send(&mut index, 8, &[(8, 2)], 0);
    index.activate(8).expect("waits");
    send(&mut index, 7, &[(7, 2)], 1 << 30);
    send(&mut index, 9, &[(9, 1)], 0);
    index.plan(Budget { now: 0, kv: 1 << 20, rows: 5, prefill: 100, chunked: true, idle: false, lane: None });
    index.undo(1);
    send(&mut index, 3, &[(3, 4), (4, 2)], 0);
    send(&mut index, 4, &[(3, 4), (6, 2)], 0);
    index
}

fn slot(index: &Index, id: u64) -> Slot {
    index.slot(id).expect("alive")
}

fn end(index: &Index, id: u64) -> NodeId {
    index.request(slot(index, id)).end
}

/// Where the paths of 3 and 4 part.
fn fork(index: &Index) -> NodeId {
    index.tree.node(end(index, 3)).parent
}

type Damage = fn(&mut Index);

const DAMAGES: &[(&str, Damage)] = &[
    ("id 2 is not mapped", |x| _ = x.ids.insert(2, 0)),
    ("id 2 waits without an age", |x| x.request_mut(slot(x, 2)).at = NOWHERE),
    ("is queued and set aside", |x| _ = x.aside.insert(slot(x, 2))),
    ("is queued and set aside", |x| x.aside.clear()),
    ("id 2: its queue disagrees", |x| {
        let slot = slot(x, 2);
        x.tree.places.requests[slot as usize] = NOWHERE;
    }),
    ("id 2 computes while it waits", |x| x.request_mut(slot(x, 2)).computing = true),
    ("runs without a row", |x| x.rows.swap(0, 1)),
    ("published prefix is not on its path", |x| x.request_mut(slot(x, 1)).published = end(x, 8)),
    ("tentative or not", |x| x.tentative.clear()),
    ("tentative or not", |x| x.tentative.push(slot(x, 1))),
    ("its last use is wrong", |x| {
        let v = *x.tree.recency().values().next().unwrap();
        x.tree.node_mut(v).remembered += 1;
    }),
    ("ages for", |x| x.ages.put(NOWHERE, (Arrival { tokens: 9, sequence: 9 }, 0), |_, _| ())),
    ("rows instead of", |x| x.rows.push(0)),
    ("row tokens", |x| x.row_tokens += 1),
    ("edges for", |x| x.tree.nodes.push(Node::new(Box::default(), ROOT, 0))),
    ("Counts", |x| x.tree.node_mut(ROOT).counts.waiting += 1),
    ("Counts", |x| {
        let v = end(x, 2);
        x.tree.node_mut(v).counts += Counts { demand: 1, ..Counts::default() };
    }),
    ("pins", |x| x.tree.pin(end(x, 2))),
    ("Counts", |x| {
        let v = end(x, 4);
        x.tree.node_mut(v).parent = ROOT;
    }),
    ("depth", |x| {
        let v = end(x, 4);
        x.tree.node_mut(v).depth += 1;
    }),
    ("empty label", |x| {
        let v = end(x, 4);
        x.tree.node_mut(v).label = Box::default();
    }),
    ("edge", |x| {
        let v = end(x, 4);
        x.tree.node_mut(v).label[0] ^= 1;
    }),
    ("its entry above", |x| {
        let v = end(x, 4);
        x.tree.places.nodes[v as usize].queue = NOWHERE;
    }),
    ("its lead above", |x| {
        let v = fork(x);
        x.tree.places.nodes[v as usize].leads = NOWHERE;
    }),
    ("watched", |x| _ = x.tree.frontier.watched.pop()),
    ("watched", |x| x.tree.frontier.watched.push(ROOT)),
    ("order", |x| x.tree.unrank(ROOT)),
    ("age", |x| x.tree.places.nodes[ROOT as usize].age = NOWHERE),
    ("active or cached chunks", |x| x.tree.active_chunks += 1),
    ("active or cached chunks", |x| x.tree.cached_chunks += 1),
    ("bytes of queues", |x| x.tree.queue_bytes += 1),
    ("distinct tokens", |x| x.row_published_chunks += 1),
];

#[test]
fn every_kind_of_damage_is_noticed_and_named() {
    assert_eq!(index().check_integrity(), Ok(()));
    for (i, (says, damage)) in DAMAGES.iter().enumerate() {
        let mut damaged = index();
        damage(&mut damaged);
        let found = damaged.check_integrity().expect_err(says);
        assert!(found.contains(says), "damage {i}: {found:?} instead of {says:?}");
    }
}

#[test]
fn the_index_under_test_has_all_there_is_to_damage() {
    let index = index();
    let figures = index.figures();
    assert_eq!((figures.waiting, figures.held, figures.running), (4, 1, 3));
    assert!(figures.cached_tokens == 5 && !index.aside.is_empty() && index.tentative.len() == 1);
    assert_eq!((index.tree.node(fork(&index)).leads.len(), index.tree.node(fork(&index)).queue.len()), (0, 2));
}
