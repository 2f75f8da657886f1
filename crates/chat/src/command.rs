//! The `/commands` and their arguments. Pure. One table serves the help, the completion and the parser.

use super::approvals::ApprovalCommand;
use super::own_command::own_command;

/// A command to the chat itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    /// Show the models, or switch to this one.
    Model(Option<String>),
    Tools,
    /// Begin the read-only mode or end it; `None` changes between the two.
    ReadOnly(Option<bool>),
    /// Forget the calls that need no further question.
    Ask,
    /// Keep the calls that need no further question for this directory.
    Keep,
    Cost,
    /// Show what changed in the files of the directory.
    Diff,
    /// Show the whole result of the call with this number.
    Output(Option<String>),
    /// Show the reasoning of the last turn.
    Thinking,
    Clear,
    /// Have the model summarise the conversation.
    Compact,
    /// Continue an earlier conversation.
    Resume,
    /// Write the conversation to this file.
    Save(Option<String>),
    Undo,
    /// Show or decide calls of agents and experts that wait for consent.
    Approvals(ApprovalCommand),
    Quit,
}

/// Name, argument and effect of each command.
pub(super) const COMMANDS: [(&str, &str, &str); 19] = [
    ("/help", "", "this list"),
    ("/model", "[ID]", "show the models, or switch to another one"),
    ("/output", "[N]", "the whole output of a call (Ctrl-O: the last)"),
    ("/thinking", "", "the model's reasoning in the last turn"),
    ("/tools", "", "what the assistant may do, and what it asks for"),
    ("/readonly", "[on|off]", "let it look and change nothing"),
    ("/keep", "", "make what was answered with always last here"),
    ("/ask", "", "ask again about what was answered with always"),
    ("/cost", "", "tokens of this conversation, and their price"),
    ("/clear", "", "begin a new conversation"),
    ("/resume", "", "continue an earlier conversation from here"),
    ("/compact", "", "summarise this conversation to make room"),
    ("/save", "[FILE]", "write this conversation to a Markdown file"),
    ("/diff", "", "how the files here differ from git's last commit"),
    ("/undo", "", "restore the files that the last turn changed"),
    ("/approvals", "[ID]", "what agents and experts ask consent for"),
    ("/approve", "ID", "let the calls of a request run"),
    ("/reject", "ID [WHY]", "do not let them run"),
    ("/quit", "", "leave (also Ctrl-D)"),
];

/// Keys and their effect.
const KEYS: [(&str, &str); 11] = [
    ("!command", "run a command yourself, with your terminal; the model learns its output"),
    ("@file", "send the text of a file along (Tab finds it by a part of its path)"),
    ("Enter", "send; Alt-Enter, or \\ at the end of a line: a further line"),
    ("Up, Ctrl-R", "earlier inputs"),
    ("Tab", "complete a /command, the ID after /model, or a name after @"),
    ("Esc", "stop the turn, also at a question"),
    ("Ctrl-C", "stop the turn; clear the line; on an empty line twice: leave"),
    ("Ctrl-G", "go on with the message in your editor"),
    ("Ctrl-O", "show the whole output of the last call"),
    ("Ctrl-D", "leave (also exit); at a question: stop the turn"),
    ("y n a t v", "answer a question: yes, no, always, tell it what to do instead, view all"),
];

/// The mistake in a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CommandError {
    #[error("{0} takes no argument")]
    Argument(String),
    #[error("/readonly takes `on` or `off`")]
    OnOrOff,
    #[error("there is no command {0}; /help lists all of them")]
    Unknown(String),
}

/// Parses a line; `None` when it is meant for the model. A path at its beginning is not a command.
///
/// # Errors
/// The mistake in the command.
pub(super) fn read_command(line: &str) -> Option<Result<Command, CommandError>> {
    let line = line.trim();
    match line {
        "exit" | "quit" => return Some(Ok(Command::Quit)),
        "?" | "/" => return Some(Ok(Command::Help)),
        _ => {}
    }
    let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    if !name.starts_with('/') || name[1..].contains('/') || line.contains('\n') {
        return None;
    }
    let argument = Some(argument.trim()).filter(|text| !text.is_empty()).map(str::to_owned);
    let command = match name {
        "/model" => Command::Model(argument),
        "/save" => Command::Save(argument),
        "/output" => Command::Output(argument),
        "/readonly" => match argument.as_deref() {
            None => Command::ReadOnly(None),
            Some("on") => Command::ReadOnly(Some(true)),
            Some("off") => Command::ReadOnly(Some(false)),
            Some(_) => return Some(Err(CommandError::OnOrOff)),
        },
        "/approvals" => Command::Approvals(ApprovalCommand::Show(argument)),
        "/approve" => Command::Approvals(ApprovalCommand::Approve(argument)),
        "/reject" => Command::Approvals(ApprovalCommand::Reject(argument)),
        _ if argument.is_some() && COMMANDS.iter().any(|(known, ..)| *known == name) => {
            return Some(Err(CommandError::Argument(name.to_owned())));
        }
        "/help" | "/?" => Command::Help,
        "/thinking" | "/reasoning" => Command::Thinking,
        "/tools" => Command::Tools,
        "/ask" => Command::Ask,
        "/keep" => Command::Keep,
        "/cost" => Command::Cost,
        "/diff" => Command::Diff,
        "/clear" | "/new" => Command::Clear,
        "/resume" => Command::Resume,
        "/compact" => Command::Compact,
        "/undo" => Command::Undo,
        "/quit" | "/exit" => Command::Quit,
        _ => return Some(Err(CommandError::Unknown(name.to_owned()))),
    };
    Some(Ok(command))
}

