//! The one way in for a request that asks a model for something, on every API.
//!
//! Its stages, in order; each is a file, and a value goes from stage to stage:
//!
//! 1. admit (`crate::access`, before the routes): who asks, and whether this path may be asked at all;
//! 2. record ([`arrival`]): the request gets its line, which everything later adds to;
//! 3. read ([`reading`]): the body comes in, within its bounds;
//! 4. permit ([`permit`]): the key may use the model, and its limits are not reached;
//! 5. budget ([`budget`]): the day's budget of the key, the agent and all together is not spent;
//! 6. resolve the target ([`target`]): an agent, a server that speaks the client's API itself, or a model;
//! 7. answer ([`answer`]): the agent's run begins, or the relay reads the request and asks a model. There, in
//!    `relay::adapt`, the request is adapted to the upstream.
//!
//! The handlers of the APIs (`chat`, `agent_apis`, `transparent`, `form`) differ in how they read a body and
//! how they write a reply. They call these stages and add none of their own.

mod answer;
mod arrival;
mod budget;
mod permit;
mod reading;
mod refusal;
mod target;

pub(super) use self::answer::{TurnAnswer, begin_turn};
pub(super) use self::arrival::{Arrival, begin_record};
pub(super) use self::budget::check_budget;
pub(super) use self::permit::{Cost, begin_other, form_names_two_models, form_reader, may_use};
pub(super) use self::refusal::{refuse_request, refuse_with_head};
pub(super) use self::target::{NamedAgent, is_left_to_server, named_agent};
