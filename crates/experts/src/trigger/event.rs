//! Turns an event of a trigger into the invocation that is queued for it: the event is enriched first, then
//! its dedupe key, mapped inputs and lane are determined. Pure.
//!
//! Keys are looked up in the enriched payload, then among the mapped inputs. An event with a missing key is
//! never lost: it runs, with a warning.

use serde_json::{Map, Value};

use super::gmail;
use super::payload_error::PayloadError;
use crate::invocation::{Invocation, InvocationLane, Origin};
use openexperts::{
    Concurrency, Lane, Manifest, Package, Parameter, Trigger, TriggerSession, outputs,
    payload::{find_value, key_text},
};

/// The name of the only preset.
const GMAIL: &str = "gmail";

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The id of the entry created for it.
    pub id: String,
    /// Its data, enriched.
    pub payload: Value,
    /// The identity of its delivery if the trigger has no key for that: the id of a signed message, or the
    /// time of a clock.
    pub delivery: Option<String>,
    /// When it arrived, in milliseconds since 1970.
    pub at: u64,
}

/// Returns why a trigger never fires, whatever arrives.
pub fn why_off(trigger: &Trigger) -> Option<String> {
    let preset = trigger.preset.as_ref().filter(|preset| preset.value != GMAIL)?;
    Some(format!("there is no preset \"{}\"", preset.value))
}

/// Returns the payloads of the events in a request, enriched by the trigger's preset.
///
/// # Errors
/// When the payload has another form than the trigger accepts.
pub fn events_of(trigger: &Trigger, payload: Value) -> Result<Vec<Value>, PayloadError> {
    if trigger.preset.is_some() {
        return gmail::split_mails(payload);
    }
    match payload {
        Value::Object(_) | Value::Array(_) => Ok(vec![payload]),
        _ => Err(PayloadError::NotStructured),
    }
}

/// Returns the invocation that an event requests. `digest`: that of the package.
pub fn invocation(package: &Package, digest: &str, trigger: &Trigger, event: Event) -> Invocation {
    let mut invocation = invocation_of(&package.manifest, digest, trigger, event);
    if let Some(process) = package.process(&trigger.process.value) {
        let warnings = input_warnings(&invocation, trigger, &process.inputs.items);
        invocation.warnings.extend(warnings);
    }
    invocation
}

/// Names the inputs of a process to which an event gives no value, or one of another type.
fn input_warnings(invocation: &Invocation, trigger: &Trigger, declared: &[Parameter]) -> Vec<String> {
    let (inputs, absent) = invocation.inputs(declared);
    // A warning names the place of a mapped input already.
    let is_mapped = |input: &String| trigger.mapping.iter().any(|(mapped, _)| mapped.value == *input);
    let absent =
        absent.into_iter().filter(|input| !is_mapped(input) || invocation.mapped.contains_key(input));
    let absent = absent.map(|input| format!("the payload has no value for the input `{input}`"));
    absent.chain(outputs::describe_misfits(declared, &inputs)).collect()
}

fn invocation_of(manifest: &Manifest, digest: &str, trigger: &Trigger, event: Event) -> Invocation {
    let mut warnings = Vec::new();
    let mapped = mapped_inputs(trigger, &event.payload, &mut warnings);
    let keys = Keys { payload: &event.payload, mapped: &mapped };
    let lane = choose_lane(manifest, trigger, &keys, &mut warnings);
    let dedupe = dedupe_value(trigger, &keys, event.delivery, &mut warnings);
    Invocation {
        id: event.id,
        expert: manifest.name.value.clone(),
        digest: digest.to_owned(),
        process: trigger.process.value.clone(),
        mapped,
        origin: Origin::trigger(&trigger.name.value, trigger.session),
        lane,
        dedupe,
        asked: event.at,
        payload: event.payload,
        warnings,
        comment: None,
    }
}

/// The facts about an event that a person who takes over needs first, and where payloads have them.
const FACTS: [(&str, &[&str]); 4] = [
    ("sender", &["sender_id", "messages[0].from", "sender", "from"]),
    ("contact", &["contact_id", "contact"]),
    ("deal", &["deal_id", "deal"]),
    ("subject", &["messages[0].subject", "subject"]),
];

