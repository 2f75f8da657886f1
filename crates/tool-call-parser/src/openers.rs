//! Finds the dialects whose marks may begin at a place by a few bytes, so that most places cost next to
//! nothing.
//!
//! Built once from the table of dialects. The scanner knows nothing else about them: a new row works with any
//! marks. Used by the scanner.

use std::sync::LazyLock;

use memchr::{memchr, memchr2, memchr3};

use super::dialects::{Dialect, Opens, TABLE, TagForm};

/// Up to this distance, in bytes, a loop is quicker than a search.
const NEAR: usize = 16;
/// The length of text that is searched for triggers at a time, in bytes.
const WINDOW: usize = 256;
/// The scanner's own trigger bytes: a new line, and code.
const OWN: [u8; 2] = [b'\n', b'`'];

#[derive(Debug)]
pub(super) struct Opener {
    pub(super) mark: &'static str,
    /// The mark's first eight bytes, with a mask of those that it has.
    word: u64,
    mask: u64,
    pub(super) line: bool,
    /// The form of the tag that the mark begins.
    form: Option<TagForm>,
    pub(super) dialect: &'static Dialect,
    /// The dialect's place in the table.
    pub(super) index: usize,
}

impl Opener {
    fn new(mark: &'static str, line: bool, index: usize, dialect: &'static Dialect) -> Self {
        let mut bytes = [[0; 8]; 2];
        for (index, byte) in mark.bytes().take(8).enumerate() {
            (bytes[0][index], bytes[1][index]) = (byte, u8::MAX);
        }
        let [word, mask] = bytes.map(u64::from_le_bytes);
        Self { mark, word, mask, line, form: None, dialect, index }
    }

    /// Returns true if the text begins with the mark, or is a beginning of it. One comparison decides most
    /// cases.
    pub(super) fn may_begin(&self, text: &[u8]) -> bool {
        if let Some(form) = self.form {
            return form.may_begin(text);
        }
        if let Some(head) = text.first_chunk::<8>()
            && u64::from_le_bytes(*head) & self.mask != self.word
        {
            return false;
        }
        let mark = self.mark.as_bytes();
        let length = mark.len().min(text.len());
        length <= 8 && text.len() >= 8 || mark[..length] == text[..length]
    }
}

/// The marks of a table of dialects.
#[derive(Debug)]
pub(super) struct Openers {
    /// The openers by their first byte, in the table's order.
    lists: Vec<Vec<Opener>>,
    prefixes: Vec<Prefixes>,
    /// The late marks by the byte at which they are found.
    late: Vec<Vec<LateMark>>,
    /// The bytes before that byte, by the first of them.
    beginnings: Vec<Vec<&'static [u8]>>,
    triggers: Triggers,
}

/// A mark in running text that is found by a byte inside it, because its first byte is too common.
#[derive(Clone, Copy, Debug)]
struct LateMark {
    mark: &'static [u8],
    /// The place of that byte in the mark: never the first.
    pivot: usize,
}

impl LateMark {
    /// Returns true if the text ends with the mark up to its pivot. Two bytes decide most cases.
    fn ends_text(&self, text: &[u8]) -> bool {
        text.len() > self.pivot
            && text[text.len() - 2] == self.mark[self.pivot - 1]
            && text[text.len() - 1 - self.pivot] == self.mark[0]
            && text.ends_with(&self.mark[..=self.pivot])
    }
}

/// The openers of all dialects.
pub(super) static OPENERS: LazyLock<Openers> = LazyLock::new(|| Openers::new(TABLE));

