//! One operation, encoded in 64 bits: so that property tests, the soak and the fuzzer share one language.

/// Fields are seeds that the driver reduces to what exists at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A new prompt, often made of the beginning of one seen before.
    Insert { base: u8, keep: u8, chunks: u8, symbol: u8, tail: u8, reserve: u8, flags: u8 },
    /// A pass: plan, cut by the gate, settled by the engine.
    Pass { kv: u16, rows: u8, prefill: u8, cut: u8, flags: u16 },
    /// A pass begins: what the engine runs by now, what is new of it, and what finished.
    Follow { who: u16, lost: u8, share: u8, symbol: u8, flags: u16 },
    /// A running row published some of its KV.
    Publish { who: u16, share: u8, computing: bool },
    /// Output tokens of a running row.
    Grow { who: u16, tokens: u8, symbol: u8 },
    /// Finished or aborted, in whatever state.
    Leave { who: u16, whole: bool },
    /// The next in order is aborted.
    LeaveFirst,
    /// Back to the queue, with its output, as old as before.
    Retract { who: u16, tokens: u8 },
    /// The engine runs one that was not planned.
    Activate { who: u16 },
    /// The engine dropped its cache.
    Forget,
    /// Another bound on waiting.
    Bound { tokens: u16 },
    /// Another lane.
    Lane { who: u16, lane: u8 },
    /// Every operation on an id that is not there, and insertion of one that is.
    Nonsense { who: u16 },
}

impl Op {
    /// What the driver should do in a pass, besides planning.
    pub fn flag(flags: u16, bit: u32) -> bool {
        flags >> bit & 1 != 0
    }
}

impl From<u64> for Op {
    /// Every number is an operation; arrivals and passes are the most frequent.
    fn from(code: u64) -> Op {
        let byte = code.to_le_bytes();
        let (who, flags) = (u16::from_le_bytes([byte[1], byte[2]]), u16::from_le_bytes([byte[6], byte[7]]));
        match byte[0] % 27 {
            0..=5 => Op::Insert {
                base: byte[1],
                keep: byte[2],
                chunks: byte[3],
                symbol: byte[4],
                tail: byte[5],
                reserve: byte[6],
                flags: byte[7],
            },
            6..=10 => Op::Pass { kv: who, rows: byte[3], prefill: byte[4], cut: byte[5], flags },
            11..=14 => Op::Publish { who, share: byte[3], computing: byte[4] & 1 != 0 },
            15..=16 => Op::Grow { who, tokens: byte[3], symbol: byte[4] },
            17..=19 => Op::Leave { who, whole: byte[3] & 1 != 0 },
            20 => Op::LeaveFirst,
            21 => Op::Retract { who, tokens: byte[3] },
            22 => Op::Activate { who },
            23 if byte[3] % 2 == 0 => Op::Forget,
            23 => Op::Bound { tokens: who },
            24..=25 => Op::Follow { who, lost: byte[3], share: byte[4], symbol: byte[5], flags },
            _ if byte[3] % 2 == 0 => Op::Lane { who, lane: byte[4] },
            _ => Op::Nonsense { who },
        }
    }
}
