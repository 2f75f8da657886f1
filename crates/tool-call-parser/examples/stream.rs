//! Feeds a reply to the engine in small pieces, as a stream brings them, and prints each event when it
//! becomes certain.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;

use tool_call_parser::{End, Engine, Event, Field, Options, Tools};

const TOOLS: &str = r#"[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
    "required": ["city"], "properties": {"city": {"type": "string"}}}}}]"#;
const REPLY: &str = "<think>Two cities.</think>I look at both.\n\
    <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\nOne moment.";

fn main() -> Result<(), Box<dyn Error>> {
    let mut engine = Engine::new(Arc::new(Tools::from_json(TOOLS)?), Options::default());
    let mut events: Vec<Event> = Vec::new();
    let mut out = std::io::stdout().lock();
    for piece in REPLY.as_bytes().chunks(8) {
        engine.push(Field::Content, &String::from_utf8_lossy(piece), &mut events);
        print_events(&mut out, &mut events)?;
    }
    engine.finish(End::default(), &mut events);
    print_events(&mut out, &mut events)?;
    Ok(())
}

fn print_events(out: &mut impl Write, events: &mut Vec<Event>) -> std::io::Result<()> {
    for event in events.drain(..) {
        match event {
            Event::Reasoning(text) => writeln!(out, "reasoning {text:?}")?,
            Event::Content(text) => writeln!(out, "content   {text:?}")?,
            Event::ToolCall(call) => writeln!(out, "call      {}{}", call.name, call.arguments)?,
            Event::Note(note) => writeln!(out, "note      {note:?}")?,
        }
    }
    Ok(())
}