impl Openers {
    pub(super) fn new(table: &[&'static Dialect]) -> Self {
        let mut lists: Vec<Vec<Opener>> = (0..256).map(|_| Vec::new()).collect();
        let mut running = Vec::new();
        for (index, dialect) in table.iter().copied().enumerate() {
            let (marks, line) = match dialect.opens {
                Opens::Anywhere(marks) => (marks, false),
                Opens::Line(marks) => (marks, true),
                Opens::Tag(form) => {
                    let opener = Opener::new("<", form == TagForm::Name, index, dialect);
                    lists[usize::from(b'<')].push(Opener { form: Some(form), ..opener });
                    continue;
                }
                Opens::Name => {
                    lists.iter_mut().for_each(|list| list.push(Opener::new("", true, index, dialect)));
                    continue;
                }
            };
            for mark in marks {
                lists[usize::from(mark.as_bytes()[0])].push(Opener::new(mark, line, index, dialect));
                running.extend((!line).then_some(*mark));
            }
        }
        let prefixes = lists.iter().map(|openers| Prefixes::new(openers)).collect();
        let (triggers, found) = Triggers::new(&running);
        let (mut late, mut beginnings) = (vec![Vec::new(); 256], vec![Vec::new(); 256]);
        for mark in found {
            late[usize::from(mark.mark[mark.pivot])].push(mark);
            beginnings[usize::from(mark.mark[0])].push(&mark.mark[..mark.pivot]);
        }
        Self { lists, prefixes, late, beginnings, triggers }
    }

    /// Returns the openers whose mark begins with this byte.
    pub(super) fn openers_for(&self, first: u8) -> &[Opener] {
        &self.lists[usize::from(first)]
    }

    /// Returns the places in that list of the openers that may begin this text.
    pub(super) fn candidate_places(&self, text: &[u8]) -> &[usize] {
        self.prefixes[usize::from(text[0])].candidates(text)
    }

    /// Returns true if a mark of running text begins these bytes, or is longer than them and begins like
    /// them.
    pub(super) fn may_begin(&self, bytes: &[u8]) -> bool {
        let list = self.openers_for(bytes[0]);
        self.candidate_places(bytes).iter().any(|place| !list[*place].line && list[*place].may_begin(bytes))
    }

    /// Finds the first byte at which a mark may begin.
    pub(super) fn next_trigger(&self, bytes: &[u8]) -> Option<usize> {
        self.triggers.find(bytes)
    }

    /// Returns the length of the part before `at` of the longest late mark with its pivot there. `text` is
    /// all that may belong to it.
    pub(super) fn late_before(&self, text: &[u8], at: usize) -> Option<usize> {
        let late = &self.late[usize::from(text[at])];
        late.iter().filter(|late| late.ends_text(&text[..=at])).map(|late| late.pivot).max()
    }

    /// Returns the length of the suffix that may become a late mark whose pivot has not come yet.
    pub(super) fn partial_late(&self, tail: &[u8]) -> usize {
        let mut suffix = &tail[tail.len() - self.triggers.reach.min(tail.len())..];
        let pairs = &self.triggers.late_pairs;
        while let Some(at) = suffix.iter().position(|byte| pairs.firsts[usize::from(*byte)]) {
            suffix = &suffix[at..];
            let begins = |late: &&[u8]| late.starts_with(suffix);
            if pairs.may_begin(suffix) && self.beginnings[usize::from(suffix[0])].iter().any(begins) {
                return suffix.len();
            }
            suffix = &suffix[1..];
        }
        0
    }
}

/// The bytes to search for.
#[derive(Debug)]
struct Triggers {
    bytes: Vec<u8>,
    is_trigger: [bool; 256],
    late_pairs: Pairs,
    /// The farthest place of a late mark's pivot.
    reach: usize,
}

impl Triggers {
    /// Chooses the trigger bytes. A mark that begins with a letter or digit, or with a unique byte, is found
    /// by a later byte if it has a suitable one.
    fn new(marks: &[&'static str]) -> (Self, Vec<LateMark>) {
        let mut found =
            Self { bytes: Vec::new(), is_trigger: [false; 256], late_pairs: Pairs::default(), reach: 0 };
        OWN.into_iter().for_each(|byte| found.add(byte));
        let shared = |first: u8| marks.iter().filter(|mark| mark.as_bytes()[0] == first).count() > 1;
        let is_early = |mark: &str| {
            let first = mark.as_bytes()[0];
            !first.is_ascii_alphanumeric() && (shared(first) || mark.len() == 1)
        };
        let (early, rest): (Vec<&str>, Vec<&str>) = marks.iter().partition(|mark| is_early(mark));
        early.iter().for_each(|mark| found.add(mark.as_bytes()[0]));
        let late = rest.into_iter().filter_map(|mark| found.late_mark(mark)).collect();
        (found, late)
    }

    fn add(&mut self, byte: u8) {
        if !std::mem::replace(&mut self.is_trigger[usize::from(byte)], true) {
            self.bytes.push(byte);
        }
    }

    /// Chooses the byte by which a mark is found; `None` for its first byte.
    fn late_mark(&mut self, mark: &'static str) -> Option<LateMark> {
        let bytes = mark.as_bytes();
        let known = bytes.iter().position(|byte| self.is_trigger[usize::from(*byte)]);
        let rare = || bytes.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b' ');
        let pivot = known.or_else(rare).unwrap_or(0);
        self.add(bytes[pivot]);
        if pivot == 0 {
            return None;
        }
        self.late_pairs.add(&bytes[..pivot]);
        self.reach = self.reach.max(pivot);
        Some(LateMark { mark: bytes, pivot })
    }

    /// Finds the first trigger. It compares the nearest bytes one by one, and then searches window by window,
    /// so that two searches do not pass over the same text again and again.
    fn find(&self, bytes: &[u8]) -> Option<usize> {
        let (near, far) = bytes.split_at(bytes.len().min(NEAR));
        let here = near.iter().position(|byte| self.is_trigger[usize::from(*byte)]);
        here.or_else(|| self.find_far(far).map(|at| near.len() + at))
    }

