//! Bytes as a sequence of operations on the index and on the naive model: `make fuzz`, or `cargo fuzz run operations`.

#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;

use common::sequence::run_bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(violation) = run_bytes(bytes) {
        panic!("{violation}");
    }
});
