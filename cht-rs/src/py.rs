//! The extension module `feather_sglang._cht`: a thin binding, nothing is decided here.

use crate::buffer::contents;
use crate::{Arrival, Arriving, Budget, Config, Error, Index, LANES, Order, Outputs, Row};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyKeyError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        match error {
            Error::Unknown(_) => PyKeyError::new_err(error.to_string()),
            Error::Duplicate(_) | Error::WrongState(..) | Error::Invalid(_) => PyValueError::new_err(error.to_string()),
        }
    }
}

/// Integers of an argument, in a buffer of its owner or in a copy.
enum Integers {
    /// Released when this is dropped, before the call returns: its owner may want to grow it.
    Buffer(PyBuffer<i64>),
    Copy(Vec<i64>),
}

impl Integers {
    /// From `array('q')`, NumPy int64, or any sequence of int; `name` is the argument to blame.
    fn of(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(buffer) = PyBuffer::<i64>::get(object) {
            if buffer.dimensions() != 1 || !buffer.is_c_contiguous() {
                return Err(PyValueError::new_err(format!(
                    "{name}: expected a one-dimensional contiguous buffer of 64-bit integers, got {} dimensions{}",
                    buffer.dimensions(),
                    if buffer.is_c_contiguous() { "" } else { ", not contiguous" }
                )));
            }
            return Ok(Integers::Buffer(buffer));
        }
        object.extract().map(Integers::Copy).map_err(|_| {
            let kind = object.get_type().to_string();
            PyTypeError::new_err(format!(
                "{name}: expected 64-bit integers (array('q'), NumPy int64, a list), got {kind}"
            ))
        })
    }

    fn as_slice<'a>(&'a self, py: Python<'a>) -> &'a [i64] {
        match self {
            Integers::Buffer(buffer) => contents(py, buffer).expect("it was found contiguous"),
            Integers::Copy(numbers) => numbers,
        }
    }
}

/// Levels are 64 bits without a sign in Rust; Python may hand them over with one.
fn levels(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    if let Ok(unsigned) = object.extract::<Vec<u64>>() {
        return Ok(unsigned);
    }
    Ok(Integers::of(name, object)?.as_slice(object.py()).iter().map(|&level| level as u64).collect())
}

/// `feather_sglang.core.interface.Row`: `(id, phase, published, private, settled, grown, must_decode, batch)`
type RowTuple<'py> = (u64, u8, u64, u64, bool, Option<Bound<'py, PyAny>>, bool, u64);
/// `Phase.PREFILLING`
const PREFILLING: u8 = 1;

/// `(id, uncomputed, add_total, add_distinct, chunks_before, chunks_after, peers)`
type CandidateTuple = (u64, u64, u64, u64, u32, u32, u64);

/// `(waiting, running, tokens, oldest)`
type FamilyTuple = (u64, u64, u64, Option<u64>);

#[pyclass(name = "Index", module = "feather_sglang._cht")]
struct PyIndex {
    index: Index,
}

#[pymethods]
impl PyIndex {
    #[new]
    #[pyo3(signature = (*, chunk_size, page_size, order, aging, barrier_min, max_wait_tokens, kv_capacity, hash_key))]
    #[allow(clippy::too_many_arguments)] // keyword-only in Python
    fn new(
        chunk_size: u32,
        page_size: u32,
        order: &str,
        aging: f64,
        barrier_min: u32,
        max_wait_tokens: u64,
        kv_capacity: u64,
        hash_key: (u64, u64),
    ) -> PyResult<Self> {
        let order = match order {
            "held" => Order::Held,
            "missing" => Order::Missing,
            _ => {
                return Err(PyValueError::new_err(format!("order {order:?}: expected 'held' or 'missing'")));
            }
        };
        let config = Config {
            chunk: chunk_size,
            page: page_size,
            order,
            aging,
            barrier_min,
            max_wait: max_wait_tokens,
            capacity: kv_capacity,
            key: [hash_key.0, hash_key.1],
        };
        Ok(PyIndex { index: Index::new(config)? })
    }

