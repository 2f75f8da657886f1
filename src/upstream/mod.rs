//! The upstream side: what respool asks for an answer.

pub mod replay;