/// Returns the facts about an invocation's event for a message to people: who sent it and whom it concerns,
/// if the payload or the mapped inputs say so, both of them whole, and what they lack.
pub(crate) fn event_facts(invocation: &Invocation) -> Map<String, Value> {
    let keys = Keys { payload: &invocation.payload, mapped: &invocation.mapped };
    let fact = |(name, paths): &(&str, &[&str])| {
        let found = paths.iter().find_map(|path| keys.text_at(path));
        found.map(|text| ((*name).to_owned(), Value::String(text)))
    };
    let mut facts: Map<String, Value> = FACTS.iter().filter_map(fact).collect();
    facts.insert("mapped_inputs".to_owned(), Value::Object(invocation.mapped.clone()));
    facts.insert("payload".to_owned(), invocation.payload.clone());
    if !invocation.warnings.is_empty() {
        facts.insert("warnings".to_owned(), invocation.warnings.clone().into());
    }
    facts
}

/// Where keys are looked up.
struct Keys<'a> {
    payload: &'a Value,
    mapped: &'a Map<String, Value>,
}

impl Keys<'_> {
    fn text_at(&self, path: &str) -> Option<String> {
        let in_payload = find_value(self.payload, path).and_then(key_text);
        in_payload.or_else(|| self.mapped.get(path).and_then(key_text))
    }
}

fn mapped_inputs(trigger: &Trigger, payload: &Value, warnings: &mut Vec<String>) -> Map<String, Value> {
    let mut inputs = Map::new();
    for (input, path) in &trigger.mapping {
        match find_value(payload, path) {
            Some(value) => drop(inputs.insert(input.value.clone(), value.clone())),
            None => {
                warnings.push(format!("the payload has nothing at `{path}` for the input `{}`", input.value));
            }
        }
    }
    inputs
}

/// Returns the lane of an invocation that a person asks for: that of the first trigger of its process, whose
/// events do not run at the same time.
pub(crate) fn lane_of_person(manifest: &Manifest, process: &str, payload: &Value) -> Option<InvocationLane> {
    let trigger = manifest.triggers.items.iter().find(|trigger| trigger.process.value == process)?;
    let mapped = mapped_inputs(trigger, payload, &mut Vec::new());
    choose_lane(manifest, trigger, &Keys { payload, mapped: &mapped }, &mut Vec::new())
}

fn choose_lane(
    manifest: &Manifest,
    trigger: &Trigger,
    keys: &Keys<'_>,
    warnings: &mut Vec<String>,
) -> Option<InvocationLane> {
    let serial = InvocationLane::Serial { trigger: trigger.name.value.clone() };
    // A mode that cannot be read is an error of the package; if one gets here, serial execution is the safe
    // choice.
    let Some(Lane { mode, key }) = Lane::from_trigger(trigger, manifest) else { return Some(serial) };
    match mode {
        // Invocations that share a session run one after another. No trigger has a name with a space.
        Concurrency::Parallel if trigger.session == TriggerSession::Main => {
            Some(InvocationLane::Serial { trigger: "main session".to_owned() })
        }
        Concurrency::Parallel => None,
        Concurrency::Serial => Some(serial),
        Concurrency::SerialPerKey => {
            let path = key.unwrap_or_default();
            if let Some(value) = keys.text_at(&path) {
                return Some(InvocationLane::Key { path, value });
            }
            warnings.push(format!(
                "the payload has no `{path}`, the key of its lane: it is executed in sequence with all events of `{}`",
                trigger.name.value
            ));
            Some(serial)
        }
    }
}

