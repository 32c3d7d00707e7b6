//! Keyed, cumulative 64-bit chunk hashes.
//!
//! Level *k* covers the tokens of chunks `0..=k`, so two requests that agree at a level agree at every level below it.
//! A collision may cost scheduling order, never correctness: the engine matches its own cache by token. The round is
//! a folded 64 x 64 -> 128 bit multiply of four tokens, two in a factor: multiplications are what hashing waits for. Each
//! step also adds the rotated state, because a plain multiply round forgets everything when one factor is zero.
//!
//! Where it is slow: a prompt of less than a thousand tokens is done before fetching ahead helps. More lanes and wider
//! instructions brought nothing; a call for each chunk, words that go through memory, or a loop that only fetches cost a
//! tenth each.

use crate::prefetch::prefetch;

/// Tokens that one round consumes: ids of text are below 2^31, so that two of them fit into a word.
const ROUND: usize = 4;
/// Rounds that run side by side: one waits for its multiplication, the others do not.
const LANES: usize = 4;
/// Tokens that one step of [`HashKey::mix_block`] consumes.
const BLOCK: usize = ROUND * LANES;

/// Tokens between the one that is hashed and the one that is fetched from memory. Half as many brought less, four times as
/// many let the cache lose what it had fetched.
const AHEAD: usize = 512;

/// Two tokens in a word. Each of them tells two words apart, whatever the other is. Two at a time do if both are below
/// 2^31; among wider ones, such as pads of pictures, a word stands for few of many pairs. Turned by 33 bits and not by
/// half a word, so that a run of one wide token, as which some models see a picture, keeps all of its bits but one.
#[inline]
fn word(first: i64, second: i64) -> u64 {
    first as u64 ^ (second as u64).rotate_left(33)
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a).wrapping_mul(u128::from(b));
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// One level of a cumulative hash.
pub type Level = u64;

/// The secret that keys all hashes of one index. Equal on every rank, unknown to clients.
#[derive(Clone, Copy, Debug)]
pub struct HashKey {
    secret: [u64; 8],
    /// Tests narrow the levels to a few bits to force collisions.
    mask: u64,
}

/// The state of a hash between two calls of [`HashKey::absorb`]: prompts arrive in segments, outputs grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    level: Level,
    lanes: [u64; LANES],
    /// The first word of a round that is not complete; its second one is in its lane.
    word: u64,
    /// Tokens of the current, incomplete chunk.
    filled: u32,
}

