//! The table of faults: one row each, with what is done and what the client must see. Everything else reads
//! it: the harness plays it, `page` writes docs/faults.md from it, `soak` draws from it.

use std::fmt;
use std::sync::LazyLock;

use super::upstream::Ask;
use super::visit::{Act, Visit};
use super::{client_rows, upstream_rows};
use crate::support::api::Api;
use crate::support::script::Script;

/// One named fault.
pub struct Row {
    /// Its name, unique.
    pub name: String,
    /// Its family, one of the headings of the page.
    pub family: &'static str,
    /// A description of the fault.
    pub what: String,
    /// Who misbehaves, and how.
    pub who: Who,
    /// The results that the client must see, by [`CASES`].
    pub wants: [Want; CASES.len()],
    /// How many requests the upstream gets, at least and at most.
    pub asks: (usize, usize),
    /// The largest growth of respool's resident memory while all cases of this row run at once, in MiB.
    pub memory: u64,
    /// How many bytes the client's request is made longer by.
    pub padding: usize,
    /// It takes its time and no work.
    pub slow: bool,
    /// Its client acts on the beginning of a stream.
    pub reads_stream: bool,
}

/// Who misbehaves.
pub enum Who {
    /// The upstream, once it has read the request.
    Upstream(Box<Answering>),
    /// The upstream, as soon as it has read the request's head.
    HastyUpstream(Box<Answering>),
    /// The client; and what the upstream does meanwhile.
    Client(Box<Visiting>, Box<Answering>),
}

/// The upstream's answer to a request.
type Answering = dyn Fn(&Ask) -> Script + Send + Sync;
/// The acts of a client.
type Visiting = dyn Fn(&Visit) -> Vec<Act> + Send + Sync;

/// The result that the client must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The right answer, to the last byte.
    Answer,
    /// The right answer as far as it came, ended in order.
    Part,
    /// The text of the upstream, right or wrong.
    AsItCame,
    /// An HTTP status with an error object of this code (`""`: none).
    Status(u16, &'static str),
    /// A stream with a true beginning of the answer, then an error event of this code, `[DONE]` and the end.
    Event(u16),
    /// An error of this status in the API's own form: as a status, or as the end of a stream with a true
    /// beginning of the answer.
    Failed(u16),
    /// Anything, well formed and ended in order, or as a broken reply.
    Ended,
    /// An HTTP status of the HTTP layer, without an error object.
    Bare(u16),
    /// The connection is closed without a reply.
    Closed,
    /// Nothing: the client has left, or reads nothing.
    Nothing,
    /// This fault does not exist in this form.
    Skip,
}

/// How a request is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// With tools, asked whole.
    Buffered,
    /// With tools, read as they come (`tools_mode = "live"`).
    Live,
    /// Without tools.
    Passed,
}

/// Every route in both forms; the second member says whether the client asks for a stream.
pub const CASES: [(Way, bool); 6] = [
    (Way::Buffered, true),
    (Way::Buffered, false),
    (Way::Live, true),
    (Way::Live, false),
    (Way::Passed, true),
    (Way::Passed, false),
];

impl Row {
    fn new(name: &str, what: &str, who: Who) -> Self {
        let wants = [Want::Answer; CASES.len()];
        let (name, what) = (name.to_owned(), what.to_owned());
        Self {
            name,
            family: "",
            what,
            who,
            wants,
            asks: (1, 4),
            memory: 48,
            padding: 0,
            slow: false,
            reads_stream: false,
        }
    }

    fn set(mut self, want: Want, which: impl Fn(Way, bool) -> bool) -> Self {
        for (slot, (way, stream)) in self.wants.iter_mut().zip(CASES) {
            if which(way, stream) {
                *slot = want;
            }
        }
        self
    }

    /// In every form.
    pub fn all(self, want: Want) -> Self {
        self.set(want, |_, _| true)
    }

    /// For clients that ask for JSON.
    pub fn json(self, want: Want) -> Self {
        self.set(want, |_, stream| !stream)
    }

    /// For JSON without tools.
    pub fn plain(self, want: Want) -> Self {
        self.set(want, |way, stream| !stream && way == Way::Passed)
    }

    /// For every client that asks for a stream.
    pub fn sse(self, want: Want) -> Self {
        self.set(want, |_, stream| stream)
    }

    /// For a stream that the upstream streams too.
    pub fn streamed(self, want: Want) -> Self {
        self.set(want, |way, stream| stream && way != Way::Buffered)
    }

    /// For a stream of the live route.
    pub fn live(self, want: Want) -> Self {
        self.set(want, |way, stream| stream && way == Way::Live)
    }

    /// For a stream of the passthrough.
    pub fn passed(self, want: Want) -> Self {
        self.set(want, |way, stream| stream && way == Way::Passed)
    }

