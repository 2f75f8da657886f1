//! Reads one whole reply from standard input: `printf '…' | cargo run --example whole_reply`.

use std::error::Error;
use std::io::{Read, Write};

use tool_call_parser::{Tools, parse};

const TOOLS: &str = r#"[{"type": "function", "function": {"name": "read", "parameters": {"type": "object",
    "required": ["path"], "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}}}}]"#;

fn main() -> Result<(), Box<dyn Error>> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let parsed = parse(&text, Tools::from_json(TOOLS)?);
    let mut out = std::io::stdout().lock();
    writeln!(out, "reasoning: {}", parsed.reasoning)?;
    writeln!(out, "content: {}", parsed.content)?;
    for call in &parsed.calls {
        writeln!(out, "call: {}{} {:?}", call.name, call.arguments, call.problems)?;
    }
    for note in &parsed.notes {
        writeln!(out, "note: {note:?}")?;
    }
    Ok(())
}
