//! How processes are executed and their results delivered: the fields of the package and of a process, and
//! the effective values when both override the defaults field by field. Pure.

use std::time::Duration;

use serde_json::{Map, Value as Json, json};

use super::diagnostic::Spanned;
use super::duration::Length;
use super::fields::Fields;

wire::string_enum! {
    /// How the delay grows from attempt to attempt.
    Backoff {
        /// It stays the same.
        Fixed = "fixed",
        /// It doubles each time.
        #[default]
        Exponential = "exponential",
    }
}

wire::string_enum! {
    /// The action after the last attempt fails.
    OnFailure {
        /// The main agent and the person are notified.
        #[default]
        Escalate = "escalate",
        /// It is logged.
        Abandon = "abandon",
        /// It is kept for review and replay.
        DeadLetter = "dead_letter",
    }
}

wire::string_enum! {
    /// The form in which a result is delivered.
    Format {
        /// As a text.
        Narrative = "narrative",
        /// As the declared outputs.
        Structured = "structured",
        /// As both.
        #[default]
        Both = "both",
    }
}

wire::string_enum! {
    /// The action when a result is late.
    SlaBreach {
        /// A warning is logged.
        #[default]
        Warn = "warn",
        /// An escalation is posted.
        Escalate = "escalate",
    }
}

/// `execution`, as written.
#[derive(Clone, Debug, Default)]
pub struct ExecutionFields {
    /// How long one attempt may take.
    pub timeout: Option<Spanned<Length>>,
    /// Whether an attempt may start over.
    pub idempotent: Option<Spanned<bool>>,
    /// How many attempts there are.
    pub max_attempts: Option<Spanned<u32>>,
    /// How the delay grows.
    pub backoff: Option<Spanned<Backoff>>,
    /// The first delay.
    pub delay: Option<Spanned<Length>>,
    /// The action after the last attempt fails.
    pub on_failure: Option<Spanned<OnFailure>>,
    /// Whether a later attempt gets the log of what is done.
    pub resume: Option<Spanned<bool>>,
    /// Whether `max_attempts` is written but could not be read.
    pub is_attempts_faulty: bool,
    /// Whether `idempotent` is written but could not be read.
    pub is_idempotent_faulty: bool,
    /// Whether `resume_from_execution_log` is written but could not be read.
    pub is_resume_faulty: bool,
}

impl ExecutionFields {
    /// Reads `execution` of a manifest or a process.
    pub fn from_fields(owner: &mut Fields<'_, '_, '_>) -> Self {
        let is_repeated = owner.is_repeated("execution");
        let Some(mut fields) = owner.map("execution") else {
            let is_faulty = is_repeated || owner.value("execution").is_some();
            return Self { is_idempotent_faulty: is_faulty, is_resume_faulty: is_faulty, ..Self::default() };
        };
        let mut read = Self {
            timeout: fields.duration("timeout", false),
            idempotent: fields.boolean("idempotent"),
            on_failure: fields.word("on_failure", OnFailure::NAMES),
            resume: fields.boolean("resume_from_execution_log"),
            ..Self::default()
        };
        if let Some(mut retry) = fields.map("retry") {
            read.max_attempts = retry.count("max_attempts");
            read.backoff = retry.word("backoff", Backoff::NAMES);
            read.delay = retry.duration("delay", true);
            read.is_attempts_faulty = read.max_attempts.is_none() && retry.value_of("max_attempts").is_some();
            retry.finish();
        }
        let is_faulty = |fields: &Fields<'_, '_, '_>, name: &str, is_read: bool| {
            fields.is_repeated(name) || (!is_read && fields.value_of(name).is_some())
        };
        read.is_idempotent_faulty = is_faulty(&fields, "idempotent", read.idempotent.is_some());
        read.is_resume_faulty = is_faulty(&fields, "resume_from_execution_log", read.resume.is_some());
        fields.finish();
        read
    }
}

/// The effective settings of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// How long one attempt may take; `None` means no limit.
    pub timeout: Option<Length>,
    /// Whether an attempt may start over.
    pub idempotent: bool,
    /// How many attempts there are, counting the first.
    pub max_attempts: u32,
    /// How the delay grows.
    pub backoff: Backoff,
    /// The delay before the second attempt.
    pub delay: Length,
    /// The action after the last attempt fails.
    pub on_failure: OnFailure,
    /// Whether a later attempt gets the log of what is done.
    pub resume: bool,
}

/// Returns the value of the process, or else of the package.
fn nearer_value<T: Clone>(process: Option<&Spanned<T>>, package: Option<&Spanned<T>>) -> Option<T> {
    process.or(package).map(|found| found.value.clone())
}

/// The longest delay between two attempts.
const LONGEST_DELAY: Duration = Duration::from_hours(1);

