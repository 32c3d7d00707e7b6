//! A binary min-heap that tells every item where it stands, so that any of them can be re-keyed or removed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The place of an item that is in no heap.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// An empty heap keeps room for so many entries: a request that is admitted and taken back allocates nothing.
const SMALL: usize = 4;

/// Keys must differ from each other: then no answer depends on the history of the heap.
#[derive(Clone, Debug)]
pub(crate) struct Heap<K> {
    entries: Vec<(K, u32)>,
}

impl<K> Default for Heap<K> {
    fn default() -> Self {
        Heap { entries: Vec::new() }
    }
}

impl<K: Ord + Copy> Heap<K> {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<(K, u32)>()
    }

    #[inline]
    pub fn first(&self) -> Option<(K, u32)> {
        self.entries.first().copied()
    }

    /// The key of the item at `place`, as its owner recorded it.
    #[inline]
    pub fn key(&self, place: u32) -> Option<K> {
        self.entries.get(place as usize).map(|entry| entry.0)
    }

    pub fn entries(&self) -> &[(K, u32)] {
        &self.entries
    }

    /// Inserts `item`, re-keys it, or (`key` is `None`) removes it.
    ///
    /// `at`: where it stands, [`NOWHERE`] if it doesn't; `moved(item, place)` is called for every item whose place
    /// changes. O(log n).
    pub fn set(&mut self, at: u32, item: u32, key: Option<K>, mut moved: impl FnMut(u32, u32)) {
        let place = at as usize;
        match (key, at == NOWHERE) {
            (None, true) => {}
            (None, false) => {
                moved(item, NOWHERE);
                self.entries.swap_remove(place);
                if place < self.entries.len() {
                    self.settle(place, &mut moved);
                } else if self.entries.is_empty() && self.entries.capacity() > SMALL {
                    self.entries = Vec::new();
                }
            }
            (Some(key), true) => {
                if self.entries.capacity() == 0 {
                    self.entries.reserve_exact(1); // most queues hold one request
                }
                self.entries.push((key, item));
                self.sift_up(self.entries.len() - 1, &mut moved);
            }
            (Some(key), false) => {
                self.entries[place].0 = key;
                self.settle(place, &mut moved);
            }
        }
    }

    /// The items, smallest key first. O(log n) each.
    pub fn in_order(&self) -> impl Iterator<Item = (K, u32)> + '_ {
        let mut open = BinaryHeap::new();
        if let Some(&(key, _)) = self.entries.first() {
            open.push(Reverse((key, 0)));
        }
        std::iter::from_fn(move || {
            let Reverse((key, place)) = open.pop()?;
            for child in [2 * place + 1, 2 * place + 2] {
                if let Some(&(key, _)) = self.entries.get(child) {
                    open.push(Reverse((key, child)));
                }
            }
            Some((key, self.entries[place].1))
        })
    }

    /// Whether every item is where `place` says, below a smaller one.
    pub fn is_sound(&self, place: impl Fn(u32) -> u32) -> bool {
        self.entries
            .iter()
            .enumerate()
            .all(|(at, &(key, item))| place(item) as usize == at && (at == 0 || self.entries[(at - 1) / 2].0 < key))
    }

    fn settle(&mut self, place: usize, moved: &mut impl FnMut(u32, u32)) {
        if self.sift_up(place, moved) == place {
            self.sift_down(place, moved);
        }
    }

    #[inline]
    fn sift_up(&mut self, mut place: usize, moved: &mut impl FnMut(u32, u32)) -> usize {
        let entry = self.entries[place];
        while place > 0 {
            let above = (place - 1) / 2;
            if self.entries[above].0 <= entry.0 {
                break;
            }
            self.entries[place] = self.entries[above];
            moved(self.entries[place].1, place as u32);
            place = above;
        }
        self.entries[place] = entry;
        moved(entry.1, place as u32);
        place
    }

    #[inline]
    fn sift_down(&mut self, mut place: usize, moved: &mut impl FnMut(u32, u32)) {
        let entry = self.entries[place];
        loop {
            let mut below = 2 * place + 1;
            if below >= self.entries.len() {
                break;
            }
            if below + 1 < self.entries.len() && self.entries[below + 1].0 < self.entries[below].0 {
                below += 1;
            }
            if entry.0 <= self.entries[below].0 {
                break;
            }
            self.entries[place] = self.entries[below];
            moved(self.entries[place].1, place as u32);
            place = below;
        }
        self.entries[place] = entry;
        moved(entry.1, place as u32);
    }
}
