//! Chooses the next of those that wait: the most urgent; among equals the client that was served least
//! recently, of its conversations the one that was served least recently, of that the oldest request. A
//! request becomes more urgent the longer it waits, so each is served one day. So a client with fifty waiting
//! requests delays another one by a single request, and a crowd of sub-agents does not hold up the
//! conversation that started them. Pure; `gate` is the caller.

use std::collections::HashMap;

use super::priority::Priority;

/// On whose behalf a request waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueClient {
    /// A digest of the client's key and address.
    pub client: u64,
    /// A digest of what names the conversation, or of its beginning.
    pub conversation: u64,
    /// How urgent the request is.
    pub priority: Priority,
}

/// Those that wait, each with what is needed to call it up.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    /// In the order of their arrival.
    waiting: Vec<QueueEntry<T>>,
    clients: LastServed,
    conversations: LastServed,
    turns: u64,
    tickets: u64,
}

#[derive(Debug)]
struct QueueEntry<T> {
    ticket: u64,
    who: QueueClient,
    /// The turn at which it came.
    since: u64,
    call: T,
}

/// The turn at which each was served last. Of two that were never served the one that waits longer is first.
#[derive(Debug, Default)]
struct LastServed(HashMap<u64, u64>);

/// After this many turns a waiting request is as urgent as those of the next priority.
const TURNS_TO_RISE: u64 = 8;

/// The number of clients that are remembered at least; further ones were served too long ago to matter.
const REMEMBERED: u64 = 1024;

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            waiting: vec![],
            clients: LastServed::default(),
            conversations: LastServed::default(),
            turns: 0,
            tickets: 0,
        }
    }
}

impl<T> FairQueue<T> {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Lines up; the ticket is for leaving early.
    pub(super) fn push(&mut self, who: QueueClient, call: T) -> u64 {
        self.tickets += 1;
        self.waiting.push(QueueEntry { ticket: self.tickets, who, since: self.turns, call });
        self.tickets
    }

    /// Takes out the one whose turn it is.
    pub(super) fn pop(&mut self) -> Option<T> {
        let last = |waiting: &QueueEntry<T>| {
            let QueueClient { client, conversation, priority } = waiting.who;
            let risen = (self.turns - waiting.since) / TURNS_TO_RISE;
            let urgency = (priority as u64).saturating_sub(risen);
            (urgency, self.clients.last(client), self.conversations.last(conversation))
        };
        let (next, _) = self.waiting.iter().enumerate().min_by_key(|(_, waiting)| last(waiting))?;
        let next = self.waiting.remove(next);
        self.serve(next.who);
        Some(next.call)
    }

    /// True when one waits that is more urgent than this.
    pub(super) fn has_more_urgent(&self, priority: Priority) -> bool {
        self.waiting.iter().any(|waiting| waiting.who.priority < priority)
    }

    /// Takes note of one that was served, also of one that did not have to wait.
    pub(super) fn serve(&mut self, who: QueueClient) {
        self.turns += 1;
        self.clients.note(who.client, self.turns);
        self.conversations.note(who.conversation, self.turns);
    }

    /// Takes out the holder of a ticket; false when it is not waiting any more.
    pub(super) fn leave(&mut self, ticket: u64) -> bool {
        let place = self.waiting.iter().position(|waiting| waiting.ticket == ticket);
        place.map(|place| self.waiting.remove(place)).is_some()
    }
}

impl LastServed {
    fn last(&self, key: u64) -> u64 {
        self.0.get(&key).copied().unwrap_or_default()
    }

    fn note(&mut self, key: u64, turn: u64) {
        self.0.insert(key, turn);
        if self.0.len() as u64 > 2 * REMEMBERED {
            self.0.retain(|_, last| turn - *last < REMEMBERED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(name: &str) -> QueueClient {
        let mut letters = name.bytes().map(u64::from);
        let (client, conversation) = (letters.next().unwrap(), letters.next().unwrap());
        QueueClient { client, conversation, ..QueueClient::default() }
    }

    /// Requests are named by client, conversation and number; they arrive in this order.
    fn check(arriving: &str, served: &str) {
        let mut queue = FairQueue::default();
        for name in arriving.split_whitespace() {
            queue.push(who(name), name.to_owned());
        }
        let order: Vec<String> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order.join(" "), served);
    }

    #[test]
    fn clients_take_turns_and_so_do_their_conversations() {
        check("Ax1 Ax2 Ax3", "Ax1 Ax2 Ax3");
        check("Ax1 Ax2 Ax3 Ax4 By1 By2", "Ax1 By1 Ax2 By2 Ax3 Ax4");
        check("Ax1 Ax2 Ax3 Ay1 Az1", "Ax1 Ay1 Az1 Ax2 Ax3");
        check("Aa1 Ab1 Ac1 Ad1 Bx1 Bx2", "Aa1 Bx1 Ab1 Bx2 Ac1 Ad1");
    }

    #[test]
    fn the_most_urgent_is_next() {
        let mut queue = FairQueue::default();
        let urgency = [Priority::Background, Priority::Subagent, Priority::Interactive, Priority::Background];
        for (number, priority) in urgency.into_iter().enumerate() {
            queue.push(QueueClient { priority, ..who("Ax") }, number);
        }
        let order: Vec<usize> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [2, 1, 0, 3]);
    }

    /// Two interactive requests wait at any time, and the background request has its turn all the same.
    #[test]
    fn background_requests_do_not_starve() {
        let mut queue = FairQueue::default();
        queue.push(QueueClient { priority: Priority::Background, ..who("Bz") }, "background");
        queue.push(who("Ax"), "interactive");
        let mut turns = 0;
        loop {
            queue.push(who("Ax"), "interactive");
            turns += 1;
            if queue.pop() == Some("background") {
                break;
            }
        }
        assert!((16..=18).contains(&turns), "{turns}");
    }

    #[test]
    fn whoever_comes_back_at_once_is_not_preferred() {
        let mut queue = FairQueue::default();
        for _ in 0..3 {
            queue.push(who("Ax"), 'A');
        }
        let mut order = String::new();
        for _ in 0..3 {
            queue.push(who("By"), 'B');
            order.extend([queue.pop().unwrap(), queue.pop().unwrap()]);
        }
        assert_eq!(order, "ABABAB");
    }

    #[test]
    fn clients_with_a_place_wait_for_the_next() {
        let mut queue = FairQueue::default();
        queue.serve(who("Ax"));
        queue.push(who("Ax"), 'A');
        queue.push(who("By"), 'B');
        assert_eq!(queue.pop(), Some('B'));
    }

    #[test]
    fn who_leaves_is_gone() {
        let mut queue = FairQueue::default();
        let (first, _) = (queue.push(who("Ax"), 1), queue.push(who("Ax"), 2));
        assert!(queue.leave(first) && !queue.leave(first));
        assert_eq!((queue.pop(), queue.pop(), queue.len()), (Some(2), None, 0));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut queue = FairQueue::default();
        for key in 0..10_000 {
            queue.push(QueueClient { client: key, conversation: key, ..QueueClient::default() }, ());
            queue.pop();
        }
        assert!(
            queue.clients.0.len() as u64 <= 2 * REMEMBERED
                && queue.conversations.0.len() as u64 <= 2 * REMEMBERED
        );
    }
}
