//! The list of earlier conversations: the chosen number, and how long ago they were. Pure.

/// Reads the number of a list that a person wrote; `None` for an empty line.
pub(super) fn chosen_index(line: &str, count: usize) -> Result<Option<usize>, String> {
    let line = line.trim();
    if line.is_empty() {
        return Ok(None);
    }
    let number = line.parse::<usize>().ok().filter(|number| (1..=count).contains(number));
    let wrong = || format!("`{line}` is not a number from 1 to {count}");
    number.map(|number| Some(number - 1)).ok_or_else(wrong)
}

/// Formats how long ago something was.
pub(super) fn format_age(millis: u64) -> String {
    match millis / 60_000 {
        0 => "just now".to_owned(),
        minutes @ 1..60 => format!("{minutes} min ago"),
        minutes @ 60..2_880 => format!("{} h ago", minutes / 60),
        minutes => format!("{} days ago", minutes / 1_440),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_the_list_is_chosen() {
        assert_eq!(chosen_index("\n", 3), Ok(None));
        assert_eq!(chosen_index(" 3\n", 3), Ok(Some(2)));
        for wrong in ["0", "4", "x"] {
            assert!(chosen_index(wrong, 3).unwrap_err().contains("from 1 to 3"));
        }
        let ages = [0, 59, 60, 47 * 60, 48 * 60].map(|minutes| format_age(minutes * 60_000));
        assert_eq!(ages, ["just now", "59 min ago", "1 h ago", "47 h ago", "2 days ago"]);
    }
}
