//! Adapts a chat request to what one model server takes.
//!
//! A [`Rule`] names one construct that a server refuses and the smallest change that keeps the request's
//! meaning. [`rows`] has one [`Row`] for each: the construct, the servers' words, the change and the loss.
//! [`find_rule`] reads a refusal and names the rule that answers it; [`adapt`] applies rules to a request
//! body.
//!
//! [`Declared`] holds the parameters that the owner declares for a model. [`EffortReader`] writes the effort
//! of reasoning that a client asks for in the way that the model obeys.
//!
//! Everything here is pure and deterministic: two turns of a conversation keep the prefix that they share.
//! When rules are tried, kept and forgotten is decided in `relay`.

mod apply;
mod conversation;
mod declared;
mod media;
mod messages;
mod parameters;
#[cfg(test)]
mod properties;
mod reasoning;
mod refusal;
mod row;
mod rule;
mod schema;
mod table;
mod tools;
mod words;

pub use apply::{Adapted, AppliedRule, adapt, adapt_object};
pub use declared::{Declared, Fields, UNDECLARABLE};
pub use media::{has_media, has_pictures, known_good_request};
pub use reasoning::{Effort, EffortReader, FAMILIES, Family, Switch, asked_effort, is_gpt_oss};
pub use refusal::{find_rule, is_known_refusal};
pub use row::Row;
pub use rule::{Consent, Loss, Parameter, Rule, RuleSet, UnknownRule};
pub use table::{ParameterRow, UNKNOWN_WORDS, describe_rule, parameter_rows, row_of, rows};
