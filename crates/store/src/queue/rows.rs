//! The entries of the queue as they are read back.

use super::plan::LaneKey;
use super::port::EntryEnd;

/// How far an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// It waits for its time, or for its lane.
    Waiting,
    /// A process works on it.
    Claimed,
    /// A person is awaited.
    Held,
    /// It was done.
    Done,
    /// A person has to decide how it goes on.
    Escalated,
    /// It failed, and no person has to look after it.
    Failed,
    /// It failed, and is kept until a person replays or drops it.
    DeadLetter,
}

impl EntryState {
    const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Claimed,
        Self::Held,
        Self::Done,
        Self::Escalated,
        Self::Failed,
        Self::DeadLetter,
    ];
    /// The states of an entry that a person may queue again.
    pub const REPLAYABLE: [Self; 3] = [Self::DeadLetter, Self::Failed, Self::Escalated];

    /// Returns its name in the store and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Claimed => "claimed",
            Self::Held => "held",
            Self::Done => "done",
            Self::Escalated => "escalated",
            Self::Failed => "failed",
            Self::DeadLetter => "dead_letter",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

impl EntryEnd {
    pub(crate) fn state(self) -> EntryState {
        match self {
            Self::Done => EntryState::Done,
            Self::Escalated => EntryState::Escalated,
            Self::Failed => EntryState::Failed,
            Self::DeadLetter => EntryState::DeadLetter,
        }
    }
}

/// How many entries of a queue are in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenCount {
    /// The queue.
    pub queue: String,
    /// The state.
    pub state: EntryState,
    /// How many.
    pub count: u64,
}

/// An entry as people see it. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRow {
    /// Its id.
    pub id: String,
    /// Whose work it is.
    pub queue: String,
    /// Its lane.
    pub lane: Option<LaneKey>,
    /// How far it is.
    pub state: EntryState,
    /// When it was accepted.
    pub accepted: u64,
    /// When it may run.
    pub due: u64,
    /// How many attempts have begun.
    pub attempt: u32,
    /// An earlier entry of its lane has not ended.
    pub is_blocked: bool,
    /// The run that works on it.
    pub run: Option<String>,
    /// The work, as its owner wrote it.
    pub payload: String,
    /// The last note.
    pub note: Option<String>,
    /// When it ended.
    pub ended: Option<u64>,
}

impl EntryRow {
    /// The note of an entry that a person cancelled.
    pub const CANCELLED: &str = "it was cancelled";

    /// The beginning of the note of an entry that ended because a call was not approved.
    pub const NOT_APPROVED: &str = "a call was not approved: ";
    /// The note of an entry whose run was cancelled while no process worked on it.
    const RUN_CANCELLED: &str = "its run was cancelled";

    /// Returns true if a person's decision ended it: it was cancelled, or a call was not approved.
    pub fn is_ended_by_person(&self) -> bool {
        self.state == EntryState::Failed && Self::is_note_of_person(self.note.as_deref())
    }

    /// Returns true for the note of a failed entry that a person's decision ended.
    pub(crate) fn is_note_of_person(note: Option<&str>) -> bool {
        let note = note.unwrap_or_default();
        [Self::CANCELLED, Self::RUN_CANCELLED].contains(&note) || note.starts_with(Self::NOT_APPROVED)
    }
}
