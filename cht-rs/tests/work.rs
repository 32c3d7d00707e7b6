//! Complexity, shown by counted work: queue operations, nodes visited, requests looked at. Never by clocks.

mod common;

use cht::{Budget, Order, Work};
use common::driver::{Driver, Subject};
use common::hesitant::Hesitant;
use common::operation::Op;
use common::sequence::{Numbers, Setup};
use common::small::{PLENTY, Small, levels};

fn held() -> Small {
    Small::new(Order::Held, |_| ())
}

fn total(work: Work) -> u64 {
    work.queue_operations + work.nodes_visited + work.looked_at
}

#[test]
fn every_request_that_is_looked_at_counts() {
    let mut small = held();
    for i in 0..5 {
        small.send(&[levels(i, 8)], 1);
    }
    let looked_at = |small: &mut Small, budget| small.cost(|small| drop(small.ids(budget))).looked_at;
    assert_eq!(looked_at(&mut small, Budget { rows: 3, ..PLENTY }), 3);
    assert_eq!(looked_at(&mut small, PLENTY), 6, "five, and that nobody is left");
}

#[test]
fn every_node_of_a_path_that_changes_counts() {
    let mut small = held();
    let last = (1..=20).map(|depth| small.send(&[levels(1, depth)], 1)).last().expect("twenty");
    let work = small.cost(|small| assert!(small.index.leave(last, false)));
    assert_eq!(work.nodes_visited, 21, "twenty of its path, and the root");
}

/// More than these is a slower index, another number one that counts wrong.
#[test]
fn every_operation_on_a_queue_and_every_node_counts() {
    for (order, operations) in [(Order::Held, [9, 9, 7, 5, 4, 2, 24]), (Order::Missing, [7, 7, 4, 3, 3, 0, 24])] {
        let mut small = Small::new(order, |_| ());
        let family = levels(1, 8);
        let ids: Vec<u64> = (0..4).map(|i| small.send(&[family.clone(), levels(10 + i, 2)], 1)).collect();
        small.send(&[levels(2, 8)], 1);
        let steps: [&dyn Fn(&mut Small); 7] = [
            &|small| assert_eq!(small.ids(PLENTY).len(), 2),
            &|small| small.index.undo(0),
            &|small| small.run(ids[0]),
            &|small| small.run(ids[1]),
            &|small| assert!(small.index.leave(ids[2], false)),
            &|small| assert!(small.index.leave(ids[0], true)),
            &|small| (20..26).for_each(|i| assert!(small.send(&[levels(3 + i % 3, 8), levels(i, 2)], 1) > 0)),
        ];
        let work = steps.map(|step| small.cost(step));
        small.check();
        assert_eq!(work.map(|work| work.queue_operations), operations, "{order:?}");
        assert_eq!(work.map(|work| work.nodes_visited), [22, 5, 14, 9, 3, 6, 24], "{order:?}");
    }
}

/// Admission and departure of one of `siblings` requests below one chunk.
fn flip_among(order: Order, siblings: u64) -> u64 {
    let mut small = Small::new(order, |_| ());
    let family = levels(1, 8);
    let leader = small.send(std::slice::from_ref(&family), 1);
    let waiting: Vec<u64> = (2..2 + siblings).map(|i| small.send(&[family.clone(), levels(i, 4)], 1)).collect();
    let work = small.cost(|small| {
        small.run(leader);
        small.run(waiting[0]);
        small.index.leave(waiting[0], true);
        small.index.leave(leader, true);
    });
    small.check();
    work.queue_operations + work.nodes_visited
}

#[test]
fn the_work_of_a_flip_does_not_depend_on_the_number_of_siblings() {
    for order in [Order::Held, Order::Missing] {
        let few = flip_among(order, 10);
        assert_eq!((flip_among(order, 1_000), flip_among(order, 30_000)), (few, few), "{order:?}");
    }
}

#[test]
fn forming_a_batch_costs_as_much_after_an_undo_as_before() {
    let mut small = held();
    for i in 0..300 {
        small.send(&[levels(i % 7, 8), levels(100 + i, 3)], 1);
    }
    let budget = Budget { rows: 50, ..PLENTY };
    let mut plans = vec![];
    let costs: Vec<_> = (0..4)
        .map(|_| {
            small.index.undo(0);
            small.cost(|small| plans.push(small.ids(budget)))
        })
        .collect();
    // The first one sets the requests aside that the barrier holds back one by one.
    assert!(costs[1..].windows(2).all(|pair| pair[0] == pair[1]), "{costs:?}");
    assert!(plans.windows(2).all(|pair| pair[0] == pair[1]));
}

