//! A min-heap that tells every item where it stands, so that any of them can be re-keyed or removed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// The place of an item that is in no heap.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// Entries below each: half the levels of a binary heap, and what is compared lies side by side.
const ARITY: usize = 4;

/// An empty heap keeps room for so many entries: a request that is admitted and taken back allocates nothing.
const SMALL: usize = 4;

/// Keys must differ from each other, or answers would depend on the history of the heap. Those of every heap here do: each
/// is, or ends in, the sequence number of the one request that brought the item in, and no request is below two items.
#[derive(Clone, Debug)]
pub(crate) struct Heap<K, I = u32> {
    entries: Entries<K, I>,
}

/// Most queues hold one request: that one needs no allocation.
#[derive(Clone, Debug)]
enum Entries<K, I> {
    One([(K, I); 1]),
    Many(Vec<(K, I)>),
}

impl<K, I> Default for Heap<K, I> {
    fn default() -> Self {
        Heap { entries: Entries::Many(Vec::new()) }
    }
}

impl<K: Ord + Copy, I: Copy> Heap<K, I> {
    #[inline]
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        match &self.entries {
            Entries::One(_) => 0,
            Entries::Many(entries) => entries.capacity() * size_of::<(K, I)>(),
        }
    }

    #[inline]
    pub fn first(&self) -> Option<(K, I)> {
        self.entries().first().copied()
    }

    /// What stands at `place`, as its owner recorded it.
    #[inline]
    pub fn at(&self, place: u32) -> Option<(K, I)> {
        self.entries().get(place as usize).copied()
    }

    /// The key of the item at `place`.
    #[inline]
    pub fn key(&self, place: u32) -> Option<K> {
        self.at(place).map(|entry| entry.0)
    }

    #[inline]
    pub fn entries(&self) -> &[(K, I)] {
        match &self.entries {
            Entries::One(entry) => entry,
            Entries::Many(entries) => entries,
        }
    }

    /// Inserts an entry (`at` is [`NOWHERE`]), or puts it in place of the one that stands at `at`.
    ///
    /// `moved(item, place)` is called for every item whose place changes. O(log n).
    #[inline]
    pub fn put(&mut self, at: u32, entry: (K, I), mut moved: impl FnMut(I, u32)) {
        if at == NOWHERE {
            self.push(entry, &mut moved);
            return;
        }
        match &mut self.entries {
            Entries::One(one) => *one = [entry],
            Entries::Many(entries) => settle(entries, at as usize, entry, &mut moved),
        }
    }

    /// Removes the entry that stands at `at`; `moved` as for [`Heap::put`], and for its item. O(log n).
    #[inline]
    pub fn remove(&mut self, at: u32, mut moved: impl FnMut(I, u32)) {
        match &mut self.entries {
            Entries::One([(_, item)]) => {
                moved(*item, NOWHERE);
                *self = Heap::default();
            }
            Entries::Many(entries) => {
                moved(entries[at as usize].1, NOWHERE);
                let last = entries.pop().expect("it holds what is removed");
                if (at as usize) < entries.len() {
                    settle(entries, at as usize, last, &mut moved);
                } else if entries.is_empty() && entries.capacity() > SMALL {
                    *entries = Vec::new();
                }
            }
        }
    }

    #[inline]
    fn push(&mut self, entry: (K, I), moved: &mut impl FnMut(I, u32)) {
        match &mut self.entries {
            Entries::Many(entries) if entries.capacity() == 0 => {
                self.entries = Entries::One([entry]);
                moved(entry.1, 0);
            }
            Entries::Many(entries) => {
                let last = entries.len();
                entries.push(entry);
                sift_up(entries, last, entry, moved);
            }
            Entries::One([first]) => {
                let mut entries = Vec::with_capacity(SMALL);
                entries.extend([*first, entry]);
                sift_up(&mut entries, 1, entry, moved);
                self.entries = Entries::Many(entries);
            }
        }
    }

    /// The items, smallest key first. O(log n) each.
    pub fn in_order(&self) -> impl Iterator<Item = (K, I)> + '_ {
        let entries = self.entries();
        let mut open = BinaryHeap::new();
        if let Some(&(key, _)) = entries.first() {
            open.push(Reverse((key, 0)));
        }
        std::iter::from_fn(move || {
            let Reverse((key, place)) = open.pop()?;
            for child in children(place, entries.len()) {
                open.push(Reverse((entries[child].0, child)));
            }
            Some((key, entries[place].1))
        })
    }

    /// Whether every item is where `place` says, below one that is not larger.
    pub fn is_sound(&self, place: impl Fn(I) -> u32) -> bool {
        let entries = self.entries();
        let in_place = |(at, &(key, item)): (usize, &(K, I))| {
            place(item) as usize == at && (at == 0 || entries[(at - 1) / ARITY].0 <= key)
        };
        entries.iter().enumerate().all(in_place)
    }
}

/// The places below `place` in a heap of `len` entries.
#[inline]
fn children(place: usize, len: usize) -> Range<usize> {
    let first = ARITY * place + 1;
    first.min(len)..(first + ARITY).min(len)
}

