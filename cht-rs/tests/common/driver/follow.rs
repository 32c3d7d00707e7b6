//! The start of a pass, as an engine tells it: rows that were lost sight of, that were not planned, that finished.

use super::{Driver, Op, Subject};
use cht::{Planner, Row};

impl<S: Subject> Driver<S> {
    pub(super) fn follow(&mut self, op: Op) {
        let Op::Follow { who, lost, share, symbol, flags } = op else { unreachable!() };
        let mut alive = self.model.rows_by_family().0;
        if lost % 4 == 0 && !alive.is_empty() {
            alive.remove(usize::from(lost / 4) % alive.len());
        }
        if Op::flag(flags, 0) {
            alive.extend(self.pick(who).map(|(id, _)| id)); // one that waits, or a row twice
        }
        if Op::flag(flags, 1) {
            alive.push(self.next + 1);
        }
        if Op::flag(flags, 2) {
            alive.reverse();
        }
        let picked = [who, who >> 4, who >> 8].map(|who| self.pick(who));
        let grown = vec![i64::from(symbol % 3); usize::from(symbol / 3 % 11)];
        let changed: Vec<Row<'_>> = picked
            .into_iter()
            .flatten()
            .enumerate()
            .map(|(i, (id, length))| Row {
                id,
                published: length * ((u64::from(share) + i as u64) % 5) / 4,
                computing: Op::flag(flags, 3),
                grown: if Op::flag(flags, 4 + i as u32) { &grown } else { &[] },
            })
            .take(usize::from(flags >> 8 & 3))
            .collect();
        let finished: Vec<u64> = match flags >> 10 & 3 {
            0 => changed.iter().map(|row| row.id).chain([self.next + 1]).collect(),
            1 => alive.last().copied().into_iter().collect(),
            _ => vec![],
        };
        self.subject.follow(&alive, &changed, &finished);
        self.model.follow(&alive, &changed, &finished);
        let rows = self.model.rows_by_family().0;
        for row in &changed {
            let at = self.alive.iter().position(|r| r.id == row.id).expect("picked among them");
            if rows.contains(&row.id) {
                self.now += row.grown.len() as u64;
                self.alive[at].tokens.extend(row.grown);
            }
        }
        self.alive.retain(|r| self.model.contains(r.id));
    }
}