    fn find_far(&self, bytes: &[u8]) -> Option<usize> {
        for (index, window) in bytes.chunks(WINDOW).enumerate() {
            let mut best = None;
            for group in self.bytes.chunks(3) {
                let window = &window[..best.unwrap_or(window.len())];
                let found = match *group {
                    [one, two, three] => memchr3(one, two, three, window),
                    [one, two] => memchr2(one, two, window),
                    [one] => memchr(one, window),
                    _ => None,
                };
                best = found.or(best);
            }
            if let Some(at) = best {
                return Some(index * WINDOW + at);
            }
        }
        None
    }
}

/// The first and second bytes of a set of texts, which distinguish most places.
#[derive(Debug)]
struct Pairs {
    firsts: [bool; 256],
    /// A bit for each second byte, by the first one.
    seconds: Vec<[u64; 4]>,
}

impl Default for Pairs {
    fn default() -> Self {
        Self { firsts: [false; 256], seconds: vec![[0; 4]; 256] }
    }
}

impl Pairs {
    fn add(&mut self, text: &[u8]) {
        let first = usize::from(text[0]);
        self.firsts[first] = true;
        if let Some(second) = text.get(1) {
            self.seconds[first][usize::from(second / 64)] |= 1 << (second % 64);
        }
    }

    /// Returns true if one of the texts may begin like this text, which may be incomplete.
    fn may_begin(&self, text: &[u8]) -> bool {
        let first = usize::from(text[0]);
        self.firsts[first]
            && text.get(1).is_none_or(|second| {
                self.seconds[first][usize::from(second / 64)] & (1 << (second % 64)) != 0
            })
    }
}

/// Finds openers by the second and third byte of a place.
#[derive(Debug)]
struct Prefixes {
    /// The class of each second and third byte. Bytes that no mark has are in class 0.
    seconds: [u8; 256],
    thirds: [u8; 256],
    width: usize,
    /// The places in the list of openers by both classes, in order.
    lists: Vec<Vec<usize>>,
    /// All places.
    all: Vec<usize>,
}

impl Prefixes {
    fn new(openers: &[Opener]) -> Self {
        let (seconds, height) = byte_classes(openers, 1);
        let (thirds, width) = byte_classes(openers, 2);
        let goes = |opener: &Opener, place: usize, classes: &[u8; 256], class: usize| {
            opener
                .mark
                .as_bytes()
                .get(place)
                .is_none_or(|byte| usize::from(classes[usize::from(*byte)]) == class)
        };
        let list = |cell: usize| {
            let goes = |opener: &Opener| {
                goes(opener, 1, &seconds, cell / width) && goes(opener, 2, &thirds, cell % width)
            };
            (0..openers.len()).filter(|index| goes(&openers[*index])).collect::<Vec<usize>>()
        };
        let lists = (0..height * width).map(list).collect();
        Self { seconds, thirds, width, lists, all: (0..openers.len()).collect() }
    }

    /// Returns the cell for a text; `None` while it is too short.
    fn cell(&self, text: &[u8]) -> Option<usize> {
        let [_, second, third, ..] = text else { return None };
        let class = |classes: &[u8; 256], byte: &u8| usize::from(classes[usize::from(*byte)]);
        Some(class(&self.seconds, second) * self.width + class(&self.thirds, third))
    }

    /// Returns the openers that may begin a text.
    fn candidates(&self, text: &[u8]) -> &[usize] {
        self.cell(text).map_or(&self.all, |cell| &self.lists[cell])
    }
}

/// Assigns a class to each byte that some mark has at that place. The second part is the number of classes.
fn byte_classes(openers: &[Opener], place: usize) -> ([u8; 256], usize) {
    let mut classes = [0; 256];
    let mut count = 1;
    for byte in openers.iter().filter_map(|opener| opener.mark.as_bytes().get(place)) {
        let class = &mut classes[usize::from(*byte)];
        if *class == 0 {
            *class = count;
            count += 1;
        }
    }
    (classes, usize::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_has_a_trigger() {
        let openers = &OPENERS;
        for mark in TABLE
            .iter()
            .filter(|dialect| matches!(dialect.opens, Opens::Anywhere(_)))
            .flat_map(|dialect| dialect.opens.marks())
        {
            let text = format!("{}{mark} tail", "word ".repeat(60));
            let start = text.len() - mark.len() - " tail".len();
            let at = openers.next_trigger(text.as_bytes()).unwrap_or(usize::MAX);
            let begins = if at == start { Some(0) } else { openers.late_before(text.as_bytes(), at) };
            assert_eq!(begins.map(|before| at - before), Some(start), "{mark}");
        }
        assert!(openers.triggers.bytes.len() <= 9, "{:?}", openers.triggers.bytes);
    }

    #[test]
    fn the_beginning_of_a_late_mark_is_held_back() {
        let partial = |text: &str| OPENERS.partial_late(text.as_bytes());
        assert_eq!(partial("and comment"), "comment".len());
        assert_eq!(partial("and assistantcommentary to"), "assistantcommentary to".len());
        assert_eq!(partial("x]"), 1);
        assert_eq!(partial("and so"), 0);
    }
}
