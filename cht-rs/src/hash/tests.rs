//! The hash against a second one, token by token, and families of prompts that weak hashes confuse.

use super::*;
use std::collections::HashSet;

fn levels(key: &HashKey, namespace: &[Option<&[u8]>], chunk: usize, segments: &[&[i64]]) -> Vec<Level> {
    let mut stream = key.start(namespace);
    let mut out = vec![];
    for segment in segments {
        key.absorb(&mut stream, chunk, segment, &mut out);
    }
    out
}

/// The hash once more, token by token and without blocks, segments or a state that is carried on.
fn reference(key: &HashKey, namespace: &[Option<&[u8]>], chunk: usize, tokens: &[i64]) -> Vec<Level> {
    let s = key.secret;
    let mul = |a: u64, b: u64| {
        let wide = u128::from(a) * u128::from(b);
        u64::try_from(wide % (1 << 64)).unwrap() ^ u64::try_from(wide / (1 << 64)).unwrap()
    };
    let next = |level: u64, digest: u64| mul(level ^ s[1], digest ^ s[2]).wrapping_add(level.rotate_left(31)) ^ digest;
    let mut level = mul(s[6] ^ namespace.len() as u64, s[7]);
    for part in namespace {
        let Some(bytes) = part else {
            level = next(level, s[4]);
            continue;
        };
        level = next(level, s[5] ^ bytes.len() as u64);
        for piece in bytes.chunks(8) {
            let word = piece.iter().rev().fold(0, |word: u64, &byte| word * 256 + u64::from(byte));
            level = next(level, word);
        }
    }
    let mut levels = vec![];
    for whole in tokens.chunks_exact(chunk) {
        let mut lanes = [s[4], s[5], s[6], s[7]];
        for (i, four) in whole.chunks(4).enumerate() {
            let at = |i: usize| four.get(i).map_or(0, |&token| token as u64);
            let turned = |word: u64| word.rotate_right(31);
            let lane = i % 4;
            let second = if four.len() > 2 { at(2) ^ turned(at(3)) } else { s[lane] };
            let state = lanes[lane] ^ second;
            let first = at(0) ^ turned(at(1));
            lanes[lane] = mul(first ^ s[lane], state).wrapping_add(state.rotate_left(29));
        }
        let high = mul(lanes[2] ^ s[2], lanes[3] ^ s[3]);
        level = next(level, mul(lanes[0] ^ s[0], lanes[1] ^ s[1]) ^ high.rotate_left(17));
        levels.push(level & key.mask);
    }
    levels
}

#[test]
fn it_is_what_it_is_said_to_be() {
    let spaces: [&[Option<&[u8]>]; 3] = [&[], &[None, Some(b"")], &[Some(b"an adapter"), None, Some(b"salt")]];
    let tokens: Vec<i64> = (0..1_200).map(|i| (i * i * 2_654_435_761_i64) >> (i % 40)).collect();
    for mask in [u64::MAX, 0b1011] {
        let key = HashKey::new([11, 12]).with_mask(mask);
        for namespace in spaces {
            for chunk in [1, 2, 3, 4, 7, 16, 21, 64, 75, 78] {
                let found = levels(&key, namespace, chunk, &[&tokens]);
                assert_eq!(found, reference(&key, namespace, chunk, &tokens));
            }
        }
    }
}

/// A level that was given stands for a chunk whose digest it is.
#[test]
fn given_levels_go_on_from_those_before() {
    let key = HashKey::new([13, 14]);
    let given = [7, 8, 7];
    let mut found = vec![];
    let mut stream = key.start(&[]);
    for level in given {
        key.absorb_level(&mut stream, level, &mut found);
    }
    let mut level = key.start(&[]).level;
    let expected = given.map(|digest| {
        level = key.step(level, digest);
        level
    });
    assert_eq!(found, expected);
    assert_eq!(stream, Stream { level, ..key.start(&[]) });
    assert_ne!(found[0], found[2]);
    let narrow = key.with_mask(0b1011);
    let mut masked = vec![];
    let mut stream = narrow.start(&[]);
    for level in given {
        narrow.absorb_level(&mut stream, level, &mut masked);
    }
    assert_eq!(masked, found.iter().map(|level| level & 0b1011).collect::<Vec<_>>());
}

