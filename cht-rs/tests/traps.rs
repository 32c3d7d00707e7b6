//! What earlier prefix indexes got wrong, each as the smallest case that shows it.
//!
//! That the index gets them right in any combination is shown in `model.rs`; counted work in `work.rs`, depth and memory in `limits.rs`.

mod common;

use cht::{Config, End, Order};
use common::sequence::{Setup, run_seed};
use common::small::{PLENTY, Small, levels};

fn missing() -> Small {
    Small::new(Order::Missing, |_| ())
}

fn held() -> Small {
    Small::new(Order::Held, |_| ())
}

#[test]
fn when_the_minimum_leaves_the_next_one_surfaces_at_every_level() {
    let mut small = missing();
    let family = [levels(1, 8), levels(2, 8), levels(3, 8)];
    let shortest = small.send(&family, 1);
    let next = small.send(&family[..2], 30);
    let last = small.send(&family[..1], 60);
    for expected in [shortest, next, last] {
        assert_eq!(small.best(), Some(expected));
        assert!(small.index.leave(expected, false));
        small.check();
    }
    assert_eq!(small.best(), None);
}

#[test]
fn a_shorter_prompt_under_a_path_that_waits_surfaces() {
    let mut small = missing();
    small.send(&[levels(1, 8), levels(2, 20)], 1);
    let other = small.send(&[levels(9, 15)], 1);
    assert_eq!(small.best(), Some(other));
    let shorter = small.send(&[levels(1, 8)], 1);
    assert_eq!(small.best(), Some(shorter));
    small.check();
}

#[test]
fn where_a_flip_stops_the_key_is_still_renewed() {
    // Two rows hold `a`; when one leaves, `a` stays active, but what waits below the other branch has to move up.
    let mut small = missing();
    let (a, b) = (levels(1, 8), levels(2, 8));
    let one = small.send(&[a.clone(), b.clone()], 1);
    let two = small.send(std::slice::from_ref(&a), 1);
    small.run(one);
    small.run(two);
    let waiting = small.send(&[a, b], 2);
    assert_eq!(small.index.best(), Some((waiting, 2)));
    small.index.leave(one, false);
    assert_eq!(small.index.best(), Some((waiting, 10)));
    small.check();
}

#[test]
fn a_split_inherits_what_it_is_split_from_and_a_merge_leaves_no_trace() {
    let mut small = held();
    let row = small.send(&[levels(1, 16)], 1);
    small.run(row);
    assert_eq!(small.index.nodes(), 2);
    let waiting = small.send(&[levels(1, 10), levels(2, 3)], 1);
    assert_eq!((small.index.nodes(), small.index.best()), (4, Some((waiting, 4))));
    small.check();
    small.index.leave(waiting, false);
    assert_eq!(small.index.nodes(), 2);
    small.index.leave(row, false);
    assert_eq!(small.index.nodes(), 1);
}

#[test]
fn a_path_outlives_the_request_that_brought_it() {
    let mut small = held();
    let first = small.send(&[levels(1, 16)], 1);
    let second = small.send(&[levels(1, 16)], 5);
    small.index.leave(first, false);
    small.run(second);
    let third = small.send(&[levels(1, 16)], 2);
    assert_eq!(small.index.best(), Some((third, 2)));
    small.check();
}

#[test]
fn output_grows_in_place_only_where_nobody_else_is() {
    let mut setup = Setup::new(Order::Held);
    setup.config.chunk = 4;
    let mut small = Small { index: setup.index(), ..held() };
    let tokens: Vec<i64> = (0..16).collect();
    let add = |small: &mut Small, id: u64| {
        let (path, stream) = small.index.path(&[], &[&tokens], u64::MAX);
        let arrival = cht::Arrival { tokens: 0, sequence: id };
        let (length, leads, stream) = (16, true, Some(stream));
        small.index.insert(cht::Arriving { id, length, reserve: 0, arrival, lane: 0, leads, path, stream }).unwrap();
    };
    add(&mut small, 1);
    small.run(1);
    small.index.grow(1, &[7; 8]).unwrap();
    assert_eq!(small.index.nodes(), 3, "the published prefix, and what grew");
    small.index.publish(1, 24, false).unwrap();
    assert_eq!(small.index.nodes(), 2);
    add(&mut small, 2);
    small.run(2);
    small.index.grow(2, &[8; 8]).unwrap();
    small.check();
    assert_eq!(small.index.figures().distinct_kv, 32);
}

#[test]
fn a_retracted_request_is_as_old_as_before() {
    let mut small = held();
    let (old, new) = (small.send(&[levels(1, 4)], 1), small.send(&[levels(2, 4)], 1));
    small.run(old);
    assert_eq!(small.best(), Some(new));
    small.index.leave(old, false);
    small.send_as(old, old, &[levels(1, 4), levels(3, 2)], 1);
    assert_eq!(small.best(), Some(old));
}