/// Puts `entry` at `place`, or where it belongs above or below.
#[inline]
fn settle<K: Ord + Copy, I: Copy>(entries: &mut [(K, I)], place: usize, entry: (K, I), moved: &mut impl FnMut(I, u32)) {
    if place > 0 && entry.0 < entries[(place - 1) / ARITY].0 {
        sift_up(entries, place, entry, moved);
    } else {
        sift_down(entries, place, entry, moved);
    }
}

#[inline]
fn sift_up<K: Ord + Copy, I: Copy>(
    entries: &mut [(K, I)],
    mut place: usize,
    entry: (K, I),
    moved: &mut impl FnMut(I, u32),
) {
    while place > 0 {
        let above = (place - 1) / ARITY;
        if entries[above].0 <= entry.0 {
            break;
        }
        entries[place] = entries[above];
        moved(entries[place].1, place as u32);
        place = above;
    }
    entries[place] = entry;
    moved(entry.1, place as u32);
}

#[inline]
fn sift_down<K: Ord + Copy, I: Copy>(
    entries: &mut [(K, I)],
    mut place: usize,
    entry: (K, I),
    moved: &mut impl FnMut(I, u32),
) {
    while let Some(least) = children(place, entries.len()).min_by_key(|&child| entries[child].0) {
        if entry.0 <= entries[least].0 {
            break;
        }
        entries[place] = entries[least];
        moved(entries[place].1, place as u32);
        place = least;
    }
    entries[place] = entry;
    moved(entry.1, place as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A heap, and where each of its items says that it is.
    struct Placed {
        heap: Heap<u64>,
        places: Vec<u32>,
    }

    impl Placed {
        /// Items `0..n`, the last one first; `keys[item]` is its key.
        fn new(keys: &[u64]) -> Self {
            let mut placed = Placed { heap: Heap::default(), places: vec![NOWHERE; keys.len()] };
            (0..keys.len()).rev().for_each(|item| placed.put(item, keys[item]));
            placed
        }

        fn put(&mut self, item: usize, key: u64) {
            let at = self.places[item];
            self.heap.put(at, (key, item as u32), |item, at| self.places[item as usize] = at);
        }

        fn remove(&mut self, item: usize) {
            let at = self.places[item];
            self.heap.remove(at, |item, at| self.places[item as usize] = at);
        }

        fn is_sound(&self) -> bool {
            self.heap.is_sound(|item| self.places[item as usize])
        }

        fn keys(&self) -> Vec<u64> {
            self.heap.in_order().map(|(key, _)| key).collect()
        }
    }

    /// The bytes of a heap that held `n` items at once, and holds none.
    fn bytes_after(n: usize) -> usize {
        let mut placed = Placed::new(&(0..n as u64).collect::<Vec<_>>());
        (0..n).for_each(|item| placed.remove(item));
        assert!(placed.heap.len() == 0 && placed.heap.first().is_none());
        placed.heap.bytes()
    }

    #[test]
    fn one_item_needs_no_allocation_and_a_few_are_kept() {
        let entry = size_of::<(u64, u32)>();
        let bytes = |n: u64| Placed::new(&(0..n).collect::<Vec<_>>()).heap.bytes();
        assert_eq!((bytes(0), bytes(1), bytes(2)), (0, 0, SMALL * entry));
        assert_eq!((bytes_after(1), bytes_after(SMALL)), (0, SMALL * entry));
        assert_eq!(bytes_after(SMALL + 1), 0, "a burst is over");
    }

    #[test]
    fn in_order_whatever_was_put_and_removed() {
        let mut placed = Placed::new(&[50, 10, 90, 30, 70, 20, 80, 40, 60, 15, 25, 35]);
        for (item, key) in [(2, Some(5)), (1, Some(95)), (4, None), (8, Some(61)), (3, Some(31)), (0, None)] {
            match key {
                Some(key) => placed.put(item, key),
                None => placed.remove(item),
            }
            assert!(placed.is_sound(), "{:?}", placed.heap);
        }
        assert_eq!(placed.keys(), [5, 15, 20, 25, 31, 35, 40, 61, 80, 95]);
        assert_eq!((placed.places[4], placed.places[0]), (NOWHERE, NOWHERE));
        for item in [2, 9, 5, 10, 3, 11, 7, 8, 6] {
            assert_eq!(placed.heap.first().map(|first| first.1), Some(item as u32));
            placed.remove(item);
            assert!(placed.is_sound());
        }
        placed.put(1, 7);
        assert_eq!((placed.keys(), placed.heap.at(0), placed.heap.at(1)), (vec![7], Some((7, 1)), None));
    }

    #[test]
    fn what_is_not_sound_is_noticed() {
        let placed = Placed::new(&[1, 2, 3, 4, 5, 6]);
        let place = |item: u32| placed.places[item as usize];
        assert!(placed.is_sound());
        assert!(!placed.heap.is_sound(|item| place(item) ^ u32::from(item == 2)), "an item is not where it says");
        for at in 1..6 {
            let mut other = placed.heap.clone();
            let Entries::Many(entries) = &mut other.entries else { unreachable!("it has six") };
            entries[at].0 = 0;
            assert!(!other.is_sound(place), "below a larger one");
        }
    }
}