    #[pyo3(signature = (id, segments, *, length, arrival, reserve=0, namespace=vec![], shareable=None, leads=true, lane=0))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
    fn insert(
        &mut self,
        py: Python<'_>,
        id: u64,
        segments: Vec<Bound<'_, PyAny>>,
        length: u64,
        arrival: (u64, u64),
        reserve: u64,
        namespace: Vec<Option<String>>,
        shareable: Option<u64>,
        leads: bool,
        lane: u8,
    ) -> PyResult<()> {
        let tokens = segments.iter().map(|s| Integers::of("tokens", s)).collect::<PyResult<Vec<_>>>()?;
        let segments: Vec<&[i64]> = tokens.iter().map(|tokens| tokens.as_slice(py)).collect();
        let given: u64 = segments.iter().map(|s| s.len() as u64).sum();
        if given != length {
            return Err(PyValueError::new_err(format!("length {length}: the tokens given are {given}")));
        }
        let space: Vec<Option<&[u8]>> = namespace.iter().map(|part| part.as_ref().map(String::as_bytes)).collect();
        let (path, stream) = self.index.path(&space, &segments, shareable.unwrap_or(length));
        let stream = shareable.is_none_or(|shareable| shareable >= length).then_some(stream);
        let arrival = Arrival { tokens: arrival.0, sequence: arrival.1 };
        Ok(self.index.insert(Arriving { id, length, reserve, arrival, lane, leads, path, stream })?)
    }

    #[pyo3(signature = (id, levels, *, level_tokens, length, arrival, reserve=0, namespace=vec![], leads=true, lane=0))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
    fn insert_levels(
        &mut self,
        id: u64,
        #[pyo3(from_py_with = levels_argument)] levels: Vec<u64>,
        level_tokens: u32,
        length: u64,
        arrival: (u64, u64),
        reserve: u64,
        namespace: Vec<Option<String>>,
        leads: bool,
        lane: u8,
    ) -> PyResult<()> {
        if level_tokens != self.index.config.chunk {
            return Err(PyValueError::new_err(format!(
                "level_tokens {level_tokens}: expected the chunk size of the index ({})",
                self.index.config.chunk
            )));
        }
        let space: Vec<Option<&[u8]>> = namespace.iter().map(|part| part.as_ref().map(String::as_bytes)).collect();
        let mut path = vec![];
        let mut stream = self.index.hash_key().start(&space);
        for level in levels {
            self.index.hash_key().absorb_level(&mut stream, level, &mut path);
        }
        let arrival = Arrival { tokens: arrival.0, sequence: arrival.1 };
        Ok(self.index.insert(Arriving { id, length, reserve, arrival, lane, leads, path, stream: None })?)
    }

    fn begin(&mut self) {
        self.index.begin();
    }

