//! The one integration binary: real sockets on loopback, a strict fake vLLM behind, a strict client in front.

#![expect(
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking, and `pub` in the support code says what they and `faults` may use"
)]

mod access;
mod adapt;
mod adapt_page;
mod agent_apis;
mod agents;
mod agents_approvals;
mod agents_kept;
mod agents_killed;
mod alerts;
mod architecture;
mod audit;
mod body_room;
mod captures;
mod captures_page;
mod cases;
mod chat;
mod context;
mod errors;
mod expert_speed;
mod experts;
mod experts_conversations;
mod experts_isolated;
mod experts_killed;
mod experts_run;
mod experts_separation;
mod experts_waits;
mod fallback;
mod first_minute;
mod forms;
mod hooks;
mod kept_responses;
mod keys;
mod lifecycle;
mod live;
mod long_turns;
mod loops;
mod nodes;
mod nodes_away;
mod nodes_harmed;
mod page;
mod passthrough;
mod queue;
mod queue_speed;
mod reasoning_memory;
mod recovered_turns;
mod recovery;
mod reload;
mod replay;
mod responsive;
mod same_turn;
mod sandbox;
mod sandbox_attacks;
mod servers;
mod setup_openclaw;
mod silence;
mod spooled;
mod support;
mod support_works;
mod tools_gateway;
mod tools_local;
mod tools_mcp;
mod tools_real;
mod tools_route;
mod traces;
mod tutorial;
mod upstreams;
mod usage;
mod wires;