    /// Where the upstream is asked for a whole reply.
    pub fn whole(self, want: Want) -> Self {
        self.set(want, |way, stream| !stream || way == Way::Buffered)
    }

    /// How many requests the upstream gets.
    pub fn asks(mut self, least: usize, most: usize) -> Self {
        self.asks = (least, most);
        self
    }

    /// A tighter bound of memory, in MiB.
    pub fn memory(mut self, mebibytes: u64) -> Self {
        self.memory = mebibytes;
        self
    }

    /// A longer request.
    pub fn padding(mut self, bytes: usize) -> Self {
        self.padding = bytes;
        self
    }

    /// Its client acts on the beginning of a stream.
    pub fn reads_stream(mut self) -> Self {
        self.reads_stream = true;
        self
    }

    /// It takes its time and no work.
    pub fn slow(mut self) -> Self {
        self.slow = true;
        self
    }

    /// Sets the upstream's answer while the client misbehaves.
    pub fn upstream(mut self, play: impl Fn(&Ask) -> Script + Send + Sync + 'static) -> Self {
        if let Who::Client(_, answering) = &mut self.who {
            *answering = Box::new(play);
        }
        self
    }

    /// True for a fault of the upstream that ends well because the upstream is asked again.
    pub fn needs_repeat(&self) -> bool {
        self.asks.0 > 1 && !matches!(self.who, Who::Client(..))
    }

    /// The cases of this row.
    pub fn cases(&'static self) -> impl Iterator<Item = Case> {
        let (row, slow) = (self.name.as_str(), self.slow);
        CASES
            .into_iter()
            .zip(self.wants)
            .filter(|(_, want)| *want != Want::Skip)
            .map(move |((way, stream), want)| Case { row, api: Api::Chat, way, stream, want, slow })
    }

    /// The cases of another API. The upstream is asked for a stream wherever the route can read one, whatever
    /// the client wants.
    pub fn cases_of(&'static self, api: Api) -> impl Iterator<Item = Case> {
        let (row, slow) = (self.name.as_str(), self.slow);
        let streamed = |way| CASES.iter().zip(self.wants).find(|(case, _)| **case == (way, true));
        let forms = [(Way::Buffered, true), (Way::Live, true), (Way::Passed, true), (Way::Passed, false)];
        forms.into_iter().filter_map(move |(way, stream)| {
            let want = in_other_api(streamed(way)?.1);
            let is_skipped = want == Want::Skip || (!stream && self.reads_stream);
            (!is_skipped).then_some(Case { row, api, way, stream, want, slow })
        })
    }
}

/// The result that a client of another API must see where a chat client that asks for a stream sees this.
fn in_other_api(want: Want) -> Want {
    match want {
        Want::Status(status, _) | Want::Event(status) => Want::Failed(status),
        Want::AsItCame => Want::Ended,
        want => want,
    }
}

/// One row on one route in one form.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The row's name.
    pub row: &'static str,
    /// The client's API.
    pub api: Api,
    /// The route.
    pub way: Way,
    /// The client asks for a stream.
    pub stream: bool,
    /// The result that it must see.
    pub want: Want,
    /// It takes its time and no work.
    pub slow: bool,
}

impl Case {
    /// True for a case that takes its time and no work.
    pub fn waits(&self) -> bool {
        self.slow
            || matches!(
                self.want,
                Want::Status(_, "upstream_timeout" | "request_timeout")
                    | Want::Event(504)
                    | Want::Failed(504 | 408)
            )
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = if self.stream { "stream" } else { "JSON" };
        write!(f, "{} ({:?}, {:?}, {form})", self.row, self.api, self.way)
    }
}

/// A fault of the upstream.
pub fn upstream(name: &str, what: &str, play: impl Fn(&Ask) -> Script + Send + Sync + 'static) -> Row {
    Row::new(name, what, Who::Upstream(Box::new(play)))
}

/// A fault of an upstream that does not wait for the request's body.
pub fn hasty(name: &str, what: &str, play: impl Fn(&Ask) -> Script + Send + Sync + 'static) -> Row {
    Row::new(name, what, Who::HastyUpstream(Box::new(play)))
}

/// A fault of the client.
pub fn client(name: &str, what: &str, play: impl Fn(&Visit) -> Vec<Act> + Send + Sync + 'static) -> Row {
    Row::new(name, what, Who::Client(Box::new(play), Box::new(Ask::script))).asks(1, 1)
}

/// The rows of one family.
pub fn family(name: &'static str, rows: Vec<Row>) -> Vec<Row> {
    rows.into_iter().map(|row| Row { family: name, ..row }).collect()
}

/// All rows.
pub static ROWS: LazyLock<Vec<Row>> =
    LazyLock::new(|| upstream_rows::rows().into_iter().chain(client_rows::rows()).collect());

/// The row of this name.
pub fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}