    #[pyo3(signature = (alive, changed, finished))]
    #[allow(clippy::needless_pass_by_value)]
    fn follow(
        &mut self,
        py: Python<'_>,
        alive: &Bound<'_, PyAny>,
        changed: Vec<RowTuple<'_>>,
        finished: Vec<u64>,
    ) -> PyResult<()> {
        let alive = Integers::of("alive", alive)?;
        let alive: Vec<u64> = alive.as_slice(py).iter().map(|&id| id as u64).collect();
        let grown = |row: &RowTuple<'_>| row.5.as_ref().map(|tokens| Integers::of("grown", tokens)).transpose();
        let grown = changed.iter().map(grown).collect::<PyResult<Vec<_>>>()?;
        let row = |(row, grown): (&RowTuple<'_>, _)| (row.0, row.2, row.1 == PREFILLING, grown);
        let rows = changed.iter().zip(&grown).map(row).map(|(id, published, computing, grown)| Row {
            id,
            published,
            computing,
            grown: Option::as_ref(grown).map_or(&[], |tokens: &Integers| tokens.as_slice(py)),
        });
        self.index.follow(&alive, &rows.collect::<Vec<_>>(), &finished);
        Ok(())
    }

    fn activate(&mut self, id: u64) -> PyResult<()> {
        Ok(self.index.activate(id)?)
    }

    fn publish(&mut self, id: u64, tokens: u64, computing: bool) -> PyResult<()> {
        Ok(self.index.publish(id, tokens, computing)?)
    }

    fn grow(&mut self, id: u64, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        Ok(self.index.grow(id, Integers::of("tokens", tokens)?.as_slice(tokens.py()))?)
    }

    fn leave(&mut self, id: u64, whole: bool) -> bool {
        self.index.leave(id, whole)
    }

    fn forget(&mut self) {
        self.index.forget();
    }

    fn set_max_wait(&mut self, tokens: u64) {
        self.index.set_max_wait(tokens);
    }

    fn set_lane(&mut self, id: u64, lane: u8) -> PyResult<bool> {
        if lane >= LANES {
            return Err(PyValueError::new_err(format!("lane {lane}: expected less than {LANES}")));
        }
        Ok(self.index.set_lane(id, lane))
    }

    fn overdue_lane(&self, now: u64) -> Option<u8> {
        self.index.overdue_lane(now)
    }

    #[pyo3(signature = (*, now, kv_tokens, rows, prefill_tokens, idle, chunked=true, lane=None))]
    #[allow(clippy::too_many_arguments)] // keyword-only in Python
    fn plan(
        &mut self,
        now: u64,
        kv_tokens: u64,
        rows: u32,
        prefill_tokens: u64,
        idle: bool,
        chunked: bool,
        lane: Option<u8>,
    ) -> (Vec<CandidateTuple>, u64, u32, u32, usize, &'static str) {
        let plan = self.index.plan(Budget { now, kv: kv_tokens, rows, prefill: prefill_tokens, chunked, idle, lane });
        let order = plan
            .order
            .iter()
            .map(|c| (c.id, c.uncomputed, c.add_total, c.add_distinct, c.chunks_before, c.chunks_after, c.peers))
            .collect();
        (order, plan.held, plan.kept, plan.skipped, plan.overdue, plan.end.name())
    }

    fn undo(&mut self, keep: usize) {
        self.index.undo(keep);
    }

    #[allow(clippy::needless_pass_by_value)]
    fn settle(&mut self, reused: Vec<(u64, u64)>, refused: Vec<u64>) -> u64 {
        let length = |id| self.index.length(id).unwrap_or(0);
        let computed = reused.iter().map(|&(id, tokens)| length(id).saturating_sub(tokens)).sum();
        let _ = self.index.settle(&reused, &refused); // those that are not known are passed over
        computed
    }

    fn best(&self) -> Option<(u64, u64)> {
        self.index.best()
    }

    fn runs(&self, id: u64) -> bool {
        self.index.runs(id)
    }

    fn running(&self) -> Vec<u64> {
        self.index.running_ids().collect()
    }

    fn rows_by_family(&self) -> (Vec<u64>, Vec<u64>) {
        self.index.rows_by_family()
    }

    fn families(&self, most: usize) -> (Vec<FamilyTuple>, u64, u64, u64) {
        let families = self.index.families(most);
        let largest = families.largest.iter().map(|f| (f.waiting, f.running, f.tokens, f.oldest)).collect();
        (largest, families.waiting, families.running, families.alone)
    }

    fn held_for(&self) -> Vec<(u64, u64)> {
        self.index.held_for()
    }

    fn __contains__(&self, id: u64) -> bool {
        self.index.contains(id)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (figures, work) = (self.index.figures(), self.index.work());
        let dict = PyDict::new(py);
        dict.set_item("waiting", figures.waiting)?;
        dict.set_item("held", figures.held)?;
        dict.set_item("running", figures.running)?;
        dict.set_item("tip_chunks", figures.tip_chunks)?;
        dict.set_item("total_kv", figures.total_kv)?;
        dict.set_item("distinct_kv", figures.distinct_kv)?;
        dict.set_item("cached_tokens", figures.cached_tokens)?;
        dict.set_item("oldest", self.index.oldest())?;
        dict.set_item("nodes", self.index.nodes())?;
        dict.set_item("bytes", self.index.bytes())?;
        dict.set_item("queue_operations", work.queue_operations)?;
        dict.set_item("nodes_visited", work.nodes_visited)?;
        dict.set_item("looked_at", work.looked_at)?;
        Ok(dict)
    }

    fn check_integrity(&self) -> PyResult<()> {
        self.index.check_integrity().map_err(PyRuntimeError::new_err)
    }
}

#[pyclass(name = "Outputs", module = "feather_sglang._cht")]
#[derive(Default)]
struct PyOutputs {
    outputs: Outputs,
}

#[pymethods]
impl PyOutputs {
    #[new]
    fn new() -> Self {
        PyOutputs::default()
    }

    fn learn(&mut self, index: &PyIndex, id: u64, tokens: u32) {
        self.outputs.learn(&index.index, id, tokens);
    }

    #[allow(clippy::needless_pass_by_value)]
    fn predict(&self, index: &PyIndex, ids: Vec<u64>) -> Vec<Option<u32>> {
        ids.iter().map(|&id| self.outputs.predict(&index.index, id)).collect()
    }
}

fn levels_argument(object: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    levels("levels", object)
}

/// How the extension was built: a benchmark refuses a debug build.
#[pyfunction]
fn build_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("version", env!("CARGO_PKG_VERSION"))?;
    dict.set_item("profile", if cfg!(debug_assertions) { "debug" } else { "release" })?;
    dict.set_item("target", std::env::consts::ARCH)?;
    // One path for every processor, which fetches tokens ahead on x86-64: wider instructions brought nothing.
    dict.set_item("hash", "portable")?;
    Ok(dict)
}

#[pymodule]
fn _cht(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyIndex>()?;
    module.add_class::<PyOutputs>()?;
    module.add_function(wrap_pyfunction!(build_info, module)?)?;
    Ok(())
}
