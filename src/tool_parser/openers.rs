//! Which dialects' marks may stand at a place, told by a few bytes, so that most places cost next to nothing.
//!
//! Built once from the table of dialects. Used by the scanner.

use std::sync::LazyLock;

use super::dialects::{Dialect, Opens, TABLE};

#[derive(Debug)]
pub(super) struct Opener {
    pub(super) mark: &'static str,
    /// The mark's first eight bytes, and which of them it has.
    word: u64,
    mask: u64,
    pub(super) line: bool,
    pub(super) dialect: &'static Dialect,
}

impl Opener {
    fn new(mark: &'static str, line: bool, dialect: &'static Dialect) -> Self {
        let mut bytes = [[0; 8]; 2];
        for (index, byte) in mark.bytes().take(8).enumerate() {
            (bytes[0][index], bytes[1][index]) = (byte, u8::MAX);
        }
        let [word, mask] = bytes.map(u64::from_le_bytes);
        Self { mark, word, mask, line, dialect }
    }

    /// Whether the mark stands there, or as much of it as there is text. One comparison tells most.
    pub(super) fn begins(&self, text: &[u8]) -> bool {
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

/// All marks, by their first byte, in the table's order.
pub(super) static OPENERS: LazyLock<Vec<Vec<Opener>>> = LazyLock::new(|| {
    let mut openers: Vec<Vec<Opener>> = (0..256).map(|_| Vec::new()).collect();
    for dialect in TABLE {
        let (marks, line) = match dialect.opens {
            Opens::Anywhere(marks) => (marks, false),
            Opens::Line(marks) => (marks, true),
            Opens::Name => {
                openers.iter_mut().for_each(|list| list.push(Opener::new("", true, dialect)));
                continue;
            }
        };
        for mark in marks {
            openers[usize::from(mark.as_bytes()[0])].push(Opener::new(mark, line, dialect));
        }
    }
    openers
});

/// Which openers may stand where, by the second and third byte there.
#[derive(Debug)]
pub(super) struct Prefixes {
    /// The class of each second and third byte: those that no mark has are in class 0.
    seconds: [u8; 256],
    thirds: [u8; 256],
    width: usize,
    /// By both classes: places in the list of openers, in order.
    lists: Vec<Vec<usize>>,
    /// Whether one of them may stand in running text.
    running: Vec<bool>,
    /// All places.
    all: Vec<usize>,
}

/// For each first byte.
pub(super) static PREFIXES: LazyLock<Vec<Prefixes>> =
    LazyLock::new(|| OPENERS.iter().map(|openers| Prefixes::new(openers)).collect());

impl Prefixes {
    fn new(openers: &[Opener]) -> Self {
        let (seconds, height) = classes(openers, 1);
        let (thirds, width) = classes(openers, 2);
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
        let lists: Vec<Vec<usize>> = (0..height * width).map(list).collect();
        let running = |list: &Vec<usize>| list.iter().any(|index| !openers[*index].line);
        let running = lists.iter().map(running).collect();
        Self { seconds, thirds, width, lists, running, all: (0..openers.len()).collect() }
    }

    /// The cell for a text; `None` while it is too short to tell.
    fn cell(&self, text: &[u8]) -> Option<usize> {
        let [_, second, third, ..] = text else { return None };
        let class = |classes: &[u8; 256], byte: &u8| usize::from(classes[usize::from(*byte)]);
        Some(class(&self.seconds, second) * self.width + class(&self.thirds, third))
    }

    /// The openers that may stand there, from `from` on.
    pub(super) fn openers(&'static self, text: &[u8], from: usize) -> &'static [usize] {
        let list = self.cell(text).map_or(&self.all, |cell| &self.lists[cell]);
        &list[list.partition_point(|index| *index < from)..]
    }
}

/// A class for each byte that some mark has at that place, and how many classes there are.
fn classes(openers: &[Opener], place: usize) -> ([u8; 256], usize) {
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

/// Whether a mark may begin in running text where these bytes stand.
pub(super) fn may_begin(first: u8, bytes: &[u8]) -> bool {
    let prefixes = &PREFIXES[usize::from(first)];
    prefixes.cell(bytes).is_none_or(|cell| prefixes.running[cell])
}
