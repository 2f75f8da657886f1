//! Headers that do not simply pass between a client and a model server.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// The header that counts the respools that a request has come through.
pub(super) static HOPS: HeaderName = HeaderName::from_static("x-respool-hops");

/// Returns how many respools a request has come through.
pub fn hop_count(headers: &HeaderMap) -> u32 {
    let hops = headers.get(&HOPS).and_then(|hops| hops.to_str().ok());
    hops.and_then(|hops| hops.parse().ok()).unwrap_or_default()
}

/// Returns the number of respools that the request of these headers will have come through at the next
/// server.
pub(super) fn next_hop(headers: &HeaderMap) -> HeaderValue {
    match hop_count(headers) {
        0 => HeaderValue::from_static("1"),
        hops => HeaderValue::from(hops.saturating_add(1)),
    }
}

/// Returns the headers of a question of respool's own that a client's request leads to: nothing of the
/// client's but its key, and the number of respools that the request has come through.
pub fn question_headers(headers: &HeaderMap) -> HeaderMap {
    let kept = [header::AUTHORIZATION, HOPS.clone()];
    kept.into_iter().filter_map(|name| headers.get(&name).cloned().map(|value| (name, value))).collect()
}

/// Returns true for a header that belongs to one connection, not to the message (RFC 9110, section 7.6.1).
pub(super) fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Removes the headers of the one connection, and those that `connection` names.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    remove_headers(headers, |name| is_hop_by_hop(name) || named.iter().any(|named| named == name));
}

/// Removes the headers with these names. Most messages have none: a look at all names is cheaper than the
/// removal of one that is not there.
pub(super) fn remove_headers(headers: &mut HeaderMap, is_unwanted: impl Fn(&str) -> bool) {
    let unwanted: Vec<HeaderName> =
        headers.keys().filter(|name| is_unwanted(name.as_str())).cloned().collect();
    for name in unwanted {
        headers.remove(name);
    }
}

/// Corrects the length that the headers state, if they state one. A body whose length is not stated gets the
/// header from hyper.
pub(super) fn correct_length(headers: &mut HeaderMap, length: Option<u64>) {
    let Some(stated) = headers.get_mut(header::CONTENT_LENGTH) else { return };
    match length {
        Some(length) if stated.to_str().is_ok_and(|text| text.parse() == Ok(length)) => {}
        Some(length) => *stated = length.into(),
        None => {
            headers.remove(header::CONTENT_LENGTH);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stated_length_is_the_bodys() {
        let check = |stated: Option<&'static str>, length, expected: Option<&str>| {
            let headers = stated.map(|stated| (header::CONTENT_LENGTH, HeaderValue::from_static(stated)));
            let mut headers: HeaderMap = headers.into_iter().collect();
            correct_length(&mut headers, length);
            let left = headers.get(header::CONTENT_LENGTH).map(|length| length.to_str().unwrap());
            assert_eq!(left, expected, "{stated:?} {length:?}");
        };
        check(Some("12"), Some(12), Some("12"));
        check(Some("12"), Some(7), Some("7"));
        check(Some("twelve"), Some(12), Some("12"));
        check(Some("12"), None, None);
        check(None, Some(12), None);
    }
}
