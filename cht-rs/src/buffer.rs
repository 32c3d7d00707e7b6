//! Reading tokens where their Python owner keeps them. A copy would double the cost of an insertion whose tokens are in the
//! processor's cache.

#![allow(unsafe_code)]

use pyo3::Python;
use pyo3::buffer::PyBuffer;

/// The contents of a buffer; none if it is not contiguous.
pub(crate) fn contents<'a>(_py: Python<'a>, buffer: &'a PyBuffer<i64>) -> Option<&'a [i64]> {
    let numbers = buffer.as_slice_ptr()?;
    // SAFETY: `PyBuffer` has checked type and alignment, and `as_slice_ptr` the layout. The buffer is exported, so it stays
    // in place, while `buffer` lives, to which the slice is bound. Nobody writes meanwhile: whoever has the slice holds
    // the GIL and does not call Python; a thread that writes without the GIL to memory that it lent breaks Python's own
    // contract.
    Some(unsafe { numbers.as_ref() })
}
