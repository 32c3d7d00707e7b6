//! Random operation sequences, and the driver that runs them on an index and on the naive model.

#![allow(dead_code)] // each test binary uses a part

pub mod driver;
pub mod hesitant;
pub mod operation;
pub mod sequence;
pub mod small;