/// Returns true for a line that is not meant for the model: a command, or one that the person runs.
pub(super) fn is_for_the_chat(line: &str) -> bool {
    own_command(line).is_some() || read_command(line).is_some()
}

impl Command {
    /// Returns true for one that changes nothing in the conversation: a turn need not end for it.
    fn can_interrupt(&self) -> bool {
        matches!(
            self,
            Self::Help
                | Self::Model(None)
                | Self::Tools
                | Self::Cost
                | Self::Diff
                | Self::Output(_)
                | Self::Thinking
                | Self::Approvals(_)
        )
    }
}

/// Returns true for a line that the chat answers at once, also during a turn: a command that only looks, or
/// one with a mistake in it.
pub(super) fn is_answered_at_once(line: &str) -> bool {
    match read_command(line) {
        Some(Ok(command)) => command.can_interrupt(),
        Some(Err(_)) => true,
        None => false,
    }
}

/// Returns the commands that begin with this text.
pub(super) fn matching_commands(text: &str) -> Vec<&'static str> {
    COMMANDS.iter().map(|(name, ..)| *name).filter(|name| name.starts_with(text)).collect()
}

/// Returns what follows the beginning of a command, if it can be only one: the rest of its name, its argument
/// and its effect.
pub(super) fn command_hint(text: &str) -> Option<String> {
    let begun = |(name, ..): &&(&str, &str, &str)| text.len() > 1 && name.starts_with(text);
    let exact = COMMANDS.iter().find(|(name, ..)| *name == text);
    let mut others = COMMANDS.iter().filter(begun);
    let (name, argument, what) = exact.or_else(|| others.next().filter(|_| others.next().is_none()))?;
    let space = if argument.is_empty() { "" } else { " " };
    Some(format!("{}{space}{argument}  {what}", &name[text.len()..]))
}

/// Returns the list of commands and keys.
pub(super) fn help_text() -> String {
    let commands =
        COMMANDS.map(|(name, argument, what)| format!("  {:<17} {what}\n", format!("{name} {argument}")));
    let keys = KEYS.map(|(keys, what)| format!("  {keys:<17} {what}\n"));
    format!("{}\n{}", commands.concat(), keys.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_for_the_model() {
        let check = |line: &str, expected: Option<Result<Command, &str>>| {
            let found = read_command(line);
            match (&found, &expected) {
                (Some(Err(error)), Some(Err(part))) => assert!(error.to_string().contains(part), "{error}"),
                _ => assert_eq!(found.map(Result::ok), expected.map(Result::ok), "{line}"),
            }
        };
        check("/help", Some(Ok(Command::Help)));
        check(" /model gpt-oss-20b ", Some(Ok(Command::Model(Some("gpt-oss-20b".into())))));
        check("/model", Some(Ok(Command::Model(None))));
        check("/undo now", Some(Err("takes no argument")));
        check("/readonly off", Some(Ok(Command::ReadOnly(Some(false)))));
        check("/readonly maybe", Some(Err("takes `on` or `off`")));
        check("/nope", Some(Err("no command /nope")));
        let reject = ApprovalCommand::Reject(Some("ab12 not now".into()));
        check("/reject ab12 not now", Some(Ok(Command::Approvals(reject))));
        check("/etc/hosts is wrong", None);
        check("fix it", None);
        check("quit", Some(Ok(Command::Quit)));
        check(" ? ", Some(Ok(Command::Help)));
        check("/", Some(Ok(Command::Help)));
        check("quit it", None);
        check("/help\nand more", None);
    }

    #[test]
    fn what_only_looks_is_answered_at_once() {
        for line in ["/cost", "/model", "?", "/output 2", "/nope", "/undo now", "/approvals"] {
            assert!(is_answered_at_once(line), "{line}");
        }
        for line in ["/undo", "/model x", "/clear", "/readonly", "exit", "!ls", "/etc/hosts", "/cost\nmore"] {
            assert!(!is_answered_at_once(line), "{line}");
        }
    }

    #[test]
    fn every_command_is_read_and_has_help() {
        for (name, ..) in COMMANDS {
            assert!(matches!(read_command(name), Some(Ok(_))), "{name}");
            assert!(help_text().contains(name));
            let hint = command_hint(name).unwrap();
            assert!(name.len() + hint.len() <= 58, "too long for a narrow terminal: {name}{hint}");
        }
        assert_eq!(command_hint("/cl").as_deref(), Some("ear  begin a new conversation"));
        assert!(command_hint("/model").unwrap().starts_with(" [ID]  show the models"));
        assert!(command_hint("/approve").unwrap().starts_with(" ID  let the calls"));
        assert_eq!(
            [command_hint("/"), command_hint("/c"), command_hint("/model x"), command_hint("x")],
            [const { None }; 4]
        );
        assert_eq!(matching_commands("/c"), ["/cost", "/clear", "/compact"]);
    }
}