#[test]
fn segments_do_not_matter() {
    let key = HashKey::new([1, 2]);
    let tokens: Vec<i64> = (0..1000).map(|i| i * i - 7).collect();
    for chunk in [1, 2, 3, 5, 7, 8, 22, 64, 100, 101] {
        let whole = levels(&key, &[], chunk, &[&tokens]);
        assert_eq!(whole.len(), 1000 / chunk);
        for cut in [0, 1, 7, 8, 63, 64, 65, 500, 999, 1000] {
            assert_eq!(levels(&key, &[], chunk, &[&tokens[..cut], &tokens[cut..]]), whole);
        }
        assert_eq!(levels(&key, &[], chunk, &tokens.chunks(1).collect::<Vec<_>>()), whole);
    }
}

/// Scenario 13: the pattern that defeats weak polynomial hashes, within and across chunks.
#[test]
fn neighbouring_tokens_do_not_cancel() {
    let key = HashKey::new([3, 4]);
    let base: Vec<i64> = (0..192).map(|i| 1000 + i).collect();
    let mut seen = HashSet::from([*levels(&key, &[], 64, &[&base]).last().unwrap()]);
    for j in 0..191 {
        for factor in [1, -1] {
            let mut other = base.clone();
            other[j] += 31 * factor;
            other[j + 1] -= factor;
            assert!(seen.insert(*levels(&key, &[], 64, &[&other]).last().unwrap()), "collision at {j}");
        }
    }
}

#[test]
fn every_token_matters_at_every_chunk_size() {
    let key = HashKey::new([9, 10]);
    for chunk in 1..=72 {
        let base: Vec<i64> = (0..chunk as i64).collect();
        let mut seen = HashSet::from([levels(&key, &[], chunk, &[&base])[0]]);
        for at in 0..chunk {
            for token in [-1, 1 << 62, 70_000] {
                let mut other = base.clone();
                other[at] = token;
                assert!(seen.insert(levels(&key, &[], chunk, &[&other])[0]), "chunk of {chunk}, token {at}");
            }
        }
    }
}

/// Ids of pictures have 62 bits, and some models pad a whole picture with one.
#[test]
fn runs_of_wide_tokens_differ() {
    let key = HashKey::new([15, 16]);
    let wide: i64 = (1 << 61) | 0x1234_5678_9ABC;
    let mut seen = HashSet::new();
    for bit in 0..62 {
        let changed = wide ^ (1 << bit);
        assert!(seen.insert(levels(&key, &[], 64, &[&[1 << bit; 64]])[0]), "bit {bit}");
        assert!(seen.insert(levels(&key, &[], 64, &[&[changed; 64]])[0]), "bit {bit}");
        assert!(seen.insert(levels(&key, &[], 64, &[&[changed, wide].repeat(32)])[0]), "bit {bit}");
    }
    for bit in 0..30 {
        let both_halves = wide ^ (1 << bit) ^ (1 << (bit + 32));
        assert!(seen.insert(levels(&key, &[], 64, &[&[both_halves; 64]])[0]), "bits {bit} and {}", bit + 32);
    }
}

#[test]
fn a_zero_factor_does_not_forget() {
    let key = HashKey::new([5, 6]);
    let s = key.secret;
    let mut seen = HashSet::new();
    for first in 0..64 {
        let mut tokens = vec![first; 64];
        for block in tokens[BLOCK..].chunks_exact_mut(BLOCK) {
            for (lane, tokens) in block.chunks_exact_mut(ROUND).enumerate() {
                tokens[..2].copy_from_slice(&[s[lane] as i64, 0]); // makes one factor of the round zero
            }
        }
        assert!(seen.insert(levels(&key, &[], 64, &[&tokens])[0]));
    }
}

/// Scenarios 14 and 15.
#[test]
fn namespaces_are_structured() {
    let key = HashKey::new([7, 8]);
    let tokens = vec![1i64; 64];
    let spaces: [&[Option<&[u8]>]; 9] = [
        &[],
        &[None],
        &[Some(b"")],
        &[None, None],
        &[Some(b"a"), Some(b"bc")],
        &[Some(b"ab"), Some(b"c")],
        &[Some(b"abc"), None],
        &[None, Some(b"abc")],
        &[Some(b"abc\0")],
    ];
    let distinct: HashSet<_> = spaces.iter().map(|ns| levels(&key, ns, 64, &[&tokens])[0]).collect();
    assert_eq!(distinct.len(), spaces.len());
}

#[test]
fn the_key_matters() {
    let tokens = vec![1i64; 64];
    let keys = [[0, 0], [0, 1], [1, 0], [1, 1], [1 << 32, 0], [0, 1 << 32]];
    let distinct: HashSet<_> = keys.iter().map(|&k| levels(&HashKey::new(k), &[], 64, &[&tokens])[0]).collect();
    assert_eq!(distinct.len(), keys.len());
}
