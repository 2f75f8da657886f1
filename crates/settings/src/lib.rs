//! The configuration: defaults ← file ← environment ← flags, checked whole, with every problem reported at
//! once.
//!
//! Each crate declares its sections (`wire::settings!`): types, defaults, limits and the text that people
//! read. Here they are composed, layered and checked. The declared [`KEYS`] drive the checks, `config show`,
//! the generated page and the example file. No module imports this one but `main` and `cli`.

mod advice;
mod changes;
mod cover;
mod cross_checks;
mod effect;
mod environment;
mod example;
mod file;
mod flags;
mod keys;
mod loaded;
mod misspelt;
#[cfg(test)]
mod page;
mod problem;
mod search;
mod settings;
mod shape;
mod show;
mod tree;
mod unknown_names;

pub use advice::{Advice, approval_warning, find_advice, find_unknown_keys, start_problems, uses_own_key};
pub use effect::Change;
pub use example::example;
pub use file::FileText;
pub use flags::{Environment, Flags, VLLM_KEY};
pub use keys::{KEYS, Key};
pub use loaded::{Loaded, resolve};
pub use misspelt::Misspelt;
pub use problem::{Place, Problem, Problems};
pub use settings::Settings;
pub use unknown_names::find_unknown_names;

#[cfg(test)]
mod tests;
