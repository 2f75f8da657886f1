//! An invocation: one execution of a process, requested by a trigger or a person, as the queue keeps it.
//! Pure.
//!
//! Triggers create invocations and queue them (`store`); `execution` reads them back. Stored
//! invocations stay readable: fields keep their names, and new ones have defaults.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use openexperts::{Parameter, TriggerSession};
use store::{DedupeKey, LaneKey, NewEntry};

/// One execution of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Invocation {
    /// The id of its entry in the queue. A task that is tried again has a new entry, but keeps this id.
    pub id: String,
    /// The expert's name, which is also the name of the queue.
    pub expert: String,
    /// The digest of the package for which it was accepted. It is executed with the package that is installed
    /// then.
    pub digest: String,
    /// The process.
    pub process: String,
    /// The event's data, as the trigger's preset has enriched it. Data, never instructions.
    #[serde(default)]
    pub payload: Json,
    /// The inputs that the trigger's `payload_mapping` found in the payload.
    #[serde(default)]
    pub mapped: Map<String, Json>,
    /// The trigger or the person that asked for it.
    pub origin: Origin,
    /// The lane in which it runs; `None`: it runs in parallel with everything else.
    #[serde(default)]
    pub lane: Option<InvocationLane>,
    /// The value of the trigger's `dedupe_key`, if it has one and the payload contains it.
    #[serde(default)]
    pub dedupe: Option<String>,
    /// When it was requested, in milliseconds since 1970: the service level counts from here.
    pub asked: u64,
    /// Problems found when it was created, such as a key that the payload lacks. For people.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The comment, for the agent, of the person who has it tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// The trigger or the person that asked for an invocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Origin {
    /// A trigger of the package.
    Trigger {
        /// Its name.
        name: String,
        /// Where the process runs: `isolated` or `main`.
        session: String,
    },
    /// A person, on the command line or over HTTP.
    Person,
}

impl Origin {
    /// Returns a trigger that fired.
    pub fn trigger(name: &str, session: TriggerSession) -> Self {
        Self::Trigger { name: name.to_owned(), session: session.as_str().to_owned() }
    }

    /// Returns true if it belongs to the main session rather than to one of its own.
    pub fn is_main_session(&self) -> bool {
        matches!(self, Self::Trigger { session, .. } if session == TriggerSession::Main.as_str())
    }

    /// Returns the trigger's name, if it was one.
    pub fn trigger_name(&self) -> Option<&str> {
        match self {
            Self::Trigger { name, .. } => Some(name),
            Self::Person => None,
        }
    }
}

/// The lane of an invocation; invocations of one expert in the same lane run one at a time, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum InvocationLane {
    /// The one lane of a trigger.
    Serial {
        /// The trigger.
        trigger: String,
    },
    /// The lane of a key's value. It spans all triggers of the expert that name the same key.
    Key {
        /// The key's path.
        path: String,
        /// Its value.
        value: String,
    },
}

impl InvocationLane {
    /// Returns its name in the queue.
    pub fn key(&self) -> LaneKey {
        match self {
            Self::Serial { trigger } => LaneKey::serial(trigger),
            Self::Key { path, value } => LaneKey::per_key(path, value),
        }
    }
}

impl Invocation {
    /// Returns the queue entry for it. For as long as it is `remembered`, another event with the same dedupe
    /// value is a duplicate.
    pub fn into_entry(self, remembered: Duration) -> NewEntry {
        let dedupe = self.dedupe.as_ref().map(|value| {
            let trigger = self.origin.trigger_name().unwrap_or_default();
            (DedupeKey::new(&self.expert, trigger, value), remembered)
        });
        NewEntry {
            id: self.id.clone(),
            queue: self.expert.clone(),
            lane: self.lane.as_ref().map(InvocationLane::key),
            delay: Duration::ZERO,
            payload: serde_json::to_string(&self).unwrap_or_default(),
            dedupe,
            clock: None,
        }
    }

    /// Reads the payload of an entry.
    ///
    /// # Errors
    /// When it is not an invocation.
    pub fn read(payload: &str) -> serde_json::Result<Self> {
        serde_json::from_str(payload)
    }

    /// Returns the inputs of the process: the mapped value, or else the payload's field of that name. An
    /// input found in neither is null, and its name is in the second list. A process that declares no inputs
    /// gets the whole payload.
    pub fn inputs(&self, declared: &[Parameter]) -> (Json, Vec<String>) {
        if declared.is_empty() {
            return (self.payload.clone(), Vec::new());
        }
        let mut absent = Vec::new();
        let value = |name: &str| {
            let found = self.mapped.get(name).or_else(|| self.payload.get(name));
            found.filter(|value| !value.is_null()).cloned()
        };
        let inputs = declared.iter().map(|parameter| {
            let name = &parameter.name;
            let value = value(name).unwrap_or_else(|| {
                absent.push(name.clone());
                Json::Null
            });
            (name.clone(), value)
        });
        let inputs = Json::Object(inputs.collect());
        (inputs, absent)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn invocation() -> Invocation {
        Invocation {
            id: "inv-1".into(),
            expert: "sales".into(),
            digest: "d1".into(),
            process: "triage".into(),
            payload: json!({"messages": [{"id": "m1"}], "contact_id": "a@b.c", "nothing": null}),
            mapped: Map::from_iter([("message_id".to_owned(), json!("m1"))]),
            origin: Origin::trigger("new_email", TriggerSession::Isolated),
            lane: Some(InvocationLane::Key { path: "contact_id".into(), value: "a@b.c".into() }),
            dedupe: Some("m1".into()),
            asked: 1_000,
            warnings: Vec::new(),
            comment: None,
        }
    }

    #[test]
    fn invocations_survive_the_queue() {
        let entry = invocation().into_entry(Duration::from_secs(9));
        assert_eq!(entry.queue, "sales");
        assert_eq!(entry.lane, Some(LaneKey::per_key("contact_id", "a@b.c")));
        assert_eq!(entry.dedupe, Some((DedupeKey::new("sales", "new_email", "m1"), Duration::from_secs(9))));
        assert_eq!(Invocation::read(&entry.payload).unwrap(), invocation());
    }

    #[test]
    fn stored_invocations_stay_readable() {
        let stored = r#"{"id":"i","expert":"e","digest":"d","process":"p","origin":{"by":"trigger","name":"t","session":"main"},"asked":7}"#;
        let read = Invocation::read(stored).unwrap();
        assert_eq!((read.payload, read.lane, read.origin.trigger_name()), (Json::Null, None, Some("t")));
        assert!(Invocation::read("{}").is_err());
    }

    #[test]
    fn inputs_fall_back_to_payload_and_null() {
        let parameter = |name: &str| Parameter { name: name.to_owned(), ..Parameter::default() };
        let (inputs, absent) =
            invocation().inputs(&[parameter("message_id"), parameter("contact_id"), parameter("nothing")]);
        assert_eq!(inputs, json!({"message_id": "m1", "contact_id": "a@b.c", "nothing": null}));
        assert_eq!(absent, ["nothing"]);
        assert_eq!(invocation().inputs(&[]).0, invocation().payload);
    }
}