impl HashKey {
    /// Derives the round constants from a 128-bit key (splitmix64).
    #[must_use]
    pub fn new(key: [u64; 2]) -> Self {
        let mut state = key[0];
        let secret = std::array::from_fn(|i| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = state ^ if i % 2 == 0 { key[1] } else { key[1].rotate_left(32) };
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            (z ^ (z >> 31)) | 1
        });
        HashKey { secret, mask: u64::MAX }
    }

    /// The same key with levels narrowed to the bits of `mask`, so that tests meet collisions.
    #[must_use]
    pub fn with_mask(self, mask: u64) -> Self {
        HashKey { mask, ..self }
    }

    /// Starts the hash of a request in `namespace`.
    ///
    /// Components are hashed as structured values: `("a", "bc")` differs from `("ab", "c")`, and an absent component
    /// from an empty one.
    #[must_use]
    pub fn start(&self, namespace: &[Option<&[u8]>]) -> Stream {
        let mut level = fold(namespace.len() as u64 ^ self.secret[6], self.secret[7]);
        for part in namespace {
            match part {
                None => level = self.step(level, self.secret[4]),
                Some(bytes) => {
                    level = self.step(level, bytes.len() as u64 ^ self.secret[5]);
                    for piece in bytes.chunks(8) {
                        let mut word = [0u8; 8];
                        word[..piece.len()].copy_from_slice(piece);
                        level = self.step(level, u64::from_le_bytes(word));
                    }
                }
            }
        }
        Stream { level, lanes: self.lanes(), word: 0, filled: 0 }
    }

    /// The levels of the first `shareable` tokens of a request given in segments, and the state of the hash after them.
    ///
    /// O(tokens).
    #[must_use]
    pub fn path(
        &self,
        namespace: &[Option<&[u8]>],
        chunk: usize,
        segments: &[&[i64]],
        shareable: u64,
    ) -> (Vec<Level>, Stream) {
        let mut stream = self.start(namespace);
        let mut levels = vec![];
        let mut left = shareable;
        for segment in segments {
            let take = usize::try_from(left).unwrap_or(usize::MAX).min(segment.len());
            self.absorb(&mut stream, chunk, &segment[..take], &mut levels);
            left -= take as u64;
        }
        (levels, stream)
    }

    /// Hashes `tokens` after what `stream` has seen; appends one level for every chunk completed.
    ///
    /// O(`tokens`).
    pub fn absorb(&self, stream: &mut Stream, chunk: usize, mut tokens: &[i64], levels: &mut Vec<Level>) {
        if stream.filled > 0 {
            let wanted = (chunk - stream.filled as usize).min(tokens.len());
            let (head, tail) = tokens.split_at(wanted);
            self.fill(stream, chunk, head, levels);
            tokens = tail;
        }
        levels.reserve(tokens.len() / chunk);
        let (far, near) = tokens.split_at(tokens.len().saturating_sub(AHEAD) / chunk * chunk);
        for whole in far.chunks_exact(chunk) {
            self.mix_chunk::<true>(stream, whole, levels);
        }
        let mut chunks = near.chunks_exact(chunk);
        for whole in chunks.by_ref() {
            self.mix_chunk::<false>(stream, whole, levels);
        }
        self.fill(stream, chunk, chunks.remainder(), levels);
    }

    /// Continues a hash with a level that the engine computed itself (a block hash of vLLM, a Mooncake block id).
    pub fn absorb_level(&self, stream: &mut Stream, given: u64, levels: &mut Vec<Level>) {
        stream.level = self.step(stream.level, given);
        levels.push(stream.level & self.mask);
    }

    /// Adds tokens to an incomplete chunk; at most as many as complete it.
    fn fill(&self, stream: &mut Stream, chunk: usize, tokens: &[i64], levels: &mut Vec<Level>) {
        for &token in tokens {
            let at = stream.filled as usize;
            let lane = at / ROUND % LANES;
            match at % ROUND {
                0 => stream.word = word(token, 0),
                1 => stream.word ^= word(0, token),
                2 => stream.lanes[lane] ^= word(token, 0),
                _ => self.mix(&mut stream.lanes, lane, [stream.word, word(0, token)]),
            }
            stream.filled += 1;
            if stream.filled as usize == chunk {
                match chunk % ROUND {
                    0 => {}
                    // Never the constant that the lane began with: they would cancel, and a zero factor forgets the other.
                    1 | 2 => self.mix(&mut stream.lanes, lane, [stream.word, self.secret[lane]]),
                    _ => self.mix(&mut stream.lanes, lane, [stream.word, 0]),
                }
                self.close(stream, stream.lanes, levels);
            }
        }
    }

    /// A whole chunk; with `FETCH`, what lies [`AHEAD`] tokens after each of its blocks is fetched meanwhile.
    #[inline]
    fn mix_chunk<const FETCH: bool>(&self, stream: &mut Stream, tokens: &[i64], levels: &mut Vec<Level>) {
        let mut lanes = self.lanes();
        let mut blocks = tokens.chunks_exact(BLOCK);
        for block in blocks.by_ref() {
            if FETCH {
                prefetch(block, AHEAD);
            }
            self.mix_block(&mut lanes, block);
        }
        let rest = blocks.remainder();
        if rest.is_empty() {
            self.close(stream, lanes, levels);
        } else {
            stream.lanes = lanes;
            stream.filled = (tokens.len() - rest.len()) as u32;
            self.fill(stream, tokens.len(), rest, levels);
        }
    }

    /// Completes a chunk whose tokens are mixed.
    #[inline(always)]
    #[allow(clippy::inline_always)] // called for each chunk, it took 5 to 8% of hashing
    fn close(&self, stream: &mut Stream, lanes: [u64; LANES], levels: &mut Vec<Level>) {
        let s = &self.secret;
        let digest = fold(lanes[0] ^ s[0], lanes[1] ^ s[1]) ^ fold(lanes[2] ^ s[2], lanes[3] ^ s[3]).rotate_left(17);
        stream.level = self.step(stream.level, digest);
        stream.lanes = self.lanes();
        stream.word = 0;
        stream.filled = 0;
        levels.push(stream.level & self.mask);
    }

    fn lanes(&self) -> [u64; LANES] {
        [self.secret[4], self.secret[5], self.secret[6], self.secret[7]]
    }

    #[inline]
    fn mix_block(&self, lanes: &mut [u64; LANES], block: &[i64]) {
        for (lane, tokens) in block.chunks_exact(ROUND).enumerate() {
            self.mix(lanes, lane, [word(tokens[0], tokens[1]), word(tokens[2], tokens[3])]);
        }
    }

    #[inline]
    fn mix(&self, lanes: &mut [u64; LANES], lane: usize, words: [u64; 2]) {
        let state = lanes[lane] ^ words[1];
        lanes[lane] = fold(words[0] ^ self.secret[lane], state).wrapping_add(state.rotate_left(29));
    }

    #[inline]
    fn step(&self, level: u64, digest: u64) -> u64 {
        fold(level ^ self.secret[1], digest ^ self.secret[2]).wrapping_add(level.rotate_left(31)) ^ digest
    }
}

#[cfg(test)]
mod tests;
