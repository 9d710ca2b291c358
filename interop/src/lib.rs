//! Tests against the real kernel.
