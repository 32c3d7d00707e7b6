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

/// Keys must differ from each other: then no answer depends on the history of the heap.
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
