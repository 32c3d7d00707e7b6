//! What people are shown of the index: families, and who waits for whom.

mod common;

use cht::{Arrival, Arriving, Families, Family, Order};
use common::sequence::Setup;
use common::small::{PLENTY, Small, ids, levels};

fn small() -> Small {
    Small::new(Order::Held, |_| ())
}

fn shown(families: &Families) -> Vec<(u64, u64, u64, Option<u64>)> {
    families
        .largest
        .iter()
        .map(|&Family { waiting, running, tokens, oldest }| (waiting, running, tokens, oldest))
        .collect()
}

#[test]
fn families_share_more_than_a_system_prompt_and_less_than_their_tails() {
    let mut small = small();
    let system = levels(1, 3);
    for family in 0..3 {
        for member in 0..4 {
            small.send(&[system.clone(), levels(10 + family, 5), levels(100 + 4 * family + member, 2)], 1);
        }
    }
    small.send(&[system, levels(50, 5)], 1); // under the system prompt, and in no family
    small.send(&[levels(60, 5)], 1);
    let families = small.index.families(2);
    assert_eq!(shown(&families), [(4, 0, 8, Some(1)), (4, 0, 8, Some(5))]);
    assert_eq!((families.waiting, families.running, families.alone), (3, 0, 2));
    small.run(1);
    small.run(2);
    let families = small.index.families(9);
    assert_eq!(shown(&families)[0], (2, 2, 8, Some(3)));
    assert_eq!((families.waiting, families.running, families.alone), (3, 1, 2));
    small.run(3);
    small.run(4);
    let families = small.index.families(9);
    assert_eq!((families.waiting, families.running, families.alone), (2, 1, 2), "all of one run");
}

#[test]
fn one_family_is_not_taken_apart() {
    let mut small = small();
    let prefix = levels(1, 6);
    for member in 0..8 {
        small.send(&[prefix.clone(), levels(100 + member / 7, 2), levels(200 + member, 2)], 1);
    }
    // Seven of eight go on together, so those are the family; of two among eight that would not be said.
    assert_eq!(shown(&small.index.families(9)), [(7, 0, 8, Some(1))]);
    let mut small = self::small();
    for member in 0..8 {
        small.send(&[prefix.clone(), levels(100 + member.max(1), 2), levels(200 + member, 2)], 1);
    }
    assert_eq!(shown(&small.index.families(9)), [(8, 0, 6, Some(1))]);
    let mut small = self::small();
    for member in 0..8u64 {
        small.send(&[prefix.clone(), levels(100 + member.saturating_sub(3), 2), levels(200 + member, 2)], 1);
    }
    assert_eq!(shown(&small.index.families(9)), [(4, 0, 8, Some(1))], "half of them is enough");
}

#[test]
fn what_more_than_half_of_all_begin_with_is_divided_and_the_largest_comes_first() {
    let mut small = small();
    for member in 0..4 {
        small.send(&[levels(1, 6), levels(100 + member / 2, 2), levels(200 + member, 2)], 1);
    }
    for name in 10..14 {
        small.send(&[levels(name, 5)], 1);
    }
    assert_eq!(shown(&small.index.families(9)), [(4, 0, 6, Some(1))], "half is a family as any other");
    let mut small = self::small();
    for member in 0..5 {
        small.send(&[levels(1, 3), levels(100 + member / 4, 5), levels(200 + member, 2)], 1);
    }
    for member in 0..3 {
        small.send(&[levels(2, 4), levels(300 + member, 2)], 1);
    }
    assert_eq!(shown(&small.index.families(9)), [(4, 0, 8, Some(1)), (3, 0, 4, Some(6))]);
}

#[test]
fn strangers_and_nobody_make_no_family() {
    let mut small = small();
    assert_eq!(small.index.families(9), Families::default());
    for name in 1..5 {
        small.send(&[levels(name, 5)], 1);
    }
    let families = small.index.families(9);
    assert_eq!((families.largest.len(), families.waiting, families.alone), (0, 0, 4));
    small.index.leave(1, false);
    assert_eq!(small.index.oldest(), Some(0));
}

#[test]
fn the_leader_that_others_are_held_back_for_is_named() {
    let mut small = small();
    for member in 0..4 {
        small.send(&[levels(1, 8), levels(100 + member, 2)], 1);
    }
    for member in 0..3 {
        small.send(&[levels(2, 8), levels(200 + member, 2)], 1);
    }
    small.send(&[levels(3, 8)], 1);
    assert_eq!(small.index.held_for(), []);
    let plan = small.index.plan(PLENTY);
    assert_eq!(ids(&plan), [1, 5, 8]);
    assert_eq!(small.index.held_for(), [(1, 3), (5, 2)]);
    small.index.settle(&[(1, 0), (5, 0), (8, 0)], &[]).expect("as planned");
    small.index.publish(1, 10, false).expect("it runs");
    assert_eq!(small.index.held_for(), [(5, 2)]);
}

#[test]
fn what_a_family_has_in_common_is_told_in_tokens() {
    let mut index = Setup::new(Order::Held).index(); // four tokens a chunk
    let tokens: Vec<i64> = (0..16).collect();
    for id in 1..3 {
        let (path, stream) = index.path(&[], &[&tokens], u64::MAX);
        let arrival = Arrival { tokens: 0, sequence: id };
        let new = Arriving { id, length: 16, reserve: 0, arrival, lane: 0, leads: true, path, stream: Some(stream) };
        index.insert(new).expect("new");
    }
    assert_eq!(shown(&index.families(9)), [(2, 0, 16, Some(1))]);
}