#[test]
fn a_covered_request_still_has_a_token_to_compute() {
    let mut small = held();
    let row = small.send(&[levels(1, 8)], 0);
    small.run(row);
    let same = small.send(&[levels(1, 8)], 0);
    let plan = small.index.plan(PLENTY);
    let candidate = plan.order[0];
    assert_eq!((candidate.id, candidate.uncomputed, candidate.add_distinct), (same, 1, 1));
}

#[test]
fn the_last_token_is_computed_again_and_nothing_is_forgotten() {
    let mut setup = Setup::new(Order::Held);
    setup.config.chunk = 4;
    let mut small = Small { index: setup.index(), ..held() };
    let path = levels(1, 2);
    for id in [1, 2] {
        let (path, arrival) = (path.clone(), cht::Arrival { tokens: 0, sequence: id });
        let new = cht::Arriving { id, length: 8, reserve: 0, arrival, lane: 0, leads: true, path, stream: None };
        small.index.insert(new).unwrap();
        small.index.begin();
        assert_eq!(small.ids(PLENTY), [id]);
        small.index.settle(&[(id, if id == 1 { 0 } else { 7 })], &[]).unwrap();
        if id == 1 {
            small.index.publish(id, 8, false).unwrap();
            small.index.leave(id, true);
        }
        assert_eq!(small.index.figures().cached_tokens, 8, "request {id}");
    }
    small.check();
}

#[test]
fn who_runs_and_since_when_the_oldest_waits() {
    let mut small = held();
    assert_eq!(small.index.oldest(), None);
    for (id, tokens) in [(1, 70), (2, 50), (3, 60)] {
        let (path, arrival) = (levels(id, 4), cht::Arrival { tokens, sequence: id });
        let new = cht::Arriving { id, length: 5, reserve: 0, arrival, lane: 0, leads: true, path, stream: None };
        small.index.insert(new).unwrap();
    }
    assert_eq!(small.index.oldest(), Some(50));
    small.run(2);
    small.run(1);
    assert_eq!(small.index.oldest(), Some(60));
    let mut running: Vec<u64> = small.index.running_ids().collect();
    running.sort_unstable();
    assert_eq!(running, [1, 2]);
    assert_eq!([1, 3, 4].map(|id| small.index.runs(id)), [true, false, false]);
    assert_eq!([1, 3, 4].map(|id| small.index.length(id)), [Some(5), Some(5), None]);
    assert!(small.index.contains(2) && small.index.contains(3) && !small.index.contains(4));
}

