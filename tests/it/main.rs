//! The one integration binary: real sockets on loopback, a strict fake vLLM behind, a strict client in front.

mod support;
mod support_works;
