//! What an index is made for, and why it refuses something.

use crate::frontier::Order;

/// What an index is made for. Equal on every rank.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Tokens a chunk; a multiple of the engine's page size.
    pub chunk: u32,
    /// Tokens a page of the engine's KV pool: prefill budgets are spent in pages.
    pub page: u32,
    /// How waiting requests are ordered.
    pub order: Order,
    /// Under [`Order::Missing`]: tokens of disadvantage for every token scheduled before the request arrived.
    pub aging: f64,
    /// Tokens that running rows must hold more, or that waiting must save, to depart from arrival order.
    pub barrier_min: u32,
    /// Scheduled tokens after which only older requests, and those that came together with it, go before a request.
    pub max_wait: u64,
    /// Tokens of the engine's KV pool: so much published KV of finished requests is remembered.
    pub capacity: u64,
    /// The key of the hashes.
    pub key: [u64; 2],
}

/// Why an operation was refused. The index is unchanged after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A request with this id is waiting or running already.
    Duplicate(u64),
    /// No request with this id is waiting or running.
    Unknown(u64),
    /// The request is not in the state that the operation needs; the second field names that state.
    WrongState(u64, &'static str),
    /// A field of the request or of the configuration is out of range.
    Invalid(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Duplicate(id) => {
                write!(f, "id {id}: a request with this id is waiting or running; expected a new id, or `leave` first")
            }
            Error::Unknown(id) => write!(f, "id {id}: no such request; expected the id of one that waits or runs"),
            Error::WrongState(id, expected) => write!(f, "id {id}: the request is not {expected}"),
            Error::Invalid(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}