/// The work counted after each operation, with or without plans that are taken back in between.
fn work_of(seed: u64, hesitates: bool) -> Vec<Work> {
    let mut setup = Setup::from_seed(seed);
    setup.config.barrier_min = 0; // then the barrier holds nobody back one by one, which a plan has to look at
    let mut driver = Driver::new(setup, Hesitant::new(setup.index(), hesitates));
    let mut numbers = Numbers(seed);
    let work = |_| {
        let mut op = Op::from(numbers.next());
        if let Op::Pass { flags, .. } = &mut op {
            *flags &= !0b10_0011; // room for all, nobody refused: so nobody is set aside
        }
        driver.apply(op).and_then(|()| driver.compare()).expect("as the model");
        driver.subject.work()
    };
    (0..60).map(work).collect()
}

#[test]
fn plans_that_were_taken_back_leave_no_residue() {
    for seed in 0..1_000 {
        assert_eq!(work_of(seed, true), work_of(seed, false), "seed {seed}");
    }
}

/// What it costs to name a hundred requests where others wait, too.
fn forming(small: &mut Small, budget: Budget) -> u64 {
    let mut work = 0;
    // The first time, those are set aside that the barrier holds back one by one.
    for _ in 0..2 {
        small.index.undo(0);
        work = total(small.cost(|small| assert_eq!(small.ids(budget).len(), 100)));
    }
    work
}

#[test]
fn the_work_of_a_batch_hardly_grows_with_the_queue() {
    // Rows hold so many prefixes; a waiting request goes on from one of them, or from none.
    type Prompt = fn(u64) -> Vec<Vec<u64>>;
    let shapes: [(&str, u64, Prompt); 4] = [
        ("two families", 2, |i| vec![levels(i % 2, 8), levels(1_000 + i, 3)]),
        ("many families", 500, |i| vec![levels(i % 500, 8), levels(1_000 + i, 3)]),
        ("unrelated", 1, |i| vec![levels(1_000 + i, 11)]),
        ("one prompt", 1, |_| vec![levels(0, 8)]),
    ];
    for order in [Order::Held, Order::Missing] {
        for (shape, prefixes, prompt) in shapes {
            let work = |waiting: u64| {
                let mut small = Small::new(order, |_| ());
                for i in 0..prefixes {
                    let row = small.send(&[levels(i, 8)], 1);
                    small.run(row);
                }
                for i in 0..waiting {
                    small.send(&prompt(i), 1);
                }
                forming(&mut small, Budget { rows: 100, ..PLENTY })
            };
            let at_128 = work(128);
            for waiting in [127, 129, 1_000, 10_000, 100_000] {
                let now = work(waiting);
                assert!(now <= at_128 + at_128 / 4, "{order:?}, {shape}, {waiting}: {now} instead of {at_128}");
            }
        }
    }
}

/// What a hundred cost when `held` others wait before them, for rows that compute a prefix of `prefix` chunks.
fn forming_behind(held: u64, leaders: u64, prefix: u64, rows: u32) -> u64 {
    let mut small = self::held();
    for i in 0..leaders {
        let leader = small.send(&[levels(i, prefix)], 1);
        small.index.activate(leader).expect("it waits");
    }
    for i in 0..held {
        small.send(&[levels(i % leaders, prefix), levels(1_000 + i, 2)], 1);
    }
    for i in 0..1_000 {
        small.send(&[levels(1_000_000 + i, 8)], 1);
    }
    assert_eq!(small.index.plan(PLENTY).held, held);
    forming(&mut small, Budget { rows, ..PLENTY })
}

#[test]
fn ten_thousand_who_are_held_back_cost_a_batch_nothing() {
    for leaders in [1, 10, 100] {
        let without = forming_behind(0, leaders, 8, 100);
        let with = forming_behind(10_000, leaders, 8, 100 + 10_000); // a row is kept for each of them
        assert!(with <= without + without / 4, "{leaders} leaders: {with} instead of {without}");
    }
}

/// Short ones, whose prefix is worth waiting for only to them, are looked at: as many as rows can be kept for.
#[test]
fn those_who_are_held_back_one_by_one_cost_a_batch_no_more_than_a_row_each() {
    let without = forming_behind(0, 1, 2, 100);
    for held in [50, 100] {
        let with = forming_behind(held, 1, 2, 100 + held as u32);
        let most = without + without * 2 * held / 100;
        assert!(with <= most, "{held}: {with} instead of {without}, two of those named for each");
    }
}
