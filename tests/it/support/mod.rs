//! The base of the product's tests. Apart from [`respool`], nothing here uses the
//! product's own code, so that both cannot be wrong in the same way.
//!
//! ```ignore
//! let fake = FakeVllm::start([Script::json(200, &replies::text("Hello"))]).await;
//! let respool = Respool::before(&fake).await;
//! let reply = exchange(respool.address, &Request::chat(&body)).await;
//! let turn = reply.stream(&Rules::default());      // panics on any violation of the protocol
//! assert_eq!(turn.choices[&0].content, "Hello");
//! assert_eq!(fake.requests()[0].json()["stream"], false);
//! fake.finish();                                   // panics after a bad request or an unused script
//! ```
//!
//! - [`script`]: what the fake answers: bodies, delays, faults.
//! - [`fake_vllm`]: the server that checks each request and records when its peer hung up.
//! - [`request_rules`]: those checks, pure.
//! - [`client`]: the raw HTTP/1.1 client.
//! - [`accumulate`]: the independent accumulator of streams and completions; [`openai_fields`] is its
//!   allow-list.
//! - [`api`]: the same conversation in each API, and [`turn`] the turn in its reply.
//! - [`other_wires`]: the accumulators of Responses and Messages streams.
//! - [`replies`]: vLLM-shaped bodies for scripts.
//! - [`requests`]: requests that many tests begin with.
//! - [`respool`]: the product itself, started in this process; [`served`]: in a process of its own, whose
//!   resources [`process`] measures.
//! - [`tools`]: sets of tools, calls, and a person to ask.
//! - [`fake_gateway`]: OpenClaw's `/tools/invoke`.
//! - [`scripted_tools`]: a set of tools for agents that does what a test says.
//! - [`http1`]: heads and bodies on a socket, for both ends.
//! - [`idle_time`]: time that passes while nothing happens, for tests of silence and waiting.
//! - [`wait_until`] and its like: conditions that another task or process brings about.

pub mod accumulate;
pub mod api;
pub mod client;
pub mod fake_gateway;
pub mod fake_vllm;
pub mod http1;
pub use testing::idle_time;
pub use testing::waiting::{eventually, look_within, wait_until};
pub mod openai_fields;
pub mod other_wires;
pub mod process;
pub mod replies;
pub mod request_rules;
pub mod requests;
pub mod respool;
pub mod script;
pub mod scripted_tools;
pub mod served;
pub mod tools;
pub mod turn;