#[test]
fn no_answer_depends_on_the_order_of_arrival_in_the_index() {
    let prompts: Vec<Vec<Vec<u64>>> =
        (0..60).map(|i| vec![levels(i % 5, 6), levels(100 + i % 11, 3), levels(1000 + i, i % 4)]).collect();
    let mut answers = vec![];
    for stride in [1, 7, 13, 59] {
        let mut small = held();
        for i in 0..60 {
            let at = i * stride % 60;
            small.send_as(at, at, &prompts[at as usize], 1);
        }
        answers.push(small.ids(PLENTY));
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");
}

#[test]
fn two_cold_requests_do_not_compute_one_prefix_twice() {
    let mut small = held();
    let family: Vec<u64> = (2..5).map(|i| small.send(&[levels(1, 8), levels(i, 2)], 1)).collect();
    let plan = small.index.plan(PLENTY);
    assert_eq!((common::small::ids(&plan), plan.held), (vec![family[0]], 2));
    small.index.leave(family[0], false);
    assert_eq!(small.ids(PLENTY), [family[1]], "when the leader goes, the next one leads");
}

#[test]
fn cached_counts_for_the_prefill_and_not_for_what_is_held() {
    let mut small = Small::new(Order::Held, |setup| setup.config.capacity = 100);
    let row = small.send(&[levels(1, 8)], 1);
    small.run(row);
    small.index.leave(row, true);
    small.send(&[levels(1, 8)], 3);
    let candidate = small.index.plan(PLENTY).order[0];
    assert_eq!((candidate.uncomputed, candidate.add_distinct), (3, 11));
}

#[test]
fn a_refused_request_blocks_nobody_and_is_not_refused_for_ever() {
    let mut small = held();
    let (first, second) = (small.send(&[levels(1, 8)], 1), small.send(&[levels(2, 8)], 1));
    for _ in 0..3 {
        small.index.begin();
        assert_eq!(small.ids(PLENTY)[0], first);
        small.index.settle(&[], &[first]).unwrap();
        small.index.begin();
        assert_eq!(small.ids(PLENTY), [second]);
        small.index.settle(&[], &[]).unwrap();
    }
    small.check();
}

#[test]
fn everything_twice_is_everything_once() {
    let mut small = held();
    let id = small.send(&[levels(1, 8)], 1);
    assert!(small.index.publish(id, 4, true).is_err() && small.index.grow(id, &[1]).is_err(), "it only waits");
    small.run(id);
    let before = small.index.figures();
    assert!(small.index.activate(id).is_err());
    small.index.publish(id, 1 << 40, false).unwrap();
    assert_eq!(small.index.figures(), before);
    assert!(small.index.leave(id, true) && !small.index.leave(id, true));
    small.check();
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused() {
    let good = Setup::new(Order::Held).config;
    for (bad, says) in [
        (Config { chunk: 0, ..good }, "chunk_size 0"),
        (Config { chunk: 6, page: 4, ..good }, "page size (4)"),
        (Config { page: 0, ..good }, "page size (0)"),
        (Config { aging: f64::NAN, ..good }, "aging NaN"),
    ] {
        let error = cht::Index::new(bad).expect_err("refused").to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn a_request_that_makes_no_sense_is_refused() {
    let mut setup = Setup::new(Order::Held);
    setup.config.chunk = 4;
    let (mut small, most) = (Small { index: setup.index(), ..held() }, 1 << 40);
    let (arrival, path) = (cht::Arrival { tokens: 0, sequence: 1 }, levels(1, 4));
    let good = cht::Arriving { id: 1, length: most, reserve: most, arrival, lane: 0, leads: true, path, stream: None };
    for (length, reserve, says) in [
        (0, 0, "length 0"),
        (most + 1, 0, "at most 2^40"),
        (16, most + 1, "at most 2^40"),
        (15, 0, "4 chunks of 4 tokens"),
    ] {
        let bad =
            cht::Arriving { length, reserve, path: if length == 0 { vec![] } else { levels(1, 4) }, ..good.clone() };
        let error = small.index.insert(bad).expect_err("refused").to_string();
        assert!(error.contains(says), "{error}");
        assert_eq!((small.index.nodes(), small.index.figures().waiting), (1, 0));
    }
    small.index.insert(good).expect("as long as may be");
    small.check();
}

#[test]
fn one_seed_gives_one_sequence() {
    assert_eq!(run_seed(5), run_seed(5));
}

#[test]
fn why_a_plan_ended_has_a_word_of_its_own() {
    let ends = [End::Nobody, End::Rows, End::Kept, End::Prefill, End::Room, End::Looked];
    assert_eq!(ends.map(End::name), ["nobody", "rows", "kept", "prefill", "room", "looked"]);
}

#[test]
fn rows_are_kept_where_waiting_saves_just_enough() {
    let mut small = held();
    let leader = small.send(&[levels(1, 4)], 1);
    small.send(&[levels(1, 4)], 3);
    let plan = small.index.plan(PLENTY);
    assert_eq!((common::small::ids(&plan), plan.held, plan.kept), (vec![leader], 1, 1));
}

#[test]
fn who_is_past_the_bound_is_not_chunked_either() {
    let mut small = Small::new(Order::Missing, |setup| setup.config.max_wait = 8);
    for (id, tokens, chunks) in [(1, 0, 8), (2, 100, 8), (3, 900, 1)] {
        let (arrival, path) = (cht::Arrival { tokens, sequence: id }, levels(id, chunks));
        let length = chunks + 1;
        let new = cht::Arriving { id, length, reserve: 0, arrival, lane: 0, leads: true, path, stream: None };
        small.index.insert(new).unwrap();
    }
    let budget = cht::Budget { now: 1_000, prefill: 12, chunked: false, ..PLENTY };
    let plan = small.index.plan(budget);
    assert_eq!(
        (common::small::ids(&plan), plan.end),
        (vec![1], End::Prefill),
        "the first leaves no room for the second"
    );
}

#[test]
fn no_more_than_so_many_are_looked_at_unless_the_engine_is_idle() {
    let mut small = held();
    for name in 0..u64::from(cht::LOOKS) + 6 {
        small.send(&[levels(name, 8)], 1);
    }
    let none_fits = cht::Budget { kv: 5, ..PLENTY };
    let plan = small.index.plan(none_fits);
    assert_eq!((plan.order.len(), plan.skipped, plan.end), (0, cht::LOOKS, End::Looked));
    let plan = small.index.plan(cht::Budget { idle: true, ..none_fits });
    assert_eq!((common::small::ids(&plan), plan.skipped, plan.end), (vec![1], cht::LOOKS + 6, End::Nobody));
}
