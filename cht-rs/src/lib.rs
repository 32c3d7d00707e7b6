//! A chunked hash tree: which waiting request shares most with the running batch, and what it should wait for.
//!
//! A request is the vector of the cumulative hashes of its token chunks ([`hash`]). All requests, waiting and running,
//! lie in one path-compressed trie of such vectors. Each chunk is in one of four states:
//!
//! | state | published | held by a running row |
//! |---|---|---|
//! | *absent* | no | no |
//! | *pending* | no: a running row that leads is computing it | yes |
//! | *active* | yes | yes |
//! | *cached* | yes | no |
//!
//! Two counts follow: **unheld** (all but active) is what an admission adds to distinct KV and memory, and decides order
//! and fit; **uncomputed** (absent and pending) is what it costs in prefill, and decides budget and barrier.
//!
//! [`Index::plan`] forms the batch of a pass by the rule in `plan.rs`; [`naive`] states the same rule in the plainest
//! way, as the model that tests compare with.
//!
//! **Where it is slow.** An insertion hashes its tokens, which dominates. Every change walks its path to the root, since
//! each node counts what lies below it, and costs O(log) queue operations for each node that flips: O(log W) where paths
//! branch a constant number of times (grouped prompts), but linear in the chain on nested prompts. A row that leads flips
//! its path twice, to pending and to active. Under [`Order::Held`] a chain that leaves the running batch takes its nodes
//! out of the global order first one first, which is the dearest way to empty a heap.

mod bound;
mod check;
mod config;
mod families;
mod figures;
mod follow;
mod frontier;
pub mod hash;
mod heap;
mod index;
pub mod naive;
mod node;
mod outputs;
mod plan;
mod planner;
mod prefetch;
mod queues;
mod request;
mod rows;
mod settle;
mod standing;
mod tree;

#[cfg(feature = "python")]
mod buffer;
#[cfg(feature = "python")]
mod py;

pub use config::{Config, Error};
pub use families::{Families, Family};
pub use figures::Figures;
pub use follow::Row;
pub use frontier::Order;
pub use index::Index;
pub use node::{Arrival, LANES, NodeId, Slot};
pub use outputs::Outputs;
pub use plan::{Budget, Candidate, End, KEPT_PASSES, LOOKS, Plan};
pub use planner::Planner;
pub use request::Arriving;
pub use tree::Work;
