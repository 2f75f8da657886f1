//! The reasons why a client for an upstream cannot be made. Plain data; made by `client`, `connector` and
//! `pool`.

use std::error::Error;
use std::{fmt, io};

use http::Uri;
use http::uri::InvalidUri;

/// A client for an upstream cannot be made.
#[derive(Debug)]
pub struct SetupError {
    /// The upstream's name.
    pub upstream: String,
    /// The reason.
    pub problem: SetupProblem,
}

/// The reason why a client cannot be made.
#[derive(Debug)]
pub enum SetupProblem {
    /// The key has characters that no header can carry.
    Key,
    /// The address is not a URI.
    Address(InvalidUri),
    /// The address has no host.
    NoHost(Uri),
    /// TLS cannot be set up.
    Tls(rustls::Error),
    /// The system's certificates cannot be read.
    Certificates(io::Error),
    /// `session_header` is not the name of a header, or the header has another meaning.
    SessionHeader(String),
    /// A key of `objectives` is no priority, or its value fits into no header.
    Objective(String, String),
}

impl fmt::Display for SetupError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { upstream, problem } = self;
        match problem {
            SetupProblem::Key => {
                write!(out, "the key of upstream `{upstream}` holds characters that no header can carry")
            }
            SetupProblem::Address(error) => {
                write!(out, "upstream `{upstream}`: it has no usable address: {error}")
            }
            SetupProblem::NoHost(to) => write!(out, "upstream `{upstream}`: {to} names no host"),
            SetupProblem::Tls(error) => write!(out, "upstream `{upstream}`: TLS cannot be set up: {error}"),
            SetupProblem::Certificates(error) => {
                write!(out, "upstream `{upstream}`: the system's certificates cannot be read: {error}")
            }
            SetupProblem::SessionHeader(name) => write!(
                out,
                "upstream `{upstream}`: `session_header` is {name:?}, which cannot be used: it is not the name of a header, or means something else. Write one such as `x-session-id`"
            ),
            SetupProblem::Objective(word, name) => write!(
                out,
                "upstream `{upstream}`: `objectives` has {word} = {name:?}: the keys are interactive, subagent and background, and \
                 the values names of an InferenceObjective"
            ),
        }
    }
}

impl Error for SetupError {}