fn dedupe_value(
    trigger: &Trigger,
    keys: &Keys<'_>,
    delivery: Option<String>,
    warnings: &mut Vec<String>,
) -> Option<String> {
    let found = trigger.dedupe_key.path.as_ref().and_then(|path| {
        let value = keys.text_at(&path.value);
        if value.is_none() && delivery.is_none() {
            let path = &path.value;
            warnings.push(format!("the payload has no `{path}`, so it is not known whether it came before"));
        }
        value
    });
    // A value of the payload cannot imitate a delivery id, or vice versa.
    found.map(|value| format!("key:{value}")).or_else(|| delivery.map(|id| format!("delivery:{id}")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::trigger::tests::manifest;

    #[test]
    fn lanes_can_use_the_clocks_time() {
        let package = manifest(
            "\n  - {name: daily, type: cron, expr: '0 8 * * *', process: scan, concurrency: serial_per_key, concurrency_key: scheduled_at}",
        );
        let payload = json!({"scheduled_at": "2026-11-20T08:00:00Z", "fired_at": "2026-11-20T08:00:01Z"});
        let event = Event { id: "i".into(), payload, delivery: None, at: 0 };
        let invocation = invocation_of(&package, "d", &package.triggers.items[0], event);
        let expected =
            InvocationLane::Key { path: "scheduled_at".into(), value: "2026-11-20T08:00:00Z".into() };
        assert_eq!((invocation.lane, invocation.warnings.len()), (Some(expected), 0));
    }

    #[test]
    fn event_facts_name_sender_and_contact() {
        let facts = |payload: Value, mapped: Value| {
            let Value::Object(mapped) = mapped else { panic!("{mapped}") };
            let event = Event { id: "i".into(), payload, delivery: None, at: 0 };
            let package = manifest(MAIL);
            let invocation = invocation_of(&package, "d", &package.triggers.items[0], event);
            event_facts(&Invocation { mapped, ..invocation })
        };
        let mail =
            json!({"sender_id": "sarah@acme.example", "messages": [{"subject": "Offer", "from": "Sarah"}]});
        let found = facts(mail.clone(), json!({"deal_id": 7}));
        assert_eq!((&found["sender"], &found["deal"]), (&json!("sarah@acme.example"), &json!("7")));
        assert_eq!((&found["subject"], &found["payload"]), (&json!("Offer"), &mail));
        assert_eq!(found["mapped_inputs"], json!({"deal_id": 7}));
        assert!(!facts(json!({"x": 1}), json!({})).contains_key("sender"));
    }

    const MAIL: &str = "
  - name: new_email
    type: webhook
    preset: gmail
    process: triage
    dedupe_key: message_id
    concurrency: serial_per_key
    concurrency_key: contact_id
    payload_mapping: {message_id: 'messages[0].id', subject: 'messages[0].subject'}
  - name: call
    type: webhook
    process: triage
    concurrency: serial_per_key
    concurrency_key: contact_id
    dedupe_key: call_id
    payload_mapping: {contact_id: caller.mail}
  - name: scan
    type: cron
    expr: '0 8 * * *'
    process: scan
    concurrency: serial
  - name: note
    type: webhook
    process: scan";

    fn of(trigger: &str, payload: Value) -> Invocation {
        let manifest = manifest(MAIL);
        let trigger = manifest.triggers.items.iter().find(|one| one.name.value == trigger).unwrap();
        let event = Event { id: "e1".into(), payload, delivery: None, at: 7 };
        invocation_of(&manifest, "d1", trigger, event)
    }

    fn enriched(letter: &Value) -> Value {
        gmail::split_mails(json!({"messages": [letter]})).unwrap().remove(0)
    }

    /// The example in the loader design: the payload as received has neither key.
    #[test]
    fn mails_have_key_inputs_and_lane() {
        let found = of("new_email", enriched(&json!({"id": "m1", "from": "Jo <Jo@x.org>", "subject": "Hi"})));
        assert_eq!(found.dedupe.as_deref(), Some("key:m1"));
        assert_eq!(
            found.lane,
            Some(InvocationLane::Key { path: "contact_id".into(), value: "jo@x.org".into() })
        );
        assert_eq!(Value::Object(found.mapped), json!({"message_id": "m1", "subject": "Hi"}));
        assert_eq!(
            (found.expert.as_str(), found.process.as_str(), found.digest.as_str()),
            ("sales", "triage", "d1")
        );
        assert_eq!(
            (found.origin.trigger_name(), found.asked, found.id.as_str()),
            (Some("new_email"), 7, "e1")
        );
        assert!(found.warnings.is_empty(), "{:?}", found.warnings);
    }

    /// Wrong types ran silently, and a missing input was logged twice.
    #[test]
    fn inputs_without_a_fitting_value_are_named_once() {
        let manifest = manifest(MAIL);
        let declared = ["message_id", "subject", "note"].map(|name| Parameter {
            name: name.into(),
            kind: "string".into(),
            ..Parameter::default()
        });
        let warnings = |letter: Value| {
            let payload = gmail::split_mails(json!({"messages": [letter]})).unwrap().remove(0);
            let event = Event { id: "e".into(), payload, delivery: None, at: 7 };
            let trigger = &manifest.triggers.items[0];
            let invocation = invocation_of(&manifest, "d", trigger, event);
            [invocation.warnings.clone(), input_warnings(&invocation, trigger, &declared)].concat()
        };
        let expected = [
            "the payload has nothing at `messages[0].subject` for the input `subject`",
            "the payload has no value for the input `note`",
        ];
        assert_eq!(warnings(json!({"id": "m1", "from": "jo@x.org"})), expected);
        let expected = [
            "the payload has no value for the input `note`",
            "the input `subject` must be of type string, but the payload has a number",
        ];
        assert_eq!(warnings(json!({"id": "m1", "from": "jo@x.org", "subject": 5})), expected);
    }

    #[test]
    fn lanes_span_triggers_with_one_key() {
        let mail = of("new_email", enriched(&json!({"id": "m1", "from": "jo@x.org", "subject": ""})));
        let call = of("call", json!({"call_id": 5, "caller": {"mail": "jo@x.org"}}));
        assert_eq!(mail.lane, call.lane, "the key of the second one is among its mapped inputs");
        assert_eq!(call.dedupe.as_deref(), Some("key:5"));
    }

    /// Regression: a process that a person ran rewrote the same file as an event of its serial trigger.
    #[test]
    fn people_share_the_lanes_of_triggers() {
        let package = manifest(MAIL);
        let lane = |process: &str, payload: Value| lane_of_person(&package, process, &payload);
        assert_eq!(lane("scan", json!({})), of("scan", json!({})).lane);
        let contact = json!({"contact_id": "jo@x.org"});
        let key = InvocationLane::Key { path: "contact_id".into(), value: "jo@x.org".into() };
        assert_eq!(lane("triage", contact), Some(key));
        assert_eq!(lane("unknown", json!({})), None);
    }

    #[test]
    fn missing_keys_fall_back_with_a_warning() {
        let found = of("new_email", enriched(&json!({"from": "no address"})));
        assert_eq!(found.lane, Some(InvocationLane::Serial { trigger: "new_email".into() }));
        assert_eq!(found.dedupe, None, "an event without its key is not lost");
        assert_eq!(found.warnings.len(), 4, "{:?}", found.warnings);
    }

    #[test]
    fn the_other_modes() {
        assert_eq!(of("note", json!({})).lane, None);
        assert_eq!(of("scan", json!({})).lane, Some(InvocationLane::Serial { trigger: "scan".into() }));
    }

    #[test]
    fn delivery_ids_distinguish_events_without_keys() {
        let manifest = manifest(MAIL);
        let with = |trigger: usize, payload: Value| {
            let event = Event { id: "e".into(), payload, delivery: Some("msg_1".into()), at: 0 };
            let found = invocation_of(&manifest, "d", &manifest.triggers.items[trigger], event);
            let is_doubted = found.warnings.iter().any(|warning| warning.contains("whether it came before"));
            assert!(!is_doubted, "its delivery has an id: {:?}", found.warnings);
            found.dedupe
        };
        assert_eq!(with(3, json!({})).as_deref(), Some("delivery:msg_1"));
        assert_eq!(with(1, json!({"call_id": "c"})).as_deref(), Some("key:c"));
        assert_eq!(with(1, json!({"call_id": "delivery:msg_1"})).as_deref(), Some("key:delivery:msg_1"));
    }

    #[test]
    fn the_form_of_payloads() {
        let manifest = manifest(MAIL);
        let triggers = &manifest.triggers.items;
        assert_eq!(events_of(&triggers[3], json!({"a": 1})), Ok(vec![json!({"a": 1})]));
        assert_eq!(events_of(&triggers[3], json!([1])).unwrap().len(), 1);
        assert!(events_of(&triggers[3], json!("text")).is_err());
        assert!(events_of(&triggers[0], json!({"a": 1})).is_err());
        assert_eq!(events_of(&triggers[0], json!({"messages": [{}, {}]})).unwrap().len(), 2);
        assert!(triggers.iter().all(|trigger| why_off(trigger).is_none()));
    }

    fn scalar() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[ a-c:0-9]{0,4}".prop_map(Value::from),
        ]
    }

    proptest! {
        /// Two events share a lane exactly if they have the same key, whichever trigger received them, or,
        /// without a key, the same trigger.
        #[test]
        fn equal_keys_share_a_lane(first in scalar(), second in scalar(), same_trigger in any::<bool>()) {
            let by_call = |key: &Value| of("call", json!({"caller": {"mail": key}}));
            let by_mail = |key: &Value| of("new_email", json!({"contact_id": key}));
            let other = if same_trigger { by_call(&second) } else { by_mail(&second) };
            let one = by_call(&first);
            let expected = match (key_text(&first), key_text(&second)) {
                (None, None) => same_trigger,
                (first, second) => first == second,
            };
            prop_assert_eq!(one.lane == other.lane, expected);
            prop_assert!(one.lane.is_some() && other.lane.is_some(), "order was promised");
            let keys = (one.lane.unwrap().key(), other.lane.unwrap().key());
            prop_assert_eq!(keys.0 == keys.1, expected, "as the queue has them");
        }
    }
}
