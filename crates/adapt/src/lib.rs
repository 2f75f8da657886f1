//! Adapts a chat request to what one model server takes.
//!
//! A [`Rule`] names one construct that a server refuses and the smallest change that keeps the request's
//! meaning.
//! [`TABLE`] has one row for each: what is refused, in whose words, what is changed and what is lost. [`find_rule`] reads a
//! refusal and names the rule that answers it; [`adapt`] applies rules to a request body.
//!
//! Everything here is pure and deterministic: two turns of a conversation keep the prefix that they share.
//! When rules are tried, kept and forgotten is decided in `relay`.

mod apply;
mod conversation;
mod declared;
mod media;
mod messages;
mod parameters;
mod reasoning;
mod refusal;
mod rule;
mod schema;
mod table;
mod tools;

pub use apply::{Adapted, adapt};
pub use declared::Declared;
pub use reasoning::{Effort, FAMILIES, Family, Switch, apply_effort, asked_effort, family_of};
pub use refusal::{find_rule, is_known_refusal};
pub use rule::{Consent, Loss, Parameter, Rule, RuleSet, UnknownRule};
pub use table::{Row, TABLE, row_of};
