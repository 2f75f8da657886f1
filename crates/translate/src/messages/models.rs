//! Writes small answers in Anthropic's format: the list of models, one model, a count of tokens.
//!
//! Called by `server`.

use std::time::{Duration, UNIX_EPOCH};

use wire::encode_string;

/// Describes one model: its name, and its creation in seconds since 1970.
pub fn model_json(id: &str, created: u64) -> String {
    let id = encode_string(id);
    // The format ends with the year 9999.
    let created = UNIX_EPOCH + Duration::from_secs(created.min(253_402_300_799));
    let created = humantime::format_rfc3339_seconds(created);
    format!(r#"{{"type":"model","id":{id},"display_name":{id},"created_at":"{created}"}}"#)
}

/// Lists all models, on one page.
pub fn models_json(models: &[(String, u64)]) -> String {
    let data: Vec<String> = models.iter().map(|(id, created)| model_json(id, *created)).collect();
    let id =
        |model: Option<&(String, u64)>| model.map_or_else(|| "null".to_owned(), |(id, _)| encode_string(id));
    format!(
        r#"{{"data":[{}],"has_more":false,"first_id":{},"last_id":{}}}"#,
        data.join(","),
        id(models.first()),
        id(models.last()),
    )
}

/// Writes the answer of `/v1/messages/count_tokens`.
pub fn token_count_json(tokens: u64) -> String {
    format!(r#"{{"input_tokens":{tokens}}}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_models() {
        let models = [("a".to_owned(), 0), ("b\"".to_owned(), u64::MAX)];
        assert_eq!(
            models_json(&models),
            r#"{"data":[{"type":"model","id":"a","display_name":"a","created_at":"1970-01-01T00:00:00Z"},{"type":"model","id":"b\"","display_name":"b\"","created_at":"9999-12-31T23:59:59Z"}],"has_more":false,"first_id":"a","last_id":"b\""}"#
        );
        assert_eq!(models_json(&[]), r#"{"data":[],"has_more":false,"first_id":null,"last_id":null}"#);
        assert_eq!(token_count_json(7), r#"{"input_tokens":7}"#);
    }
}
