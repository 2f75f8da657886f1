//! The beginning and the end of an output of any length, in bounded memory.

use std::collections::VecDeque;

/// The most bytes that are kept of each end.
const KEPT: usize = 64 << 10;

/// An output whose middle may be missing.
#[derive(Debug, Default)]
pub(super) struct HeadAndTail {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    left_out: usize,
}

impl HeadAndTail {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(KEPT - self.head.len()));
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let surplus = self.tail.len().saturating_sub(KEPT);
        self.tail.drain(..surplus);
        self.left_out += surplus;
    }

    /// Returns the output as text; bytes that are not UTF-8 are replaced.
    pub(super) fn text(&self) -> String {
        let (mut head, mut tail) = (self.head.as_slice(), self.tail.iter().copied().collect::<Vec<u8>>());
        if self.left_out == 0 {
            return String::from_utf8_lossy(&[head, &tail].concat()).into_owned();
        }
        // A character at the cut is dropped, not shown as broken.
        if let Err(error) = std::str::from_utf8(head)
            && error.error_len().is_none()
        {
            head = &head[..error.valid_up_to()];
        }
        let start = tail.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
        tail.drain(..start);
        // `agent` shortens such a text further, and then still knows its size.
        format!(
            "{}\n[… {} of {} bytes left out here …]\n{}",
            String::from_utf8_lossy(head),
            self.left_out + (self.head.len() - head.len()) + start,
            self.left_out + self.head.len() + self.tail.len(),
            String::from_utf8_lossy(&tail)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn head_and_tail_stay(pieces in prop::collection::vec((0_usize..50_000, "[aäß€]"), 0..12)) {
            let all: String = pieces.iter().map(|(count, c)| c.repeat(*count)).collect();
            let mut kept = HeadAndTail::default();
            for (count, c) in &pieces {
                c.repeat(*count).as_bytes().chunks(7_777).for_each(|chunk| kept.push(chunk));
            }
            prop_assert!(kept.head.len() + kept.tail.len() <= 2 * KEPT);
            let text = kept.text();
            match text.split_once("\n[… ") {
                None => prop_assert_eq!(text, all),
                Some((head, rest)) => {
                    let (numbers, tail) = rest.split_once(" bytes left out here …]\n").unwrap();
                    let (count, size) = numbers.split_once(" of ").unwrap();
                    prop_assert_eq!(size.parse::<usize>().unwrap(), all.len());
                    prop_assert!(all.starts_with(head) && all.ends_with(tail));
                    prop_assert_eq!(count.parse::<usize>().unwrap(), all.len() - head.len() - tail.len());
                }
            }
        }
    }
}
