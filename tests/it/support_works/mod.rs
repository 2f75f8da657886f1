//! The support code's own tests: what judges the product must itself notice what is wrong.

mod accumulating;
mod judging;
mod scripted;