impl Execution {
    /// Returns the effective settings when a process's fields override the package's.
    pub fn resolve(package: &ExecutionFields, process: &ExecutionFields) -> Self {
        macro_rules! field {
            ($name:ident) => {
                nearer_value(process.$name.as_ref(), package.$name.as_ref())
            };
        }
        let idempotent = field!(idempotent).unwrap_or(false);
        Self {
            timeout: field!(timeout),
            idempotent,
            max_attempts: field!(max_attempts).unwrap_or(1),
            backoff: field!(backoff).unwrap_or_default(),
            delay: field!(delay).unwrap_or_else(|| Length::seconds(30)),
            on_failure: field!(on_failure).unwrap_or_default(),
            resume: !idempotent && field!(resume).unwrap_or(false),
        }
    }

    /// Returns how long to wait before the attempt after this one; attempts count from 1.
    pub fn delay_after(&self, attempt: u32) -> Duration {
        let factor = match self.backoff {
            Backoff::Fixed => 1,
            Backoff::Exponential => 1_u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX),
        };
        self.delay.length().saturating_mul(factor).min(LONGEST_DELAY.max(self.delay.length()))
    }

    /// Writes the settings as `validate --format json` prints them.
    pub fn to_json(&self) -> Json {
        let mut object = Map::new();
        if let Some(timeout) = &self.timeout {
            object.insert("timeout".to_owned(), json!(timeout.to_string()));
        }
        object.insert("idempotent".to_owned(), json!(self.idempotent));
        object.insert("on_failure".to_owned(), json!(self.on_failure.as_str()));
        object.insert("resume_from_execution_log".to_owned(), json!(self.resume));
        let retry = json!({"max_attempts": self.max_attempts, "backoff": self.backoff.as_str(), "delay": self.delay.to_string()});
        object.insert("retry".to_owned(), retry);
        Json::Object(object)
    }
}

/// The settings of processes, as a manifest or a process writes them.
#[derive(Clone, Debug, Default)]
pub struct ProcessSettings {
    /// `execution`.
    pub execution: ExecutionFields,
    /// `delivery`.
    pub delivery: DeliveryFields,
}

impl ProcessSettings {
    /// Reads the settings of a manifest, or of a process.
    pub fn from_fields(owner: &mut Fields<'_, '_, '_>, is_process: bool) -> Self {
        Self {
            execution: ExecutionFields::from_fields(owner),
            delivery: DeliveryFields::from_fields(owner, is_process),
        }
    }
}

/// `delivery`, as written.
#[derive(Clone, Debug, Default)]
pub struct DeliveryFields {
    /// The form of a result.
    pub format: Option<Spanned<Format>>,
    /// The action when it is late.
    pub sla_breach: Option<Spanned<SlaBreach>>,
    /// How long it may take, counted from the trigger; only a process has it.
    pub sla: Option<Spanned<Length>>,
}

impl DeliveryFields {
    /// Reads `delivery` of a manifest, or of a process.
    pub fn from_fields(owner: &mut Fields<'_, '_, '_>, is_process: bool) -> Self {
        let Some(mut fields) = owner.map("delivery") else { return Self::default() };
        let read = Self {
            format: fields.word("format", Format::NAMES),
            sla_breach: fields.word("sla_breach", SlaBreach::NAMES),
            sla: if is_process { fields.duration("sla", false) } else { None },
        };
        if is_process && fields.value_of("sla").is_none() {
            fields.note_idle("sla_breach", "the process has no `sla`", "write `sla`, or remove sla_breach");
        }
        fields.channel();
        fields.finish();
        read
    }
}

/// The effective settings of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The form of a result.
    pub format: Format,
    /// The action when it is late.
    pub sla_breach: SlaBreach,
    /// How long it may take; `None` means no limit.
    pub sla: Option<Length>,
}

impl Delivery {
    /// Returns the effective settings when a process's fields override the package's.
    pub fn resolve(package: &DeliveryFields, process: &DeliveryFields) -> Self {
        Self {
            format: nearer_value(process.format.as_ref(), package.format.as_ref()).unwrap_or_default(),
            sla_breach: nearer_value(process.sla_breach.as_ref(), package.sla_breach.as_ref())
                .unwrap_or_default(),
            sla: process.sla.as_ref().map(|sla| sla.value.clone()),
        }
    }

    /// Writes the settings as `validate --format json` prints them.
    pub fn to_json(&self) -> Json {
        let mut object = Map::new();
        object.insert("format".to_owned(), json!(self.format.as_str()));
        object.insert("channel".to_owned(), json!("main"));
        object.insert("sla_breach".to_owned(), json!(self.sla_breach.as_str()));
        if let Some(sla) = &self.sla {
            object.insert("sla".to_owned(), json!(sla.to_string()));
        }
        Json::Object(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_an_hour() {
        let mut execution = Execution::resolve(&ExecutionFields::default(), &ExecutionFields::default());
        let seconds =
            |execution: &Execution| [1, 2, 3, 40].map(|attempt| execution.delay_after(attempt).as_secs());
        assert_eq!(seconds(&execution), [30, 60, 120, 3_600]);
        execution.backoff = Backoff::Fixed;
        assert_eq!(seconds(&execution), [30, 30, 30, 30]);
        execution.delay = Length::seconds(7_200);
        assert_eq!(seconds(&execution), [7_200; 4], "a delay that is longer than the cap as written stays");
    }
}
